"""Objects of charts, from what Helm renders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.policy.charts import MARK, ChartError, arguments, objects, values
from tests.integration.policy.checkov import manifests
from tests.integration.policy.rendering import with_charts
from tests.unit.policies.building import made
from trainyard.policies.evaluate import evaluate
from trainyard.policies.kubernetes import RELEASE
from trainyard.policies.model import UNKNOWN, Resource, Stack

# A chart of nobody's: a Deployment with an image by its tag, rights to everything, and a template that gave nothing.
RENDERED = f"""---
# Source: buyer/templates/deployment.yaml
apiVersion: apps/v1
kind: Deployment
metadata:
  name: buyer
spec:
  template:
    spec:
      serviceAccountName: buyer
      containers:
        - name: buyer
          image: registry.example/buyer:v1
          env:
            - {{name: QUEUE, value: "https://{MARK}/queue"}}
            - {{name: REGION, value: "us-west-2"}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: buyer
rules:
  - {{apiGroups: [""], resources: ["secrets"], verbs: ["*"]}}
---
# Source: buyer/templates/nothing.yaml
---
apiVersion: v1
kind: List
items:
  - apiVersion: v1
    kind: ServiceAccount
    metadata: {{name: buyer, namespace: elsewhere}}
"""


def release(**more: Any) -> Resource:
    properties = {"name": "buyer", "namespace": "buying", "chart": "/charts/buyer", **more}
    return made(RELEASE, "shop", **properties)


def by_type(found: list[Resource]) -> dict[str, Resource]:
    return {each.type: each for each in found}


def test_each_object_is_a_resource_named_after_its_release() -> None:
    found = by_type(objects(release(), RENDERED))
    assert {type_: each.name for type_, each in found.items()} == {
        "kubernetes:apps/v1:Deployment": "shop:buying/buyer",
        "kubernetes:rbac.authorization.k8s.io/v1:ClusterRole": "shop:buyer",
        "kubernetes:core/v1:ServiceAccount": "shop:elsewhere/buyer",
    }
    assert len({each.urn for each in found.values()}) == 3


def test_an_object_without_a_namespace_lies_in_its_releases() -> None:
    found = by_type(objects(release(), RENDERED))
    assert found["kubernetes:apps/v1:Deployment"].at("metadata", "namespace") == "buying"
    assert not found["kubernetes:rbac.authorization.k8s.io/v1:ClusterRole"].has("metadata", "namespace")


def test_rules_check_the_objects_of_a_chart() -> None:
    violated = {
        (each.resource.name, each.rule.id)
        for each in evaluate(Stack(objects(release(), RENDERED))).violations
    }
    assert ("shop:buying/buyer", "pod-groups") in violated
    assert ("shop:buyer", "rights-no-secrets") in violated


def test_checkov_gets_them_as_manifests() -> None:
    given = {each.name: manifest for each, manifest in manifests(Stack(objects(release(), RENDERED)))}
    deployment = given["shop:buying/buyer"]
    assert (deployment["apiVersion"], deployment["kind"]) == ("apps/v1", "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "QUEUE"}, {"name": "REGION", "value": "us-west-2"}]


def test_what_is_not_known_goes_to_helm_as_a_mark_and_comes_back_as_unknown() -> None:
    given = {"settings": {"queue": UNKNOWN, "replicas": 2}, "extra": ["a", UNKNOWN]}
    assert json.loads(values(release(values=given))) == {
        "settings": {"queue": MARK, "replicas": 2},
        "extra": ["a", MARK],
    }
    (container,) = by_type(objects(release(), RENDERED))["kubernetes:apps/v1:Deployment"].properties["spec"][
        "template"
    ]["spec"]["containers"]
    assert container["env"][0]["value"] is UNKNOWN


def test_helm_is_asked_for_what_the_release_installs() -> None:
    assert arguments(release(skipCrds=True, version="1.2.3")) == [
        *("buyer", "/charts/buyer", "--namespace", "buying"),
        *("--version", "1.2.3", "--skip-crds", "--skip-tests"),
    ]
    assert "--include-crds" in arguments(release())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chart": UNKNOWN}, "release shop can't be rendered: chart is not known before an update"),
        ({"valueYamlFiles": ["a"]}, "release shop has valueYamlFiles"),
        ({"repositoryOpts": {"repo": "https://charts.example"}}, "release shop has repositoryOpts"),
    ],
)
def test_a_release_that_cannot_be_rendered_is_an_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ChartError) as refused:
        arguments(release(**change))
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("text", ["a: [", "just a text", "apiVersion: v1\nkind: Pod", "metadata: {name: a}"])
def test_output_that_is_no_object_is_an_error_of_one_line(text: str) -> None:
    with pytest.raises(ChartError) as refused:
        objects(release(), text)
    assert str(refused.value).startswith("the chart of release shop gives ")
    assert "\n" not in str(refused.value)


def helm(directory: Path, script: str) -> Path:
    """A program in Helm's place."""
    program = directory / "helm"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def test_a_stack_has_the_objects_that_helm_renders(tmp_path: Path) -> None:
    (tmp_path / "rendered.yaml").write_text(RENDERED)
    # It keeps what it was asked, and the file after --values (its ninth argument).
    program = helm(tmp_path, f'cd {tmp_path}; echo "$@" >asked; cat "$9" >values; cat rendered.yaml')
    stack = with_charts(Stack([release(values={"queue": UNKNOWN})]), program)
    assert [each.name for each in stack.resources] == [
        "shop",
        "shop:buying/buyer",
        "shop:buyer",
        "shop:elsewhere/buyer",
    ]
    asked = (tmp_path / "asked").read_text()
    assert asked.startswith(
        "template buyer /charts/buyer --namespace buying --include-crds --skip-tests --values "
    )
    assert json.loads((tmp_path / "values").read_text()) == {"queue": MARK}


def test_an_error_of_helm_is_one_line(tmp_path: Path) -> None:
    program = helm(tmp_path, "printf 'Error: no such\\nchart\\n' >&2; exit 1")
    with pytest.raises(ChartError, match=r"^release shop can't be rendered: Error: no such chart$"):
        with_charts(Stack([release()]), program)


def test_a_missing_helm_is_named(tmp_path: Path) -> None:
    with pytest.raises(ChartError, match=r"^release shop can't be rendered: .*/nowhere: No such file"):
        with_charts(Stack([release()]), tmp_path / "nowhere")
