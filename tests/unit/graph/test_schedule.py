"""The figures of the critical path, on graphs of a few resources."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.graph.model import Graph, edited, find, graph_of
from tests.integration.graph.schedule import forced, make_span, unneeded
from tests.integration.graph.services import (
    ADDON,
    CLUSTER,
    FILE_SYSTEM,
    IMAGE,
    NAT,
    NEEDS,
    NODES,
    SECONDS,
    UnknownKind,
    seconds,
)

pytestmark = pytest.mark.unit

VPC, SUBNET = "aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet"


def state(type_: str, /, *after: str, parent: str = "", custom: bool = True, **inputs: Any) -> dict[str, Any]:
    """A resource whose URN is its type, or its type and `as_`."""
    name = inputs.pop("as_", "x")
    return {
        "urn": urn(type_, name),
        "type": type_,
        "custom": custom,
        "parent": parent,
        "inputs": inputs,
        "dependencies": list(after),
    }


def urn(type_: str, name: str = "x") -> str:
    return f"urn:pulumi:s::p::{type_}::{name}"


def made(*states: dict[str, Any]) -> Graph:
    return graph_of({"steps": [{"op": "create", "newState": each} for each in states]})


def stack() -> Graph:
    """A control plane with nodes, beside it a NAT gateway, a file system and an image."""
    return made(
        state(VPC),
        state(SUBNET, urn(VPC)),
        state("aws:ecr/repository:Repository"),
        state(IMAGE, urn("aws:ecr/repository:Repository")),
        state(NAT, urn(SUBNET)),
        state(FILE_SYSTEM, urn(SUBNET)),
        state(CLUSTER, urn(SUBNET)),
        state(ADDON, urn(CLUSTER), addonName="vpc-cni"),
        state(NODES, urn(ADDON), urn(NAT)),
    )


def test_what_runs_at_the_same_time_counts_once() -> None:
    least = 1 + 1 + SECONDS[CLUSTER] + SECONDS[f"{ADDON} vpc-cni"] + SECONDS[NODES]
    assert make_span(stack()).length == forced(stack()).length == least
    assert unneeded(stack()) == []


@pytest.mark.parametrize("late", [FILE_SYSTEM, IMAGE])
def test_a_false_dependency_on_a_slow_thing_is_seen(late: str) -> None:
    wrong = edited(stack(), urn(CLUSTER), [urn(late)])
    assert make_span(wrong).length > 1.05 * forced(wrong).length
    assert [pair for pair in unneeded(wrong) if pair[1].startswith("Cluster")]


def test_a_file_system_after_the_nodes_is_seen() -> None:
    wrong = edited(stack(), urn(FILE_SYSTEM), [urn(NODES)])
    assert make_span(wrong).length > 1.05 * forced(wrong).length


def test_a_false_dependency_on_a_gateway_is_too_long_though_it_may_be_waited_for() -> None:
    wrong = edited(stack(), urn(CLUSTER), [urn(NAT)])
    assert make_span(wrong).length > 1.05 * forced(wrong).length
    assert unneeded(wrong) == []


def test_who_waits_for_a_part_of_anothers_component_waits_for_all_of_it() -> None:
    box = urn("eks:index:Cluster")
    graph = made(
        state("eks:index:Cluster", custom=False),
        state(CLUSTER, parent=box),
        state("aws:iam/openIdConnectProvider:OpenIdConnectProvider", urn(CLUSTER), parent=box),
        state(ADDON, urn(CLUSTER), addonName="vpc-cni"),
    )
    assert urn("aws:iam/openIdConnectProvider:OpenIdConnectProvider") in graph[urn(ADDON)].waits
    assert urn("aws:iam/openIdConnectProvider:OpenIdConnectProvider") not in graph[urn(CLUSTER)].waits


def test_children_wait_for_what_their_component_waits_for() -> None:
    parent = urn("trainyard:x:X")
    graph = made(
        state(NAT),
        state("trainyard:x:X", urn(NAT), custom=False),
        state(SUBNET, parent=parent),
    )
    assert make_span(graph).length == SECONDS[NAT] + 1
    assert [node.type for node in find(graph, SUBNET)] == [SUBNET]


def test_a_kind_that_nobody_looked_up_is_named() -> None:
    with pytest.raises(UnknownKind, match="aws:rds/cluster:Cluster: look up"):
        seconds("aws:rds/cluster:Cluster")


def test_every_edge_of_the_table_has_a_source_and_ends_at_a_known_kind() -> None:
    for kind, needed in NEEDS.items():
        assert seconds(kind) > 0
        for each in needed:
            assert each.source.startswith("https://"), kind
            assert seconds(each.kind) >= 0
            assert each.kind != kind
