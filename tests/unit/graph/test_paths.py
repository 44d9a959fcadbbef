"""Property paths: which paths one covers, and how to remove it from a value."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.graph.paths import covers, without


@pytest.mark.parametrize(
    ("pattern", "path", "is_covered"),
    [
        ("spec", "spec", True),
        ("spec", "spec.template.metadata", True),
        ("spec", "specification", False),
        ("spec.template", "spec", False),
        ("data", 'data["a.b/c"]', True),
        ('data["a.b"]', 'data["a.b"]', True),
        ('data["a.b"]', "data.a.b", False),
        ("spec.containers[*].image", "spec.containers[12].image", True),
        ("spec.containers[*].image", "spec.containers[12].imagePullPolicy", False),
        ("spec.containers[1].image", "spec.containers[0].image", False),
    ],
)
def test_covers_path_matches_itself_and_nested_paths(pattern: str, path: str, is_covered: bool) -> None:
    assert covers(pattern, path) is is_covered


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("spec", {"data": {"a.b": 1}}),
        ('data["a.b"]', {"spec": {"list": [{"x": 1, "y": 2}, {"x": 3}]}, "data": {}}),
        ("spec.list[*].x", {"spec": {"list": [{"y": 2}, {}]}, "data": {"a.b": 1}}),
        ("spec.list[0].x", {"spec": {"list": [{"y": 2}, {"x": 3}]}, "data": {"a.b": 1}}),
        ("spec.list[1]", {"spec": {"list": [{"x": 1, "y": 2}, None]}, "data": {"a.b": 1}}),
        ("spec.none.there", {"spec": {"list": [{"x": 1, "y": 2}, {"x": 3}]}, "data": {"a.b": 1}}),
    ],
)
def test_without_path_keeps_the_rest(path: str, expected: dict[str, Any]) -> None:
    value = {"spec": {"list": [{"x": 1, "y": 2}, {"x": 3}]}, "data": {"a.b": 1}}
    assert without(value, [path]) == expected
    assert value == {"spec": {"list": [{"x": 1, "y": 2}, {"x": 3}]}, "data": {"a.b": 1}}
