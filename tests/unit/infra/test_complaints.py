"""docs/complaints.md names only tests, files, settings and commands that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from infra.settings import KEYS
from infra.settings.reference import keys
from tests.unit.infra.changing import ROOT

PAGE = ROOT / "docs" / "complaints.md"
TEXT = PAGE.read_text()
COMPLAINTS = 21

# Number, complaint with its sources, answer, tests.
ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+?) \|$", re.MULTILINE)
# An issue, or a directory or feature of a repository.
SOURCE = re.compile(r"<br>[\w.-]+/[\w.-]+(?:#\d+| \([^)]+\))")
SPANS = re.findall(r"`([^`]+)`", TEXT)
PLACE = re.compile(r"(?:[\w.-]+/)*[\w.-]+\.(?:py|md|yaml|json)(?:::\w+)?")
PLACES = sorted({span for span in SPANS if PLACE.fullmatch(span)})
SETTINGS = sorted({span for span in SPANS if re.split(r"\W", span)[0] in KEYS})
TARGETS = sorted({span.split()[1] for span in SPANS if span.startswith("make ")})


@cache
def functions(path: Path) -> frozenset[str]:
    return frozenset(
        node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    )


def missing(place: str) -> str:
    """Return the missing part of `file` or `file::function`; empty if it exists."""
    name, _, function = place.partition("::")
    if not (ROOT / name).is_file():
        return f"no file {name}"
    return "" if not function or function in functions(ROOT / name) else f"no {function} in {name}"


def test_every_complaint_has_a_source_an_answer_and_tests() -> None:
    rows = ROW.findall(TEXT)
    assert [int(number) for number, *_ in rows] == list(range(1, COMPLAINTS + 1))
    for number, complaint, _, proof in rows:
        assert SOURCE.search(complaint), number
        for place in proof.split(", "):
            assert re.fullmatch(r"`tests/\S+/test_\w+\.py::test_\w+`", place), f"{number}: {place}"


def test_places_on_the_page_exist() -> None:
    assert PLACES
    assert [message for place in PLACES if (message := missing(place))] == []


def test_settings_and_commands_on_the_page_exist() -> None:
    assert SETTINGS, "it names settings"
    assert set(SETTINGS) <= set(keys())
    makefile = (ROOT / "Makefile").read_text()
    assert TARGETS, "it names commands"
    assert [target for target in TARGETS if f"\n{target}:" not in makefile] == []


def test_readme_links_to_the_page() -> None:
    assert "(docs/complaints.md)" in (ROOT / "README.md").read_text()
