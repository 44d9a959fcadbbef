from __future__ import annotations

import copy
from typing import Any
from urllib.parse import urlsplit

import pytest

from components.shared.operator_manifests import token, waves
from infra import versions

pytestmark = pytest.mark.unit

WEBHOOKS = (
    "validator.pytorchjob.training-operator.kubeflow.org",
    "validator.tfjob.training-operator.kubeflow.org",
)


def thing(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **more}


def published() -> list[dict[str, Any]]:
    container = {"name": "training-operator", "image": "published"}
    return [
        thing("CustomResourceDefinition", "tfjobs.kubeflow.org"),
        thing("CustomResourceDefinition", "pytorchjobs.kubeflow.org", status={"conditions": []}),
        thing("Service", "training-operator"),
        thing("ServiceAccount", "training-operator"),
        thing("Deployment", "training-operator", spec={"template": {"spec": {"containers": [container]}}}),
        thing("ValidatingWebhookConfiguration", "v", webhooks=[{"name": name} for name in WEBHOOKS]),
        thing("Namespace", "kubeflow"),
    ]


def find(kind: str, given: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [each for wave in given for each in wave if each["kind"] == kind]


def test_only_what_pytorchjobs_need_is_kept() -> None:
    kept = waves(published(), None)
    assert [each["metadata"]["name"] for each in find("CustomResourceDefinition", kept)] == [
        "pytorchjobs.kubeflow.org"
    ]
    assert [hook["name"] for hook in find("ValidatingWebhookConfiguration", kept)[0]["webhooks"]] == [
        WEBHOOKS[0]
    ]
    assert "status" not in find("CustomResourceDefinition", kept)[0]


def test_the_namespace_comes_first_and_the_pods_with_their_service_last() -> None:
    first, second, last = waves(published(), None)
    assert [each["kind"] for each in first] == ["Namespace"]
    assert {each["kind"] for each in second} == {"CustomResourceDefinition", "ServiceAccount"}
    assert {each["kind"] for each in last} == {"Deployment", "Service", "ValidatingWebhookConfiguration"}


@pytest.mark.parametrize(("image", "expected"), [(None, "published"), ("ours", "ours")])
def test_the_operator_gets_our_arguments_and_image(image: str | None, expected: str) -> None:
    given = published()
    before = copy.deepcopy(given)
    container = find("Deployment", waves(given, image))[0]["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == ["--enable-scheme=pytorchjob", "--controller-threads=4"]
    assert container["image"] == expected
    assert given == before, "the given manifests were changed"


def test_the_operators_namespace_refuses_privileged_pods() -> None:
    (namespace,) = find("Namespace", waves(published(), None))
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "baseline"}


def test_manifests_without_the_webhook_are_refused() -> None:
    objects = published()
    find("ValidatingWebhookConfiguration", [objects])[0]["webhooks"].pop(0)
    with pytest.raises(ValueError, match=r"no webhook validator\.pytorchjob"):
        waves(objects, None)


def test_manifests_without_the_operator_are_refused() -> None:
    with pytest.raises(ValueError, match="no Deployment training-operator"):
        waves([each for each in published() if each["kind"] != "Deployment"], None)


def test_the_published_manifests_are_named_as_kubectl_takes_them() -> None:
    """`kubectl kustomize` reads the default branch where the release stands in the path and not in `ref`."""
    address = urlsplit(versions.TRAINING_OPERATOR_MANIFESTS)
    repository, _, directory = address.path.partition("//")
    assert (repository, directory) == ("/kubeflow/training-operator", "manifests/overlays/standalone")
    assert address.query == f"ref={versions.TRAINING_OPERATOR}"


def test_tokens_name_group_version_and_kind() -> None:
    assert token({"apiVersion": "v1", "kind": "Service"}) == "kubernetes:core/v1:Service"
    assert token({"apiVersion": "apps/v1", "kind": "Deployment"}) == "kubernetes:apps/v1:Deployment"
