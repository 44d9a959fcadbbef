"""Length of the critical path, on graphs of a few resources."""

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

VPC, SUBNET = "aws:ec2/vpc:Vpc", "aws:ec2/subnet:Subnet"


def state(type_: str, /, *after: str, parent: str = "", custom: bool = True, **inputs: Any) -> dict[str, Any]:
    """Return a resource whose URN ends with its type and the name `as_`."""
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


def graph_with(*states: dict[str, Any]) -> Graph:
    return graph_of({"steps": [{"op": "create", "newState": each} for each in states]})


def stack() -> Graph:
    """Return a control plane with nodes, a NAT gateway, a file system and an image."""
    return graph_with(
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


def test_make_span_concurrent_resources_count_once() -> None:
    minimum = 1 + 1 + SECONDS[CLUSTER] + SECONDS[f"{ADDON} vpc-cni"] + SECONDS[NODES]
    assert make_span(stack()).length == forced(stack()).length == minimum
    assert unneeded(stack()) == []


@pytest.mark.parametrize("late", [FILE_SYSTEM, IMAGE])
def test_unneeded_dependency_on_slow_resource_is_found(late: str) -> None:
    wrong = edited(stack(), urn(CLUSTER), [urn(late)])
    assert make_span(wrong).length > 1.05 * forced(wrong).length
    assert [pair for pair in unneeded(wrong) if pair[1].startswith("Cluster")]


def test_make_span_file_system_after_nodes_is_too_long() -> None:
    wrong = edited(stack(), urn(FILE_SYSTEM), [urn(NODES)])
    assert make_span(wrong).length > 1.05 * forced(wrong).length


def test_make_span_cluster_after_nat_gateway_is_too_long() -> None:
    wrong = edited(stack(), urn(CLUSTER), [urn(NAT)])
    assert make_span(wrong).length > 1.05 * forced(wrong).length
    assert unneeded(wrong) == []


def test_graph_dependency_on_a_child_waits_for_all_siblings() -> None:
    box = urn("eks:index:Cluster")
    graph = graph_with(
        state("eks:index:Cluster", custom=False),
        state(CLUSTER, parent=box),
        state("aws:iam/openIdConnectProvider:OpenIdConnectProvider", urn(CLUSTER), parent=box),
        state(ADDON, urn(CLUSTER), addonName="vpc-cni"),
    )
    assert urn("aws:iam/openIdConnectProvider:OpenIdConnectProvider") in graph[urn(ADDON)].waits
    assert urn("aws:iam/openIdConnectProvider:OpenIdConnectProvider") not in graph[urn(CLUSTER)].waits


def test_graph_children_wait_for_dependencies_of_component() -> None:
    parent = urn("trainyard:x:X")
    graph = graph_with(
        state(NAT),
        state("trainyard:x:X", urn(NAT), custom=False),
        state(SUBNET, parent=parent),
    )
    assert make_span(graph).length == SECONDS[NAT] + 1
    assert [node.type for node in find(graph, SUBNET)] == [SUBNET]


def test_seconds_unknown_kind_is_named() -> None:
    with pytest.raises(UnknownKind, match="aws:rds/cluster:Cluster: look up"):
        seconds("aws:rds/cluster:Cluster")


def test_needs_every_edge_has_a_source_and_a_known_kind() -> None:
    for kind, needed in NEEDS.items():
        assert seconds(kind) > 0
        for each in needed:
            assert each.source.startswith("https://"), kind
            assert seconds(each.kind) >= 0
            assert each.kind != kind
