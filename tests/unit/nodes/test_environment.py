from __future__ import annotations

import base64
from typing import Any

import pytest

from local.nodes import environment
from local.nodes.environment import Facts, MissingReference

CONFIG = {"conf": {"data": {"colour": "blue", "size": "3"}}}
SECRETS = {"pass": {"data": {"key": base64.b64encode(b"secret").decode()}}}


def facts() -> Facts:
    pod = {
        "metadata": {
            "name": "p", "namespace": "n", "uid": "u", "labels": {"a.b/c": "d"}, "annotations": {"x": "y"},
        },
        "spec": {"nodeName": "node", "serviceAccountName": "sa", "containers": [
            {"name": "other", "resources": {"limits": {"memory": "2Gi"}}},
        ]},
    }  # fmt: skip
    return Facts(pod, "127.96.0.9", "127.0.0.1", {"cpu": "3920m", "memory": "1Gi"}, CONFIG.get, SECRETS.get)


def declared(*entries: dict[str, Any], **container: Any) -> dict[str, str]:
    return environment.declared(facts(), {"env": list(entries), **container})


def value_from(**source: Any) -> dict[str, Any]:
    return {"name": "V", "valueFrom": source}


def test_environment_expands_known_references_in_order() -> None:
    known = {"A": "1"}
    assert environment.expand("$(A)-$(B)-$$(A)-$A", known) == "1-$(B)-$(A)-$A"
    found = declared(
        {"name": "A", "value": "x"}, {"name": "B", "value": "$(A)y$(C)"}, {"name": "C", "value": "z"}
    )
    assert found["B"] == "xy$(C)"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "p"),
        ("metadata.labels['a.b/c']", "d"),
        ("metadata.annotations['none']", ""),
        ("status.podIP", "127.96.0.9"),
        ("spec.nodeName", "node"),
        ("spec.serviceAccountName", "sa"),
    ],
)
def test_downward_api_has_the_fields_of_the_pod(path: str, expected: str) -> None:
    assert declared(value_from(fieldRef={"fieldPath": path})) == {"V": expected}


def test_downward_api_unknown_field_is_named() -> None:
    with pytest.raises(ValueError, match=r"'spec\.nothing' is not one of"):
        declared(value_from(fieldRef={"fieldPath": "spec.nothing"}))


def test_resource_field_is_in_units_of_its_divisor() -> None:
    limit = {"resource": "limits.memory", "containerName": "other", "divisor": "1Mi"}
    assert declared(value_from(resourceFieldRef=limit)) == {"V": "2048"}
    cpu = {"resource": "requests.cpu", "divisor": "1"}
    container = {"resources": {"requests": {"cpu": "1500m"}}}
    assert declared(value_from(resourceFieldRef=cpu), **container) == {"V": "2"}


def test_resource_field_unset_limit_is_the_nodes_amount() -> None:
    assert declared(value_from(resourceFieldRef={"resource": "limits.cpu", "divisor": "1m"})) == {"V": "3920"}


def test_key_reference_missing_object_is_named() -> None:
    assert declared(value_from(configMapKeyRef={"name": "conf", "key": "colour"})) == {"V": "blue"}
    assert declared(value_from(secretKeyRef={"name": "pass", "key": "key"})) == {"V": "secret"}
    with pytest.raises(MissingReference, match="secret 'nosuch' not found"):
        declared(value_from(secretKeyRef={"name": "nosuch", "key": "key"}))
    with pytest.raises(MissingReference, match="key 'k' of configmap 'conf' not found"):
        declared(value_from(configMapKeyRef={"name": "conf", "key": "k"}))


def test_key_reference_missing_optional_is_left_out() -> None:
    assert declared(value_from(secretKeyRef={"name": "nosuch", "key": "key", "optional": True})) == {}


def test_env_overrides_env_from_with_its_prefix() -> None:
    sources = [{"prefix": "P_", "configMapRef": {"name": "conf"}}, {"secretRef": {"name": "pass"}}]
    found = declared({"name": "P_size", "value": "9"}, envFrom=sources)
    assert found == {"P_colour": "blue", "P_size": "9", "key": "secret"}


def test_environment_pod_overrides_injected_overrides_image() -> None:
    own, image, injected = {"A": "pod"}, {"A": "image", "B": "image"}, {"A": "in", "B": "in"}
    found = environment.complete(own, image, injected, "p", "127.64.0.1")
    assert (found["A"], found["B"]) == ("pod", "in")
    assert (found["OMP_NUM_THREADS"], found["HOSTNAME"]) == ("1", "p")
    assert found["KUBERNETES_SERVICE_HOST"] == "127.64.0.1"


def test_environment_of_role_has_a_token_and_no_key() -> None:
    found = environment.web_identity("arn:aws:iam::1:role/r", "us-west-2", "http://127.0.0.1:1")
    assert found["AWS_ROLE_ARN"] == "arn:aws:iam::1:role/r"
    assert found["AWS_DEFAULT_REGION"] == found["AWS_REGION"] == "us-west-2"
    assert found["AWS_ENDPOINT_URL_STS"] == found["AWS_ENDPOINT_URL"] == "http://127.0.0.1:1"
    assert not [name for name in found if "ACCESS_KEY" in name]
