"""The objects of the fabric check."""

from __future__ import annotations

from typing import Any

import pytest

from components.documents.pool import Pool
from components.node_check import FabricCheck, FabricCheckArgs
from components.node_check import fabric_cron_spec as cron_spec
from components.node_check import fabric_name_of as name_of
from tests.unit.components.pools import CPU, TRAINIUM, pool
from tests.unit.components.recording import deploy
from tests.unit.infra.changing import settings, with_pool
from tests.unit.policies.building import made
from trainer.fabric_check import Requirements
from trainyard.policies.evaluate import evaluate
from trainyard.policies.model import Stack
from trainyard.policies.rules import ALL

pytestmark = pytest.mark.unit

IMAGE = "registry.example/trainer@sha256:" + "0" * 64
P4D = pool(name="p4d", instance_type="p4d.24xlarge", accelerators=8, efa=4, gigabits=400)


def pod(of: Pool) -> dict[str, Any]:
    found: dict[str, Any] = cron_spec(of, IMAGE)["jobTemplate"]["spec"]["template"]["spec"]
    return found


def environment(of: Pool) -> dict[str, str]:
    return {each["name"]: each["value"] for each in pod(of)["containers"][0]["env"] if "value" in each}


def test_fabric_check_has_a_cron_job_per_pool_and_one_service() -> None:
    recorded = deploy(
        lambda: FabricCheck("fabric", FabricCheckArgs(pools=(P4D, CPU, TRAINIUM), image=IMAGE, after=[]))
    )
    jobs = recorded.of("kubernetes:batch/v1:CronJob")
    # No NCCL on Neuron devices.
    assert [job.inputs["metadata"]["name"] for job in jobs] == ["fabric-cpu", "fabric-p4d"]
    assert all(job.inputs["spec"]["suspend"] is True for job in jobs)
    (service,) = recorded.of("kubernetes:core/v1:Service")
    assert service.inputs["spec"]["clusterIP"] == "None"
    (policy,) = recorded.of("kubernetes:networking.k8s.io/v1:NetworkPolicy")
    labels = jobs[0].inputs["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"]
    selected = policy.inputs["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= labels.items()
    assert service.inputs["spec"]["selector"].items() <= labels.items()


def test_fabric_check_name_of_longest_pool_leaves_room_for_a_job() -> None:
    """The command line adds 7 characters, the Job controller an index: a pod's hostname has at most 63."""
    assert len(name_of(pool(name="p" * 40))) + len("-123456-9999") <= 63


def test_fabric_check_pod_requests_the_devices_of_a_worker() -> None:
    limits = pod(P4D)["containers"][0]["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"]) == ("8", "4")
    assert environment(P4D)["PET_NPROC_PER_NODE"] == "8"
    assert environment(CPU)["PET_NPROC_PER_NODE"] == "1"


def test_fabric_check_requirements_are_understood_by_the_trainer() -> None:
    (of,) = settings(with_pool(instanceType="p4d.24xlarge")).pools
    assert Requirements.read(environment(of)) == Requirements(
        instance_type="p4d.24xlarge", gpus=8, efa=4, gigabits=400
    )


@pytest.mark.parametrize("of", [P4D, CPU], ids=lambda of: of.name)
def test_fabric_check_violates_no_rule(of: Pool) -> None:
    job = made(
        "kubernetes:batch/v1:CronJob",
        metadata={"name": name_of(of), "namespace": "training"},
        spec=cron_spec(of, IMAGE),
    )
    assert [str(each) for each in evaluate(Stack([job]), rules=ALL).violations] == []
