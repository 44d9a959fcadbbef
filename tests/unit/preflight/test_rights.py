"""The rights that docs/preflight.md lists are exactly those that the preflight's calls need."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.emulator import REGION, SESSION
from trainyard.preflight.account import permission
from trainyard.stack_files import ROOT

pytestmark = pytest.mark.unit

CALLS = ("call", "items")
HEADING = "## Rights"


def clients() -> dict[str, Any]:
    """A client of each service, made once; it is asked for names alone."""
    made: dict[str, Any] = {}
    for service, _ in calls():
        if service not in made:
            made[service] = SESSION.client(
                service, region_name=REGION, aws_access_key_id="x", aws_secret_access_key="x"
            )
    return made


def texts(tree: ast.AST) -> list[str]:
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def calls() -> Iterator[tuple[str, list[str]]]:
    """Service and method of every call of an `Account`; of a method in a variable all texts of the module."""
    for path in sorted((ROOT / "trainyard" / "preflight").glob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if not is_call or node.func.attr not in CALLS or len(node.args) < 2:
                continue
            service, method = node.args[:2]
            if isinstance(service, ast.Constant):
                yield service.value, [method.value] if isinstance(method, ast.Constant) else texts(tree)


def needed() -> set[str]:
    made = clients()
    return {
        permission(made[service], method)
        for service, methods in calls()
        for method in methods
        if method in made[service].meta.method_to_api_mapping
    }


def listed() -> list[str]:
    """The rights in the section of the page, as they stand there."""
    page = (ROOT / "docs" / "preflight.md").read_text()
    section = page.split(f"{HEADING}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^([a-z0-9-]+:[A-Za-z]+)$", section, re.MULTILINE)


def test_the_page_lists_each_right_once_and_no_other() -> None:
    assert listed() == sorted(needed())


def test_every_call_is_seen() -> None:
    """So that the test above can fail."""
    seen = needed()
    assert {"iam:GetUser", "ssm:GetParameter", "s3:ListBucket", "servicequotas:GetServiceQuota"} <= seen
    assert {"ec2:DescribeAddresses", "eks:DescribeAddonVersions"} <= seen
