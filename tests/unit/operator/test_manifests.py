"""The committed files that install torchrun queues and jobs: definitions, roles, Deployment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.k8s import names
from trainyard.operator import deployment, rbac
from trainyard.operator import names as n
from trainyard.operator.api.crd import definitions
from trainyard.operator.manifests import CHECKOUT, files, main

pytestmark = pytest.mark.unit

shipped = cache(files)
PINNED = "registry.example.com/launcher@sha256:" + "ab" * 32


def test_committed_files_are_current() -> None:
    """One test for all files: a test for each would render them when tests are collected."""
    stale = [name for name, text in shipped().items() if (CHECKOUT / name).read_text() != text]
    assert stale == [], "run: make manifests"


def test_directories_have_no_other_files() -> None:
    """`kubectl apply -f crd/` applies all files."""
    kept = {
        str(path.relative_to(CHECKOUT)) for top in ("crd", "config") for path in (CHECKOUT / top).rglob("*.*")
    }
    assert kept == {name for name in shipped() if not name.startswith("docs/")}


def test_manifests_as_yaml_are_the_objects_of_the_code() -> None:
    for name, definition in definitions().items():
        assert yaml.load(shipped()[f"crd/{name}"], yaml.CSafeLoader) == definition
    assert list(yaml.load_all(shipped()["config/deployment.yaml"], yaml.CSafeLoader)) == deployment.objects()
    # Users' roles come after the bindings.
    roles = [{**role, "rules": [each.manifest() for each in rules]} for role, rules in rbac.roles()]
    written = list(yaml.load_all(shipped()["config/rbac/role.yaml"], yaml.CSafeLoader))
    assert written == [*roles[:2], *rbac.bindings(), *roles[2:]]


def test_image_changes_the_deployment_only(tmp_path: Path) -> None:
    assert main(["--into", str(tmp_path), "--image", PINNED]) == 0
    for name, content in shipped().items():
        written = (tmp_path / name).read_text()
        if name == "config/deployment.yaml":
            (made,) = [
                each for each in yaml.load_all(written, yaml.CSafeLoader) if each["kind"] == "Deployment"
            ]
            assert made["spec"]["template"]["spec"]["containers"][0]["image"] == PINNED
            assert deployment.IMAGE not in written
        else:
            assert written == content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--into", "{}", "--image", "launcher:latest"],
            "image is 'launcher:latest'; it must be <name>@sha256",
        ),
        (["--into", "{}", "--image", PINNED[:-1]], "it must be <name>@sha256:<64 hex digits>"),
        (["--into", "{}/file"], "Not a directory"),
    ],
)
def test_invalid_arguments_are_reported_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main([each.format(tmp_path) for each in arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def granted(rules: Iterable[rbac.Rule]) -> list[tuple[str, str, str]]:
    """Return each API group, resource and verb of the rules."""
    return [
        (each.group, resource, verb)
        for each in rules
        for resource in each.resources.split()
        for verb in each.verbs.split()
    ]


@pytest.mark.parametrize("rules", [rules for _, rules in rbac.roles()])
def test_rules_name_resources_and_verbs_once(rules: Sequence[rbac.Rule]) -> None:
    found = granted(rules)
    assert len(found) == len(set(found))
    for group, resource, verb in found:
        assert re.fullmatch(r"create|delete|deletecollection|get|list|patch|update|watch", verb)
        assert re.fullmatch(r"[a-z0-9]+(/status|/scale)?", resource)
        assert "*" not in group


def test_controller_cannot_gain_permissions() -> None:
    """A subject that reads Secrets, runs commands in pods or writes roles gets the permissions of others."""
    resources = {resource for _, resource, _ in granted(rbac.CLUSTER_RULES)}
    assert resources.isdisjoint(
        {"secrets", "roles", "rolebindings", "clusterroles", "clusterrolebindings", "users"}
    )
    assert resources.isdisjoint({"serviceaccounts", "configmaps", "deployments", "daemonsets"})


def test_users_cannot_write_status() -> None:
    """The controller trusts the status that it reads."""
    view, edit, admin = (set(granted(rules)) for rules in rbac.USER_ROLES.values())
    assert view < edit < admin
    assert {verb for _, _, verb in view} == {"get", "list", "watch"}
    for group, resource, verb in admin:
        assert group == n.GROUP
        assert verb == "get" or not resource.endswith("/status")


def test_role_bindings_name_the_deployments_account() -> None:
    _, account, made = deployment.objects()
    for (role, _), binding in zip(rbac.roles(), rbac.bindings(), strict=False):
        (subject,) = binding["subjects"]
        assert subject["name"] == account["metadata"]["name"]
        assert subject["name"] == made["spec"]["template"]["spec"]["serviceAccountName"]
        assert subject["namespace"] == account["metadata"]["namespace"] == made["metadata"]["namespace"]
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) == (
            role["kind"],
            role["metadata"]["name"],
        )


def _container() -> dict[str, Any]:
    (found,) = deployment.objects()[-1]["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_two_controllers_never_run() -> None:
    spec = deployment.objects()[-1]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_liveness_probe_asks_the_port_of_the_controller() -> None:
    container = _container()
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    probe = container["livenessProbe"]["httpGet"]
    assert (ports[probe["port"]], probe["path"]) == (n.LIVENESS_PORT, "/healthz")
    assert ports["metrics"] == names.METRICS_PORT


def test_image_has_a_digest() -> None:
    assert _container()["image"] == deployment.check_image(deployment.IMAGE)
