"""The program's resources and what each waits for, from what the engine writes down of a preview or of a state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# What a preview has for a string that it can't know (github.com/pulumi/pulumi, sdk/go/common/resource/plugin/rpc.go).
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
OUR_COMPONENTS = ("trainyard:", "pulumi:")


@dataclass(frozen=True, kw_only=True)
class Node:
    """One registration. `waits` are URNs of what must be done before the engine begins it."""

    urn: str
    type: str
    parent: str
    custom: bool
    inputs: Mapping[str, Any] = field(default_factory=dict)
    waits: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The resource's name in the program."""
        return self.urn.rsplit("::", 1)[1]

    @property
    def label(self) -> str:
        """Type and name, as a person reads it."""
        return f"{self.type.rsplit(':', 1)[1]} {self.name}"


Graph = dict[str, Node]


def graph_of(document: Mapping[str, Any]) -> Graph:
    """The graph of a preview (`pulumi preview --json`) or of an exported state."""
    if "steps" in document:
        states = [step["newState"] for step in document["steps"] if step.get("newState")]
    else:
        states = document["deployment"].get("resources") or []
    plain = {state["urn"]: _node(state) for state in states}
    return _with_whole_components(plain)


def _node(state: Mapping[str, Any]) -> Node:
    waits = set(state.get("dependencies") or [])
    for urns in (state.get("propertyDependencies") or {}).values():
        waits.update(urns)
    # A child is registered once its parent's URN is known, a resource once its provider is configured.
    waits.update(filter(None, [state.get("parent"), str(state.get("provider") or "").rpartition("::")[0]]))
    return Node(
        urn=state["urn"],
        type=state["type"],
        parent=state.get("parent") or "",
        custom=bool(state.get("custom")),
        inputs=state.get("inputs") or {},
        waits=frozenset(waits - {state["urn"]}),
    )


def _with_whole_components(graph: Graph) -> Graph:
    """A component of another package answers when all of it is done: who waits for a part waits for the whole."""
    boxes = {node.urn for node in graph.values() if _is_foreign_component(node)}
    inside = {urn: _box_of(graph, urn, boxes) for urn in graph}
    members: dict[str, set[str]] = {}
    for urn, box in inside.items():
        if box and urn != box:
            members.setdefault(box, set()).add(urn)
    result: Graph = {}
    for node in graph.values():
        waits = {urn for urn in node.waits if urn in graph}
        for urn in node.waits & graph.keys():
            box = inside[urn]
            if box and inside[node.urn] != box:
                waits |= members.get(box, set())
        result[node.urn] = replace(node, waits=frozenset(waits))
    return result


def _is_foreign_component(node: Node) -> bool:
    return not node.custom and not node.type.startswith(OUR_COMPONENTS)


def _box_of(graph: Graph, urn: str, boxes: set[str]) -> str:
    """The outermost foreign component that a resource is, or lies in; empty where there is none."""
    found = ""
    while urn in graph:
        if urn in boxes:
            found = urn
        urn = graph[urn].parent
    return found


def edited(graph: Graph, waiter: str, wanted: Iterable[str]) -> Graph:
    """The same graph with more for one resource to wait for."""
    return {**graph, waiter: replace(graph[waiter], waits=graph[waiter].waits | set(wanted))}


def find(graph: Graph, type_: str, where: Callable[[Node], bool] = lambda _: True) -> list[Node]:
    """Resources of a type, in the order of registration."""
    return [node for node in graph.values() if node.type == type_ and where(node)]
