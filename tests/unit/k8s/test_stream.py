"""Lists and watches that come in pieces."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainyard.k8s.stream import MalformedResponse, lines, read_list

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=4), VALUES, max_size=3)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def items_of(chunks: list[bytes]) -> tuple[list[Any], str]:
    found: list[Any] = []
    version = read_list(chunks, found.append)
    return found, version


@settings(max_examples=20)
@given(
    st.lists(OBJECTS, max_size=4),
    st.lists(st.integers(min_value=0), max_size=12),
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, 1]),
)
def test_a_list_is_the_same_wherever_it_is_cut(
    items: list[Any], cuts: list[int], late: bool, ascii_only: bool, indent: int | None
) -> None:
    meta = {"metadata": {"resourceVersion": "17", "continue": ""}, "kind": "List"}
    value = {"items": items, **meta} if late else {**meta, "items": items}
    data = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert items_of(pieces(data, cuts)) == (items, "17")


def test_a_list_without_items_is_empty() -> None:
    assert items_of([b'{"items": null, "metadata": {"resourceVersion": "3"}}']) == ([], "3")
    assert items_of([b'{"metadata": {}}\n']) == ([], "")


def test_a_list_is_read_to_the_end_of_its_answer() -> None:
    chunks = iter([b'{"items": []}', b"\n", b"\n"])
    read_list(chunks, lambda _: None)
    assert next(chunks, None) is None


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"<html>", "'<html>' where '{' was expected"),
        (b'{"items": [{"a": 1}, {"a"', "ends in the middle"),
        (b'{"items": [{"a": 1} {"a": 2}]} ', None),
        (b'{"items" [', "where ':' was expected"),
        (b'{"kind": "\xff', "no UTF-8"),
        (b"", "ends in the middle"),
        (b"{}", "is no list"),
    ],
)
def test_read_list_of_another_form_raises(data: bytes, problem: str | None) -> None:
    if problem is None:  # a missing comma is nothing that could be taken for something else
        assert items_of([data])[0] == [{"a": 1}, {"a": 2}]
        return
    with pytest.raises(MalformedResponse, match=problem):
        items_of([data])


@settings(max_examples=20)
@given(st.lists(OBJECTS, max_size=5), st.lists(st.integers(min_value=0), max_size=12))
def test_lines_are_the_same_wherever_they_are_cut(items: list[Any], cuts: list[int]) -> None:
    data = b"".join(json.dumps(item).encode() + b"\n" for item in items)
    assert list(lines(pieces(data, cuts))) == items


def test_a_line_without_its_end_is_left_out() -> None:
    assert list(lines([b'{"a": 1}\n\n{"a": ', b"2}"])) == [{"a": 1}]


def test_lines_with_another_value_raise() -> None:
    for line in (b"<html>\n", b"[]\n", b"\xff\n"):
        with pytest.raises(MalformedResponse, match="is no JSON object"):
            list(lines([line]))
