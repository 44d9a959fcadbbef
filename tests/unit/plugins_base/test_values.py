"""Property values on the wire, and which of them stay secret."""

from __future__ import annotations

import pytest
from google.protobuf import struct_pb2

from local.plugins.values import (
    OUTPUT,
    RESOURCE,
    SIGNATURE,
    UNKNOWN,
    Secret,
    contains_unknown,
    diff_paths,
    fill_struct,
    mark_secrets,
    struct_to_props,
    without_secrets,
)


def over_the_wire(props: dict) -> dict:
    struct = struct_pb2.Struct()
    fill_struct(struct, props)
    return struct_to_props(struct)


def test_values_survive_the_wire_with_integers_unknowns_secrets_and_empty_ones() -> None:
    props = {"a": 1, "b": 1.5, "c": UNKNOWN, "d": Secret("x"), "e": {}, "f": [], "g": None, "h": [True, "t"]}
    back = over_the_wire(props)
    assert back == props
    assert isinstance(back["a"], int)


def test_a_resource_reference_stands_for_its_id_and_for_unknown_while_it_has_none() -> None:
    def reference(**fields: str) -> dict:
        return over_the_wire({"r": {SIGNATURE: RESOURCE, "urn": "urn:x", **fields}})["r"]

    assert reference(id="vpc-1") == "vpc-1"
    assert reference(id="") is UNKNOWN
    assert reference() == "urn:x", "a component has no id"


def test_an_output_value_without_a_value_is_unknown_and_keeps_its_secrecy() -> None:
    assert over_the_wire({"o": {SIGNATURE: OUTPUT}})["o"] is UNKNOWN
    assert over_the_wire({"o": {SIGNATURE: OUTPUT, "value": 1, "secret": True}})["o"] == Secret(1)


def test_outputs_are_marked_where_the_inputs_are_secret_and_nowhere_else() -> None:
    inputs = {"data": {"password": Secret("p"), "user": "u"}, "list": [{"x": Secret(1)}]}
    marked = mark_secrets({"data": {"password": "p", "user": "u"}, "list": [{"x": 1}], "id": 7}, inputs)
    assert marked == {"data": {"password": Secret("p"), "user": "u"}, "list": Secret([{"x": 1}]), "id": 7}
    assert without_secrets(marked)["data"]["password"] == "p"


def test_a_secret_object_marks_the_whole_output() -> None:
    assert mark_secrets({"data": {"a": "b"}}, {"data": Secret({"a": "b"})}) == {"data": Secret({"a": "b"})}


def test_differences_are_named_by_path_and_unknown_counts_as_one() -> None:
    old = {"spec": {"replicas": 1, "list": ["a"]}, "gone": 1, "same": {"a.b": 1}}
    new = {"spec": {"replicas": UNKNOWN, "list": ["a", "b"]}, "added": 1, "same": {"a.b": 2}}
    assert diff_paths(old, new) == {
        "added": "add",
        "gone": "delete",
        'same["a.b"]': "update",
        "spec.list[1]": "add",
        "spec.replicas": "update",
    }


def test_true_is_not_one() -> None:
    assert diff_paths({"a": 1}, {"a": True}) == {"a": "update"}


def test_unknown_refuses_to_decide_anything() -> None:
    assert contains_unknown({"a": [{"b": Secret(UNKNOWN)}]})
    with pytest.raises(TypeError, match="no truth value"):
        bool(UNKNOWN)
