"""The checks of the pools' nodes, and of the network between them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from components.documents import instance_types
from components.documents.pool import Pool
from components.node_check import (
    FabricCheck,
    FabricCheckArgs,
    NodeCheck,
    NodeCheckArgs,
    cron_spec,
    expectation,
    fabric_cron_spec,
    fabric_name_of,
    name_of,
)
from tests.unit.components.pools import CPU, TRAINIUM, pool
from tests.unit.components.recording import deploy
from tests.unit.infra.changing import settings, with_, with_pool
from tests.unit.policies.building import made
from trainer.fabric_check import Requirements
from trainer.node_check import Expected, expected
from trainyard.k8s.names import PLACEHOLDER_PRIORITY_CLASS
from trainyard.policies.evaluate import evaluate
from trainyard.policies.model import Stack
from trainyard.policies.rules import ALL

IMAGE = "registry.example/trainer@sha256:" + "0" * 64
P4D = pool(name="p4d", instance_type="p4d.24xlarge", accelerators=8, efa=4, gigabits=400)


def pod(of: Pool, mounts: dict[str, str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = cron_spec(of, IMAGE, mounts or {})["jobTemplate"]["spec"]["template"]["spec"]
    return found


def container(of: Pool, mounts: dict[str, str] | None = None) -> dict[str, Any]:
    (only,) = pod(of, mounts)["containers"]
    return dict(only)


def test_every_pool_has_one_that_never_starts_by_itself() -> None:
    recorded = deploy(
        lambda: NodeCheck("check", NodeCheckArgs(pools=(P4D, CPU), image=IMAGE, mounts={}, after=[]))
    )
    jobs = recorded.of("kubernetes:batch/v1:CronJob")
    assert [job.inputs["metadata"]["name"] for job in jobs] == ["check-cpu", "check-p4d"]
    assert all(job.inputs["metadata"]["namespace"] == "training" for job in jobs)
    assert all(job.inputs["spec"]["suspend"] is True for job in jobs)


def test_longest_pool_name_leaves_room_for_a_job() -> None:
    """A CronJob's may have 52 characters (https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/).

    For the fabric check, the command line adds 7 characters, the Job controller an index: a pod's hostname has at most
    63.
    """
    longest = pool(name="p" * 40)
    assert len(name_of(longest)) <= 52
    assert len(fabric_name_of(longest)) + len("-123456-9999") <= 63


def test_node_check_requests_devices_and_gets_expected_counts() -> None:
    resources = container(P4D)["resources"]
    for part in ("requests", "limits"):
        assert resources[part]["nvidia.com/gpu"] == "8"
        assert resources[part]["vpc.amazonaws.com/efa"] == "4"
    assert not any("/" in name for name in container(CPU)["resources"]["limits"])
    assert container(TRAINIUM)["resources"]["limits"]["aws.amazon.com/neuron"] == "16"


def test_what_must_be_there_is_what_the_table_of_types_says() -> None:
    for facts in instance_types.TYPES.values():
        (of,) = settings(with_pool(instanceType=facts.name)).pools
        wanted = expectation(of, {})
        assert (wanted["resource"], wanted["devices"], wanted["efa"]) == (
            facts.resource,
            facts.accelerators,
            facts.efa,
        )


def test_the_trainer_understands_what_the_program_says() -> None:
    (value,) = [e["value"] for e in container(P4D, {"lustre": "/fsx"})["env"] if "value" in e]
    assert expected({"TRAINYARD_NODE_CHECK": value}) == Expected(
        instance_type="p4d.24xlarge", resource="nvidia.com/gpu", devices=8, efa=4, lustre="/fsx"
    )
    assert json.loads(value)["lustre"] == "/fsx"


def test_it_buys_no_machine_and_displaces_nothing() -> None:
    selector = pod(P4D)["nodeSelector"]
    assert selector == {"karpenter.sh/nodepool": "p4d", "karpenter.sh/initialized": "true"}
    assert pod(P4D)["priorityClassName"] == PLACEHOLDER_PRIORITY_CLASS
    assert pod(P4D)["tolerations"] == P4D.tolerations


def test_a_shared_file_system_is_mounted_for_reading() -> None:
    assert "volumes" not in pod(P4D)
    (volume,) = pod(P4D, {"lustre": "/fsx"})["volumes"]
    (mount,) = container(P4D, {"lustre": "/fsx"})["volumeMounts"]
    assert volume["persistentVolumeClaim"] == {"claimName": "lustre", "readOnly": True}
    assert mount == {"name": "lustre", "mountPath": "/fsx", "readOnly": True}


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        *((name_of(of), cron_spec(of, IMAGE, {"lustre": "/fsx"})) for of in (P4D, CPU, TRAINIUM)),
        *((fabric_name_of(of), fabric_cron_spec(of, IMAGE)) for of in (P4D, CPU)),
    ],
)
def test_checks_violate_no_rule(name: str, spec: dict[str, Any]) -> None:
    metadata = {"name": name, "namespace": "training"}
    job = made("kubernetes:batch/v1:CronJob", metadata=metadata, spec=spec)
    assert [str(each) for each in evaluate(Stack([job]), rules=ALL).violations] == []


def test_the_setting_is_off_unless_it_is_asked_for() -> None:
    assert settings(with_({})).node_check is False
    assert settings(with_({"nodeCheck": True})).node_check is True


def fabric_container(of: Pool) -> dict[str, Any]:
    (only,) = fabric_cron_spec(of, IMAGE)["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    return dict(only)


def fabric_environment(of: Pool) -> dict[str, str]:
    return {each["name"]: each["value"] for each in fabric_container(of)["env"] if "value" in each}


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


def test_fabric_check_pod_requests_the_devices_of_a_worker() -> None:
    limits = fabric_container(P4D)["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["vpc.amazonaws.com/efa"]) == ("8", "4")
    assert fabric_environment(P4D)["PET_NPROC_PER_NODE"] == "8"
    assert fabric_environment(CPU)["PET_NPROC_PER_NODE"] == "1"


def test_fabric_check_requirements_are_understood_by_the_trainer() -> None:
    (of,) = settings(with_pool(instanceType="p4d.24xlarge")).pools
    assert Requirements.read(fabric_environment(of)) == Requirements(
        instance_type="p4d.24xlarge", gpus=8, efa=4, gigabits=400
    )
