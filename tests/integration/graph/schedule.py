"""When each resource is done if everything that may run at the same time does, and which chain takes longest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import TypeVar

from tests.integration.graph.model import Graph, Node
from tests.integration.graph.services import (
    ATTACHMENT,
    DATA_LINK,
    FILE_SYSTEM,
    IMAGE,
    RELEASE,
    ROLE,
    kind_of,
    needs,
    seconds,
)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The longest chain: its length in seconds, and its links in order as (label, own seconds)."""

    length: float
    links: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        shown = " > ".join(f"{label} {own:g}" for label, own in self.links if own >= 1)
        return f"{self.length:g} s: {shown}"


def make_span(graph: Graph) -> Chain:
    """The longest chain of the program's resources: how long `up` takes with unlimited parallelism."""
    path = _longest({urn: node.waits for urn, node in graph.items()}, lambda urn: _own(graph[urn]))
    return _chain(path, lambda urn: graph[urn].label, lambda urn: _own(graph[urn]))


def forced(graph: Graph) -> Chain:
    """The longest chain that the services force for the kinds that the graph has."""
    present = {kind_of(node) for node in graph.values()}
    edges = {kind: [need.kind for need in needs(kind) if need.kind in present] for kind in present}
    return _chain(_longest(edges, seconds), _short, seconds)


def critical(graph: Graph) -> list[Node]:
    """The resources of the program's longest chain, in order."""
    path = _longest({urn: node.waits for urn, node in graph.items()}, lambda urn: _own(graph[urn]))
    return [graph[urn] for urn in path]


# Nobody should wait for these who need not: slow, or many.
GUARDED = (FILE_SYSTEM, DATA_LINK, IMAGE, ROLE, ATTACHMENT, RELEASE)


def unneeded(graph: Graph) -> list[tuple[str, str]]:
    """Neighbours on the longest chain, of which the first is guarded and the services don't make the second need it."""
    path = [node for node in critical(graph) if _own(node) > 0]
    return [
        (first.label, then.label)
        for first, then in pairwise(path)
        if kind_of(first).startswith(GUARDED) and kind_of(first) not in _all_needs(kind_of(then))
    ]


def _all_needs(kind: str) -> set[str]:
    """What the services force to be there before a kind, near and far."""
    found: set[str] = set()
    ahead = [kind]
    while ahead:
        for need in needs(ahead.pop()):
            if need.kind not in found:
                found.add(need.kind)
                ahead.append(need.kind)
    return found


def _own(node: Node) -> float:
    return seconds(kind_of(node))


def _short(kind: str) -> str:
    head, _, rest = kind.partition(" ")
    return f"{head.rsplit(':', 1)[1]} {rest}".strip()


def _longest(edges: Mapping[T, Iterable[T]], own: Callable[[T], float]) -> list[T]:
    done: dict[T, float] = {}
    before: dict[T, T | None] = {}
    for each in TopologicalSorter({key: set(values) for key, values in edges.items()}).static_order():
        last = max(edges[each], key=lambda wanted: done[wanted], default=None)
        before[each] = last
        done[each] = own(each) + (done[last] if last is not None else 0.0)
    at: T | None = max(done, key=lambda each: done[each])
    path: list[T] = []
    while at is not None:
        path.append(at)
        at = before[at]
    return path[::-1]


def _chain(path: list[T], label: Callable[[T], str], own: Callable[[T], float]) -> Chain:
    links = tuple((label(each), own(each)) for each in path)
    return Chain(length=sum(part for _, part in links), links=links)
