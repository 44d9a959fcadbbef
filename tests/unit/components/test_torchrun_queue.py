"""What a queue of the settings is in the cluster."""

from __future__ import annotations

from typing import Any

import pytest

from components.documents import torchrun_queue
from components.documents.pool import Pool
from components.documents.torchrun_queue import JobDefaults, QueueContext, Volume, spec
from tests.unit.components.crd import problems
from tests.unit.components.pools import CPU, TRAINIUM, pool
from tests.unit.components.queues import queue
from trainyard.operator.api.queue import parse_queue
from trainyard.operator.observe import ClusterState
from trainyard.operator.queue import build_queue_context, build_trial_pod

IMAGE = f"registry.example/trainer@sha256:{'0' * 64}"
TOOLS = f"registry.example/launcher@sha256:{'2' * 64}"
OTHER = f"registry.example/pytorch@sha256:{'1' * 64}"
AROUND = QueueContext(
    trainer_image=IMAGE,
    tools_image=TOOLS,
    workspaces="s3://b/torchrun",
    model_uri="s3://b/models",
    region="us-west-2",
    mounts={"lustre": "/fsx"},
    writes=("/fsx/trainyard/test",),
)
EFA = pool(instance_type="p4d.24xlarge", accelerators=8, efa=4)


def made(**changes: Any) -> dict[str, Any]:
    found = spec(queue(**changes), AROUND)
    assert problems("TorchrunQueue", found) == []
    return found


def worker(**changes: Any) -> dict[str, Any]:
    """The container of a worker as the controller makes it, on one machine with all that the queue has of it."""
    queue = {"metadata": {"name": "q", "namespace": "training", "uid": "u"}, "spec": made(**changes)}
    trial = build_trial_pod(build_queue_context(queue, [], ClusterState(tools_image=IMAGE), 0.0))
    assert trial is not None
    (container,) = trial["spec"]["containers"]
    return {
        **container,
        "pod": trial["spec"],
        "env": {each["name"]: each.get("value") for each in container["env"]},
    }


def test_workers_run_on_machines_of_the_pool_and_are_let_onto_them() -> None:
    for each in (pool(), CPU, TRAINIUM):
        pod = worker(pool=each, gpus=4 if each == pool() else 0)["pod"]
        assert pod["nodeSelector"] == {"karpenter.sh/nodepool": each.name}
        wanted = each.tolerations
        assert wanted
        assert [entry for entry in pod["tolerations"] if entry in wanted] == wanted


@pytest.mark.parametrize(
    ("machine", "gpus", "asked"),
    [
        (pool(), 4, {"nvidia.com/gpu": "4"}),
        (pool(), 0, {}),
        (CPU, 0, {}),
        (TRAINIUM, 0, {"aws.amazon.com/neuron": "16", "vpc.amazonaws.com/efa": "8"}),
        (EFA, 8, {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "4"}),
        (EFA, 4, {"nvidia.com/gpu": "4"}),
        (EFA, 1, {"nvidia.com/gpu": "1"}),
        (EFA, 0, {}),
    ],
)
def test_a_worker_asks_for_the_devices_of_its_part_of_a_machine(
    machine: Pool, gpus: int, asked: dict[str, str]
) -> None:
    resources = worker(pool=machine, gpus=gpus)["resources"]
    for kind in ("requests", "limits"):
        devices = {key: value for key, value in resources[kind].items() if "/" in key}
        assert devices == asked
        assert resources[kind]["cpu"] == "40000m"


def test_worker_without_huge_pages_disables_them() -> None:
    assert worker(pool=EFA, gpus=8)["env"]["FI_EFA_USE_HUGE_PAGE"] == "0"
    assert "FI_EFA_USE_HUGE_PAGE" not in worker()["env"]


def test_worker_stack_trainer_receives_settings() -> None:
    template = worker()
    assert template["image"] == IMAGE
    assert template["env"]["TRAINYARD_MODEL_URI"] == "s3://b/models"
    assert template["env"]["TRAINYARD_DEVICE"] == "cuda"
    assert template["env"]["TRAINYARD_METRICS_PORT"] == "9465"
    assert worker(gpus=0)["env"]["TRAINYARD_DEVICE"] == "cpu"
    assert made()["podTemplate"]["metadata"]["annotations"]["prometheus.io/scrape"] == "true"


def test_worker_own_image_receives_region_only() -> None:
    template = worker(image=OTHER)
    assert template["image"] == OTHER
    assert template["env"]["AWS_REGION"] == "us-west-2"
    for name in ("TRAINYARD_MODEL_URI", "TRAINYARD_DEVICE", "TRAINYARD_METRICS_PORT"):
        assert name not in template["env"]
    assert "metadata" not in made(image=OTHER)["podTemplate"]


def test_workers_see_the_shared_file_system_where_training_pods_do() -> None:
    template = worker()
    assert {"name": "lustre", "mountPath": "/fsx"} in template["volumeMounts"]
    assert {"name": "lustre", "persistentVolumeClaim": {"claimName": "lustre"}} in template["pod"]["volumes"]
    elsewhere = made(namespace="default")["podTemplate"]["spec"]
    assert {"volumes", "initContainers"} & elsewhere.keys() == set(), "the claim is in the training namespace"


def test_the_stacks_directory_there_is_opened_to_workers_by_a_root_that_can_nothing_else() -> None:
    opening, *_ = worker()["pod"]["initContainers"]  # before those that bring a workspace
    assert (opening["image"], opening["command"][-1]) == (TOOLS, "/fsx/trainyard/test")
    assert opening["volumeMounts"] == [{"name": "lustre", "mountPath": "/fsx"}]
    security = opening["securityContext"]
    assert (security["runAsUser"], security["runAsNonRoot"]) == (0, False)
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert security["allowPrivilegeEscalation"] is False


def test_workers_have_their_account_and_no_token_of_the_api() -> None:
    pod = worker(service_account="mine")["pod"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("mine", False)
    assert "serviceAccountName" not in worker(service_account=None)["pod"]


def test_workspaces_go_through_the_stacks_bucket_a_given_one_or_a_pod() -> None:
    def bucket(**changes: Any) -> Any:
        return made(**changes)["storage"].get("workspace", {}).get("bucket")

    assert bucket(own_bucket=True) == "s3://b/torchrun"
    assert bucket(bucket="theirs") == "s3://theirs/torchrun"
    assert bucket() is None
    both = made(own_bucket=True, volumes={"workspace": Volume(size="1Gi")})["storage"]["workspace"]
    assert both == {"enabled": True, "size": "1Gi", "bucket": "s3://b/torchrun"}


def test_volumes_are_those_that_the_controller_makes_claims_of() -> None:
    volumes = {
        "datasets": Volume(existing_claim="imagenet"),
        "checkpoints": Volume(size_per_gpu="5Gi", storage_class="fsx", retain=True),
    }
    parsed, wrong = parse_queue(made(volumes=volumes))
    assert wrong == ()
    assert parsed is not None
    found = {
        name: (each.mount_path, each.existing_claim, each.retain) for name, each in parsed.volumes.items()
    }
    assert found == {
        "datasets": ("/datasets", "imagenet", False),
        "checkpoints": ("/checkpoints", "", True),
    }


def test_shared_memory_priority_and_defaults_of_jobs_are_said() -> None:
    template = worker(shared_memory_per_gpu="3Gi", priority_class="urgent")
    assert template["pod"]["priorityClassName"] == "urgent"
    assert {
        "name": "shared-memory",
        "emptyDir": {"medium": "Memory", "sizeLimit": "12Gi"},
    } in template["pod"]["volumes"]
    defaults = JobDefaults(time_to_live=0, restart_policy="Never", max_restarts=0)
    assert made(job_defaults=defaults)["jobDefaults"] == {
        "ttlSecondsAfterFinished": 0,
        "restartPolicy": "Never",
        "maxRestarts": 0,
    }


def test_the_prefix_of_workspaces_is_none_of_the_stacks_other_ones() -> None:
    assert torchrun_queue.workspaces("b") == f"s3://b/{torchrun_queue.BUCKET_PREFIX}"
    assert torchrun_queue.BUCKET_PREFIX not in ("models", "checkpoints")
