"""Torchrun queues of a stack file: defaults, values and error messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from components.documents import instance_types
from components.documents.torchrun_queue import JobDefaults, Queue, QueueContext, Volume, spec
from tests.unit.components.crd import problems
from tests.unit.infra.changing import POOL, mistakes, settings, with_
from trainyard.k8s import quantity
from trainyard.operator.api.queue import parse_queue

DIGEST = f"registry.example/pytorch@sha256:{'0' * 64}"
AROUND = QueueContext(
    trainer_image=DIGEST,
    tools_image=DIGEST,
    workspaces="s3://b-models/torchrun",
    model_uri="s3://b-models/models",
    region="us-west-2",
)
ACCOUNT = {"name": "pytorch-training-sa", "namespace": "default", "bucket": "models", "access": "read"}
QUEUE: dict[str, Any] = {"name": "research", "pool": "small"}


def config(*queues: dict[str, Any], **more: Any) -> dict[str, Any]:
    return with_({"queues": list(queues), **more})


def read(**change: Any) -> Queue:
    (queue,) = settings(config({**QUEUE, **change}, serviceAccounts=[ACCOUNT])).queues
    return queue


def test_stack_without_queues_has_none() -> None:
    for change in ({}, {"queues": None}, {"queues": []}):
        assert settings(with_(change)).queues == ()


def test_queue_with_name_and_pool_gets_defaults() -> None:
    assert read() == Queue(
        name="research",
        namespace="training",
        pool=settings(with_({})).pools[0],
        gpus=4,
        cpus="40",
        memory="144Gi",
        image=None,
        service_account="trainer",
        own_bucket=False,
        bucket=None,
        volumes={},
        shared_memory_per_gpu="2Gi",
        priority_class=None,
        job_defaults=JobDefaults(),
    )


def test_queue_settings_are_read() -> None:
    volumes = {
        "workspace": {"bucket": "theirs", "size": "50Gi", "storageClass": "gp3"},
        "datasets": {"existingClaim": "imagenet"},
        "checkpoints": {"sizePerGPU": "5Gi", "storageClass": "fsx", "retain": True},
    }
    queue = read(
        namespace="default",
        serviceAccount="pytorch-training-sa",
        image=DIGEST,
        nodeResources={"gpus": 2, "cpus": "7500m", "memory": "60Gi"},
        storage={**volumes, "shmSizePerGPU": "4Gi"},
        scheduling={"priorityClassName": "urgent.example"},
        jobDefaults={
            "ttlSecondsAfterFinished": 0,
            "activeDeadlineSeconds": 60,
            "restartPolicy": "Never",
            "maxRestarts": 100,
        },
    )
    assert (queue.namespace, queue.service_account) == ("default", "pytorch-training-sa")
    assert (queue.image, queue.priority_class) == (DIGEST, "urgent.example")
    assert (queue.gpus, queue.cpus, queue.memory) == (2, "7500m", "60Gi")
    assert (queue.own_bucket, queue.bucket, queue.fetches) == (False, "theirs", True)
    assert queue.volumes == {
        "workspace": Volume(size="50Gi", storage_class="gp3"),
        "datasets": Volume(existing_claim="imagenet"),
        "checkpoints": Volume(size_per_gpu="5Gi", storage_class="fsx", retain=True),
    }
    assert queue.shared_memory_per_gpu == "4Gi"
    assert queue.job_defaults == JobDefaults(
        time_to_live=0, deadline=60, restart_policy="Never", max_restarts=100
    )


def test_queue_bucket_models_is_the_stack_bucket() -> None:
    queue = read(storage={"workspace": {"bucket": "models"}})
    assert (queue.own_bucket, queue.bucket, queue.fetches) == (True, None, True)
    assert queue.volumes == {}, "a bucket is no volume"
    assert not read().fetches


@pytest.mark.parametrize("gpus", range(5))
def test_worker_resources_are_proportional_to_its_gpus(gpus: int) -> None:
    queue, whole = read(nodeResources={"gpus": gpus}), read()
    part = gpus or 4  # a worker without GPUs gets all cores of the node
    assert int(queue.cpus) == int(whole.cpus) * part // 4
    assert quantity.parse(queue.memory) == quantity.parse(whole.memory) * part // 4
    assert queue.gpus == gpus


def test_queue_on_nodes_without_gpus_has_no_gpus() -> None:
    for each in ("trn1.32xlarge", "m5.large"):
        pool = {**POOL, "instanceType": each}
        (queue,) = settings(config(QUEUE, pools=[pool])).queues
        assert queue.gpus == 0
        assert mistakes(config({**QUEUE, "nodeResources": {"gpus": 1}}, pools=[pool])) == [
            f"trainyard:queues[0].nodeResources.gpus: 1 is more than the NVIDIA GPUs of {each}; it must be at most 0"
        ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "Research"}, "name: 'Research' is invalid; it must be lower case letters"),
        ({"name": None}, "name: is missing; it must be lower case letters"),
        ({"pool": "smal"}, "pool: 'smal' is not a pool; did you mean small? (pools: small)"),
        ({"pool": None}, "pool: is missing; it must be the name of a pool"),
        ({"namespace": "team"}, "namespace: 'team' is not known; it must be one of default, training"),
        (
            {"image": "pytorch:latest"},
            "image: 'pytorch:latest' is invalid; it must be an image with its digest",
        ),
        ({"nodeResources": {"gpus": 5}}, "nodeResources.gpus: 5 is more than the NVIDIA GPUs of g5.12xlarge"),
        ({"nodeResources": {"cpus": "48"}}, "nodeResources.cpus: '48' leaves nothing of the 48 cores"),
        (
            {"nodeResources": {"memory": "192Gi"}},
            "nodeResources.memory: '192Gi' leaves nothing of the 192 GiB",
        ),
        (
            {"nodeResources": {"memory": "much"}},
            "nodeResources.memory: 'much' is invalid; it must be a quantity",
        ),
        (
            {"storage": {"shmSizePerGPU": "37Gi"}},
            "storage.shmSizePerGPU: '37Gi' for each of 4 GPUs is more than the worker's memory",
        ),
        (
            {"storage": {"shmSizePerGPU": "0"}},
            "storage.shmSizePerGPU: '0' is 0 bytes; it must be a quantity of at least 1Mi",
        ),
        (
            {"storage": {"checkpoints": {"size": "1Gi", "sizePerGPU": "1Gi"}}},
            (
                "storage.checkpoints.sizePerGPU: is given beside size; it must be one of size, sizePerGPU,"
                " existingClaim"
            ),
        ),
        (
            {"storage": {"checkpoints": {"existingClaim": "a", "storageClass": "b"}}},
            "storage.checkpoints.storageClass: is given beside existingClaim, which has its own class",
        ),
        (
            {"storage": {"checkpoints": {"retain": True}}},
            "storage.checkpoints.retain: is given for a volume that jobs don't have; there must be one of size",
        ),
        (
            {"storage": {"checkpoints": {"existingClaim": "A"}}},
            "storage.checkpoints.existingClaim: 'A' is invalid; it must be the name of an object",
        ),
        ({"storage": {"datasets": {"size": "1Gi"}}}, "storage.datasets.size: is not a known key"),
        (
            {"storage": {"workspace": {"bucket": "s3://theirs"}}},
            "storage.workspace.bucket: 's3://theirs' is invalid; it must be models (the stack's own) or",
        ),
        (
            {"serviceAccount": "traner"},
            "serviceAccount: 'traner' is no service account of the stack in training; did you mean trainer?",
        ),
        (
            {"serviceAccount": "pytorch-training-sa"},
            "serviceAccount: 'pytorch-training-sa' is no service account of the stack in training; it must be",
        ),
        (
            {"namespace": "default", "serviceAccount": "trainer"},
            "serviceAccount: 'trainer' is no service account of the stack in default; it must be",
        ),
        (
            {"namespace": "default", "storage": {"workspace": {"bucket": "models"}}},
            "serviceAccount: is missing, and workers read their workspace from a bucket; it must be one of",
        ),
        ({"scheduling": {"priorityClassName": "A_B"}}, "scheduling.priorityClassName: 'A_B' is invalid"),
        ({"scheduling": {"pool": "small"}}, "scheduling.pool: is not a known key"),
        ({"jobDefaults": {"restartPolicy": "Always"}}, "jobDefaults.restartPolicy: 'Always' is not known"),
        ({"jobDefaults": {"maxRestarts": 101}}, "jobDefaults.maxRestarts: 101 is out of range"),
    ],
)
def test_invalid_queue_is_reported_with_its_path(change: dict[str, Any], message: str) -> None:
    changed = {key: value for key, value in {**QUEUE, **change}.items() if value is not None}
    (line,) = mistakes(config(changed, serviceAccounts=[ACCOUNT]))
    assert line.startswith(f"trainyard:queues[0].{message}")


def test_queue_name_must_be_unique_in_its_namespace() -> None:
    assert mistakes(config(QUEUE, QUEUE)) == [
        "trainyard:queues[1].name: 'research' is also the name of another queue in training; it must be unique there"
    ]
    assert len(settings(config(QUEUE, {**QUEUE, "namespace": "default"})).queues) == 2


def test_invalid_pool_or_account_is_not_repeated_for_queue() -> None:
    lines = mistakes(config(QUEUE, pools=[{**POOL, "instanceType": "g5.large"}]))
    assert [line for line in lines if "queues" in line] == []
    wrong = {**ACCOUNT, "namespace": "training", "access": "all"}
    lines = mistakes(config({**QUEUE, "serviceAccount": ACCOUNT["name"]}, serviceAccounts=[wrong]))
    assert [line for line in lines if "queues" in line] == []


@pytest.mark.parametrize("name", [ACCOUNT["name"], "another"])
def test_workspace_bucket_writable_by_pods_is_refused(name: str) -> None:
    """Both the queue's service account and other accounts run code of jobs or users."""
    own = {**ACCOUNT, "bucket": "code"}
    writer = {**own, "name": name, "access": "write"}
    queue = {
        **QUEUE,
        "namespace": "default",
        "serviceAccount": ACCOUNT["name"],
        "storage": {"workspace": {"bucket": "code"}},
    }
    accounts = [writer] if name == own["name"] else [own, writer]
    (line,) = mistakes(config(queue, serviceAccounts=accounts))
    assert line.startswith("trainyard:queues[0].storage.workspace.bucket: 'code' contains the code of jobs")
    assert f"default/{name} can write it (serviceAccounts: access write)" in line
    for right in (
        {**writer, "access": "read"},
        {**writer, "bucket": "other"},
        {**writer, "bucket": "models"},
    ):
        rest = [right] if name == own["name"] else [own, right]
        assert settings(config(queue, serviceAccounts=rest)).queues[0].bucket == "code"
    reader = {**own, "name": "reader", "namespace": "training"}
    (line,) = mistakes(config(queue, serviceAccounts=[own, reader]))
    assert "training/reader can read it (serviceAccounts: access read)" in line


def test_workspace_prefix_equal_to_models_is_refused() -> None:
    own = {**QUEUE, "storage": {"workspace": {"bucket": "models"}}}
    for prefix in ("torchrun", "torchrun/models"):
        (line,) = mistakes(config(own, storage={"prefix": prefix}))
        assert line.startswith(
            f"trainyard:storage.prefix: '{prefix}' is where workspaces of torchrun jobs go"
        )
    other = {**QUEUE, "storage": {"workspace": {"bucket": "theirs"}}}
    for queue, prefix in ((other, "torchrun"), (QUEUE, "torchrun"), (own, "torchruns")):
        assert settings(config(queue, storage={"prefix": prefix})).storage.prefix == prefix


@pytest.mark.parametrize("bucket", ["models", "theirs"])
def test_lustre_that_exposes_workspaces_is_refused(bucket: str) -> None:
    queue = {
        **QUEUE,
        "namespace": "default",
        "serviceAccount": ACCOUNT["name"],
        "storage": {"workspace": {"bucket": bucket}},
    }

    def with_prefix(prefix: str) -> dict[str, Any]:
        lustre = {"capacityGiB": 1200, "s3": {"bucket": bucket, "prefix": prefix}}
        return config(queue, serviceAccounts=[ACCOUNT], storage={"lustre": lustre})

    for prefix in ("", "torchrun", "torchrun/workspaces"):
        (line,) = mistakes(with_prefix(prefix))
        assert line.startswith(f"trainyard:storage.lustre.s3.prefix: '{prefix}' contains the workspaces")
    assert settings(with_prefix("data")).storage.lustre is not None


def test_queue_on_gpus_without_torch_kernels_is_refused() -> None:
    old = {**POOL, "instanceType": "p3dn.24xlarge"}
    (line,) = mistakes(config(QUEUE, pools=[old]))
    assert line.startswith(
        "trainyard:queues[0].image: is missing; the image that is built has a torch for CUDA"
    )
    images = {"images": {"trainer": DIGEST, "launcher": DIGEST, "build": False}}
    for right in (
        config({**QUEUE, "image": DIGEST}, pools=[old]),
        config({**QUEUE, "nodeResources": {"gpus": 0}}, pools=[old]),
        config(QUEUE, pools=[old], **images),
    ):
        assert len(settings(right).queues) == 1


NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?", fullmatch=True)
SIZES = st.sampled_from(["1Gi", "500Mi", "10G", "1.5Ti"])
VOLUME = st.one_of(
    st.fixed_dictionaries({"size": SIZES}, optional={"storageClass": NAMES, "retain": st.booleans()}),
    st.fixed_dictionaries({"sizePerGPU": SIZES}, optional={"storageClass": NAMES}),
    st.fixed_dictionaries({"existingClaim": NAMES}, optional={"retain": st.booleans()}),
)
QUEUES = st.fixed_dictionaries(
    {"name": NAMES, "pool": st.just("small")},
    optional={
        "image": st.just(DIGEST),
        "nodeResources": st.fixed_dictionaries(
            {}, optional={"cpus": st.sampled_from(["500m", "1"]), "memory": st.sampled_from(["1Gi", "900Mi"])}
        ),
        "storage": st.fixed_dictionaries(
            {},
            optional={
                "workspace": st.fixed_dictionaries(
                    {}, optional={"bucket": st.sampled_from(["models", "their.bucket"]), "size": SIZES}
                ),
                "datasets": st.fixed_dictionaries({"existingClaim": NAMES}),
                "checkpoints": VOLUME,
            },
        ),
        "scheduling": st.fixed_dictionaries({}, optional={"priorityClassName": NAMES}),
        "jobDefaults": st.fixed_dictionaries(
            {},
            optional={
                "ttlSecondsAfterFinished": st.integers(0, 10**9),
                "activeDeadlineSeconds": st.integers(1, 10**9),
                "restartPolicy": st.sampled_from(["Never", "OnFailure"]),
                "maxRestarts": st.integers(0, 100),
            },
        ),
    },
)


@hypothesis_settings(max_examples=20, deadline=None)
@given(st.sampled_from(sorted(instance_types.TYPES)), QUEUES, st.data())
def test_valid_queue_is_accepted_by_controller_and_crd(
    type_: str, values: dict[str, Any], data: st.DataObject
) -> None:
    """On every instance type and with any share of its GPUs, the spec is valid and has the queue's values."""
    facts = instance_types.TYPES[type_]
    most = facts.accelerators if facts.resource == "nvidia.com/gpu" else 0
    gpus = data.draw(st.integers(0, most))
    values = {**values, "nodeResources": {**values.get("nodeResources", {}), "gpus": gpus}, "image": DIGEST}
    (queue,) = settings(config(values, pools=[{**POOL, "instanceType": type_}])).queues
    made = spec(queue, AROUND)
    assert problems("TorchrunQueue", made) == []
    parsed, wrong = parse_queue(made)
    assert wrong == ()
    assert parsed is not None
    node = parsed.node_resources
    assert (node.gpus, parsed.scheduling.pool, parsed.image) == (gpus, "small", DIGEST)
    assert node.cpus == quantity.parse(queue.cpus)
    assert node.cpus < facts.vcpus
    assert node.memory == quantity.parse(queue.memory)
    assert node.memory < facts.memory_gib * 2**30
    assert set(parsed.volumes) == set(queue.volumes)
    bucket = values.get("storage", {}).get("workspace", {}).get("bucket")
    names = {"models": "s3://b-models/torchrun", "their.bucket": "s3://their.bucket/torchrun", None: ""}
    assert parsed.bucket == names[bucket]
    defaults = values.get("jobDefaults", {})
    assert parsed.job_defaults.ttl_seconds_after_finished == defaults.get("ttlSecondsAfterFinished")
    assert parsed.job_defaults.active_deadline_seconds == defaults.get("activeDeadlineSeconds")
    assert parsed.job_defaults.max_restarts == defaults.get("maxRestarts", 3)
    assert parsed.job_defaults.restart_policy == defaults.get("restartPolicy", "OnFailure")
