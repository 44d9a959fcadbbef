"""The reference page of the settings says what the readers do."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from infra.examples import BOTH
from infra.meanings import DEFAULTS, MEANINGS, SECTIONS
from infra.reference import PAGE, example, keys, render
from infra.settings import KEYS, asked, read
from tests.shipped import shipped
from tests.unit.infra.changing import NOW, ROOT, stack_file

pytestmark = pytest.mark.unit

# Lists of mappings and the mappings that a section always is: told by the keys below them.
GROUPS = {"pools", "queues", "serviceAccounts"}


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == render(), "run: make reference"


def test_every_key_that_is_read_has_a_meaning_and_no_other() -> None:
    assert set(keys()) - GROUPS == set(MEANINGS)
    assert set(DEFAULTS) <= set(MEANINGS)
    assert set(SECTIONS) == set(KEYS)


def test_every_key_has_an_example() -> None:
    assert [path for path in MEANINGS if example(path) is None] == []


@pytest.mark.parametrize("config", BOTH, ids=["makes", "is given"])
def test_the_examples_are_right(config: dict[str, Any]) -> None:
    assert read("example", config, NOW).cluster.name == "research"


@pytest.mark.parametrize("name", shipped())
def test_no_shipped_stack_file_asks_for_a_key_that_the_page_lacks(name: str) -> None:
    assert {each.removeprefix("trainyard:") for each in asked(name, stack_file(name))} <= {*MEANINGS, *GROUPS}


def test_pulumi_yaml_names_every_key_of_every_section() -> None:
    """`pulumi config` shows these descriptions; the page has the details."""
    declared = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]
    for path in MEANINGS:
        section, *rest = path.replace("[]", "").split(".")
        text = declared[section]["description"]
        named = (re.search(rf"\b{name}\b", text) for name in rest)
        assert all(named), f"Pulumi.yaml does not name {path}"


OVERVIEW = ROOT / "docs" / "deploying.md"
OVERVIEW_ROW = re.compile(r"^\| `trainyard:(\w+)` \| [^|]+ \| `([^|]+)` \|$", re.MULTILINE)


def test_overview_has_a_row_for_every_key_of_pulumi_yaml() -> None:
    declared = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]
    rows = OVERVIEW_ROW.findall(OVERVIEW.read_text())
    assert sorted(key for key, _ in rows) == sorted(declared)


@pytest.mark.parametrize("key", KEYS)
def test_overview_example_of_a_key_has_only_known_settings(key: str) -> None:
    """Each example is YAML of the right shape, and all keys in it are known."""
    examples = dict(OVERVIEW_ROW.findall(OVERVIEW.read_text()))
    assert set(paths(key, yaml.safe_load(examples[key]))) <= set(keys()), examples[key]


def paths(place: str, value: Any) -> list[str]:
    """The settings that a value sets, as the reference page names them."""
    if isinstance(value, dict) and value:
        return [path for name, each in value.items() for path in paths(f"{place}.{name}", each)]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [path for each in value for path in paths(f"{place}[]", each)]
    return [place] if value not in ({}, []) else []
