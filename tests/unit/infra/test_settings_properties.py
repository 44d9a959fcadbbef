"""Any stack file is either read or refused with the path of every error."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.documents import efa, instance_types
from infra.settings import SettingsError, read
from infra.settings.reference import keys
from tests.unit.infra.changing import BASE, NOW
from tests.unit.infra.examples import BOTH

# Between them they have every key.
RIGHT = [*BOTH, BASE]

# Values that users write by accident: every type, boundary numbers, strings that look like another type.
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        [
            "true",
            "1.35",
            "10.0.0.0/16",
            "us-west-2b",
            "g5.12xlarge",
            "vpc-0123456789abcdef0",
            "\\0",
            "[",
            "{}",
            "nul",
        ]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
LINE = re.compile(r"^(aws:region|trainyard:[^\n]*?): [^\n]+$", re.DOTALL)


def paths(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a nested configuration."""
    found = [here] if here else []
    if isinstance(value, dict):
        for key, entry in value.items():
            found += paths(entry, (*here, key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            found += paths(entry, (*here, index))
    return found


def changed(config: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    result = copy.deepcopy(config)
    target: Any = result
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return result


def outcome(config: dict[str, Any]) -> list[str]:
    """Return the error lines; empty if the stack file is valid. Any exception but SettingsError fails the test."""
    try:
        read("test", config, NOW)
    except SettingsError as error:
        return error.lines or ["an error without a mistake"]
    return []


@st.composite
def mutations(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[Any, ...], Any]:
    config = draw(st.sampled_from(RIGHT))
    places = [path for path in paths(config) if path[0].startswith("trainyard:")]
    return config, draw(st.sampled_from(places)), draw(VALUES)


@settings(max_examples=100)
@given(mutations())
@pytest.mark.long
def test_any_value_is_read_or_reported_with_its_path(
    mutation: tuple[dict[str, Any], tuple[Any, ...], Any],
) -> None:
    for line in outcome(changed(*mutation)):
        assert LINE.match(line), f"no path and message: {line!r}"
        assert line.isprintable(), f"more than one line, or worse: {line!r}"


@settings(max_examples=30)
@given(
    st.dictionaries(st.sampled_from([f"trainyard:{key.split('.')[0]}" for key in keys()]) | st.text(), VALUES)
)
@pytest.mark.long
def test_any_sections_are_read_or_reported(config: dict[str, Any]) -> None:
    lines = outcome({"aws:region": "us-west-2", **config})
    assert any(line.startswith("trainyard:") for line in lines), "no pools, but no error was reported"


@settings(max_examples=40)
@given(mutations(), st.text(alphabet="abcdefghijklmnopqrstuvwxyzABC", min_size=1, max_size=12))
def test_unknown_key_is_reported_at_any_path(
    mutation: tuple[dict[str, Any], tuple[Any, ...], Any], name: str
) -> None:
    config, path, _ = mutation
    key = f"zz{name}"
    target: Any = config
    for part in path:
        target = target[part]
    free = ("env", "addonVersions", "privateSubnetIds", "publicSubnetIds")
    if not isinstance(target, dict) or path[-1] in free:
        return
    lines = outcome(changed(config, (*path, key), 1))
    assert any(f"{key}: is not a known key" in line for line in lines)


@settings(max_examples=25)
@given(st.sampled_from(RIGHT), st.data())
def test_valid_settings_as_json_strings_read_the_same(config: dict[str, Any], data: st.DataObject) -> None:
    """The sections are in any order, each as JSON or unchanged."""
    order = data.draw(st.permutations(list(config)))
    passed = {
        key: json.dumps(config[key])
        if not isinstance(config[key], str) and data.draw(st.booleans())
        else config[key]
        for key in order
    }
    assert read("test", passed, NOW) == read("test", config, NOW)


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(instance_types.TYPES)),
    st.sampled_from(efa.POLICIES),
    st.integers(1, 16),
    st.sampled_from("abc"),
    st.booleans(),
)
def test_pool_of_any_type_is_valid_or_its_efa_is_reported(
    type_: str, policy: str, nodes: int, letter: str, group: bool
) -> None:
    pool = {
        "name": "p",
        "instanceType": type_,
        "zone": f"us-west-2{letter}",
        "maxNodes": nodes,
        "efa": policy,
        "placementGroup": group,
    }
    lines = outcome({**BASE, "trainyard:pools": [pool]})
    if policy != efa.NONE and not instance_types.TYPES[type_].efa:
        assert [line.split(": ")[0] for line in lines] == ["trainyard:pools[0].efa"]
    else:
        assert lines == []
