"""Reading the torchrun queues of a stack file; part of `infra.settings`.

Keys have the names of the TorchrunQueue's fields (docs/torchrun-fields.md). Here they are judged by what the stack
knows besides: its pools and service accounts. The API server refuses more, once everything is made and paid for.
"""

from __future__ import annotations

from typing import Final

from components.documents.pool import GPU, Pool
from components.documents.torchrun_queue import (
    CHECKPOINTS,
    DATASETS,
    WORKSPACE,
    JobDefaults,
    Queue,
    Volume,
)
from infra import formats
from infra.account_settings import NAMESPACES, WRITE
from infra.model import PoolEntry, ServiceAccount
from infra.pool_settings import find_pool
from infra.quantities import GIB, amount
from infra.reading import Problems, Section, entries, hint
from infra.storage_settings import OWN_BUCKET
from infra.worker_settings import read_quantity
from trainyard.k8s import names

PATH: Final = "trainyard:queues"
# NCCL and data loaders exchange data there; containers get 64 MiB by default.
SHARED_MEMORY: Final = "2Gi"
RESTART_POLICIES: Final = ("OnFailure", "Never")
MOST_RESTARTS: Final = 100
# What the controller takes (launcher/validation.py).
MOST_SECONDS: Final = 10**9
SIZES: Final = ("size", "sizePerGPU", "existingClaim")
# What each volume can be. Workspaces are each job's own, and an empty volume of data sets is of no use to anybody.
VOLUMES: Final = {
    WORKSPACE: ("size", "sizePerGPU", "storageClass"),
    DATASETS: ("existingClaim",),
    CHECKPOINTS: (*SIZES, "storageClass", "retain"),
}


def read_queues(
    problems: Problems, value: object, pools: list[PoolEntry], accounts: tuple[ServiceAccount, ...]
) -> tuple[Queue | None, ...]:
    """Return the queues in the stack file's order, None for a queue with an unknown pool."""
    found: list[Queue | None] = []
    places: set[tuple[str, str]] = set()
    for section in entries(problems, PATH, value):
        found.append(_read(section, pools, accounts, places))
        section.done()
    return tuple(found)


def _read(
    section: Section,
    pools: list[PoolEntry],
    accounts: tuple[ServiceAccount, ...],
    places: set[tuple[str, str]],
) -> Queue | None:
    """Return one queue. `places` are the namespaces and names of earlier queues."""
    name = section.text("name", pattern=formats.DNS_LABEL, wanted=formats.DNS_LABEL_WANTED)
    namespace = section.choice("namespace", NAMESPACES, names.TRAINING_NAMESPACE)
    if name and (namespace, name) in places:
        section.reject(
            "name", f"'{name}' is also the name of another queue in {namespace}; it must be unique there"
        )
    places.add((namespace, name))
    entry = find_pool(section, pools)
    pool = entry.sized if entry else None
    image = section.optional_text("image", pattern=formats.IMAGE, wanted=formats.IMAGE_WANTED)
    gpus, cpus, memory = _resources(section.section("nodeResources"), pool)
    storage = section.section("storage")
    bucket, volumes = _storage(storage)
    shared_memory = read_quantity(storage, "shmSizePerGPU", SHARED_MEMORY)
    if pool and storage.has("shmSizePerGPU") and "shmSizePerGPU" not in storage.wrong:
        _check_shared_memory(storage, shared_memory, memory, gpus)
    storage.done()
    scheduling = section.section("scheduling")
    priority = scheduling.optional_text(
        "priorityClassName", pattern=formats.OBJECT_NAME, wanted=formats.OBJECT_NAME_WANTED
    )
    scheduling.done()
    account = _account(section, namespace, accounts)
    if bucket and account is None and "serviceAccount" not in section.wrong:
        section.reject(
            "serviceAccount",
            f"is missing, and workers read their workspace from a bucket; it must be one of serviceAccounts in"
            f" {namespace}",
        )
    _check_bucket_users(section, bucket, namespace, account, accounts)
    defaults = _job_defaults(section.section("jobDefaults"))
    if entry is None:
        return None
    return Queue(
        name=name,
        namespace=namespace,
        pool=entry.pool,
        gpus=gpus,
        cpus=cpus,
        memory=memory,
        image=image,
        service_account=account,
        own_bucket=bucket == OWN_BUCKET,
        bucket=None if bucket == OWN_BUCKET else bucket,
        volumes=volumes,
        shared_memory_per_gpu=shared_memory,
        priority_class=priority,
        job_defaults=defaults,
    )


def _check_bucket_users(
    section: Section,
    bucket: str | None,
    namespace: str,
    account: str | None,
    accounts: tuple[ServiceAccount, ...],
) -> None:
    """Refuse a workspace bucket that pods can write, or that pods of another namespace can read.

    In the stack's own bucket, pods have access to other prefixes only.
    """
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


def _resources(section: Section, pool: Pool | None) -> tuple[int, str, str]:
    """GPUs, cores and memory of a worker: by default all of a machine, or the part that goes with its GPUs."""
    most = pool.accelerators if pool and pool.resource == GPU else 0
    gpus = section.integer("gpus", most, least=0)
    if pool and "gpus" not in section.wrong and gpus > most:
        section.reject(
            "gpus", f"{gpus} is more than the NVIDIA GPUs of {pool.instance_type}; it must be at most {most}"
        )
    part = (gpus, most) if 0 < gpus < most else (1, 1)
    cores = max(1, int(pool.worker_cpu) * part[0] // part[1]) if pool else 1
    gibibytes = max(1, int(amount(pool.worker_memory) / GIB) * part[0] // part[1]) if pool else 1
    cpus = read_quantity(section, "cpus", str(cores))
    memory = read_quantity(section, "memory", f"{gibibytes}Gi")
    if pool and "cpus" not in section.wrong and amount(cpus) >= pool.vcpus:
        section.reject(
            "cpus",
            f"'{cpus}' leaves nothing of the {pool.vcpus} cores of {pool.instance_type} to the system; it must be less,"
            f" such as '{pool.worker_cpu}'",
        )
    if pool and "memory" not in section.wrong and amount(memory) >= pool.memory_gib * GIB:
        section.reject(
            "memory",
            f"'{memory}' leaves nothing of the {pool.memory_gib} GiB of {pool.instance_type} to the system; it must be"
            f" less, such as '{pool.worker_memory}'",
        )
    section.done()
    # Of what is wrong nothing else is to be judged by.
    return gpus, cpus, f"{gibibytes}Gi" if "memory" in section.wrong else memory


def _check_shared_memory(section: Section, each: str, memory: str, gpus: int) -> None:
    """What lies in it counts towards the worker's limit, which is its memory."""
    count = max(1, gpus)
    if amount(each) * count > amount(memory):
        section.reject(
            "shmSizePerGPU",
            f"'{each}' for each of {count} GPUs is more than the worker's memory, of which it is a part; all of it must"
            f" be at most '{memory}'",
        )


def _storage(section: Section) -> tuple[str | None, dict[str, Volume]]:
    """The bucket of workspaces as the settings name it, and the volumes that jobs have."""
    bucket: str | None = None
    volumes: dict[str, Volume] = {}
    for name, keys in VOLUMES.items():
        part = section.section(name)
        if name == WORKSPACE:
            bucket = part.optional_text(
                "bucket", pattern=formats.BUCKET, wanted=f"{OWN_BUCKET} (the stack's own) or a bucket's name"
            )
        volume = _volume(part, keys)
        if volume is not None:
            volumes[name] = volume
        part.done()
    return bucket, volumes


def _volume(section: Section, keys: tuple[str, ...]) -> Volume | None:
    """The volume where its size or claim is said, else None."""
    texts: dict[str, str | None] = dict.fromkeys((*SIZES, "storageClass"))
    for key in keys:
        if key in ("size", "sizePerGPU"):
            texts[key] = read_quantity(section, key, "") or None
        elif key in texts:
            texts[key] = section.optional_text(
                key, pattern=formats.OBJECT_NAME, wanted=formats.OBJECT_NAME_WANTED
            )
    retain = section.boolean("retain", False) if "retain" in keys else False
    sizes = [key for key in SIZES if key in keys]
    said = [key for key in sizes if section.has(key)]
    if len(said) > 1:
        section.reject(said[1], f"is said beside {said[0]}; it must be one of {', '.join(sizes)}")
    if section.has("storageClass") and "existingClaim" in said:
        section.reject(
            "storageClass", "is said beside existingClaim, which is used as it is; it must be left out"
        )
    for key in ("storageClass", "retain"):
        if key in keys and section.has(key) and not said:
            section.reject(
                key, f"is said of a volume that jobs don't have; there must be one of {', '.join(sizes)}, too"
            )
    if not said:
        return None
    return Volume(
        size=texts["size"],
        size_per_gpu=texts["sizePerGPU"],
        storage_class=texts["storageClass"],
        existing_claim=texts["existingClaim"],
        retain=retain,
    )


def _account(section: Section, namespace: str, accounts: tuple[ServiceAccount, ...]) -> str | None:
    """The workers' service account: in the training namespace the trainer's, unless another one is said."""
    own = names.TRAINER_SERVICE_ACCOUNT if namespace == names.TRAINING_NAMESPACE else None
    name = section.text("serviceAccount", own or "", wanted="the name of a service account")
    known = [each.name for each in accounts if each.namespace == namespace] + ([own] if own else [])
    judged = section.has("serviceAccount") and "serviceAccount" not in section.wrong
    # An account with an invalid name or namespace may be the right one.
    unclear = any(
        not each.name or section.problems.about(f"trainyard:serviceAccounts[{index}].namespace")
        for index, each in enumerate(accounts)
    )
    if judged and name not in known and not unclear:
        there = f" (there: {', '.join(known)})" if known else ""
        section.reject(
            "serviceAccount",
            f"'{name}' is no service account of the stack in {namespace}{hint(name, known)}; it must be one of"
            f" serviceAccounts with that namespace{there}",
        )
    return name or None


def _job_defaults(section: Section) -> JobDefaults:
    defaults = JobDefaults(
        time_to_live=section.optional_integer(
            "ttlSecondsAfterFinished", least=0, most=MOST_SECONDS, unit="seconds"
        ),
        deadline=section.optional_integer(
            "activeDeadlineSeconds", least=1, most=MOST_SECONDS, unit="seconds"
        ),
        restart_policy=section.choice("restartPolicy", RESTART_POLICIES, RESTART_POLICIES[0]),
        max_restarts=section.integer("maxRestarts", 3, least=0, most=MOST_RESTARTS),
    )
    section.done()
    return defaults
