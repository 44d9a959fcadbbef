"""The reference page and the JSON schema match the settings."""

from __future__ import annotations

import re
from typing import Annotated, Any

import jsonschema
import pytest
import yaml
from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.fields import FieldInfo

from infra.settings import KEYS, read
from infra.settings.problems import model_in
from infra.settings.reference import PAGE, SCHEMA, is_list, keys, render, render_schema, schema
from tests.shipped import shipped
from tests.unit.infra.changing import NOW, POOL, ROOT, settings, with_
from tests.unit.infra.examples import BOTH
from trainyard.stack_files import find


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == render(), "run: make reference"


def test_the_schema_is_current() -> None:
    assert SCHEMA.read_text() == render_schema(), "run: make reference"


@pytest.mark.parametrize(("path", "info"), keys().items(), ids=list(keys()))
def test_every_key_has_a_description_and_a_valid_example(path: str, info: FieldInfo) -> None:
    assert info.description
    if model_in(info.annotation) is None or is_list(info):
        (value,) = info.examples or []
        type_ = Annotated[info.annotation, Field(), *info.metadata]
        TypeAdapter(type_, config=ConfigDict(strict=True)).validate_python(value)


def schema_errors(document: Any) -> list[str]:
    """Return the paths in a stack file that its JSON schema refuses."""
    validator = jsonschema.Draft202012Validator(schema())
    return sorted(error.json_path for error in validator.iter_errors(document))


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_stack_file_names_its_schema_and_is_valid(name: str) -> None:
    file = find(name)
    comment, text = file.read_text().split("\n", 1)
    assert (file.parent / comment.removeprefix("# yaml-language-server: $schema=")).resolve() == SCHEMA
    assert schema_errors(yaml.safe_load(text)) == []


@pytest.mark.parametrize("config", BOTH, ids=["makes", "is given"])
def test_the_schema_accepts_every_key(config: dict[str, Any]) -> None:
    assert schema_errors({"config": config}) == []


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"pools": [{**POOL, "maxNode": 4}]}, "pools'][0]"),
        ({"pools": [{**POOL, "maxNodes": 0}]}, "pools'][0].maxNodes"),
        ({"pools": [{**POOL, "purchase": "sport"}]}, "pools'][0].purchase"),
        ({"cluster": {"ami": "al2023@latest"}}, "cluster'].ami"),
        ({"network": {"privateSubnetIds": {"a": "subnet-0123456789abcdef0"}}}, "network'].privateSubnetIds"),
        ({"training": {"pool": "small", "minNodes": 1, "maxNodes": "2"}}, "training'].maxNodes"),
        ({"trainning": {}}, ""),
    ],
)
def test_the_schema_refuses_a_misspelt_key_and_an_invalid_value(change: dict[str, Any], place: str) -> None:
    (found,) = schema_errors({"config": with_(change)})
    assert found == (f"$.config['trainyard:{place}" if place else "$.config")


@pytest.mark.parametrize(
    "change",
    [
        {
            key: None
            for key in KEYS
            if key not in ("cluster", "pools", "debugPod", "nodeCheck", "mpi", "protectData")
        },
        {"storage": {"lustre": None}, "cluster": {"systemNodes": None}, "network": {"zones": None}},
    ],
)
def test_section_without_a_value_is_absent(change: dict[str, Any]) -> None:
    assert schema_errors({"config": with_(change)}) == []
    assert settings(with_(change)) == settings(with_({}))
    # The engine passes this for such a section.
    passed = {key: "" if value is None else value for key, value in with_(change).items()}
    assert settings(passed) == settings(with_({}))


@pytest.mark.parametrize("config", BOTH, ids=["makes", "is given"])
def test_examples_are_valid(config: dict[str, Any]) -> None:
    assert read("example", config, NOW).cluster.name == "research"


def test_pulumi_yaml_names_every_key_of_every_section() -> None:
    """`pulumi config` shows these descriptions; the page has the details."""
    declared = yaml.safe_load((ROOT / "Pulumi.yaml").read_text())["config"]
    for path in keys():
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
    """Return the settings that a value sets, as the reference page names them."""
    if isinstance(value, dict) and value and place not in keys():
        return [path for name, each in value.items() for path in paths(f"{place}.{name}", each)]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [path for each in value for path in paths(f"{place}[]", each)]
    return [place] if value not in ({}, []) else []
