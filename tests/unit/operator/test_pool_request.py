"""What a job asks of a pool, and the pods that hold its nodes."""

from __future__ import annotations

from typing import Any

import pytest

from launcher import observe
from launcher.manifests import REQUIRED, mark
from launcher.observe import NodePool
from tests.unit.operator.made import DIGEST, TOOLS, attempt_spec, pod
from trainyard.k8s import names, quantity
from trainyard.operator import names as n
from trainyard.operator.children import owner_reference
from trainyard.operator.nodes import build_placeholder, build_request, taint_problem

POOLED = {"scheduling.pool": "p5"}
POOL = observe.node_pool({"spec": {}})
TAINTS = ["team=a:NoSchedule", "old:NoExecute", "soft:PreferNoSchedule", "nvidia.com/gpu:NoSchedule"]


def placeholder(
    of_job: dict[str, Any] | None = None, of_queue: dict[str, Any] | None = None, pool: NodePool = POOL
) -> dict[str, Any]:
    made = attempt_spec(of_job, {**POOLED, **(of_queue or {})})
    return build_placeholder(made, build_request(made, pool), 1, "1-0")


def test_placeholder_has_labels_owner_and_low_priority() -> None:
    made = placeholder()
    meta, spec = made["metadata"], made["spec"]
    assert (meta["name"], meta["namespace"]) == ("vit-hold-1", "team")
    # Without the label of an attempt, it is none of the job's workers (trainyard/operator/observe.py).
    assert meta["labels"] == {
        n.LABEL_JOB: "vit",
        n.LABEL_MANAGED_BY: n.MANAGED_BY,
        names.LABEL_RUN: "torchrun.vit",
        names.LABEL_ROLE: names.ROLE_PLACEHOLDER,
        names.LABEL_ATTEMPT: "1-0",
    }
    assert meta["annotations"][names.DO_NOT_DISRUPT] == "true"
    assert meta["ownerReferences"] == [owner_reference("vit", "u1")]
    assert (spec["priorityClassName"], spec["terminationGracePeriodSeconds"]) == ("trainyard-placeholder", 1)
    (container,) = spec["containers"]
    assert (container["image"], container["command"][0]) == (TOOLS, "sh")
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize(("of_job", "of_queue"), [
    ({}, {}),
    ({"numGPUs": 4}, {}),
    ({"numGPUs": 0, "numNodes": 2}, {"nodeResources.gpus": 0, "nodeResources.cpus": "7500m"}),
    ({"workspace": {"digest": DIGEST, "sizeBytes": 3}}, {}),
    ({}, {"podTemplate": {"spec": {"containers": [
        {"name": "torchrun", "resources": {"limits": {"vpc.amazonaws.com/efa": 4}}},
        {"name": "beside", "resources": {"requests": {"cpu": "250m", "memory": "1Gi"}}},
    ]}}}),
])  # fmt: skip
def test_placeholder_requests_what_a_worker_does(of_job: dict[str, Any], of_queue: dict[str, Any]) -> None:
    worker = observe.effective_requests(pod(of_job, {**POOLED, **of_queue})["spec"])
    asked = placeholder(of_job, of_queue)["spec"]["containers"][0]["resources"]
    assert asked["requests"] == asked["limits"]
    assert {name: quantity.parse(text) for name, text in asked["requests"].items()} == worker


def test_placeholder_is_placed_as_a_worker_one_per_node() -> None:
    asked: dict[str, Any] = {
        "nodeResources.gpuType": "h100",
        "scheduling.nodeSelector": {"a": "b"},
        "scheduling.tolerations": [{"key": "team", "operator": "Exists"}],
        "scheduling.affinity": {"podAffinity": {"x": 1}},
    }
    worker, spec = pod({}, {**POOLED, **asked})["spec"], placeholder({}, asked)["spec"]
    assert spec["nodeSelector"] == worker["nodeSelector"] == {"a": "b", names.LABEL_NODEPOOL: "p5"}
    terms = worker["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    held = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    own = {"key": mark("team", "torchrun.vit"), "operator": "DoesNotExist"}
    assert held == [{"matchExpressions": [*each["matchExpressions"], own]} for each in terms]
    assert set(spec["affinity"]) == {"nodeAffinity", "podAntiAffinity"}
    ((term),) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"].items() <= placeholder()["metadata"]["labels"].items()
    keys = [each["key"] for each in spec["tolerations"]]
    assert keys == [each["key"] for each in worker["tolerations"]]
    assert keys[:2] == ["team", "nvidia.com/gpu"]


def test_placeholder_digest_is_that_of_its_spec() -> None:
    def made_of(**options: Any) -> str:
        return str(placeholder(**options)["metadata"]["annotations"][n.ANNOTATION_MADE_OF])

    assert made_of() == made_of(of_queue={"scheduling.priorityClassName": "high"})
    assert made_of() != made_of(of_queue={"nodeResources.memory": "1Gi"})
    assert made_of() != made_of(of_queue={"scheduling.nodeSelector": {"a": "b"}})
    assert made_of() != made_of(of_queue={"podTemplate.spec": {"imagePullSecrets": [{"name": "a"}]}})


def test_request_has_the_numbers_of_the_job() -> None:
    made = attempt_spec({"numGPUs": 32, "elastic": {"minNodes": 2, "maxNodes": 4}}, POOLED)
    offers = {names.LABEL_INSTANCE_TYPE: ("p5.48xlarge",), names.LABEL_ZONE: ("us-west-2b",)}
    request = build_request(made, observe.NodePool(limits={}, ready=True, problem="", offers=offers))
    assert (request.min_nodes, request.max_nodes) == (2, 4)
    assert (request.pool.resource, request.pool.per_node) == ("nvidia.com/gpu", 8)
    assert (request.pool.instance_type, request.pool.zone) == ("p5.48xlarge", "us-west-2b")
    on_cpus = attempt_spec({"numGPUs": 0, "numNodes": 3}, {**POOLED, "nodeResources.gpus": 0})
    cpus = build_request(on_cpus, None)
    assert (cpus.min_nodes, cpus.max_nodes) == (3, 3)
    assert (cpus.pool.resource, cpus.pool.per_node) == ("cpu", 96)
    part = build_request(attempt_spec({"numGPUs": 8, "numNodes": 2}, POOLED), POOL)
    assert (part.pool.per_node, part.max_nodes, part.resources["nvidia.com/gpu"]) == (4, 2, "4")


@pytest.mark.parametrize("resources", [
    {"requests": {"cpu": "lots"}}, {"requests": {"cpu": {}}}, {"limits": {"memory": "-1"}},
])  # fmt: skip
def test_request_of_an_invalid_amount_raises(resources: dict[str, Any]) -> None:
    template = {"spec": {"containers": [{"name": "beside", "resources": resources}]}}
    with pytest.raises(ValueError, match=r"podTemplate\.spec: invalid quantity"):
        build_request(attempt_spec({}, {**POOLED, "podTemplate": template}), POOL)


@pytest.mark.parametrize(("tolerations", "refused"), [
    ([], ["team=a:NoSchedule", "old:NoExecute"]),
    ([{"operator": "Exists"}], []),
    ([{"key": "team", "value": "a"}, {"key": "old", "operator": "Exists", "effect": "NoExecute"}], []),
    ([{"key": "team", "value": "b"}, {"key": "old"}], ["team=a:NoSchedule"]),
])  # fmt: skip
def test_taints_of_the_pool_are_tolerated_or_reported(
    tolerations: list[dict[str, Any]], refused: list[str]
) -> None:
    taints = [
        {"key": "team", "value": "a", "effect": "NoSchedule"},
        {"key": "old", "effect": "NoExecute"},
        {"key": "soft", "effect": "PreferNoSchedule"},
        {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
    ]
    pool = observe.node_pool({"spec": {"template": {"spec": {"taints": taints}}}})
    made = attempt_spec({}, {**POOLED, "scheduling.tolerations": tolerations})
    assert [each for each in TAINTS if each in taint_problem(made, pool)] == refused
    if not refused:
        # A toleration of everything is none of the taints that a node has for a while.
        keys = {each.get("key") for each in build_request(made, pool).pool.tolerations}
        assert {"team", "old"} <= keys
        assert not keys & {None, "", "node.kubernetes.io/not-ready", "node.cilium.io/agent-not-ready"}


def test_toleration_of_all_taints_gets_no_others() -> None:
    given = [{"operator": "Exists"}]
    assert pod({}, {**POOLED, "scheduling.tolerations": given})["spec"]["tolerations"] == given
