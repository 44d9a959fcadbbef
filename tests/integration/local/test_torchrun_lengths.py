"""Every word, list and map of both kinds has an end, and the API server takes no more, and no less, than to it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.integration.local.own_api_server import ApiServer
from tests.torchrun_manifests import manifest
from trainyard.operator import names as n
from trainyard.operator.api.fields import Field
from trainyard.operator.api.job import JOB
from trainyard.operator.api.queue import QUEUE

pytestmark = pytest.mark.local

PLURALS = {n.QUEUE_KIND: n.QUEUE_PLURAL, n.JOB_KIND: n.JOB_PLURAL}
# What the API server says of a value that the schema does not admit; rules in CEL have words of ours.
SCHEMAS_WORDS = ("Too long", "Too many", "Unsupported value", "should be at least", "should have at most")


@dataclass(frozen=True)
class End:
    """A field below `spec`, "[]" for the entries of a list on the way: the last value that is right, and one beyond."""

    kind: str
    path: tuple[str, ...]
    field: Field

    def __str__(self) -> str:
        return f"{self.kind}.{'.'.join(self.path)}"

    @property
    def prefix(self) -> str:
        """How the API server names it."""
        return "spec." + ".".join(self.path).replace(".[]", "[0]") + ": "

    def edges(self) -> list[Any]:
        checks = self.field.checks
        if "enum" in checks:
            return list(checks["enum"])
        return ["a" * checks["maxLength"]] if "maxLength" in checks else [self._entries(0)]

    def beyond(self) -> Any:
        checks = self.field.checks
        if "enum" in checks:
            return "".join(checks["enum"])[::-1][: checks["maxLength"]]
        return "a" * (checks["maxLength"] + 1) if "maxLength" in checks else self._entries(1)

    def _entries(self, more: int) -> Any:
        checks, item = self.field.checks, self.field.item
        if item is None:
            return {
                f"a{index}": {} if self.field.holds == "object of Kubernetes" else "a"
                for index in range(checks["maxProperties"] + more)
            }
        keys = checks.get("x-kubernetes-list-map-keys", ())
        count = checks["maxItems"] + more
        if not item.fields:
            return [f"a{index}" for index in range(count)]
        return [dict.fromkeys(keys or ["key"], f"a{index}") for index in range(count)]

    def manifest(self, value: Any) -> dict[str, Any]:
        made = value
        for name in reversed(self.path[1:]):
            made = [made] if name == "[]" else {name: made}
        return manifest(self.kind, "a", {self.path[0]: made})


def ends(kind: str, path: tuple[str, ...], field: Field) -> Iterator[End]:
    if {"enum", "maxLength", "maxItems", "maxProperties"} & {*field.checks}:
        yield End(kind, path, field)
    for name, each in field.fields.items():
        yield from ends(kind, (*path, name), each)
    if field.item is not None:
        yield from ends(kind, (*path, "[]"), field.item)


EVERY = [
    each
    for kind, spec in ((n.QUEUE_KIND, QUEUE), (n.JOB_KIND, JOB))
    for name, field in spec.fields.items()
    for each in ends(kind, (name,), field)
]


def said(server: ApiServer, end: End, value: Any) -> list[str]:
    """What the API server has against this value itself."""
    path = f"/apis/{n.API_VERSION}/namespaces/default/{PLURALS[end.kind]}?dryRun=All"
    answer = server.request("POST", path, end.manifest(value))
    causes = (answer.body.get("details") or {}).get("causes") or []
    found = [f"{each.get('field')}: {each.get('message')}" for each in causes]
    return [
        each for each in found if each.startswith(end.prefix) and any(word in each for word in SCHEMAS_WORDS)
    ]


@pytest.mark.parametrize("end", EVERY, ids=str)
def test_it_is_taken_to_its_end_and_refused_beyond_by_its_name(torchrun_api: ApiServer, end: End) -> None:
    assert said(torchrun_api, end, end.beyond()), "beyond its end"
    for value in end.edges():
        assert said(torchrun_api, end, value) == []
