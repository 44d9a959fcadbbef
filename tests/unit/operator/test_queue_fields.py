"""Each field of a queue has its effect on what is made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from launcher.manifests import LOST_NODE_SECONDS, REQUIRED
from launcher.observe import effective_requests
from tests.unit.operator.made import (
    CLUSTER,
    DIGEST,
    affinity_allows,
    attempt_spec,
    claims,
    container,
    env,
    flag,
    mounted,
    pod,
)
from trainyard.operator import names as n
from trainyard.operator.api.fields import Field
from trainyard.operator.api.queue import QUEUE
from trainyard.operator.children import (
    LABEL_GPU_MEMORY,
    LABEL_GPU_NAME,
    build_claim,
    build_jobs,
    build_service,
    build_worker,
    gpu_terms,
)
from trainyard.operator.gang import build_pod_group
from trainyard.operator.names import archive_prefix
from trainyard.operator.resources import InvalidJob, VolumeMissing

ONE = {"numGPUs": 8}
SENT = {"workspace": {"digest": DIGEST, "sizeBytes": 5}}


def test_node_resources_are_requests_and_limits() -> None:
    resources = container()["resources"]
    assert resources["requests"] == resources["limits"]
    assert resources["limits"] == {"cpu": "96000m", "memory": "512Gi", "nvidia.com/gpu": "8"}
    assert flag("nproc-per-node", {}) == "8"


def test_node_resources_scale_with_part_of_gpus() -> None:
    resources = container({"numGPUs": 2})["resources"]["limits"]
    assert resources == {"cpu": "24000m", "memory": "128Gi", "nvidia.com/gpu": "2"}
    assert container(ONE, {"nodeResources.cpus": "7500m"})["resources"]["limits"]["cpu"] == "7500m"
    # Two nodes with four GPUs each, in a queue with eight.
    assert container({"numNodes": 4})["resources"]["limits"]["cpu"] == "48000m"


@pytest.mark.parametrize(("labels", "allowed"), [
    ({LABEL_GPU_NAME: "h100", LABEL_GPU_MEMORY: "81920"}, True),
    ({LABEL_GPU_NAME: "a100", LABEL_GPU_MEMORY: "81920"}, False),
    ({LABEL_GPU_NAME: "h100", LABEL_GPU_MEMORY: "40960"}, False),
    ({n.LABEL_GPU_TYPE: "h100-80gb"}, True),
])  # fmt: skip
def test_gpu_type_is_added_to_node_affinity(labels: dict[str, str], *, allowed: bool) -> None:
    """The labels of Karpenter, or that of the pool, in each of the queue's own alternatives."""
    zones = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    own = {"scheduling.affinity.nodeAffinity": {REQUIRED: {"nodeSelectorTerms": zones}}}
    affinity = pod({}, {"nodeResources.gpuType": "h100-80gb", **own})["spec"]["affinity"]["nodeAffinity"]
    assert affinity_allows(affinity, zone="b", **labels) == allowed
    assert not affinity_allows(affinity, zone="c", **labels)
    assert "affinity" not in pod()["spec"]


def test_gpu_type_of_a_product_is_its_name_alone() -> None:
    assert len(gpu_terms("NVIDIA-H100-80GB-HBM3")) == 2


def test_working_dir_follows_mount_of_workspace() -> None:
    moved = {"storage.workspace": {"enabled": True, "size": "1Gi", "mountPath": "/workspace"}}
    assert container(SENT, moved)["workingDir"] == "/workspace"
    assert container({}, moved)["workingDir"] == "/app", "what the image has"
    assert container(SENT, {**moved, "workingDir": "/workspace/src"})["workingDir"] == "/workspace/src"


def test_host_network_uses_dns_of_cluster() -> None:
    """https://kubernetes.io/docs/concepts/services-networking/dns-pod-service/#pod-s-dns-policy"""
    for template, policy in (
        ({}, None),
        ({"hostNetwork": True}, "ClusterFirstWithHostNet"),
        ({"hostNetwork": True, "dnsPolicy": "Default"}, "Default"),
    ):
        assert pod({}, {"podTemplate.spec": template})["spec"].get("dnsPolicy") == policy


def test_pod_template_yields_to_other_fields() -> None:
    worker: dict[str, Any] = {"name": "torchrun", "image": "no", "args": ["no"], "command": ["no"]}
    worker["env"] = [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]
    worker["resources"] = {"limits": {"vpc.amazonaws.com/efa": "4", "cpu": "1"}}
    worker["volumeMounts"] = [{"name": "mine", "mountPath": "/mine"}]
    meta = {"labels": {"team": "x", n.LABEL_JOB: "no"}, "annotations": {"a": "b"}}
    spec: dict[str, Any] = {"serviceAccountName": "trainer", "restartPolicy": "Always"}
    spec["nodeSelector"] = {"disk": "fast", "zone": "a"}
    spec["containers"] = [{"name": "logs", "image": "logs"}, worker]
    spec["volumes"] = [{"name": "mine", "emptyDir": {}}]
    template = {"podTemplate": {"metadata": meta, "spec": spec}, "scheduling.nodeSelector": {"zone": "b"}}
    made = pod({"env": [{"name": "B", "value": "3"}]}, template)
    labels, found = made["metadata"]["labels"], made["spec"]
    assert (labels["team"], labels[n.LABEL_JOB], made["metadata"]["annotations"]["a"]) == ("x", "vit", "b")
    assert (found["serviceAccountName"], found["restartPolicy"]) == ("trainer", "Never")
    assert found["nodeSelector"] == {"disk": "fast", "zone": "b"}
    assert {"name": "mine", "emptyDir": {}} in found["volumes"]
    own, beside = found["containers"]
    assert (own["name"], own["image"], beside["name"]) == ("torchrun", "example.com/pytorch:2.9", "logs")
    assert "args" not in own
    limits = own["resources"]["limits"]
    assert (limits["vpc.amazonaws.com/efa"], limits["cpu"]) == ("4", "96000m")
    variables = {each["name"]: each.get("value") for each in own["env"]}
    assert (variables["A"], variables["B"]) == ("1", "3")
    assert {"name": "mine", "mountPath": "/mine"} in own["volumeMounts"]


@pytest.mark.parametrize(
    ("volume", "path"), [("workspace", "/app"), ("datasets", "/datasets"), ("checkpoints", "/checkpoints")]
)
def test_volume_with_size_has_a_claim(volume: str, path: str) -> None:
    asked = {f"storage.{volume}.enabled": True, f"storage.{volume}.size": "5Gi"}
    (name, claim), *_ = claims(ONE, asked).items()
    assert name == f"vit-{volume}"
    assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"
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
def test_volume_size_per_gpu_class_and_mode_are_in_claim(volume: str) -> None:
    place = f"storage.{volume}"
    asked = {place: {"enabled": True, "sizePerGPU": "1500M", "storageClass": "fsx"}}
    (claim,) = claims({}, asked).values()
    assert claim["spec"]["resources"]["requests"]["storage"] == "24G"
    assert claim["spec"]["storageClassName"] == "fsx"
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (once,) = claims(ONE, {**asked, f"{place}.accessMode": "ReadWriteOnce"}).values()
    assert once["spec"]["accessModes"] == ["ReadWriteOnce"]


@pytest.mark.parametrize("volume", ["workspace", "datasets", "checkpoints"])
def test_existing_claim_is_used_unchanged(volume: str) -> None:
    place = f"storage.{volume}"
    asked = {f"{place}.enabled": True, f"{place}.existingClaim": "shared"}
    assert claims({}, asked) == {}
    path = {"workspace": "/app"}.get(volume, f"/{volume}")
    assert mounted(pod({}, asked), path)[1]["persistentVolumeClaim"]["claimName"] == "shared"
    attempt_spec(ONE, {**asked, f"{place}.existingClaim": "single"})
    # The access mode of the queue's own claims does not count.
    many = {f"{place}.enabled": True, f"{place}.accessMode": "ReadWriteMany"}
    for of_job, of_queue in (
        ({f"overrides.{place}.existingClaim": "single"}, {**many, f"{place}.size": "1Gi"}),
        ({}, {**many, f"{place}.existingClaim": "single"}),
        ({}, {**asked, f"{place}.existingClaim": "single"}),
    ):
        with pytest.raises(InvalidJob, match="existingClaim single can be mounted by one node"):
            attempt_spec(of_job, of_queue)
    with pytest.raises(VolumeMissing, match="existingClaim later"):
        attempt_spec(ONE, {**asked, f"{place}.existingClaim": "later"})


@pytest.mark.parametrize("volume", ["datasets", "checkpoints"])
def test_read_write_once_of_several_nodes_is_refused(volume: str) -> None:
    place = f"storage.{volume}"
    problem = f"{place} can be mounted by one node .ReadWriteOnce., and the job has 2"
    with pytest.raises(InvalidJob, match=problem):
        attempt_spec({}, {f"{place}.enabled": True, f"{place}.size": "1Gi"})


def test_workspace_read_write_once_is_one_for_each_node() -> None:
    made = attempt_spec({"numGPUs": 24}, {"storage.workspace": {"enabled": True, "sizePerGPU": "10Gi"}})
    names = ["vit-workspace", "vit-workspace-1", "vit-workspace-2"]
    assert [(each.name, each.size) for each in made.storage.claims] == [(name, 80 * 2**30) for name in names]
    jobs = build_jobs(made)
    assert [each["metadata"]["name"] for each in jobs] == ["vit-0", "vit-0-n1", "vit-0-n2"]
    for node, each in enumerate(jobs):
        assert each["spec"]["completions"] == each["spec"]["parallelism"] == 1
        spec = each["spec"]["template"]["spec"]
        (volume,) = spec["volumes"]
        assert volume["persistentVolumeClaim"]["claimName"] == names[node]
        ranks = [one["value"] for one in spec["containers"][0]["env"] if one["name"] == n.ENV_NODE_RANK]
        assert ranks == [str(node)]
        assert each["spec"]["template"]["metadata"]["labels"][n.LABEL_NODE] == str(node)
    # The others find the first one by the name of its pod.
    assert made.rendezvous.endpoint == "vit-0-0.vit.team.svc:29500"


def test_read_only_many_is_for_datasets() -> None:
    for volume in ("workspace", "checkpoints"):
        asked = {f"storage.{volume}.enabled": True, f"storage.{volume}.size": "1Gi"}
        with pytest.raises(InvalidJob, match=f"storage.{volume}.accessMode is ReadOnlyMany"):
            attempt_spec({}, {**asked, f"storage.{volume}.accessMode": "ReadOnlyMany"})
    asked = {"storage.datasets.enabled": True, "storage.datasets.size": "1Gi"}
    attempt_spec({}, {**asked, "storage.datasets.accessMode": "ReadOnlyMany"})


@pytest.mark.parametrize(
    "url", ["", "s3://own/p/workspaces/team/a.tar.zst", "s3://bbb/$(AWS_SECRET_ACCESS_KEY);id"]
)
def test_archive_is_in_the_annotation_of_the_pod(url: str) -> None:
    """Which the controller writes from the job's spec: no argument, and no object in a bucket, says it."""
    sent = {"workspace": {"digest": DIGEST, "sizeBytes": 5, **({"url": url} if url else {})}}
    below = {"podTemplate.metadata": {"annotations": {n.ANNOTATION_ARCHIVE: "{}"}}}
    made = pod(sent, {**below, "storage.workspace.bucket": "s3://own/p"})
    named = {"digest": DIGEST, "size": 5, "url": url}
    assert json.loads(made["metadata"]["annotations"][n.ANNOTATION_ARCHIVE]) == named
    tools = [each for each in made["spec"]["initContainers"] if each["name"] != "prepare"]
    assert [(each["command"][3], each.get("restartPolicy")) for each in tools] == [
        ("fetch", None),
        ("follow", "Always"),
    ]
    (shown,) = (each for each in made["spec"]["volumes"] if "downwardAPI" in each)
    (item,) = shown["downwardAPI"]["items"]
    assert item["fieldRef"] == {"fieldPath": f"metadata.annotations['{n.ANNOTATION_ARCHIVE}']"}
    for each in tools:
        words = each["command"]
        (mount,) = (one for one in each["volumeMounts"] if one["name"] == shown["name"])
        assert words[words.index("--archive") + 1] == f"{mount['mountPath']}/{item['path']}"
        assert ("--sync" in words) == (not url)
        assert "s3://" not in " ".join(words).partition("--log-url")[0]


@pytest.mark.parametrize("sent", [{}, SENT])
def test_bucket_of_queue_receives_logs(sent: dict[str, Any]) -> None:
    """Also of a job without a workspace; without a bucket nothing is copied."""
    made = attempt_spec(sent, {"storage.workspace.bucket": "s3://own/p/"}, attempt=3)
    spec = build_worker(made)["spec"]
    worker, sidecar = spec["containers"][0], spec["initContainers"][-1]
    assert (sidecar["name"], sidecar["restartPolicy"]) == (n.FOLLOW_CONTAINER, "Always")
    words = sidecar["command"]
    url = f"s3://own/p/logs/team/{made.uid}/attempt-3/node-$(TORCHRUN_NODE_RANK).log"
    assert words[words.index("--log-url") + 1] == url
    ranks = [each for each in sidecar["env"] if each["name"] == n.ENV_NODE_RANK]
    assert ranks == [each for each in worker["env"] if each["name"] == n.ENV_NODE_RANK]
    log = {"name": n.LOG_VOLUME, "mountPath": n.LOG_DIRECTORY}
    assert log in sidecar["volumeMounts"]
    assert log in worker["volumeMounts"]
    named = {each["name"]: each.get("value") for each in worker["env"]}
    assert named[n.ENV_LOG] == words[words.index("--log") + 1] == n.LOG_FILE
    assert n.ENV_LOG not in env(sent)
    assert n.LOG_VOLUME not in str(build_worker(attempt_spec(sent)))


@pytest.mark.parametrize(
    ("address", "below"),
    [
        ("s3://own/p/workspaces/team/a.tar.zst", "s3://own/p"),
        ("s3://own/workspaces/team/a.tar.zst", "s3://own"),
        ("s3://own/workspaces/workspaces/team/a.tar.zst", "s3://own/workspaces"),
        # Put there by other means.
        ("s3://workspaces/team/a.tar.zst", ""),
        ("s3://own/p/workspaces/a.tar.zst", ""),
    ],
)
def test_archive_prefix_is_read_from_url(address: str, below: str) -> None:
    assert archive_prefix(address) == below


def test_workspace_in_claim_has_directory_of_job() -> None:
    """What another job wrote there, or a retained claim has from an earlier one, is not where this one runs."""
    claim = {"storage.workspace.enabled": True, "storage.workspace.existingClaim": "all"}
    cluster = replace(CLUSTER, claims={"all": ("ReadWriteMany",)})
    made = attempt_spec(SENT, claim, cluster)
    mount, _ = mounted(build_worker(made), "/app")
    assert mount == {"name": "workspace", "mountPath": "/app", "subPath": made.uid}
    for tool in build_worker(made)["spec"]["initContainers"]:
        assert tool["volumeMounts"][0]["subPath"] == made.uid
    without, _ = mounted(build_worker(attempt_spec({}, claim, cluster)), "/app")
    assert without == {"name": "workspace", "mountPath": "/app", "readOnly": True}


def test_scheduling_fields_reach_the_pod() -> None:
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
    assert spec["tolerations"][1:3] == [
        {"key": key, "operator": "Exists", "effect": "NoSchedule"}
        for key in ("nvidia.com/gpu", "trainyard.dev/pool")
    ]
    assert {each["tolerationSeconds"] for each in spec["tolerations"][3:]} == {LOST_NODE_SECONDS}
    patient = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "tolerationSeconds": 900}
    own = pod({}, {"scheduling.tolerations": [patient]})["spec"]["tolerations"]
    assert [each["key"] for each in own] == ["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"]
    assert "schedulerName" not in pod()["spec"]


def test_networking_fields_reach_the_worker() -> None:
    asked = {"networking.port": 30000, "networking.interface": "=eth0"}
    assert build_service(attempt_spec({}, asked))["spec"]["ports"][0]["port"] == 30000
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
def test_job_defaults_yield_to_the_job(field: str, value: int, attribute: str) -> None:
    assert getattr(attempt_spec({}, {f"jobDefaults.{field}": value}).settings, attribute) == value
    own = attempt_spec({field: value + 1}, {f"jobDefaults.{field}": value})
    assert getattr(own.settings, attribute) == value + 1


def test_restart_policy_never_allows_no_restart() -> None:
    assert attempt_spec().settings.max_restarts == 3
    assert attempt_spec({}, {"jobDefaults.restartPolicy": "Never"}).settings.max_restarts == 0
    assert attempt_spec({"restartPolicy": "Never"}).settings.max_restarts == 0
    both = attempt_spec({"restartPolicy": "OnFailure"}, {"jobDefaults.restartPolicy": "Never"})
    assert both.settings.max_restarts == 3


_DEVICES = {"vpc.amazonaws.com/efa": "4", "hugepages-2Mi": "5Gi", "ephemeral-storage": "80Gi"}
_WORKER = {"name": "torchrun", "resources": {"requests": _DEVICES, "limits": _DEVICES}}
WITH_EFA = {"podTemplate.spec": {"containers": [_WORKER]}}


@pytest.mark.parametrize(
    "asked", [{"numGPUs": 1}, {"numGPUs": 1, "overrides": {"nodeResources": {"gpus": 1}}}]
)
def test_part_of_node_requests_no_efa(asked: dict[str, Any]) -> None:
    whole, part = container({"numGPUs": 8}, WITH_EFA)["resources"], container(asked, WITH_EFA)["resources"]
    for kind in ("requests", "limits"):
        assert {"vpc.amazonaws.com/efa", "hugepages-2Mi"} <= set(whole[kind])
        assert not {"vpc.amazonaws.com/efa", "hugepages-2Mi"} & set(part[kind])


def test_part_of_node_requests_part_of_storage() -> None:
    assert container({"numGPUs": 1}, WITH_EFA)["resources"]["limits"]["ephemeral-storage"] == "10Gi"
    pages = {"name": "pages", "emptyDir": {"medium": "HugePages-2Mi"}}
    mounts = {"podTemplate.spec": {**WITH_EFA["podTemplate.spec"], "volumes": [pages]}}
    assert "hugepages-2Mi" in container({"numGPUs": 1}, mounts)["resources"]["limits"]


@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_workers_with_sidecars_fit_on_one_node(gpus: int) -> None:
    whole, part = pod({"numGPUs": 8, **SENT})["spec"], pod({"numGPUs": gpus, **SENT})["spec"]
    most, each = effective_requests(whole), effective_requests(part)
    for name in ("cpu", "memory", "nvidia.com/gpu"):
        assert each[name] * (8 // gpus) <= most[name]


# --- overrides of a job

ON = {"enabled": True, "size": "1Gi", "storageClass": "fsx", "mountPath": "/data"}
PER_GPU = {"enabled": True, "sizePerGPU": "1Gi", "storageClass": "fsx", "mountPath": "/data"}
CLAIMED = {"enabled": True, "existingClaim": "data", "mountPath": "/data"}
CLAIMS = {"data": ("ReadWriteMany",), "other": ("ReadWriteMany",)}
# Each with what the queue itself says context, on which the field's effect depends.
OVERRIDES: list[tuple[str, Any, dict[str, Any]]] = [
    ("kaiQueue", "other", {}),
    ("image", "example.com/other", {}),
    ("workingDir", "/other", {}),
    ("nodeResources.gpus", 4, {}),
    ("nodeResources.cpus", 3, {}),
    ("nodeResources.memory", "3Gi", {}),
    ("nodeResources.gpuType", "a100", {}),
    ("podTemplate.spec", {"hostIPC": True}, {}),
    ("podTemplate.metadata.labels", {"a": "b"}, {}),
    ("podTemplate.metadata.annotations", {"c": "d"}, {}),
    *(
        (f"storage.{name}.{field}", value, {f"storage.{name}": context})
        for name in ("workspace", "datasets", "checkpoints")
        for field, value, context in (
            ("enabled", False, ON),
            ("size", "7Gi", ON),
            ("sizePerGPU", "7Gi", PER_GPU),
            ("storageClass", "efs", ON),
            ("accessMode", "ReadWriteOnce", ON),
            ("existingClaim", "other", CLAIMED),
            ("retain", True, ON),
            ("mountPath", "/other", ON),
        )
    ),
    ("storage.shmSizePerGPU", "3Gi", {}),
    ("scheduling.scheduler", "other", {}),
    ("scheduling.priorityClassName", "other", {}),
    ("scheduling.nodeSelector", {"other": "x"}, {}),
    ("scheduling.affinity.nodeAffinity", {"x": 1}, {}),
    ("scheduling.affinity.podAffinity", {"x": 1}, {}),
    ("scheduling.affinity.podAntiAffinity", {"x": 1}, {}),
    ("scheduling.tolerations", [{"key": "other"}], {}),
    ("scheduling.pool", "other", {}),
    ("networking.port", 30001, {}),
    ("networking.interface", "eth7", {}),
    ("jobDefaults.ttlSecondsAfterFinished", 9, {}),
    ("jobDefaults.activeDeadlineSeconds", 9, {}),
    ("jobDefaults.restartPolicy", "Never", {}),
    ("jobDefaults.maxRestarts", 9, {}),
    ("storage.workspace.bucket", "s3://other/place", {}),
]
# No job's: `overrides` has a rule that says so.
NOT_A_JOBS = {"parentKaiQueue"}
STORED = {"url": "s3://aaa/b", "digest": DIGEST, "sizeBytes": 5}


def leaves(place: str, field: Field) -> Iterator[str]:
    for name, each in field.fields.items():
        path = f"{place}.{name}".removeprefix(".")
        yield from leaves(path, each) if each.fields else (path,)


def effect(of_job: dict[str, Any], of_queue: dict[str, Any]) -> Any:
    """All that is made for a job, how long and how often it may run, and where its workspace is sent."""
    try:
        made = attempt_spec(of_job, of_queue, replace(CLUSTER, claims=CLAIMS))
    except VolumeMissing as missing:
        return str(missing)
    settings = made.settings
    return (
        [build_service(made), build_pod_group(made), *build_jobs(made)],
        [build_claim(made, each) for each in made.storage.claims],
        (settings.time_to_live, settings.deadline, settings.max_restarts, settings.queue.scheduling.pool),
        settings.queue.bucket,
    )


def test_overrides_cover_every_field_of_a_queue() -> None:
    assert {path for path, _, _ in OVERRIDES} | NOT_A_JOBS == set(leaves("", QUEUE))


@pytest.mark.parametrize(("path", "value", "context"), OVERRIDES, ids=[path for path, _, _ in OVERRIDES])
def test_override_has_the_effect_of_the_queue_field(path: str, value: Any, context: dict[str, Any]) -> None:
    job = {"numGPUs": 8, "workspace": STORED}
    overridden = effect({**job, f"overrides.{path}": value}, context)
    assert overridden == effect(job, {**context, path: value})
    assert overridden != effect(job, context), "without effect"
