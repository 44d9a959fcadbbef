"""Each field of both kinds has its effect on what is made."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from launcher.core.torchrun import children, placement
from launcher.core.torchrun import names as n
from launcher.core.torchrun.distribution import Refused
from launcher.core.torchrun.storage import ClaimMissing
from tests.unit.torchrun.made import CLUSTER, DIGEST, TOOLS, container, env, making, pod

pytestmark = pytest.mark.unit

ONE = {"numGPUs": 8}


def mounted(template: dict[str, Any], path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A mount of the workers and its volume."""
    worker = next(each for each in template["spec"]["containers"] if each["name"] == n.WORKER_CONTAINER)
    mount = next(each for each in worker["volumeMounts"] if each["mountPath"] == path)
    return mount, next(each for each in template["spec"]["volumes"] if each["name"] == mount["name"])


def claims(of_job: dict[str, Any], of_queue: dict[str, Any]) -> dict[str, dict[str, Any]]:
    made = making(of_job, of_queue)
    return {each.name: children.claim(made, each) for each in made.storage.claims}


def flag(name: str, of_job: dict[str, Any], of_queue: dict[str, Any] | None = None) -> str:
    words = container(of_job, of_queue)["command"]
    return next(each for each in words if each.startswith(f"--{name}=")).partition("=")[2]


# --- fields of a queue


def test_kai_queue_labels_the_pods_and_is_the_gangs() -> None:
    asked = {"kaiQueue": "team-a", "scheduling.scheduler": "kai-scheduler"}
    assert pod({}, asked)["metadata"]["labels"][n.LABEL_KAI_QUEUE] == "team-a"
    assert children.pod_group(making({}, asked))["spec"]["queue"] == "team-a"
    assert n.LABEL_KAI_QUEUE not in pod()["metadata"]["labels"]
    without = making({}, {"scheduling.scheduler": "kai-scheduler"})
    assert children.pod_group(without)["spec"]["queue"] == "default-queue"


def test_parent_kai_queue() -> None:
    made = children.kai_queue("team-a", "org", "team", "research")
    assert made["spec"]["parentQueue"] == "org"
    assert "ownerReferences" not in made["metadata"]
    assert made["metadata"]["labels"][n.LABEL_QUEUE_NAMESPACE] == "team"
    assert "namespace" not in made["metadata"]
    assert made["spec"]["resources"]["gpu"]["limit"] == -1  # 0, or nothing, would be none at all


def test_gpus_cpus_and_memory_of_a_node() -> None:
    resources = container()["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"] == {"cpu": "96000m", "memory": str(512 * 2**30), "nvidia.com/gpu": "8"}
    assert flag("nproc-per-node", {}) == "8"


def test_a_part_of_a_nodes_gpus_takes_the_same_part_of_the_rest() -> None:
    resources = container({"numGPUs": 2})["resources"]["limits"]
    assert resources == {"cpu": "24000m", "memory": str(128 * 2**30), "nvidia.com/gpu": "2"}
    # Two nodes with four GPUs each, in a queue with eight.
    assert container({"numNodes": 4})["resources"]["limits"]["cpu"] == "48000m"


def test_cpus_in_thousandths() -> None:
    assert container(ONE, {"nodeResources.cpus": "7500m"})["resources"]["limits"]["cpu"] == "7500m"


def test_gpu_type_is_a_nodes_affinity_joined_with_the_given_one() -> None:
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    other = {"key": "zone", "operator": "In", "values": ["b"]}
    given = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [zone]}, {"matchExpressions": [other]}]}}  # fmt: skip
    spec = pod({}, {"nodeResources.gpuType": "h100-80gb", "scheduling.affinity.nodeAffinity": given})["spec"]
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    terms = [each["matchExpressions"] for each in required["nodeSelectorTerms"]]
    assert len(terms) == 6
    assert [term[0] for term in terms] == [zone] * 3 + [other] * 3
    assert terms[0][1] == {"key": n.LABEL_GPU_TYPE, "operator": "In", "values": ["h100-80gb"]}
    assert [(each["key"], each["operator"], each["values"]) for each in terms[2][1:]] == [
        (placement.LABEL_GPU_NAME, "In", ["h100"]),
        (placement.LABEL_GPU_MEMORY, "Gt", ["69632"]),
        (placement.LABEL_GPU_MEMORY, "Lt", ["94208"]),
    ]
    assert "affinity" not in pod()["spec"]
    assert len(placement.gpu_terms("NVIDIA-H100-80GB-HBM3")) == 2


def test_image_and_working_directory() -> None:
    worker = container({}, {"image": "example.com/own:3", "workingDir": "/work"})
    assert (worker["image"], worker["workingDir"]) == ("example.com/own:3", "/work")
    assert container()["workingDir"] == "/app"


def test_the_pod_template_is_below_what_other_fields_say() -> None:
    template = {
        "podTemplate.metadata": {"labels": {"team": "x", n.LABEL_JOB: "no"}, "annotations": {"a": "b"}},
        "podTemplate.spec": {
            "serviceAccountName": "trainer",
            "restartPolicy": "Always",
            "nodeSelector": {"disk": "fast", "zone": "a"},
            "containers": [
                {"name": "logs", "image": "logs"},
                {
                    "name": "torchrun",
                    "image": "no",
                    "args": ["no"],
                    "command": ["no"],
                    "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                    "resources": {"limits": {"vpc.amazonaws.com/efa": "4", "cpu": "1"}},
                    "volumeMounts": [{"name": "mine", "mountPath": "/mine"}],
                },
            ],
            "volumes": [{"name": "mine", "emptyDir": {}}],
        },
        "scheduling.nodeSelector": {"zone": "b"},
    }
    made = pod({"env": [{"name": "B", "value": "3"}]}, template)
    assert made["metadata"]["labels"] | {"team": "x", n.LABEL_JOB: "vit"} == made["metadata"]["labels"]
    assert made["metadata"]["annotations"]["a"] == "b"
    spec = made["spec"]
    assert spec["serviceAccountName"] == "trainer"
    assert spec["restartPolicy"] == "Never"
    assert spec["nodeSelector"] == {"disk": "fast", "zone": "b"}
    assert [each["name"] for each in spec["containers"]] == ["torchrun", "logs"]
    worker = spec["containers"][0]
    assert worker["image"] == "example.com/pytorch:2.9"
    assert "args" not in worker
    assert (
        worker["resources"]["limits"] | {"vpc.amazonaws.com/efa": "4", "cpu": "96000m"}
        == worker["resources"]["limits"]
    )
    assert {each["name"]: each.get("value") for each in worker["env"]} | {"A": "1", "B": "3"} == {
        each["name"]: each.get("value") for each in worker["env"]
    }
    assert {"name": "mine", "mountPath": "/mine"} in worker["volumeMounts"]
    assert {"name": "mine", "emptyDir": {}} in spec["volumes"]


@pytest.mark.parametrize(
    ("volume", "path"), [("workspace", "/app"), ("datasets", "/datasets"), ("checkpoints", "/checkpoints")]
)
def test_a_volume_of_its_own(volume: str, path: str) -> None:
    asked = {f"storage.{volume}.enabled": True, f"storage.{volume}.size": "5Gi"}
    (name, claim), *_ = claims(ONE, asked).items()
    assert name == f"vit-{volume}"
    assert claim["spec"]["resources"]["requests"]["storage"] == str(5 * 2**30)
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert "storageClassName" not in claim["spec"]
    assert claim["metadata"]["ownerReferences"][0]["uid"] == "u1"
    mount, source = mounted(pod(ONE, asked), path)
    assert source["persistentVolumeClaim"]["claimName"] == name
    assert mount.get("readOnly", False) == (volume == "datasets")
    # Not enabled, or elsewhere, or longer than the job.
    assert claims(ONE, {**asked, f"storage.{volume}.enabled": False}) == {}
    mounted(pod(ONE, {**asked, f"storage.{volume}.mountPath": "/elsewhere"}), "/elsewhere")
    kept = claims(ONE, {**asked, f"storage.{volume}.retain": True})[name]
    assert "ownerReferences" not in kept["metadata"]


@pytest.mark.parametrize("volume", ["workspace", "datasets", "checkpoints"])
def test_size_for_each_gpu_class_and_access_mode(volume: str) -> None:
    asked = {
        f"storage.{volume}.enabled": True,
        f"storage.{volume}.sizePerGPU": "1500M",
        f"storage.{volume}.storageClass": "fsx",
    }
    (claim,) = claims({}, asked).values()
    assert claim["spec"]["resources"]["requests"]["storage"] == str(16 * 1500 * 10**6)
    assert claim["spec"]["storageClassName"] == "fsx"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    once = claims(ONE, {**asked, f"storage.{volume}.accessMode": "ReadWriteOnce"})
    assert once[f"vit-{volume}"]["spec"]["accessModes"] == ["ReadWriteOnce"]


@pytest.mark.parametrize("volume", ["workspace", "datasets", "checkpoints"])
def test_an_existing_claim_is_used_as_it_is(volume: str) -> None:
    asked = {f"storage.{volume}.enabled": True, f"storage.{volume}.existingClaim": "shared"}
    assert claims({}, asked) == {}
    path = {"workspace": "/app"}.get(volume, f"/{volume}")
    assert mounted(pod({}, asked), path)[1]["persistentVolumeClaim"]["claimName"] == "shared"
    with pytest.raises(Refused, match="existingClaim single can be mounted by one node"):
        making({}, {**asked, f"storage.{volume}.existingClaim": "single"})
    making(ONE, {**asked, f"storage.{volume}.existingClaim": "single"})
    with pytest.raises(ClaimMissing, match="existingClaim later"):
        making(ONE, {**asked, f"storage.{volume}.existingClaim": "later"})


@pytest.mark.parametrize("volume", ["datasets", "checkpoints"])
def test_one_node_volumes_of_several_nodes_are_refused(volume: str) -> None:
    asked = {f"storage.{volume}.enabled": True, f"storage.{volume}.size": "1Gi"}
    with pytest.raises(
        Refused, match=rf"storage.{volume} can be mounted by one node .ReadWriteOnce. and the job has 2"
    ):
        making({}, asked)


def test_each_node_has_its_own_workspace_where_one_can_be_mounted_by_one_node() -> None:
    asked = {"storage.workspace.enabled": True, "storage.workspace.sizePerGPU": "10Gi"}
    made = making({"numGPUs": 24}, asked)
    assert [each.name for each in made.storage.claims] == [
        "vit-workspace",
        "vit-workspace-1",
        "vit-workspace-2",
    ]
    assert {each.size for each in made.storage.claims} == {80 * 2**30}
    jobs = children.jobs(made)
    assert [each["metadata"]["name"] for each in jobs] == ["vit-0", "vit-0-n1", "vit-0-n2"]
    for node, each in enumerate(jobs):
        assert each["spec"]["completions"] == each["spec"]["parallelism"] == 1
        spec = each["spec"]["template"]["spec"]
        (volume,) = spec["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == n.workspace_claim("vit", node)
        ranks = [one["value"] for one in spec["containers"][0]["env"] if one["name"] == n.ENV_NODE_RANK]
        assert ranks == [str(node)]
    # The others find the first one by the name of its pod.
    assert made.meeting.endpoint == "vit-0-0.vit.team.svc:29500"


def test_read_only_claims_are_for_data_sets() -> None:
    for volume in ("workspace", "checkpoints"):
        asked = {f"storage.{volume}.enabled": True, f"storage.{volume}.size": "1Gi"}
        with pytest.raises(Refused, match=f"storage.{volume}.accessMode is ReadOnlyMany"):
            making({}, {**asked, f"storage.{volume}.accessMode": "ReadOnlyMany"})
    asked = {"storage.datasets.enabled": True, "storage.datasets.size": "1Gi"}
    making({}, {**asked, "storage.datasets.accessMode": "ReadOnlyMany"})


def test_the_bucket_has_the_pointer_that_is_followed() -> None:
    sent = {"workspace": {"digest": DIGEST, "sizeBytes": 5, "url": "s3://own/w/a.tar.zst"}}
    tools = pod(sent, {"storage.workspace.bucket": "s3://own/w"})["spec"]["initContainers"]
    assert [each["name"] for each in tools] == ["workspace", "workspace-sync"]
    assert tools[0]["command"][3:] == [
        "fetch",
        "--digest",
        DIGEST,
        "--url",
        "s3://own/w/a.tar.zst",
        "--into",
        "/app",
    ]
    assert tools[1]["command"][3:] == ["follow", "--url", "s3://own/w/jobs/u1/current", "--into", "/app"]
    assert tools[1]["restartPolicy"] == "Always"
    assert [each["name"] for each in pod(sent)["spec"]["initContainers"]] == ["workspace"]


def test_shared_memory_for_each_gpu() -> None:
    _, volume = mounted(pod({}, {"storage.shmSizePerGPU": "8Gi"}), "/dev/shm")
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": str(64 * 2**30)}
    assert "volumes" not in pod()["spec"]


def test_scheduler_priority_selector_tolerations_affinity_and_pool() -> None:
    toleration = {"key": "gpu", "operator": "Exists"}
    asked = {
        "scheduling.scheduler": "other",
        "scheduling.priorityClassName": "high",
        "scheduling.nodeSelector": {"a": "b"},
        "scheduling.tolerations": [toleration],
        "scheduling.affinity": {"podAffinity": {"x": 1}},
        "scheduling.pool": "p5",
    }
    spec = pod({}, asked)["spec"]
    assert spec["schedulerName"] == "other"
    assert spec["priorityClassName"] == "high"
    assert spec["nodeSelector"] == {"a": "b", "karpenter.sh/nodepool": "p5"}
    assert spec["affinity"] == {"podAffinity": {"x": 1}}
    assert spec["tolerations"][0] == toleration
    # A lost node is noticed soon, unless the user says how soon.
    assert {each["tolerationSeconds"] for each in spec["tolerations"][1:]} == {placement.LOST_NODE_SECONDS}
    patient = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 900}
    own = pod({}, {"scheduling.tolerations": [patient]})["spec"]["tolerations"]
    assert [each["key"] for each in own] == ["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"]
    assert "schedulerName" not in pod()["spec"]


def test_a_gang_of_our_own_where_kai_schedules() -> None:
    made = making(
        {}, {"scheduling.scheduler": "kai-scheduler", "scheduling.priorityClassName": "train"}, attempt=2
    )
    group = children.pod_group(made)
    assert group["metadata"]["name"] == "vit-2"
    assert (group["spec"]["minMember"], group["spec"]["priorityClassName"]) == (2, "train")
    (job,) = children.jobs(made)
    for meta in (job["metadata"], job["spec"]["template"]["metadata"]):
        assert meta["annotations"]["kai.scheduler/skip-podgrouper"] == "true"
    assert job["spec"]["template"]["metadata"]["annotations"]["pod-group-name"] == "vit-2"
    assert "pod-group-name" not in pod()["metadata"]["annotations"]


def test_port_and_interface() -> None:
    asked = {"networking.port": 30000, "networking.interface": "=eth0"}
    assert flag("rdzv-endpoint", {}, asked).endswith(":30000")
    assert children.service(making({}, asked))["spec"]["ports"][0]["port"] == 30000
    assert env({}, asked)["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert env({}, asked)["GLOO_SOCKET_IFNAME"] == "eth0"  # gloo takes plain names
    assert "GLOO_SOCKET_IFNAME" not in env({}, {"networking.interface": "^lo"})
    assert "NCCL_SOCKET_IFNAME" not in env()
    mine = {"env": [{"name": "NCCL_SOCKET_IFNAME", "value": "eth9"}]}
    assert env(mine, asked)["NCCL_SOCKET_IFNAME"] == "eth9"


@pytest.mark.parametrize(
    ("field", "value", "attribute"),
    [
        ("ttlSecondsAfterFinished", 60, "time_to_live"),
        ("activeDeadlineSeconds", 70, "deadline"),
        ("maxRestarts", 7, "max_restarts"),
    ],
)
def test_job_defaults_and_the_jobs_own(field: str, value: int, attribute: str) -> None:
    assert getattr(making({}, {f"jobDefaults.{field}": value}).settings, attribute) == value
    own = making({field: value + 1}, {f"jobDefaults.{field}": value})
    assert getattr(own.settings, attribute) == value + 1


def test_restart_policy() -> None:
    assert making().settings.max_restarts == 3
    assert making({}, {"jobDefaults.restartPolicy": "Never"}).settings.max_restarts == 0
    assert making({"restartPolicy": "Never"}).settings.max_restarts == 0
    both = making({"restartPolicy": "OnFailure"}, {"jobDefaults.restartPolicy": "Never"})
    assert both.settings.max_restarts == 3


# --- fields of a job


def test_num_gpus_and_num_nodes() -> None:
    def shape(**asked: int) -> tuple[int, int]:
        made = making(asked)
        (job,) = children.jobs(made)
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
    ("asked", "gpus", "told"),
    [
        ({"numGPUs": 9}, 8, "right would be 8 or 10, or another split by spec.numNodes"),
        ({"numGPUs": 17}, 8, "right would be 16 or 18,"),
        ({"numGPUs": 8, "numNodes": 3}, 8, "spec.numNodes is 3 and does not divide spec.numGPUs, 8"),
        ({"numGPUs": 9, "elastic": {"minNodes": 1, "maxNodes": 2}}, 8, "spec.elastic.maxNodes is 2"),
        ({"numGPUs": 16, "numNodes": 1}, 8, "16 on each, and nodeResources.gpus of the queue is 8"),
        ({"numGPUs": 1}, 0, "nodeResources.gpus of queue research is 0"),
    ],
)
def test_sizes_that_cannot_be(asked: dict[str, Any], gpus: int, told: str) -> None:
    with pytest.raises(Refused, match=told):
        making(asked, {"nodeResources.gpus": gpus})


def test_a_job_on_cpus() -> None:
    worker = container({"numGPUs": 0, "numNodes": 2})
    assert "nvidia.com/gpu" not in worker["resources"]["limits"]
    assert flag("nproc-per-node", {"numGPUs": 0}) == "1"
    assert env({"numGPUs": 0})["OMP_NUM_THREADS"] == "96"
    assert env()["OMP_NUM_THREADS"] == "12"
    assert env({"numGPUs": 2})["OMP_NUM_THREADS"] == "12"
    assert env({"env": [{"name": "OMP_NUM_THREADS", "value": "5"}]})["OMP_NUM_THREADS"] == "5"


def test_command_args_and_env() -> None:
    asked = {
        "command": "python train.py --a 'b c'",
        "args": ["--x", "$(y) z"],
        "env": [{"name": "A", "value": "1"}],
    }
    words = container(asked)["command"]
    assert words[-6:] == ["python", "train.py", "--a", "b c", "--x", "$$(y) z"]
    assert env(asked)["A"] == "1"
    secret = {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    assert env({"env": [secret]})["S"] == secret["valueFrom"]
    # What the controller counts by, nobody changes.
    assert env({"env": [{"name": n.ENV_ATTEMPT, "value": "9"}]})[n.ENV_ATTEMPT] == "0"


def test_a_workspace_comes_through_the_sync_pod_without_a_url() -> None:
    sent = {"workspace": {"digest": DIGEST, "sizeBytes": 5}}
    made = making(sent)
    assert made.sync
    address = ["--sync", "http://vit-sync-0.vit.team.svc:8080"]
    tools = pod(sent)["spec"]["initContainers"]
    assert tools[0]["command"] == [
        "python", "-m", "launcher.workspace", "fetch", "--digest", DIGEST, *address, "--into", "/app"
    ]  # fmt: skip
    assert tools[1]["command"][3:] == ["follow", *address, "--into", "/app"]
    assert tools[0]["image"] == TOOLS
    assert mounted(pod(sent), "/app")[1] == {"name": "workspace", "emptyDir": {}}
    sync = children.sync_pod(made)
    assert sync["metadata"]["name"] == sync["spec"]["hostname"] == "vit-sync-0"
    assert sync["spec"]["subdomain"] == "vit"
    assert sync["metadata"]["labels"][n.LABEL_JOB] == "vit"
    assert not making({"workspace": {**sent["workspace"], "url": "s3://b/k"}}).sync
    assert "initContainers" not in pod()["spec"]
    # It is the annotation by which a new digest, and a new size, are noticed.
    (job,) = children.jobs(made)
    assert job["metadata"]["annotations"] == {
        n.ANNOTATION_SIZE: "auto",
        n.ANNOTATION_WORKSPACE: DIGEST,
        n.ANNOTATION_PARTS: "1",
    }


def test_the_workspaces_user_is_the_workers() -> None:
    sent = {"workspace": {"digest": DIGEST, "sizeBytes": 5}}
    assert pod(sent)["spec"]["initContainers"][0]["securityContext"]["runAsUser"] == 0
    below = {"podTemplate.spec": {"securityContext": {"runAsNonRoot": True, "runAsUser": 7}}}
    assert pod(sent, below)["spec"]["initContainers"][0]["securityContext"]["runAsUser"] == 7


def test_backend_rendezvous_endpoint_and_port() -> None:
    assert env()[n.ENV_BACKEND] == "nccl"
    assert env({"numGPUs": 0})[n.ENV_BACKEND] == "gloo"
    assert env({"distributed.backend": "gloo"})[n.ENV_BACKEND] == "gloo"
    assert flag("rdzv-backend", {}) == "c10d"
    assert flag("rdzv-endpoint", {"distributed.port": 31000}).endswith(":31000")
    etcd = {"distributed": {"rdzvBackend": "etcd-v2", "rdzvEndpoint": "etcd.svc:2379"}}
    assert (flag("rdzv-backend", etcd), flag("rdzv-endpoint", etcd)) == ("etcd-v2", "etcd.svc:2379")
    for name in ("etcd", "etcd-v2"):
        made = making({"distributed": {"rdzvBackend": name}})
        assert (made.settings.rendezvous, made.settings.substituted) == ("c10d", name)
    assert making(etcd).settings.substituted == ""
    static = {"distributed": {"rdzvBackend": "static"}}
    assert flag("node-rank", static) == "$(TORCHRUN_NODE_RANK)"
    assert flag("rdzv-backend", static) == "static"


def test_elastic() -> None:
    asked = {"elastic": {"minNodes": 2, "maxNodes": 4}, "numGPUs": 32}
    made = making(asked, {"scheduling.scheduler": "kai-scheduler"})
    assert (made.size.nodes, made.size.least, made.size.gpus) == (4, 2, 8)
    assert flag("nnodes", asked) == "2:4"
    assert children.pod_group(made)["spec"]["minMember"] == 2
    (job,) = children.jobs(made)
    assert job["spec"]["successPolicy"] == {"rules": [{"succeededCount": 2}]}
    assert job["metadata"]["annotations"][n.ANNOTATION_SIZE] == "2:4"
    assert env(asked)["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert "TRAINYARD_EXPECTED_NODES" not in env(asked)
    assert env()["TRAINYARD_EXPECTED_NODES"] == "2"
    (fixed,) = children.jobs(making())
    assert "successPolicy" not in fixed["spec"]


def test_persist_checkpoints() -> None:
    asked = {"storage.checkpoints.enabled": True, "storage.checkpoints.size": "1Gi"}
    (claim,) = claims({**ONE, "persistCheckpoints": True}, asked).values()
    assert "ownerReferences" not in claim["metadata"]
    assert claim["metadata"]["labels"][n.LABEL_JOB] == "vit"


OVERRIDES: list[tuple[str, Any]] = [
    ("kaiQueue", "other"),
    ("image", "example.com/other"),
    ("workingDir", "/other"),
    ("nodeResources.cpus", 3),
    ("nodeResources.memory", "3Gi"),
    ("nodeResources.gpuType", "a100"),
    ("podTemplate.spec", {"hostIPC": True}),
    ("podTemplate.metadata", {"labels": {"a": "b"}, "annotations": {"c": "d"}}),
    ("storage.shmSizePerGPU", "3Gi"),
    ("scheduling.scheduler", "other"),
    ("scheduling.priorityClassName", "other"),
    ("scheduling.nodeSelector", {"other": "x"}),
    ("scheduling.affinity", {"podAffinity": {"x": 1}}),
    ("scheduling.tolerations", [{"key": "other"}]),
    ("scheduling.pool", "other"),
    ("networking.port", 30001),
    ("networking.interface", "eth7"),
]


@pytest.mark.parametrize(("path", "value"), OVERRIDES, ids=[path for path, _ in OVERRIDES])
def test_an_override_is_as_the_queues_own(path: str, value: Any) -> None:
    assert pod({f"overrides.{path}": value}) == pod({}, {path: value}) != pod()


@pytest.mark.parametrize("field", ["ttlSecondsAfterFinished", "activeDeadlineSeconds", "maxRestarts"])
def test_job_defaults_are_overridden_too(field: str) -> None:
    over = making({f"overrides.jobDefaults.{field}": 9}, {f"jobDefaults.{field}": 5}).settings
    assert over == making({}, {f"jobDefaults.{field}": 9}).settings


def test_fewer_gpus_of_a_node_by_an_override() -> None:
    assert making({"overrides.nodeResources.gpus": 4}).size.nodes == 4


def test_overrides_merge_objects_and_replace_lists_and_one_way_of_a_size_replaces_another() -> None:
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
    made = making(over, queue)
    assert made.settings.queue.node_selector == {"a": "1", "b": "3"}
    assert made.settings.queue.tolerations == ()
    (claim,) = made.storage.claims
    assert (claim.size, claim.storage_class) == (7 * 2**30, "fsx")
    claimed = making({"overrides.storage.datasets.existingClaim": "shared"}, queue)
    assert claimed.storage.claims == ()


def test_the_job_is_indexed_runs_once_and_waits_for_its_record() -> None:
    (job,) = children.jobs(making(attempt=3))
    assert job["metadata"]["name"] == "vit-3"
    spec = job["spec"]
    assert (spec["completionMode"], spec["backoffLimit"], spec["suspend"]) == ("Indexed", 0, True)
    labels = {n.LABEL_JOB: "vit", n.LABEL_ATTEMPT: "3", n.LABEL_MANAGED_BY: n.MANAGED_BY}
    assert job["metadata"]["labels"] == labels
    assert spec["template"]["metadata"]["labels"] == labels
    assert spec["template"]["spec"]["subdomain"] == "vit"
    assert job["metadata"]["ownerReferences"] == [children.owner_reference("vit", "u1")]


def test_each_attempt_meets_under_another_id_and_name() -> None:
    first, second = making().meeting, making(attempt=1).meeting
    assert (first.id, second.id) == ("u1-0", "u1-1")
    assert second.endpoint == "vit-1-0.vit.team.svc:29500"
    assert children.service(making())["spec"]["clusterIP"] == "None"
    assert children.service(making())["spec"]["publishNotReadyAddresses"] is True


def test_one_worker_needs_no_name() -> None:
    assert making(ONE).meeting.endpoint == "localhost:29500"


def test_time_to_stop_goes_with_torchruns() -> None:
    assert pod()["spec"]["terminationGracePeriodSeconds"] == 45
    told = {"env": [{"name": "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "value": "300"}]}
    assert pod(told)["spec"]["terminationGracePeriodSeconds"] == 315


def test_a_class_without_a_name_is_the_clusters() -> None:
    shared = dataclasses.replace(CLUSTER, default_class="efs")
    asked = {"storage.checkpoints.enabled": True, "storage.checkpoints.size": "1Gi"}
    assert making({}, asked, shared).storage.claims[0].access_mode == "ReadWriteMany"
