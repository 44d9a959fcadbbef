from __future__ import annotations

import json
from typing import Any

import pytest

from components.documents.eks import AGENT, VALUES
from components.documents.pool import node_pool
from local.nodes import node
from local.nodes.api import timestamp
from local.nodes.node import ALL_DEVICES, NO_DEVICES
from tests.unit.infra.changing import settings, with_


def instance(**changes: Any) -> dict[str, Any]:
    return {
        "instanceId": "i-1",
        "instanceType": "g5.12xlarge",
        "zone": "us-west-2b",
        "privateDns": "ip-10-0-1-4.us-west-2.compute.internal",
        "nodegroup": None,
        "vcpus": 48,
        "memoryMiB": 196608,
        "gpus": 4,
        "neuronDevices": 0,
        "efaInterfaces": 1,
        "nvmeGiB": 3800,
        "capacityType": "on-demand",
        **changes,
    }


def build(**changes: Any) -> dict[str, Any]:
    return node.build(instance(**changes), "us-west-2", 10250, "v1.35.4", 1000.0)


def test_node_of_karpenter_has_the_unregistered_taint() -> None:
    found = build()
    assert found["spec"]["taints"] == [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}]
    assert found["spec"]["providerID"] == "aws:///us-west-2b/i-1"
    assert found["metadata"]["labels"]["topology.kubernetes.io/zone"] == "us-west-2b"
    assert found["metadata"]["labels"]["kubernetes.io/hostname"] == found["metadata"]["name"]


def test_node_of_node_group_has_its_labels_and_taints() -> None:
    group = {
        "name": "system",
        "labels": {"role": "system"},
        "taints": [{"key": "only", "value": None, "effect": "NO_SCHEDULE"}],
    }
    found = build(nodegroup=group)
    assert found["spec"]["taints"] == [{"key": "only", "value": "", "effect": "NoSchedule"}]
    assert found["metadata"]["labels"]["eks.amazonaws.com/nodegroup"] == "system"
    assert found["metadata"]["labels"]["role"] == "system"


def test_node_gets_its_devices_after_registration() -> None:
    assert "nvidia.com/gpu" not in build()["status"]["capacity"]
    capacity, allocatable = node.resources(instance(), ALL_DEVICES)
    assert capacity["nvidia.com/gpu"] == allocatable["nvidia.com/gpu"] == "4"
    assert allocatable["vpc.amazonaws.com/efa"] == "1"
    assert "aws.amazon.com/neuron" not in allocatable


def test_node_has_conditions_of_kubelet_and_monitoring_agent() -> None:
    found = {
        "type": "AcceleratedHardwareReady",
        "status": "False",
        "reason": "NvidiaXID79Error",
        "message": "m",
        "since": 400.0,
    }
    conditions = {each["type"]: each for each in build(conditions=[found])["status"]["conditions"]}
    assert conditions["Ready"]["status"] == "True"
    assert conditions["AcceleratedHardwareReady"] == {
        "type": "AcceleratedHardwareReady",
        "status": "False",
        "reason": "NvidiaXID79Error",
        "message": "m",
        "lastHeartbeatTime": "1970-01-01T00:16:40Z",
        "lastTransitionTime": "1970-01-01T00:06:40Z",
    }


def hardware(taints: list[dict[str, Any]], **changes: Any) -> tuple[str, str]:
    healthy = {
        "type": "AcceleratedHardwareReady",
        "status": "True",
        "reason": "AcceleratedHardwareIsReady",
        "message": "m",
        "since": 400.0,
    }
    machine = instance(conditions=[healthy], **changes)
    found = {each["type"]: each for each in node.conditions(machine, 1000.0, [], taints)}
    return found["AcceleratedHardwareReady"]["status"], found["AcceleratedHardwareReady"]["reason"]


SICK, WELL = ("False", "DCGMError"), ("True", "AcceleratedHardwareIsReady")
TAINT = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("tolerations", "taints", "says"),
    [
        ([], [TAINT], SICK),
        ([], [], WELL),
        ([], [{"key": "karpenter.sh/unregistered", "effect": "NoExecute"}], WELL),
        ([{"key": "other", "operator": "Exists"}], [TAINT], SICK),
        ([{"key": "nvidia.com/gpu", "operator": "Exists"}], [TAINT], WELL),
        ([{"operator": "Exists"}], [TAINT, {"key": "team", "value": "a", "effect": "NoExecute"}], WELL),
        ([{"key": "nvidia.com/gpu"}], [TAINT | {"value": "true"}], SICK),
        (None, [TAINT], WELL),
    ],
)
def test_node_without_dcgm_server_has_unhealthy_gpus(tolerations: Any, taints: Any, says: Any) -> None:
    assert hardware(taints, dcgmTolerations=tolerations) == says


def test_node_with_the_stacks_agent_has_healthy_gpus() -> None:
    tolerations = json.loads(VALUES[AGENT])["dcgmAgent"]["tolerations"]
    pool = settings(with_({})).pools[0]
    taints = node_pool(pool, lustre=True)["template"]["spec"]["taints"]
    assert taints
    assert hardware(taints, dcgmTolerations=tolerations) == WELL


def test_condition_has_the_time_of_its_last_change() -> None:
    def since(before: list[dict[str, Any]], now: float) -> tuple[list[dict[str, Any]], dict[str, str]]:
        found = node.conditions(instance(), now, before, [])
        assert {each["lastHeartbeatTime"] for each in found} == {timestamp(now)}
        return found, {each["type"]: each["lastTransitionTime"] for each in found}

    found, first = since([], 1000.0)
    assert set(first.values()) == {timestamp(1000.0)}
    found, second = since(found, 1240.0)
    assert second == first
    for each in found:
        if each["type"] == "Ready":  # Kubernetes heard nothing of the node for a while
            each |= {"status": "Unknown", "lastTransitionTime": timestamp(1300.0)}
    found, third = since(found, 1480.0)
    assert third == {**first, "Ready": timestamp(1480.0)}


def test_node_allocatable_is_that_of_eks() -> None:
    capacity, allocatable = node.resources(instance(vcpus=4, memoryMiB=16384), NO_DEVICES)
    assert capacity["memory"] == "15155Mi"  # 7.5 % of virtual machine overhead
    assert allocatable["cpu"] == "3920m"  # 60 + 10 + 5 + 5 millicores reserved
    assert allocatable["memory"] == f"{15155 - 255 - 11 * 58 - 100}Mi"


def test_node_with_one_core_reserves_less_than_it() -> None:
    _, allocatable = node.resources(instance(vcpus=1, memoryMiB=512), NO_DEVICES)
    assert allocatable["cpu"] == "940m"
    assert allocatable["memory"] == "64Mi"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("m7g.large", "arm64"),
        ("c8gn.large", "arm64"),
        ("g5g.xlarge", "arm64"),
        ("a1.large", "arm64"),
        ("g5.12xlarge", "amd64"),
        ("p4de.24xlarge", "amd64"),
        ("p6-b200.48xlarge", "amd64"),
        ("p6-b300.48xlarge", "amd64"),
        ("g7e.48xlarge", "amd64"),
        ("gr6.8xlarge", "amd64"),
    ],
)
def test_node_architecture_follows_the_family(kind: str, expected: str) -> None:
    assert node.architecture(instance(instanceType=kind)) == expected


def test_node_has_only_the_loopback_address() -> None:
    assert build()["status"]["addresses"] == [{"type": "InternalIP", "address": "127.0.0.1"}]
    assert build()["status"]["daemonEndpoints"] == {"kubeletEndpoint": {"Port": 10250}}


def test_node_has_no_attach_annotation() -> None:
    assert "annotations" not in build()["metadata"]
