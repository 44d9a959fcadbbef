"""The page of faults has a row for each, and names tests that there are, every live one among them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TEXT = (ROOT / "docs" / "faults.md").read_text()
ROWS = dict(re.findall(r"^\| ([LC]\d+) \|.*\| ([^|]+) \|$", TEXT, re.MULTILINE))
PLACES = sorted(set(re.findall(r"`(tests/[\w/.]+\.py(?:::\w+)*)`", TEXT)))
# All of its tests are of this page.
LIVE = "tests/integration/local/test_launcher_faults.py"
# Others' names begin with their row.
OF_A_ROW = re.compile(r"test_([lc]\d+)_")
# A real API server and Kubernetes' own controllers; the kills of the controller stand beside their sweep.
LIVE_FOLDERS = ("`tests/integration/local/", "`tests/integration/sweeps/")


@cache
def cases_of(path: str) -> tuple[str, ...]:
    """What stands behind the file in a test's name; that of a class's test begins with the class."""
    return tuple(_cases_of(path))


def _cases_of(path: str) -> Iterator[str]:
    for node in ast.parse((ROOT / path).read_text()).body:
        yield from _cases(node)
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}::{name}" for each in node.body for name in _cases(each))


def _cases(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
        yield node.name


def named_by_rows() -> list[tuple[str, str]]:
    """Each live test that says of which row it is, or is of this page as its whole file is, with that row."""
    files = [
        str(each.relative_to(ROOT)) for each in (ROOT / "tests" / "integration" / "local").glob("test_*.py")
    ]
    tests = [(path, name) for path in sorted(files) for name in cases_of(path)]
    rows = [OF_A_ROW.match(name.rpartition("::")[2]) for _, name in tests]
    return [
        (f"{path}::{name}", row[1].upper() if row else "")
        for (path, name), row in zip(tests, rows, strict=True)
        if row or path == LIVE
    ]


def test_every_fault_has_a_live_test() -> None:
    launchers, controllers = range(1, 13), range(1, 15)
    assert list(ROWS) == [*(f"L{each}" for each in launchers), *(f"C{each}" for each in controllers)]
    without = [row for row, tests in ROWS.items() if not any(each in tests for each in LIVE_FOLDERS)]
    assert without == []


def test_a_row_names_nothing_but_tests() -> None:
    odd = [each for tests in ROWS.values() for each in re.findall(r"`([^`]+)`", tests) if each not in PLACES]
    assert odd == []


def test_what_is_named_is_there() -> None:
    parts = [place.partition("::") for place in PLACES]
    missing = [
        f"{path} {name}"
        for path, _, name in parts
        if not (ROOT / path).is_file() or (name and name not in cases_of(path))
    ]
    assert missing == []


def test_every_live_test_is_named_in_its_row() -> None:
    named = named_by_rows()
    assert named
    assert [(place, row) for place, row in named if f"`{place}`" not in ROWS.get(row, "")] == []


def of_make_test(path: str) -> Iterator[str]:
    """Tests of a file that `make test` runs, which are marked `local`: the file, a class or they themselves."""
    body = ast.parse((ROOT / path).read_text()).body
    whole = any(isinstance(node, ast.Assign) and _is_local(node.value) for node in body)
    for node in body:
        if isinstance(node, ast.ClassDef):
            of_class = whole or any(map(_is_local, node.decorator_list))
            yield from (f"{node.name}::{name}" for each in node.body for name in _marked(each, of_class))
        else:
            yield from _marked(node, whole)


def _marked(node: ast.stmt, marked: bool) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef) and (marked or any(map(_is_local, node.decorator_list))):
        yield from _cases(node)


def _is_local(mark: ast.expr) -> bool:
    return "pytest.mark.local" in ast.unparse(mark)


def test_make_test_runs_marked_rows_only() -> None:
    ((words, last),) = re.findall(r"one\s+live test of each of ([C\d, ]+) and (C\d+)", TEXT)
    said = [*words.split(", "), last]
    run = [
        row
        for row, tests in ROWS.items()
        if row.startswith("C")
        for path, _, name in [each.partition("::") for each in re.findall(r"`(tests/[^`]+)`", tests)]
        if path.startswith(("tests/integration/local/", "tests/integration/sweeps/"))
        and ((found := set(of_make_test(path))) and (not name or name in found))
    ]
    assert sorted(set(run), key=run.index) == said


def test_the_rows_of_classes_are_read() -> None:
    assert any(place.count("::") == 2 for place in PLACES)
    assert {row for _, row in named_by_rows()} >= {"L1", "C2", "C11"}
