"""The committed files that install torchrun queues and jobs: definitions, roles, Deployment; and their page."""

from __future__ import annotations

import itertools
import re
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from launcher.cost import METRICS_URL
from tests.torchrun_manifests import installed
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.api.crd import definitions
from trainyard.operator.manifests import CHECKOUT, DEPLOYMENT, files, main
from trainyard.operator.metrics import Metrics

shipped = cache(files)
PINNED = "registry.example.com/launcher@sha256:" + "ab" * 32


def test_files_committed_are_current() -> None:
    """One test for all files: a test for each would render them when tests are collected."""
    stale = [name for name, text in shipped().items() if (CHECKOUT / name).read_text() != text]
    assert stale == [], "run: make manifests"


def test_files_are_all_that_kubectl_applies() -> None:
    """`kubectl apply -f crd/` applies all files."""
    kept = {
        str(path.relative_to(CHECKOUT)) for top in ("crd", "config") for path in (CHECKOUT / top).rglob("*.*")
    }
    assert kept == {name for name in shipped() if not name.startswith("docs/")}


def test_files_as_yaml_are_the_definitions() -> None:
    for name, definition in definitions().items():
        assert yaml.load(shipped()[f"crd/{name}"], yaml.CSafeLoader) == definition


def test_main_image_changes_only_the_deployment(tmp_path: Path) -> None:
    assert main(["--into", str(tmp_path), "--image", PINNED]) == 0
    for name, content in shipped().items():
        written = (tmp_path / name).read_text()
        if name == "config/deployment.yaml":
            container = _container(written)
            assert container["image"] == container["env"][0]["value"] == PINNED
        else:
            assert written == content


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--into", "{}", "--image", "launcher:latest"], "image is 'launcher:latest'; it must be <name>@sha"),
        (["--into", "{}", "--image", PINNED[:-1]], "it must be <name>@sha256:<64 hex digits>"),
        (["--into", "{}/file"], "Not a directory"),
    ],
)
def test_main_invalid_arguments_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        main([each.format(tmp_path) for each in arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def granted(rules: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return each API group, resource and verb of the rules."""
    return [
        permission
        for each in rules
        for permission in itertools.product(each["apiGroups"], each["resources"], each["verbs"])
    ]


ROLES = [each for each in installed("rbac/role.yaml") if "rules" in each]


@pytest.mark.parametrize("role", ROLES, ids=lambda role: f"{role['kind']}-{role['metadata']['name']}")
def test_role_rules_name_resources_and_verbs_once(role: dict[str, Any]) -> None:
    found = granted(role["rules"])
    assert len(found) == len(set(found))
    for group, resource, verb in found:
        assert re.fullmatch(r"create|delete|deletecollection|get|list|patch|update|watch", verb)
        assert re.fullmatch(r"[a-z0-9]+(/status|/scale)?", resource)
        assert "*" not in group
        assert role["metadata"]["name"] == n.CONTROLLER or group == n.GROUP, "users get nothing else"


def _container(text: str) -> dict[str, Any]:
    *_, made = yaml.load_all(text, yaml.CSafeLoader)
    (found,) = made["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_deployment_never_runs_two_controllers() -> None:
    spec = installed("deployment.yaml")[-1]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def test_deployment_has_ports_and_variables_of_the_code() -> None:
    container = _container(shipped()[DEPLOYMENT])
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"liveness": n.LIVENESS_PORT, "metrics": names.METRICS_PORT}
    assert container["livenessProbe"]["httpGet"] == {"path": n.LIVENESS_PATH, "port": "liveness"}
    assert [each["name"] for each in container["env"]] == [n.ENV_TOOLS_IMAGE, names.ENV_POD_UID]
    assert container["image"] == container["env"][0]["value"]
    assert re.fullmatch(r"launcher\.invalid/launcher@sha256:0{64}", container["image"])


def test_network_policies_have_labels_and_ports_of_the_code() -> None:
    def in_namespace(name: str) -> dict[str, Any]:
        return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}

    def port(number: int | None) -> list[dict[str, Any]]:
        return [{"protocol": "TCP", "port": number}]

    jobs = {"matchExpressions": [{"key": n.LABEL_JOB, "operator": "Exists"}]}
    scrapers = {"namespaceSelector": {"matchLabels": {names.LABEL_SCRAPER: names.SCRAPER}}}
    trainer = port(names.TRAINER_METRICS_PORT)
    closed, metrics, calls = installed("network.yaml")
    assert {each["metadata"]["namespace"] for each in (closed, metrics, calls)} == {n.CONTROLLER_NAMESPACE}
    assert closed["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    assert metrics["spec"]["ingress"] == [{"from": [scrapers], "ports": port(names.METRICS_PORT)}]
    to_workers, to_karpenter = calls["spec"]["egress"][-2:]
    assert to_workers == {"to": [{"namespaceSelector": {}, "podSelector": jobs}], "ports": trainer}
    url = urlsplit(METRICS_URL)
    service, namespace, _ = str(url.hostname).split(".")
    pods = {"podSelector": {"matchLabels": {"app.kubernetes.io/name": service}}}
    assert to_karpenter == {"to": [{**in_namespace(namespace), **pods}], "ports": port(url.port)}
    workers, scraping = installed("network-jobs.yaml")
    assert workers["spec"]["podSelector"] == scraping["spec"]["podSelector"] == jobs
    assert workers["spec"]["ingress"] == [{"from": [{"podSelector": jobs}]}]
    controller = in_namespace(n.CONTROLLER_NAMESPACE)
    assert scraping["spec"]["ingress"] == [{"from": [scrapers, controller], "ports": trainer}]


# --- docs/torchrun.md

PAGE = (CHECKOUT / "docs" / "torchrun.md").read_text()
# Of condition CapacityAvailable, whose message counts nodes.
CONDITIONS = {n.REASON_COUNTED}
REASONS = {value for name, value in vars(n).items() if name.startswith("REASON_")} - CONDITIONS


def test_each_reason_is_reported_with_what_to_do() -> None:
    table, _, rest = PAGE.partition("## Phases and reasons")[2].partition("\n\n`kubectl get tj`")
    reported = set(re.findall(r"`([A-Z][A-Za-z]+)`", table + rest)) | set(
        re.findall(r"^\| ([A-Z]\w+) \| \|", table, re.M)
    )
    assert REASONS - reported == set()


def test_the_page_has_each_metric_with_its_kind_and_labels() -> None:
    metrics = Metrics()
    metrics.count(dict, int)
    for kind in (n.JOB_KIND, n.QUEUE_KIND):
        with metrics.reconcile(kind):
            pass
    served = {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in metrics._registry.collect()
    }
    row = re.compile(r"^\| `(trainyard_torchrun_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
    reported = {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in row.findall(PAGE)}
    assert reported == served
