"""Each field of a job has its effect on what is made; an override is as the queue's own field."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from local.home import CHECKOUT
from local.nodes import dockerfile
from tests.unit.operator.made import (
    DIGEST,
    TOOLS,
    affinity_allows,
    attempt_spec,
    container,
    env,
    flag,
    mounted,
    pod,
)
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.children import (
    build_jobs,
    build_service,
    build_sync_pod,
    owner_reference,
    spec_digest,
)
from trainyard.operator.gang import build_pod_group
from trainyard.operator.resources import InvalidJob

ONE = {"numGPUs": 8}
SENT = {"workspace": {"digest": DIGEST, "sizeBytes": 5}}


def test_num_gpus_and_num_nodes_set_the_size() -> None:
    def shape(**asked: int) -> tuple[int, int]:
        made = attempt_spec(asked)
        (job,) = build_jobs(made)
        assert job["spec"]["completions"] == job["spec"]["parallelism"] == made.size.nodes
        return made.size.nodes, made.size.gpus

    assert shape(numGPUs=8) == (1, 8)
    assert shape(numGPUs=3) == (1, 3)
    assert shape(numGPUs=16) == (2, 8)
    assert shape(numGPUs=12) == (2, 6)
    assert shape(numGPUs=8, numNodes=4) == (4, 2)
    assert shape(numGPUs=0) == (1, 0)
    assert shape(numGPUs=0, numNodes=3) == (3, 0)


@pytest.mark.parametrize(
    ("asked", "gpus", "reported"),
    [
        ({"numGPUs": 3}, 2, "must be 4, or set spec.numNodes to 3 with 1 GPU on each"),
        ({"numGPUs": 10}, 4, "must be 12, or set spec.numNodes to 5 with 2 GPUs on each"),
        ({"numGPUs": 15}, 8, "must be 16, or set spec.numNodes to 3 with 5 GPUs on each"),
        ({"numGPUs": 10, "numNodes": 3}, 4, "must be 12, or set spec.numNodes to 5 with 2 GPUs on each"),
        ({"numGPUs": 16, "numNodes": 1}, 8, "16 on each, and nodeResources.gpus of the queue is 8"),
        ({"numGPUs": 1}, 0, "nodeResources.gpus of queue research is 0"),
    ],
)
def test_distribute_impossible_size_is_refused(asked: dict[str, Any], gpus: int, reported: str) -> None:
    with pytest.raises(InvalidJob, match=reported):
        attempt_spec(asked, {"nodeResources.gpus": gpus})


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_distribute_suggested_split_is_accepted(gpus: int) -> None:
    for count in range(1, 129):
        try:
            attempt_spec({"numGPUs": count}, {"nodeResources.gpus": gpus})
        except InvalidJob as refused:
            if named := re.search(r"spec\.numNodes to (\d+) with (\d+) GPUs? on each", str(refused)):
                split = {"numGPUs": count, "numNodes": int(named[1])}
                size = attempt_spec(split, {"nodeResources.gpus": gpus}).size
                assert (size.nodes, size.gpus) == (int(named[1]), int(named[2]))


def test_cpu_job_requests_no_gpus() -> None:
    worker = container({"numGPUs": 0, "numNodes": 2})
    assert "nvidia.com/gpu" not in worker["resources"]["limits"]
    assert flag("nproc-per-node", {"numGPUs": 0}) == "1"
    assert env({"numGPUs": 0})["OMP_NUM_THREADS"] == "96"
    assert env()["OMP_NUM_THREADS"] == "12"
    assert env({"numGPUs": 2})["OMP_NUM_THREADS"] == "12"
    assert env({"env": [{"name": "OMP_NUM_THREADS", "value": "5"}]})["OMP_NUM_THREADS"] == "5"


@pytest.mark.parametrize("value", [
    {"value": "1"},
    {"valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
    {"valueFrom": {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}}},
    {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}},
    {"valueFrom": {"resourceFieldRef": {"containerName": "x", "resource": "limits.cpu", "divisor": 1}}},
])  # fmt: skip
def test_env_reaches_the_worker_unchanged(value: dict[str, Any]) -> None:
    assert {"name": "A", **value} in container({"env": [{"name": "A", **value}]})["env"]
    # What the controller counts by, nobody changes.
    assert env({"env": [{"name": n.ENV_ATTEMPT, **value}]})[n.ENV_ATTEMPT] == "0"


@pytest.mark.parametrize("bound", [
    {"scheduling.pool": "p5"},
    {"scheduling.nodeSelector": {names.LABEL_NODEPOOL: "p5"}},
    {"podTemplate.spec.nodeSelector": {names.LABEL_NODEPOOL: "p5"}},
    {"nodeResources.gpuType": "p5"},
])  # fmt: skip
def test_cpu_job_avoids_nodes_with_gpus(bound: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match=r"spec.numGPUs is 0, and nodes of (pool|gpuType) p5 have GPUs"):
        attempt_spec({"numGPUs": 0}, bound)


def test_cpu_job_runs_in_a_queue_without_gpus() -> None:
    pooled = {"scheduling.pool": "p5"}
    with pytest.raises(AssertionError, match=r"spec.overrides.nodeResources.gpus is 0, and nodes of pool p5"):
        attempt_spec({"numGPUs": 0, "overrides": {"nodeResources": {"gpus": 0}}}, pooled)
    assert attempt_spec({"numGPUs": 0}, {**pooled, "nodeResources.gpus": 0}).size.gpus == 0
    assert attempt_spec({"numGPUs": 0}).size.gpus == 0


def test_sync_pod_avoids_nodes_of_pools() -> None:
    asked = {
        "scheduling.pool": "p5",
        "scheduling.tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "scheduling.nodeSelector": {"disk": "fast"},
        "storage.workspace": {"enabled": True, "size": "1Gi", "accessMode": "ReadWriteOnce"},
    }
    made = build_sync_pod(attempt_spec(SENT, asked))
    assert "annotations" not in made["metadata"]
    assert (made["spec"]["tolerations"], made["spec"].get("nodeSelector")) == ([], None)
    assert not [each for each in made["spec"]["volumes"] if "persistentVolumeClaim" in each]
    for labels, let in (
        ({"karpenter.sh/nodepool": "p5"}, False),
        ({"karpenter.sh/nodepool": "another"}, False),
        ({"karpenter.sh/nodepool": "small", "torchrun.ai/sync-pods": "true"}, True),
        ({}, True),
    ):
        assert affinity_allows(made["spec"]["affinity"]["nodeAffinity"], **labels) is let


def test_workspace_without_url_uses_sync_pod() -> None:
    made = attempt_spec(SENT)
    assert made.spec.has_sync_pod
    assert not attempt_spec({"workspace": {**SENT["workspace"], "url": "s3://bbb/k"}}).spec.has_sync_pod
    tools = pod(SENT)["spec"]["initContainers"]
    assert tools[0]["command"] == [
        "python", "-m", "trainyard.workspace", "fetch", "--archive", "/etc/torchrun/archive",
        "--sync", "http://vit-sync-0.vit.team.svc:8080", "--into", n.TOOLS_WORKSPACE,
    ]  # fmt: skip
    assert tools[1]["command"] == [*tools[0]["command"][:3], "follow", *tools[0]["command"][4:]]
    assert tools[0]["image"] == TOOLS
    assert mounted(pod(SENT), "/app")[1] == {"name": "workspace", "emptyDir": {}}
    assert "initContainers" not in pod()["spec"]
    image = dockerfile.parse((CHECKOUT / "launcher" / "Dockerfile").read_text())
    sync = build_sync_pod(made)
    for each in (*tools, *sync["spec"]["containers"]):
        for mount in each["volumeMounts"]:
            hidden = f"{image.workdir}/".startswith(f"{mount['mountPath']}/")
            assert not hidden, "the image has its program there"
    # It is the annotation by which a new digest, and a new size, are noticed.
    (job,) = build_jobs(made)
    assert job["metadata"]["annotations"] == {
        n.ANNOTATION_SIZE: "auto",
        n.ANNOTATION_WORKSPACE: DIGEST,
        n.ANNOTATION_PARTS: "1",
        n.ANNOTATION_MADE_OF: spec_digest(job["spec"]),
    }


def test_sync_pod_serves_the_workspace_of_its_job() -> None:
    made = attempt_spec(SENT)
    sync = build_sync_pod(made)
    assert sync["metadata"]["name"] == sync["spec"]["hostname"] == "vit-sync-0"
    assert (sync["spec"]["subdomain"], sync["metadata"]["labels"][n.LABEL_JOB]) == ("vit", "vit")
    command = ["python", "-m", "trainyard.workspace", "serve", "--expect", DIGEST, "--size", "5"]
    assert sync["spec"]["containers"][0]["command"] == [*command, "--give-up-seconds", "600"]
    started = build_sync_pod(dataclasses.replace(made, has_started=True, nearby=("http://other:8080",)))
    assert started["spec"]["containers"][0]["command"] == [*command, "--nearby", "http://other:8080"]


@pytest.mark.parametrize(
    ("size", "limit", "most", "request_"),
    [(5, "2049Mi", 2**30, "1Mi"), (10 * 2**30, "40961Mi", 20 * 2**30, "20481Mi")],
)
def test_sync_pod_has_room_for_larger_workspaces(size: int, limit: str, most: int, request_: str) -> None:
    spec = build_sync_pod(attempt_spec({"workspace": {"digest": DIGEST, "sizeBytes": size}}))["spec"]
    assert spec["volumes"][0] == {"name": "archives", "emptyDir": {"sizeLimit": limit}}
    (container,) = spec["containers"]
    assert container["env"] == [{"name": n.ENV_SYNC_MOST, "value": str(most)}]
    assert container["resources"]["requests"]["ephemeral-storage"] == request_


def test_sync_pod_has_secrets_and_priority_of_the_queue() -> None:
    secrets = [{"name": "registry"}]
    asked = {"podTemplate.spec": {"imagePullSecrets": secrets}, "scheduling.priorityClassName": "high"}
    spec = build_sync_pod(attempt_spec(SENT, asked))["spec"]
    # Workers of a higher priority could preempt it, with what it was sent.
    assert (spec["imagePullSecrets"], spec["priorityClassName"]) == (secrets, "high")
    pooled = build_sync_pod(attempt_spec(SENT, {**asked, "scheduling.pool": "p5"}))["spec"]
    assert "priorityClassName" not in pooled
    assert not {"priorityClassName", "imagePullSecrets"} & set(build_sync_pod(attempt_spec(SENT))["spec"])


def test_workspace_tools_run_as_user_of_worker() -> None:
    assert pod(SENT)["spec"]["initContainers"][0]["securityContext"]["runAsUser"] == 0
    below = {"podTemplate.spec": {"securityContext": {"runAsNonRoot": True, "runAsUser": 7}}}
    assert pod(SENT, below)["spec"]["initContainers"][0]["securityContext"]["runAsUser"] == 7


HOME = {"name": n.WORKER_CONTAINER, "env": [{"name": "HOME", "value": "/queue"}]}


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ({"securityContext": {"runAsUser": 10001}}, ["/tmp", "trainer", "trainer"]),
        ({"securityContext": {"runAsUser": 7}, "containers": [HOME]}, ["/queue", "trainer", "trainer"]),
        ({"securityContext": {"runAsUser": 0}}, [None] * 3),
        ({}, [None] * 3),
    ],
)
def test_worker_with_numeric_user_has_home_and_name(
    template: dict[str, Any], found: list[str | None]
) -> None:
    variables = env({}, {"podTemplate.spec": template})
    assert [variables.get(name) for name in ("HOME", "USER", "LOGNAME")] == found


def test_distributed_fields_set_flags_and_env() -> None:
    assert env()[n.ENV_BACKEND] == "nccl"
    assert env({"numGPUs": 0})[n.ENV_BACKEND] == "gloo"
    assert env({"distributed.backend": "gloo"})[n.ENV_BACKEND] == "gloo"
    assert flag("rdzv-backend", {}) == "c10d"
    assert flag("rdzv-endpoint", {"distributed.port": 31000}).endswith(":31000")
    etcd = {"distributed": {"rdzvBackend": "etcd-v2", "rdzvEndpoint": "etcd.svc:2379"}}
    assert (flag("rdzv-backend", etcd), flag("rdzv-endpoint", etcd)) == ("etcd-v2", "etcd.svc:2379")
    for name in ("etcd", "etcd-v2"):
        made = attempt_spec({"distributed": {"rdzvBackend": name}})
        assert (made.settings.rendezvous, made.settings.substituted) == ("c10d", name)
    assert attempt_spec(etcd).settings.substituted == ""
    static = {"distributed": {"rdzvBackend": "static"}}
    assert flag("node-rank", static) == "$(TORCHRUN_NODE_RANK)"
    assert flag("rdzv-backend", static) == "static"


def test_elastic_job_has_range_of_nodes() -> None:
    asked = {"elastic": {"minNodes": 2, "maxNodes": 4}, "numGPUs": 32}
    made = attempt_spec(asked, {"scheduling.scheduler": "kai-scheduler"})
    assert (made.size.nodes, made.size.minimum, made.size.gpus) == (4, 2, 8)
    assert flag("nnodes", asked) == "2:4"
    assert build_pod_group(made)["spec"]["minMember"] == 2
    # Workers that ended well must not have KAI evict the others.
    assert build_pod_group(made)["spec"]["stalenessGracePeriod"] == "-1s"
    (job,) = build_jobs(made)
    assert job["spec"]["successPolicy"] == {"rules": [{"succeededCount": 2}]}
    assert job["metadata"]["annotations"][n.ANNOTATION_SIZE] == "2:4"
    assert env(asked)["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert "TRAINYARD_EXPECTED_NODES" not in env(asked)
    assert env()["TRAINYARD_EXPECTED_NODES"] == "2"
    (fixed,) = build_jobs(attempt_spec())
    assert "successPolicy" not in fixed["spec"]


def test_overrides_merge_objects_and_replace_lists() -> None:
    queue = {
        "scheduling.nodeSelector": {"a": "1", "b": "2"},
        "scheduling.tolerations": [{"key": "x", "operator": "Exists"}],
        "storage.datasets": {"enabled": True, "sizePerGPU": "1Gi", "storageClass": "fsx"},
    }
    over = {
        "overrides.scheduling.nodeSelector": {"b": "3"},
        "overrides.scheduling.tolerations": [],
        "overrides.storage.datasets.size": "7Gi",
    }
    made = attempt_spec(over, queue)
    assert made.settings.queue.scheduling.node_selector == {"a": "1", "b": "3"}
    assert made.settings.queue.scheduling.tolerations == ()
    (claim,) = made.storage.claims
    assert (claim.size, claim.storage_class) == (7 * 2**30, "fsx")
    claimed = attempt_spec({"overrides.storage.datasets.existingClaim": "shared"}, queue)
    assert claimed.storage.claims == ()


def test_build_jobs_job_is_indexed_and_suspended() -> None:
    (job,) = build_jobs(attempt_spec(attempt=3))
    assert job["metadata"]["name"] == "vit-3"
    spec = job["spec"]
    assert (spec["completionMode"], spec["backoffLimit"], spec["suspend"]) == ("Indexed", 0, True)
    labels = {n.LABEL_JOB: "vit", n.LABEL_ATTEMPT: "3", n.LABEL_MANAGED_BY: n.MANAGED_BY}
    assert job["metadata"]["labels"] == labels
    assert spec["template"]["metadata"]["labels"] == {**labels, n.LABEL_JOB_UID: "u1"}
    assert spec["template"]["spec"]["subdomain"] == "vit"
    assert job["metadata"]["ownerReferences"] == [owner_reference("vit", "u1")]


def test_rendezvous_of_each_attempt_is_another() -> None:
    first, second = attempt_spec().rendezvous, attempt_spec(attempt=1).rendezvous
    assert (first.id, second.id) == ("u1-0", "u1-1")
    assert second.endpoint == "vit-1-0.vit.team.svc:29500"
    assert build_service(attempt_spec())["spec"]["clusterIP"] == "None"
    assert build_service(attempt_spec())["spec"]["publishNotReadyAddresses"] is True


def test_worker_on_host_network_has_local_address() -> None:
    """On the network of the machines they have none of their own."""
    assert "PET_LOCAL_ADDR" not in env({"numGPUs": 16})
    template = {"podTemplate": {"spec": {"hostNetwork": True}}}
    assert env({"numGPUs": 16}, template)["PET_LOCAL_ADDR"] == {"fieldRef": {"fieldPath": "status.podIP"}}
    assert "PET_LOCAL_ADDR" not in env({"numGPUs": 8}, template)


def test_rendezvous_of_one_worker_is_local() -> None:
    assert attempt_spec(ONE).rendezvous.endpoint == "localhost:0"
    static = attempt_spec({**ONE, "distributed": {"rdzvBackend": "static"}})
    # The processes of the worker meet there, too.
    assert static.rendezvous.endpoint == "vit-0-0.vit.team.svc:29500"


def test_grace_period_follows_timeout_of_torchrun() -> None:
    assert pod()["spec"]["terminationGracePeriodSeconds"] == 45
    reported = {"env": [{"name": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "value": "300"}]}
    assert pod(reported)["spec"]["terminationGracePeriodSeconds"] == 315
