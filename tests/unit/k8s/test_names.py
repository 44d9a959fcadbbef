"""The shared table of names: it imports nothing, and no other module repeats a value."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from trainyard.k8s import names

ROOT = Path(__file__).parents[3]
PACKAGES = ("infra", "components", "launcher", "trainyard", "local")
TABLE = ROOT / "trainyard" / "k8s" / "names.py"
# Values that are names of ours or of an API wherever they stand; "logs" or "training" may be any word.
DISTINCT = re.compile(
    r"[a-z.]+\.[a-z]+/[a-z-]+|TRAINYARD_\w+|TORCH_\w+|trainyard[-_]\w+|torchrun[-.]?\w+|pytorch-job-name"
)


def imported(file: Path) -> set[str]:
    """Return the modules that a file imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("." * node.level + (node.module or ""))
    return found


def values(value: object) -> Iterator[str]:
    """Return the distinct strings of a constant of the table."""
    if isinstance(value, str) and DISTINCT.fullmatch(value):
        yield value
    elif isinstance(value, dict):
        yield from (each for item in value.values() for each in values(item))


def test_table_and_its_packages_import_only_typing() -> None:
    packages = [TABLE.parent / "__init__.py", TABLE.parents[1] / "__init__.py"]
    for file in (TABLE, *packages):
        assert imported(file) <= {"__future__", "typing"}, file


def test_no_module_repeats_a_name_of_the_table() -> None:
    table = {each for name, value in vars(names).items() if name.isupper() for each in values(value)}
    assert len(table) > 40
    mentioned = re.compile("|".join(map(re.escape, table)))
    repeated = [
        f"{file.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for package in PACKAGES
        for file in sorted((ROOT / package).rglob("*.py"))
        if file != TABLE and mentioned.search(file.read_text())
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in table
    ]
    assert repeated == []


def test_workers_displace_placeholders_and_no_ordinary_pods() -> None:
    """A pod without a priority class has priority 0."""
    assert names.WARM_PRIORITY < names.PLACEHOLDER_PRIORITY < names.WORKER_PRIORITY == 0
