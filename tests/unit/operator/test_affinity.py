"""Whether a node is one where a pod with this node affinity may be."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.observe import Node
from trainyard.operator.children import REQUIRED, gpu_terms
from trainyard.operator.nodes import affinity_allows

pytestmark = pytest.mark.unit


def node(name: str = "one", **labels: str) -> Node:
    return Node(
        name=name, labels=labels, ready=True, cordoned=False, deleting=False, taints=(), allocatable={}
    )


def asked(operator: str, *values: str, key: str = "size") -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def of_terms(*terms: Any) -> dict[str, Any]:
    return {REQUIRED: {"nodeSelectorTerms": list(terms)}}


@pytest.mark.parametrize(("expression", "holding", "failing"), [
    (asked("In", "3", "4"), ["3", "4"], ["5", None]),
    (asked("NotIn", "3", "4"), ["5", None], ["3", "4"]),
    (asked("Exists"), ["3", ""], [None]),
    (asked("DoesNotExist"), [None], ["3", ""]),
    (asked("Gt", "3"), ["4"], ["3", "2", "many", None]),
    (asked("Lt", "3"), ["2"], ["3", "4", "many", None]),
    (asked("Gt", "many"), [], ["4"]),
])  # fmt: skip
def test_operator_matches_as_in_kubernetes(
    expression: dict[str, Any], holding: list[str | None], failing: list[str | None]
) -> None:
    affinity = of_terms({"matchExpressions": [expression]})
    for values, so in ((holding, True), (failing, False)):
        for value in values:
            labels = {} if value is None else {"size": value}
            assert affinity_allows(affinity, node(**labels)) is so, value


def test_one_matching_term_is_enough() -> None:
    both = {"matchExpressions": [asked("In", "3"), asked("Exists", key="fast")]}
    named = {"matchFields": [asked("In", "two", key="metadata.name")]}
    affinity = of_terms(both, {}, named)
    assert affinity_allows(affinity, node(size="3", fast=""))
    assert not affinity_allows(affinity, node(size="3"))
    assert affinity_allows(affinity, node("two"))
    assert not affinity_allows(of_terms({}), node(size="3")), "an empty term holds nowhere"


@pytest.mark.parametrize("affinity", [
    {}, {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]},
    {REQUIRED: {}}, {REQUIRED: []}, {REQUIRED: "x"}, of_terms("x"), of_terms({"matchExpressions": [{}]}),
    of_terms({"matchExpressions": 3}), of_terms({"matchExpressions": [asked("Gt")]}),
    of_terms({"matchExpressions": [asked("Near", "3")]}),
])  # fmt: skip
def test_empty_or_invalid_affinity_excludes_no_node(affinity: Any) -> None:
    assert affinity_allows(affinity, node(size="1"))


def test_gpu_type_matches_labels_of_karpenter() -> None:
    def of(name: str, memory: str) -> Node:
        labels = {
            "karpenter.k8s.aws/instance-gpu-name": name,
            "karpenter.k8s.aws/instance-gpu-memory": memory,
        }
        return node(**labels)

    wanted = of_terms(*gpu_terms("h100-80gb"))
    assert affinity_allows(wanted, of("h100", "81920"))
    assert not affinity_allows(wanted, of("a100", "81920"))
    assert not affinity_allows(wanted, of("h100", "40960"))
    assert affinity_allows(wanted, node(**{"torchrun.ai/gpu-type": "h100-80gb"}))
