"""What installs torchrun queues and jobs: the committed files, the controller's rights and its Deployment."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainyard.k8s import names
from trainyard.operator import deployment, people, rights
from trainyard.operator.core import names as n
from trainyard.operator.manifests import CHECKOUT, files, main
from trainyard.operator.schema.definitions import definitions

pytestmark = pytest.mark.unit

shipped = cache(files)
PINNED = "registry.example.com/launcher@sha256:" + "ab" * 32


def test_committed_files_are_current() -> None:
    """One test for all files: a test for each would render them when tests are collected."""
    stale = [name for name, text in shipped().items() if (CHECKOUT / name).read_text() != text]
    assert stale == [], "run: make manifests"


def test_the_directories_hold_nothing_else() -> None:
    """`kubectl apply -f crd/` takes whatever is there."""
    kept = {
        str(path.relative_to(CHECKOUT)) for top in ("crd", "config") for path in (CHECKOUT / top).rglob("*.*")
    }
    assert kept == {name for name in shipped() if not name.startswith("docs/")}


def test_manifests_as_yaml_are_the_objects_of_the_code() -> None:
    for name, definition in definitions().items():
        assert yaml.load(shipped()[f"crd/{name}"], yaml.CSafeLoader) == definition
    assert list(yaml.load_all(shipped()["config/deployment.yaml"], yaml.CSafeLoader)) == deployment.objects()
    assert list(yaml.load_all(shipped()["config/rbac/role.yaml"], yaml.CSafeLoader)) == [
        *rights.roles(),
        *rights.bindings(),
        *(each.manifest() for each in people.ROLES),
    ]


def test_an_image_that_is_given_is_in_the_deployment_and_nothing_else_is_different(tmp_path: Path) -> None:
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
    ("arguments", "told"),
    [
        (
            ["--into", "{}", "--image", "launcher:latest"],
            "image 'launcher:latest' is not given by its digest",
        ),
        (["--into", "{}", "--image", PINNED[:-1]], "it must be <name>@sha256:<64 hex digits>"),
        (["--into", "{}/file"], "Not a directory"),
    ],
)
def test_what_is_wrong_is_told_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main([each.format(tmp_path) for each in arguments])
    assert ended.value.code == 2
    assert told in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_every_right_is_one_verb_on_one_resource_and_stands_once() -> None:
    said = [
        (each.group, resource, verb)
        for each in (*rights.RIGHTS, *rights.OWN_RIGHTS)
        for resource in each.resources
        for verb in each.verbs
    ]
    assert len(said) == len(set(said))
    for group, resource, verb in said:
        assert re.fullmatch(r"create|delete|get|list|patch|update|watch", verb), (resource, verb)
        assert re.fullmatch(r"[a-z0-9]+(/status)?", resource)
        assert "*" not in group


def test_no_right_leads_to_more() -> None:
    """Who reads Secrets, runs commands in pods or writes roles has the rights of others."""
    touched = {resource for each in rights.RIGHTS for resource in each.resources}
    assert touched.isdisjoint(
        {"secrets", "roles", "rolebindings", "clusterroles", "clusterrolebindings", "users"}
    )
    assert touched.isdisjoint({"serviceaccounts", "configmaps", "deployments", "daemonsets"})


def test_rights_have_their_reasons_in_the_file() -> None:
    text = shipped()["config/rbac/role.yaml"]
    of_people = [right for role in people.ROLES for right in role.rights]
    for each in (*rights.RIGHTS, *rights.OWN_RIGHTS, *of_people):
        assert f"  # {each.why}\n  - {{apiGroups: [{each.group or repr('')}]" in text


def test_people_have_rights_on_torchrun_jobs_and_queues_alone_and_never_the_controllers_own() -> None:
    """Whoever writes a status tells the controller what has happened."""
    for role in people.ROLES:
        for each in role.rights:
            assert each.group == n.GROUP
            assert each.verbs == ("get",) or not any(one.endswith("/status") for one in each.resources)
            assert "*" not in (*each.resources, *each.verbs)


def test_each_role_of_people_may_all_that_the_one_below_it_may() -> None:
    view, edit, admin = (set(each.rights) for each in people.ROLES)
    assert view < edit < admin
    changed = {resource for each in view for resource in each.resources if "update" in each.verbs}
    assert changed == set()


def test_the_binding_is_for_the_deployments_account() -> None:
    _, account, made = deployment.objects()
    for role, binding in zip(rights.roles(), rights.bindings(), strict=True):
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


def test_one_controller_runs_and_never_two() -> None:
    spec = deployment.objects()[-1]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_liveness_is_asked_where_kopf_answers() -> None:
    container = _container()
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    probe = container["livenessProbe"]["httpGet"]
    assert (ports[probe["port"]], probe["path"]) == (n.LIVENESS_PORT, "/healthz")
    assert ports["metrics"] == names.METRICS_PORT


def test_the_image_is_one_by_its_digest() -> None:
    assert _container()["image"] == deployment.checked(deployment.IMAGE)
