"""Watches of the API server that were interrupted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from local.nodes.api import ApiError, Informer

pytestmark = pytest.mark.unit


def item(uid: str, version: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "n", "name": "p", "uid": uid, "resourceVersion": version}}


def test_an_object_that_was_replaced_while_nobody_watched_is_told_as_gone_and_set() -> None:
    told: list[tuple[str, str]] = []
    lists = [item("u1", "1"), item("u1", "2"), item("u2", "3")]

    async def get(_: str) -> dict[str, Any]:
        return {"items": [lists.pop(0)], "metadata": {"resourceVersion": "9"}}

    api: Any = SimpleNamespace(get=get)
    pods = Informer(api, "/api/v1/pods", lambda what, found: told.append((what, found["metadata"]["uid"])))

    async def thrice() -> None:
        for _ in range(3):
            await pods._list()

    asyncio.run(thrice())
    assert told == [("set", "u1"), ("set", "u1"), ("gone", "u1"), ("set", "u2")]
    assert pods.objects["n", "p"]["metadata"]["uid"] == "u2"


@pytest.mark.parametrize(
    ("status", "expected"), [(429, True), (500, True), (503, True), (404, False), (422, False)]
)
def test_a_busy_server_may_take_the_same_request_later(status: int, expected: bool) -> None:
    assert ApiError(status, "", "").transient is expected
