"""The permissions in docs/preflight.md are exactly those that the calls of both commands need."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.emulator import REGION, SESSION
from trainyard.preflight.aws import permission
from trainyard.stack_files import ROOT

PACKAGE = ROOT / "trainyard" / "preflight"


def texts(tree: ast.AST) -> list[str]:
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]


def calls(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield service and method of each call of an `Aws`; for a method in a variable, all texts of the module."""
    for path in sorted(folder.glob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if is_call and node.func.attr in ("call", "items") and len(node.args) > 1:
                service, method = node.args[:2]
                if isinstance(service, ast.Constant):
                    yield service.value, [method.value] if isinstance(method, ast.Constant) else texts(tree)


@cache
def needed(folder: Path) -> set[str]:
    found, keys = set(), {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
    made = list(calls(folder))
    clients = {name: SESSION.client(name, region_name=REGION, **keys) for name in {name for name, _ in made}}
    for service, methods in made:
        known = clients[service].meta.method_to_api_mapping
        found |= {permission(clients[service], method) for method in methods if method in known}
    return found


# What the search uses of the preflight's own functions.
SHARED = {"ec2:DescribeInstances", "eks:DescribeCluster"}


@pytest.mark.parametrize(
    ("folder", "heading", "more"),
    [
        (PACKAGE, "Permissions of the preflight", set()),
        (PACKAGE / "leftovers", "Permissions of verify-clean", SHARED),
    ],
)
def test_page_lists_each_permission_once(folder: Path, heading: str, more: set[str]) -> None:
    page = (ROOT / "docs" / "preflight.md").read_text()
    section = page.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    listed = re.findall(r"^([a-z0-9-]+:[A-Za-z]+)$", section, re.MULTILINE)
    assert listed == sorted(needed(folder) | more)


def test_every_call_is_seen() -> None:
    assert {"iam:GetUser", "ssm:GetParameter", "s3:ListBucket", "ec2:DescribeAddresses"} <= needed(PACKAGE)
    assert {"tag:GetResources", "ec2:DescribeVolumes", "iam:ListRoleTags"} <= needed(PACKAGE / "leftovers")
