"""The keys of a stack file themselves: each is read or told, and no secret is taken for a setting."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pulumi.runtime import config as engine

from infra.settings import SettingsError, load, read
from tests.unit.infra.changing import BASE, NOW, POOL, with_

pytestmark = pytest.mark.unit

RUN = {"pool": "small", "minNodes": 1, "maxNodes": 2}


def told(config: dict[Any, Any], **more: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        read("test", config, NOW, **more)
    return caught.value.lines


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("network", "network: has no namespace; it must be trainyard:network"),
        ("netwrok", "netwrok: has no namespace; it must be trainyard:netwrok; did you mean network?"),
        (
            "trainyrd:network",
            "trainyrd:network: 'trainyrd' is nobody's namespace; it must be trainyard:network",
        ),
        ("Trainyard:network", "Trainyard:network: 'Trainyard' is nobody's namespace; it must be"),
        (" trainyard:network", " trainyard:network: ' trainyard' is nobody's namespace; it must be"),
        (5, "trainyard:5: has a key that is a whole number; it must be a text"),
        (True, "trainyard:true: has a key that is a boolean; it must be a text"),
        (None, "trainyard:null: has a key that is nothing; it must be a text"),
    ],
)
def test_a_key_that_would_not_be_read_is_told(key: Any, line: str) -> None:
    lines = told({**BASE, key: {}})
    assert len(lines) == 1, "one mistake, one line"
    assert lines[0].startswith(line)


@pytest.mark.parametrize(
    "key", ["aws:profile", "kubernetes:context", "pulumi:tags", "docker-build:host", "eks:a"]
)
def test_a_providers_key_is_its_own(key: str) -> None:
    assert read("test", {**BASE, key: "x"}, NOW) == read("test", BASE, NOW)


def test_a_secret_of_a_stack_file_is_refused_in_one_line() -> None:
    config = with_({"training": {**RUN, "env": {"HF_TOKEN": {"secure": "v1:abc:def"}}}})
    (line,) = told(config)
    assert line.startswith("trainyard:training.env.HF_TOKEN: is a secret, and settings stand in plain text")
    assert "a Kubernetes Secret" in line
    assert "v1:abc" not in line


def test_of_a_section_that_is_secret_nothing_else_is_told() -> None:
    (line,) = told({**BASE, "trainyard:pools": {"secure": "v1:abc"}})
    assert line.startswith("trainyard:pools: is a secret, and")
    (line,) = told({**BASE, "trainyard:pools": [{**POOL, "name": {"secure": "v1:abc"}}]})
    assert line.startswith("trainyard:pools[0].name: is a secret, and")


def test_a_secret_that_the_engine_has_decrypted_is_refused_and_not_repeated() -> None:
    passed = {key: value if isinstance(value, str) else json.dumps(value) for key, value in BASE.items()}
    passed["trainyard:training"] = json.dumps(
        {**RUN, "runId": "hf_SENTINEL", "env": {"HF_TOKEN": "hf_SENTINEL"}}
    )
    engine.set_all_config(passed, ["trainyard:training"])
    try:
        with pytest.raises(SettingsError) as caught:
            load("test")
    finally:
        engine.set_all_config({}, [])
    (line,) = caught.value.lines
    assert line.startswith("trainyard:training: holds a secret, and settings stand in plain text")
    assert "SENTINEL" not in line
    assert told(BASE, secrets=frozenset({"trainyard:cluster"}))[0].startswith(
        "trainyard:cluster: holds a secret"
    )
