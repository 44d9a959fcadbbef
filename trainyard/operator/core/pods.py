"""The pods of a job: workers and what runs beside them. Pure.

The queue's pod template is below, what the queue's and the job's other fields say goes above it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from math import floor
from typing import Any, Final

from launcher import user_environment
from trainyard.k8s import names, quantity
from trainyard.k8s.quantity import in_words
from trainyard.operator.core import command as commands
from trainyard.operator.core import first_process, job_spec, placement
from trainyard.operator.core import names as n
from trainyard.operator.core.addresses import archive_annotation, log_url, logs_prefix, sync_pod_url
from trainyard.operator.core.distribution import Size
from trainyard.operator.core.job_spec import JobSpec
from trainyard.operator.core.queue_spec import WORKING_DIRECTORY, WORKSPACE, QueueSpec
from trainyard.operator.core.reading import JsonObject
from trainyard.operator.core.resolve import Settings
from trainyard.operator.core.storage import Cluster, Storage

GPU_RESOURCE: Final = "nvidia.com/gpu"
COMPLETION_INDEX: Final = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_TOOL: Final = {"cpu": "100m", "memory": "256Mi"}
_SHARED_MEMORY: Final = "shared-memory"
_STORAGE: Final = "ephemeral-storage"
_LOG_MOUNT: Final = {"name": n.LOG_VOLUME, "mountPath": n.LOG_DIRECTORY}
_ARCHIVE_FIELD: Final = f"metadata.annotations['{n.ANNOTATION_ARCHIVE}']"


@dataclass(frozen=True, kw_only=True)
class Making:
    """The input for the objects of a job: its spec, settings, size and volumes, and the number of the attempt.

    `has_started` says whether the job had workers before. `nearby` are the addresses of other jobs' sync pods that may
    have the archive of this job's workspace.
    """

    name: str
    namespace: str
    uid: str
    spec: JobSpec
    settings: Settings
    size: Size
    storage: Storage
    cluster: Cluster
    attempt: int
    has_started: bool = False
    nearby: tuple[str, ...] = ()

    @property
    def labels(self) -> dict[str, str]:
        """On everything that is made for the job."""
        return {n.LABEL_JOB: self.name, n.LABEL_MANAGED_BY: n.MANAGED_BY}

    @property
    def attempt_labels(self) -> dict[str, str]:
        """On what is made for the attempt."""
        return {**self.labels, n.LABEL_ATTEMPT: str(self.attempt)}

    @property
    def sync(self) -> bool:
        """Whether the workspace comes through a pod of the job."""
        return self.spec.workspace is not None and not self.spec.workspace.url

    @property
    def logs(self) -> str:
        """Return the URL of the job's archived logs, "" without a bucket."""
        bucket = self.settings.queue.bucket
        return logs_prefix(bucket, self.namespace, self.uid) if bucket else ""

    @property
    def meeting(self) -> commands.Meeting:
        """Where the workers of this attempt meet. One worker needs neither a name nor a fixed port for that."""
        first = f"{n.attempt_name(self.name, self.attempt)}-0.{self.name}.{self.namespace}.svc"
        alone = self.size.nodes == 1 and self.settings.rendezvous == job_spec.C10D
        place = "localhost:0" if alone else f"{first}:{self.settings.port}"
        return commands.Meeting(
            backend=self.settings.rendezvous,
            endpoint=self.spec.endpoint or place,
            id=f"{self.uid}-{self.attempt}",
            nodes=self.size.nodes,
            least=self.size.least,
            processes=self.size.processes,
            given=bool(self.spec.endpoint),
        )


def worker(making: Making, node: int | None = None) -> JsonObject:
    """The workers' pod template; with `node` that of one node alone."""
    queue = making.settings.queue
    below = queue.template_spec
    containers = [dict(each) for each in below.get("containers") or []]
    own = next((each for each in containers if each["name"] == n.WORKER_CONTAINER), None)
    container = _container(making, own or {}, node)
    volumes = _volumes(making, node)
    spec: JsonObject = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _grace(container),
        # Else the pod asks the machine's own DNS, which knows of no Service, and workers do not find each other.
        **({"dnsPolicy": "ClusterFirstWithHostNet"} if below.get("hostNetwork") else {}),
        **below,
        **placement.place(below, queue),
        "restartPolicy": "Never",
        "subdomain": making.name,
        "containers": [container, *(each for each in containers if each["name"] != n.WORKER_CONTAINER)],
    }
    tools = _tools(making, below, container)
    if tools:
        spec["initContainers"] = [*tools, *(below.get("initContainers") or [])]
    if volumes or below.get("volumes"):
        ours = {each["name"] for each in volumes}
        spec["volumes"] = [
            *volumes,
            *(each for each in below.get("volumes") or [] if each.get("name") not in ours),
        ]
    return {"metadata": _metadata(making, node), "spec": spec}


def pull_secrets(queue: QueueSpec) -> JsonObject:
    """The field of a PodSpec by which other pods than workers get their image: its registry may be private, too."""
    secrets = queue.template_spec.get("imagePullSecrets")
    return {"imagePullSecrets": secrets} if secrets else {}


def _metadata(making: Making, node: int | None) -> JsonObject:
    queue, workspace = making.settings.queue, making.spec.workspace
    gang = {
        n.ANNOTATION_SKIP_POD_GROUPER: "true",
        n.ANNOTATION_POD_GROUP: n.attempt_name(making.name, making.attempt),
    }
    return {
        "labels": {
            **queue.template_labels,
            **({n.LABEL_KAI_QUEUE: queue.kai_queue} if queue.kai_queue else {}),
            **making.attempt_labels,
            n.LABEL_JOB_UID: making.uid,
            **({n.LABEL_NODE: str(node)} if node is not None else {}),
        },
        "annotations": {
            names.DO_NOT_DISRUPT: "true",
            **queue.template_annotations,
            **(gang if making.settings.gang else {}),
            **({n.ANNOTATION_ARCHIVE: archive_annotation(workspace)} if workspace is not None else {}),
        },
    }


def _container(making: Making, below: Mapping[str, Any], node: int | None) -> JsonObject:
    queue = making.settings.queue
    command = commands.build(making.spec.command, making.spec.args, making.meeting, making.spec.launcher)
    resources = below.get("resources") or {}
    ours = resources_of(making)
    home_environment = user_environment.defaults(queue.template_spec, below)
    env = _environment(making, node, {**home_environment, **command.environment}, below.get("env") or [])
    mounts = _mounts(making)
    paths = {each["mountPath"] for each in mounts}
    return {
        # torchrun's last lines have the exit code of the command (child_exit.py).
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **{key: value for key, value in below.items() if key != "args"},
        "name": n.WORKER_CONTAINER,
        "image": queue.image,
        "command": first_process.under_it(
            command.words, below.get("terminationMessagePath") or first_process.MESSAGE_PATH
        ),
        "workingDir": _working_directory(making),
        "env": env,
        "resources": {
            **resources,
            **{
                kind: {**_template_resources(making, resources.get(kind) or {}), **ours}
                for kind in ("requests", "limits")
            },
        },
        "volumeMounts": [
            *mounts,
            *(each for each in below.get("volumeMounts") or [] if each.get("mountPath") not in paths),
        ],
    }


def resources_of(making: Making) -> dict[str, str]:
    """Return the resources of a worker. With a part of a node's GPUs, it gets the same part of the other resources.

    The sidecar of the workspace counts within this part. Otherwise fewer workers would fit on the node.
    """
    queue, gpus, part = making.settings.queue, making.size.gpus, _node_fraction(making)
    beside = _TOOL if part < 1 and making.spec.workspace is not None else {}
    cpus = _subtract(queue.cpus * part, beside.get("cpu"))
    memory = _subtract(queue.memory * part, beside.get("memory"))
    asked = {"cpu": f"{max(1, floor(cpus * 1000))}m", "memory": in_words(max(1, floor(memory)))}
    return {**asked, **({GPU_RESOURCE: str(gpus)} if gpus else {})}


def _node_fraction(making: Making) -> Fraction:
    """Return the fraction of the queue's nodeResources that a worker gets."""
    gpus = making.size.gpus
    return Fraction(gpus, making.settings.queue.gpus) if gpus else Fraction(1)


def _subtract(share: quantity.Amount, beside: str | None) -> quantity.Amount:
    """Return the share without the sidecar's request, if that leaves at least half of it."""
    taken = quantity.parse(beside) if beside else 0
    return share - taken if taken * 2 <= share else share


def _template_resources(making: Making, asked: Mapping[str, Any]) -> JsonObject:
    """Return the template's resources for a worker that may get a part of a node.

    Only workers with a whole node get EFA interfaces and their huge pages: a node may have a single interface, and then
    no other worker would fit. Local storage is divided like cores and memory.
    """
    part, gpus = _node_fraction(making), making.size.gpus
    if not gpus or gpus == making.settings.node_gpus:
        return dict(asked)
    left = {name: amount for name, amount in asked.items() if name != names.EFA_RESOURCE}
    if names.EFA_RESOURCE in asked and not _mounts_huge_pages(making.settings.queue.template_spec):
        left = {name: amount for name, amount in left.items() if not name.startswith("hugepages-")}
    if _STORAGE in left:
        with suppress(ValueError):  # the queue's dry run says so
            left[_STORAGE] = in_words(max(1, floor(quantity.parse(left[_STORAGE]) * part)))
    return left


def _mounts_huge_pages(template: Mapping[str, Any]) -> bool:
    volumes = template.get("volumes") or []
    return any(
        str((each.get("emptyDir") or {}).get("medium") or "").startswith("HugePages") for each in volumes
    )


def _environment(
    making: Making, node: int | None, flags: Mapping[str, str], below: Iterable[JsonObject]
) -> list[JsonObject]:
    queue, size = making.settings.queue, making.size
    threads = floor(
        Fraction(queue.cpus) * (Fraction(size.gpus, queue.gpus) if size.gpus else 1) / size.processes
    )
    values = {
        n.ENV_THREADS: str(max(1, threads)),
        n.ENV_BACKEND: making.spec.backend,
        names.ENV_RUN_ID: making.name,
        names.ENV_RESTART: str(making.attempt),
        names.ENV_PROCESSES_PER_NODE: str(size.processes),
        **flags,
    }
    if queue.interface:
        values |= {n.ENV_NCCL_INTERFACE: queue.interface, n.ENV_GLOO_INTERFACE: _gloo(queue.interface)}
    if size.elastic:
        # After a change of the members the survivors would look for the store of an agent that is gone
        # (pytorch/pytorch, torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).
        values["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    else:
        values[names.ENV_EXPECTED_NODES] = str(size.nodes)
    rank: JsonObject = {"value": str(node)}
    if node is None:
        rank = {"valueFrom": {"fieldRef": {"fieldPath": COMPLETION_INDEX}}}
    # First, as others' values may name it.
    fixed: list[JsonObject] = [
        {"name": n.ENV_JOB, "value": making.name},
        {"name": n.ENV_ATTEMPT, "value": str(making.attempt)},
        {"name": n.ENV_NODE_RANK, **rank},
        *([{"name": n.ENV_LOG, "value": n.LOG_FILE}] if making.logs else []),
    ]
    ours: list[JsonObject] = [{"name": name, "value": value} for name, value in values.items()]
    if size.nodes > 1 and queue.template_spec.get("hostNetwork"):
        # A machine's name may be known to nobody. A pod's own is in its hosts file, and torchrun gives ranks in the
        # order of these names: that of addresses is chance, and node 0's log would not be that of rank 0
        # (_mark_rendezvous_complete in torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).
        ours.append({"name": "PET_LOCAL_ADDR", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    return _by_name(fixed, ours, below, making.spec.env, fixed)


def _gloo(interface: str) -> str:
    """gloo takes names of interfaces alone, none to leave out (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp)."""
    return "" if interface.startswith("^") else interface.removeprefix("=")


def _by_name(*lists: Iterable[JsonObject]) -> list[JsonObject]:
    """One variable of each name, at its first place, as the last list has it; an empty interface is none."""
    result: dict[str, JsonObject] = {}
    for each in lists:
        for variable in each:
            result[str(variable.get("name"))] = variable
    gloo = result.get(n.ENV_GLOO_INTERFACE, {})
    if gloo.get("value") == "" and "valueFrom" not in gloo:
        del result[n.ENV_GLOO_INTERFACE]
    return list(result.values())


def _grace(container: JsonObject) -> int:
    """Seconds from SIGTERM to SIGKILL: what torchrun leaves its processes, and some for its own end."""
    told = next(
        (str(each.get("value")) for each in container["env"] if each["name"] == names.SHUTDOWN_VARIABLE), ""
    )
    seconds = int(told) if told.isdecimal() and told.isascii() and len(told) < 6 else names.SHUTDOWN_SECONDS
    return seconds + names.SHUTDOWN_MARGIN_SECONDS


def _working_directory(making: Making) -> str:
    """Where the command runs: a script of the workspace is found there, unless the queue says another place."""
    queue = making.settings.queue
    moved = making.spec.workspace is not None and queue.working_directory == WORKING_DIRECTORY
    return _workspace_path(making) if moved else queue.working_directory


def _workspace_path(making: Making) -> str:
    volume = making.settings.queue.volumes.get(WORKSPACE)
    return volume.mount_path if volume is not None else making.settings.queue.working_directory


def _volumes(making: Making, node: int | None) -> list[JsonObject]:
    result: list[JsonObject] = [
        {
            "name": mount.volume,
            "persistentVolumeClaim": {
                "claimName": mount.claim(node or 0),
                **({"readOnly": True} if mount.read_only else {}),
            },
        }
        for mount in making.storage.mounts
    ]
    if making.spec.workspace is not None:
        if WORKSPACE not in making.settings.queue.volumes:
            result.append({"name": WORKSPACE, "emptyDir": {}})
        archive = {"path": n.ARCHIVE_FILE, "fieldRef": {"fieldPath": _ARCHIVE_FIELD}}
        result.append({"name": n.ARCHIVE_VOLUME, "downwardAPI": {"items": [archive]}})
    if making.logs:
        result.append({"name": n.LOG_VOLUME, "emptyDir": {}})
    shared = making.settings.queue.shared_memory_per_gpu
    if shared is not None:
        size = in_words(floor(shared * (making.size.gpus or 1)))
        result.append({"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    return result


def _mounts(making: Making) -> list[JsonObject]:
    result: list[JsonObject] = [
        {
            "name": mount.volume,
            "mountPath": mount.path,
            **_workspace_subpath(making, mount.volume),
            **({"readOnly": True} if mount.read_only else {}),
        }
        for mount in making.storage.mounts
    ]
    if making.spec.workspace is not None and WORKSPACE not in making.settings.queue.volumes:
        result.append({"name": WORKSPACE, "mountPath": _workspace_path(making)})
    if making.logs:
        result.append(_LOG_MOUNT)
    if making.settings.queue.shared_memory_per_gpu is not None:
        result.append({"name": _SHARED_MEMORY, "mountPath": "/dev/shm"})  # noqa: S108 (not a temporary file)
    return result


def _workspace_subpath(making: Making, volume: str) -> JsonObject:
    """Return the `subPath` of the job's own directory in the claim of the workspace, as a field of a mount.

    A claim may be shared, or retained from an earlier job. In a common directory, a job could run the code of another.
    The uid can't be guessed before the job exists. Kubernetes creates the directory with the mode of the volume's root
    (SafeMakeDir in k8s.io/kubernetes, pkg/volume/util/subpath/subpath_linux.go).
    """
    claimed = volume == WORKSPACE and WORKSPACE in making.settings.queue.volumes
    return {"subPath": making.uid} if claimed and making.spec.workspace is not None else {}


def _tools(making: Making, below: Mapping[str, Any], container: JsonObject) -> list[JsonObject]:
    """Return the init container and the sidecar for the workspace and the log."""
    workspace = making.spec.workspace
    mounts: list[JsonObject] = []
    words: list[str] = []
    logs: list[str] = []
    if workspace is not None:
        # Not at the workers' path: the image of the tools has its program in /app.
        mounts.append(
            {"name": WORKSPACE, "mountPath": n.TOOLS_WORKSPACE, **_workspace_subpath(making, WORKSPACE)}
        )
        # Without subPath: Kubernetes does not update such a file in a running pod.
        mounts.append({"name": n.ARCHIVE_VOLUME, "mountPath": n.ARCHIVE_DIRECTORY, "readOnly": True})
        sync = [] if workspace.url else ["--sync", sync_pod_url(making.name, making.namespace)]
        words = ["--archive", f"{n.ARCHIVE_DIRECTORY}/{n.ARCHIVE_FILE}", *sync, "--into", n.TOOLS_WORKSPACE]
        words = [commands.literally(each) for each in words]
    if making.logs:
        address = log_url(commands.literally(making.logs), making.attempt, f"$({n.ENV_NODE_RANK})")
        logs = ["--log", n.LOG_FILE, "--log-url", address]
    # The access to the bucket, and its region, are those of the worker.
    env = [
        each
        for each in container["env"]
        if str(each["name"]).startswith("AWS_") or (logs and each["name"] == n.ENV_NODE_RANK)
    ]
    common: JsonObject = {
        "image": making.cluster.tools_image,
        "resources": {"requests": _TOOL, "limits": _TOOL},
        "securityContext": _tool_security(below, container),
        # Why it failed is its last line; the job's message has it from there.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": env,
    }
    program = ["python", "-m", "trainyard.workspace"]
    fetch = {
        "name": n.FETCH_CONTAINER,
        "command": [*program, "fetch", *words],
        "volumeMounts": mounts,
        **common,
    }
    # A native sidecar: it starts after the init container, and the pod does not wait for its end.
    follow = {
        "name": n.FOLLOW_CONTAINER,
        "command": [*program, "follow", *words, *logs],
        "volumeMounts": [*mounts, *([_LOG_MOUNT] if logs else [])],
        "restartPolicy": "Always",
        **common,
    }
    return [*([fetch] if words else []), *([follow] if words or logs else [])]


def _tool_security(below: Mapping[str, Any], container: JsonObject) -> JsonObject:
    """The worker's user, so that it may change what is put there; images without a word of it run as root."""
    said = {**(below.get("securityContext") or {}), **(container.get("securityContext") or {})}
    user = {key: said[key] for key in ("runAsUser", "runAsGroup", "runAsNonRoot") if key in said}
    if not user:
        user = {"runAsUser": 0, "runAsGroup": 0}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **user}
