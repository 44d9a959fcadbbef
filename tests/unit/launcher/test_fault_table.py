"""The page of faults names tests that there are, and every live one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "faults.md").read_text()
ROWS = dict(re.findall(r"^\| (L\d+) \|.*\| ([^|]+) \|$", TEXT, re.MULTILINE))
PLACES = sorted(set(re.findall(r"`(tests/[\w/.]+\.py(?:::\w+)?)`", TEXT)))
LIVE = "tests/local/test_launcher_faults.py"


def names_of(path: str) -> set[str]:
    body = ast.parse((ROOT / path).read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def test_every_fault_has_a_live_test() -> None:
    assert list(ROWS) == [f"L{number}" for number in range(1, 13)]
    assert [row for row, tests in ROWS.items() if "`tests/local/" not in tests] == []


@pytest.mark.parametrize("place", PLACES)
def test_what_is_named_is_there(place: str) -> None:
    path, _, name = place.partition("::")
    assert (ROOT / path).is_file()
    assert not name or name in names_of(path)


def test_every_live_test_is_named_in_its_row() -> None:
    for name in names_of(LIVE):
        row = name.split("_")[1].upper()
        assert f"`{LIVE}::{name}`" in ROWS[row]
