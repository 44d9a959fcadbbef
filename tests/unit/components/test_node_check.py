"""The checks of the pools' machines."""

from __future__ import annotations

import json
from typing import Any

import pytest

from components.documents import instance_types
from components.documents.pool import Pool
from components.node_check import NodeCheck, NodeCheckArgs, cron_spec, expectation, name_of
from tests.unit.components.pools import CPU, TRAINIUM, pool
from tests.unit.components.recording import deploy
from tests.unit.infra.changing import settings, with_, with_pool
from tests.unit.policies.building import made
from trainer.node_check import Expected, expected
from trainyard.k8s.names import PLACEHOLDER_PRIORITY_CLASS
from trainyard.policies.evaluate import evaluate
from trainyard.policies.model import Stack
from trainyard.policies.rules import ALL

pytestmark = pytest.mark.unit

IMAGE = "registry.example/trainer@sha256:" + "0" * 64
P4D = pool(name="p4d", instance_type="p4d.24xlarge", accelerators=8, efa=4)


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


def test_the_longest_pools_name_leaves_room_for_that_of_a_job() -> None:
    """A CronJob's may have 52 characters (https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/)."""
    assert len(name_of(pool(name="p" * 40))) <= 52


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


@pytest.mark.parametrize("of", [P4D, CPU, TRAINIUM], ids=lambda of: of.name)
def test_it_violates_no_rule(of: Pool) -> None:
    job = made(
        "kubernetes:batch/v1:CronJob",
        metadata={"name": name_of(of), "namespace": "training"},
        spec=cron_spec(of, IMAGE, {"lustre": "/fsx"}),
    )
    assert [str(each) for each in evaluate(Stack([job]), rules=ALL).violations] == []


def test_the_setting_is_off_unless_it_is_asked_for() -> None:
    assert settings(with_({})).node_check is False
    assert settings(with_({"nodeCheck": True})).node_check is True
