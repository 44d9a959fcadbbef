"""Section `queues` of a stack file: TorchrunQueues.

Keys have the names of the TorchrunQueue's fields (docs/torchrun-fields.md). They are checked against pools and service
accounts. The API server checks more, but only after nodes and file systems exist.
"""

from __future__ import annotations

from typing import Annotated, Final

from components.documents.pool import GPU, Pool
from components.documents.torchrun_queue import CHECKPOINTS, DATASETS, WORKSPACE, JobDefaults, Queue, Volume
from infra.settings.fields import NEXT_JOB, REQUIRED, Choice, Model, Text, WholeNumber, hint, setting
from infra.settings.formats import OWN_BUCKET, BucketName, Bytes, Cores, DnsLabel, Image, ObjectName
from infra.settings.images import DIGEST
from infra.settings.pools import PoolEntry, PoolName, find_pool
from infra.settings.problems import Section
from infra.settings.storage import NAMESPACES, WRITE, ServiceAccount
from trainyard.k8s import names, quantity

RESTART_POLICIES: Final = ("OnFailure", "Never")
SIZES: Final = ("size", "sizePerGPU", "existingClaim")


class NodeResources(Model):
    """The resources of a worker."""

    gpus: WholeNumber | None = setting(
        None, NEXT_JOB, example=8, default_text="all NVIDIA GPUs of a node", ge=0
    )
    """NVIDIA GPUs. A job that requests more gets more nodes. A worker with a part of them has the same part of cores
    and memory, and no EFA interfaces. 0 on Neuron nodes, where a worker gets all devices.
    """
    cpus: Cores | None = setting(
        None, NEXT_JOB, example="80", default_text="85 % of the node's, or the GPUs' part of that"
    )
    """Cores; a job with a part of the GPUs has the same part of them."""
    memory: Bytes | None = setting(
        None, NEXT_JOB, example="800Gi", default_text="75 % of the node's, or the GPUs' part of that"
    )
    """Memory; a job with a part of the GPUs has the same part of it."""


class Workspace(Model):
    """The workspaces of jobs: a bucket, and a volume per job."""

    bucket: BucketName | None = setting(None, NEXT_JOB, example="models")
    """The bucket for workspaces, below `torchrun/`: its name, or `models` for the stack's own. Without it, each job
    has a pod that receives the workspace.
    """
    size: Bytes | None = setting(None, NEXT_JOB, example="50Gi")
    """The size of a volume per job for the workspace. Without it, the node's disk is used."""
    size_per_gpu: Bytes | None = setting(None, NEXT_JOB, example="10Gi")
    """The same for each GPU of the job."""
    storage_class: ObjectName | None = setting(None, NEXT_JOB, example="gp3")
    """The volume's class."""


class Datasets(Model):
    """The volume of data sets. An empty one would be of no use."""

    existing_claim: ObjectName | None = setting(None, NEXT_JOB, example="imagenet")
    """An existing claim in the queue's namespace."""


class Checkpoints(Model):
    """The volume of checkpoints."""

    size: Bytes | None = setting(None, NEXT_JOB, example="100Gi")
    """The size of a volume per job. For jobs with several nodes, its class must support ReadWriteMany, as FSx does.
    """
    size_per_gpu: Bytes | None = setting(None, NEXT_JOB, example="50Gi")
    """The same for each GPU of the job."""
    existing_claim: ObjectName | None = setting(None, NEXT_JOB, example="checkpoints")
    """An existing claim in the queue's namespace, which all jobs share."""
    storage_class: ObjectName | None = setting(None, NEXT_JOB, example="fsx")
    """The volume's class."""
    retain: bool = setting(False, NEXT_JOB, example=True)
    """Keep the volume when its job is deleted."""


class QueueStorage(Model):
    """The storage of jobs."""

    workspace: Workspace = setting(Workspace(), NEXT_JOB)
    """The files that `kubectl torchrun` sends."""
    datasets: Datasets = setting(Datasets(), NEXT_JOB)
    """Data for all jobs, at `/datasets`."""
    checkpoints: Checkpoints = setting(Checkpoints(), NEXT_JOB)
    """The jobs' checkpoints, at `/checkpoints`."""
    shm_size_per_gpu: Bytes = setting("2Gi", NEXT_JOB, example="8Gi")
    """Size of a worker's /dev/shm for each GPU, which is a part of its memory."""


class Scheduling(Model):
    """The scheduling of workers."""

    priority_class_name: ObjectName | None = setting(None, NEXT_JOB, example=names.WORKER_PRIORITY_CLASS)
    """An existing PriorityClass."""


class JobDefaultsSection(Model):
    """Defaults of jobs."""

    ttl_seconds_after_finished: WholeNumber | None = setting(
        None, NEXT_JOB, example=86400, unit="seconds", ge=0, le=1000000000
    )
    """The time until a finished job is deleted."""
    active_deadline_seconds: WholeNumber | None = setting(
        None, NEXT_JOB, example=259200, unit="seconds", ge=1, le=1000000000
    )
    """The time limit of a job with all of its restarts."""
    restart_policy: Annotated[str, Choice(RESTART_POLICIES)] = setting(
        RESTART_POLICIES[0], NEXT_JOB, example="OnFailure"
    )
    """Whether all workers restart after one of them failed."""
    max_restarts: WholeNumber = setting(3, NEXT_JOB, example=3, ge=0, le=100)
    """The maximum number of restarts."""


class QueueSection(Model):
    """An entry of `queues`."""

    name: DnsLabel = setting(REQUIRED, "replaces the queue", example="research")
    """The name for `jobQueue` of jobs. It must be unique in the namespace."""
    namespace: Annotated[str, Choice(NAMESPACES)] = setting(
        names.TRAINING_NAMESPACE, "replaces the queue", example="training"
    )
    """The namespace of the queue and of its jobs."""
    pool: PoolName = setting(REQUIRED, NEXT_JOB, example="large")
    """The pool for its jobs. Pools with Neuron devices are supported."""
    image: Image | None = setting(
        None, NEXT_JOB, example=f"registry.example/pytorch{DIGEST}", default_text="the stack's trainer"
    )
    """The workers' image, with its digest. With the stack's trainer, workers know where to store models, and the
    controller reads their progress.
    """
    node_resources: NodeResources = setting(NodeResources(), NEXT_JOB)
    """The resources of a node for a worker."""
    storage: QueueStorage = setting(QueueStorage(), NEXT_JOB)
    """The storage of workspaces, data sets and checkpoints."""
    scheduling: Scheduling = setting(Scheduling(), NEXT_JOB)
    """Further settings for the scheduling of workers."""
    service_account: Annotated[str, Text("the name of a service account")] | None = setting(
        None, NEXT_JOB, example="trainer", default_text="trainer in the training namespace, else none"
    )
    """The workers' service account: `trainer`, or one of `serviceAccounts` in the queue's namespace. With a workspace
    bucket, its role may read the workspaces.
    """
    job_defaults: JobDefaultsSection = setting(JobDefaultsSection(), NEXT_JOB)
    """Defaults of the jobs."""


def check_queues(
    entries: list[Section[QueueSection]], pools: list[PoolEntry], accounts: tuple[ServiceAccount, ...]
) -> tuple[Queue | None, ...]:
    """Return the queues in the stack file's order, None for a queue with an unknown pool."""
    places: set[tuple[str, str]] = set()
    return tuple(_check_queue(section, pools, accounts, places) for section in entries)


def _check_queue(
    section: Section[QueueSection],
    pools: list[PoolEntry],
    accounts: tuple[ServiceAccount, ...],
    places: set[tuple[str, str]],
) -> Queue | None:
    """Return one queue. `places` are the namespaces and names of earlier queues."""
    values = section.values
    if values.name and (values.namespace, values.name) in places:
        section.reject(
            "name",
            f"'{values.name}' is also the name of another queue in {values.namespace}; it must be unique there",
        )
    places.add((values.namespace, values.name))
    entry = find_pool(section, pools)
    pool = entry.sized if entry else None
    gpus, cpus, memory = _check_resources(section.part("nodeResources", values.node_resources), pool)
    storage = section.part("storage", values.storage)
    volumes = _check_volumes(storage)
    if pool and storage.has("shmSizePerGPU"):
        _check_shared_memory(storage, memory, gpus)
    account = _check_account(section, accounts)
    bucket = values.storage.workspace.bucket
    _check_bucket(section, bucket, account, accounts)
    if entry is None:
        return None
    defaults = values.job_defaults
    return Queue(
        name=values.name,
        namespace=values.namespace,
        pool=entry.pool,
        gpus=gpus,
        cpus=cpus,
        memory=memory,
        image=values.image,
        service_account=account,
        own_bucket=bucket == OWN_BUCKET,
        bucket=None if bucket == OWN_BUCKET else bucket,
        volumes=volumes,
        shared_memory_per_gpu=values.storage.shm_size_per_gpu,
        priority_class=values.scheduling.priority_class_name,
        job_defaults=JobDefaults(
            time_to_live=defaults.ttl_seconds_after_finished,
            deadline=defaults.active_deadline_seconds,
            restart_policy=defaults.restart_policy,
            max_restarts=defaults.max_restarts,
        ),
    )


def _check_bucket(
    section: Section[QueueSection],
    bucket: str | None,
    account: str | None,
    accounts: tuple[ServiceAccount, ...],
) -> None:
    """Check access to the bucket: workers read it; other pods can't write it or read it from another namespace.

    In the stack's own bucket, pods have access to other prefixes only.
    """
    namespace = section.values.namespace
    if bucket and account is None and section.ok("serviceAccount"):
        section.reject(
            "serviceAccount",
            f"is missing, and workers read their workspace from a bucket; it must be one of serviceAccounts in"
            f" {namespace}",
        )
    users = [
        each
        for each in accounts
        if bucket and each.bucket == bucket and (each.access == WRITE or each.namespace != namespace)
    ]
    users.sort(key=lambda each: (each.access != WRITE, (each.namespace, each.name) != (namespace, account)))
    if users:
        who = f"{users[0].namespace}/{users[0].name}"
        verb = "write" if users[0].access == WRITE else "read"
        section.reject(
            "storage.workspace.bucket",
            f"'{bucket}' contains the code of jobs, but pods with the service account {who} can {verb} it"
            f" (serviceAccounts: access {users[0].access}); it must be another bucket, such as {OWN_BUCKET}",
        )


def _check_resources(section: Section[NodeResources], pool: Pool | None) -> tuple[int, str, str]:
    """Return GPUs, cores and memory of a worker. The default is the whole node, or the share of its GPUs."""
    values = section.values
    most = pool.accelerators if pool and pool.resource == GPU else 0
    gpus = most if values.gpus is None else values.gpus
    if pool and gpus > most:
        section.reject(
            "gpus", f"{gpus} is more than the NVIDIA GPUs of {pool.instance_type}; it must be at most {most}"
        )
    part = (gpus, most) if 0 < gpus < most else (1, 1)
    cores = max(1, int(pool.worker_cpu) * part[0] // part[1]) if pool else 1
    gibibytes = max(1, int(quantity.parse(pool.worker_memory) / 2**30) * part[0] // part[1]) if pool else 1
    cpus, memory = values.cpus or str(cores), values.memory or f"{gibibytes}Gi"
    if pool and quantity.parse(cpus) >= pool.vcpus:
        section.reject(
            "cpus",
            f"'{cpus}' leaves nothing of the {pool.vcpus} cores of {pool.instance_type} to the system; it must be less,"
            f" such as '{pool.worker_cpu}'",
        )
    if pool and quantity.parse(memory) >= pool.memory_gib * 2**30:
        section.reject(
            "memory",
            f"'{memory}' leaves nothing of the {pool.memory_gib} GiB of {pool.instance_type} to the system; it must be"
            f" less, such as '{pool.worker_memory}'",
        )
    # Other settings are not checked against an invalid value.
    return gpus, cpus, memory if section.ok("memory") else f"{gibibytes}Gi"


def _check_shared_memory(section: Section[QueueStorage], memory: str, gpus: int) -> None:
    """Check /dev/shm, which counts towards the worker's limit, its memory."""
    each, count = section.values.shm_size_per_gpu, max(1, gpus)
    if quantity.parse(each) * count > quantity.parse(memory):
        section.reject(
            "shmSizePerGPU",
            f"'{each}' for each of {count} GPUs is more than the worker's memory, of which it is a part; all of it must"
            f" be at most '{memory}'",
        )


def _check_volumes(section: Section[QueueStorage]) -> dict[str, Volume]:
    """Return the volumes of jobs."""
    values = section.values
    parts: dict[str, Workspace | Datasets | Checkpoints] = {
        WORKSPACE: values.workspace,
        DATASETS: values.datasets,
        CHECKPOINTS: values.checkpoints,
    }
    found = {}
    for name, part in parts.items():
        volume = _check_volume(section.part(name, part))
        if volume is not None:
            found[name] = volume
    return found


def _check_volume(section: Section[Workspace | Datasets | Checkpoints]) -> Volume | None:
    """Return the volume if it has a size or a claim, else None."""
    values = section.values
    keys = {str(each.alias) for each in type(values).model_fields.values()}
    sizes = [key for key in SIZES if key in keys]
    given = [key for key in sizes if section.has(key)]
    if len(given) > 1:
        section.reject(given[1], f"is given beside {given[0]}; it must be one of {', '.join(sizes)}")
    if "existingClaim" in given:
        section.reject_given(
            ("storageClass",), "is given beside existingClaim, which has its own class; it must be left out"
        )
    if not given:
        section.reject_given(
            ("storageClass", "retain"),
            f"is given for a volume that jobs don't have; there must be one of {', '.join(sizes)}, too",
        )
        return None
    return Volume(
        size=getattr(values, "size", None),
        size_per_gpu=getattr(values, "size_per_gpu", None),
        storage_class=getattr(values, "storage_class", None),
        existing_claim=getattr(values, "existing_claim", None),
        retain=getattr(values, "retain", False),
    )


def _check_account(section: Section[QueueSection], accounts: tuple[ServiceAccount, ...]) -> str | None:
    """Return the workers' service account. The default in the training namespace is the trainer's account."""
    namespace, name = section.values.namespace, section.values.service_account
    own = names.TRAINER_SERVICE_ACCOUNT if namespace == names.TRAINING_NAMESPACE else None
    known = [each.name for each in accounts if each.namespace == namespace] + ([own] if own else [])
    # The account may be one with an invalid name or namespace.
    is_unclear = any(
        not each.name or section.problems.about(f"trainyard:serviceAccounts[{index}].namespace")
        for index, each in enumerate(accounts)
    )
    if name is not None and name not in known and not is_unclear:
        there = f" (there: {', '.join(known)})" if known else ""
        section.reject(
            "serviceAccount",
            f"'{name}' is no service account of the stack in {namespace}{hint(name, known)}; it must be one of"
            f" serviceAccounts with that namespace{there}",
        )
    return name or own
