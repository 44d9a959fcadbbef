"""The live object in the shape of the inputs: drift shows, the server's own additions do not."""

from __future__ import annotations

from typing import Any

import pytest

from local.plugins.kubernetes.objects import AUTONAMED
from local.plugins.kubernetes.projection import import_inputs, project_object


def deployment(**container: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "labels": {"app": "web"}},
        "spec": {
            "replicas": 2,
            "template": {"spec": {"containers": [{"name": "c", "image": "i:1", **container}]}},
        },
    }


def live(inputs: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """As the server would answer: defaults, status and bookkeeping added."""
    container = {**inputs["spec"]["template"]["spec"]["containers"][0], "terminationMessagePath": "/dev/log"}
    return {
        **inputs,
        "metadata": {**inputs["metadata"], "uid": "u", "resourceVersion": "7", "generation": 1},
        "spec": {
            "strategy": {"type": "RollingUpdate"},
            **inputs["spec"],
            **spec,
            "template": {"spec": {"containers": [container]}},
        },
        "status": {"replicas": 2},
    }


def test_what_the_server_adds_is_no_drift() -> None:
    inputs = deployment(resources={"requests": {"cpu": "1000m"}})
    assert project_object(live(inputs), inputs) == inputs


@pytest.mark.parametrize(
    ("written", "stored"),
    [("1000m", "1"), (2, "2"), ("0.5Gi", "512Mi"), ("1e3", "1k"), ("0.1", "100m")],
)
def test_a_quantity_in_another_spelling_is_no_drift(written: Any, stored: str) -> None:
    inputs = deployment(resources={"limits": {"cpu": written}})
    there = live(deployment(resources={"limits": {"cpu": stored}}))
    assert project_object(there, inputs) == inputs


def test_a_text_that_only_looks_like_a_quantity_is_compared_as_text() -> None:
    inputs = deployment()
    inputs["metadata"]["labels"]["app"] = "1000m"
    there = live(deployment())
    there["metadata"]["labels"]["app"] = "1"
    assert project_object(there, inputs)["metadata"]["labels"]["app"] == "1"


def test_a_changed_value_and_a_removed_field_show() -> None:
    inputs = deployment(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}])
    changed = live(deployment(env=[{"name": "B", "value": "3"}]), replicas=5)
    found = project_object(changed, inputs)
    assert found["spec"]["replicas"] == 5
    assert found["spec"]["template"]["spec"]["containers"][0]["env"] == [{"name": "B", "value": "3"}]


def test_items_that_others_add_to_a_keyed_list_are_not_ours() -> None:
    inputs = deployment()
    there = live(inputs)
    there["spec"]["template"]["spec"]["containers"].insert(0, {"name": "injected", "image": "sidecar"})
    assert project_object(there, inputs) == inputs


def test_an_item_added_to_a_plain_list_shows() -> None:
    inputs = {"kind": "ClusterRole", "rules": [{"verbs": ["get"]}]}
    there = {"kind": "ClusterRole", "rules": [{"verbs": ["get", "delete"]}, {"verbs": ["*"]}]}
    assert project_object(there, inputs)["rules"] == there["rules"]


def test_empty_values_that_the_server_leaves_out_are_no_drift() -> None:
    inputs = {
        "kind": "X",
        "spec": {"empty": {}, "none": None, "off": False, "zero": 0, "list": [], "deep": {"a": ""}},
    }
    assert project_object({"kind": "X", "spec": {}}, inputs) == inputs


def test_a_value_that_went_missing_is_drift() -> None:
    assert project_object({"kind": "X", "spec": {}}, {"kind": "X", "spec": {"on": True}})["spec"] == {}


def test_string_data_is_compared_with_what_is_stored() -> None:
    inputs = {"kind": "Secret", "stringData": {"password": "old", "user": "u"}}
    stored = {"kind": "Secret", "data": {"password": "bmV3", "user": "dQ=="}}
    assert project_object(stored, inputs)["stringData"] == {"password": "new", "user": "u"}


def test_status_in_a_manifest_is_never_compared() -> None:
    inputs = {"kind": "X", "status": {"conditions": []}}
    assert project_object({"kind": "X", "status": {"conditions": [1]}}, inputs) == inputs


def test_an_automatic_name_stays_automatic() -> None:
    inputs = {"kind": "X", "metadata": {"name": "x-1", "annotations": {AUTONAMED: "true"}}}
    found = project_object({"kind": "X", "metadata": {"name": "x-1"}}, inputs)
    assert found["metadata"]["annotations"] == {AUTONAMED: "true"}


def test_an_imported_object_leaves_out_what_the_server_sets() -> None:
    there = {"kind": "X", "metadata": {"name": "x", "uid": "u", "managedFields": []}, "spec": 1, "status": 2}
    assert import_inputs(there) == {"kind": "X", "metadata": {"name": "x"}, "spec": 1}
