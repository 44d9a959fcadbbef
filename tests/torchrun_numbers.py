"""The whole numbers of torchrun queues and jobs, each with what it may be, from the schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.torchrun_manifests import manifest
from trainyard.operator import names as n
from trainyard.operator.api.fields import Field
from trainyard.operator.api.job import JOB
from trainyard.operator.api.queue import QUEUE

SPECS = {n.QUEUE_KIND: QUEUE, n.JOB_KIND: JOB}
# What has to be said beside a field.
_BESIDE: dict[str, dict[str, Any]] = {
    "numNodes": {"numGPUs": 0},
    "workspace.sizeBytes": {"workspace.digest": "sha256:" + "a" * 64},
    "elastic.minNodes": {"numGPUs": 0, "elastic.maxNodes": 4096},
    "elastic.maxNodes": {"numGPUs": 0, "elastic.minNodes": 1},
}
_TOLERATION = {"key": "a", "effect": "NoExecute"}


@dataclass(frozen=True)
class Number:
    """A field of a spec that holds a whole number; `[]` in its path is an entry of a list."""

    kind: str
    path: str
    field: Field

    @property
    def least(self) -> int:
        """The smallest that the schema takes."""
        return int(self.field.checks["minimum"])

    @property
    def most(self) -> int:
        """The largest that the schema takes."""
        return int(self.field.checks["maximum"])

    @property
    def place(self) -> str:
        """The path as the API server has it in a refusal."""
        return self.path.replace("[]", "[0]")

    def manifest(self, value: int) -> dict[str, Any]:
        """An object that is right, if this value of the field is."""
        listed, entry, last = self.path.partition("[].")
        given = {listed: [{**_TOLERATION, last: value}]} if entry else {self.path: value}
        return manifest(self.kind, "research", {**_BESIDE.get(self.path, {}), **given})


def numbers() -> list[Number]:
    """All of both kinds' specs, those below a job's `overrides` among them."""
    return [
        Number(kind, path, each)
        for kind, spec in SPECS.items()
        for path, each in _below("", spec)
        if each.checks.get("type") == "integer"
    ]


def _below(place: str, parent: Field) -> Iterator[tuple[str, Field]]:
    for name, each in parent.fields.items():
        yield f"{place}{name}", each
        yield from _below(f"{place}{name}.", each)
        if each.item is not None:
            yield from _below(f"{place}{name}[].", each.item)
