"""Build the objects of a job: Jobs, workers, Service, claims, the sync pod and the log reader. Pure.

The queue's pod template is the base. The other fields of the queue and of the job take precedence.
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from math import floor
from typing import Any, Final

from launcher import manifests
from launcher.manifests import pod_security
from trainyard.k8s import names, quantity
from trainyard.k8s.quantity import in_words
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.api.job import Workspace
from trainyard.operator.api.queue import WORKING_DIRECTORY, WORKSPACE, QueueSpec
from trainyard.operator.command import build_command, literally
from trainyard.operator.context import AttemptSpec
from trainyard.operator.names import log_url, sync_pod_url
from trainyard.operator.resources import Claim
from trainyard.operator.signal_forwarder import MESSAGE_PATH, wrap_command


def archive_annotation(workspace: Workspace) -> str:
    """Return the annotation with the archive that a worker unpacks (trainyard/workspace/store.py: Pointer)."""
    pointer = {"digest": workspace.digest, "size": workspace.size_bytes, "url": workspace.url}
    return json.dumps(pointer, sort_keys=True)


GPU_RESOURCE: Final = "nvidia.com/gpu"
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
# A node that does not answer ends the attempt. Kubernetes' default is 300 s.
LOST_NODE_SECONDS: Final = 30
LOST_NODE_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
# Set by NVIDIA's GPU feature discovery (https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/).
LABEL_GPU_PRODUCT: Final = "nvidia.com/gpu.product"
# Set by Karpenter on AWS (https://karpenter.sh/docs/concepts/scheduling/): a name such as h100, and MiB of one GPU.
LABEL_GPU_NAME: Final = "karpenter.k8s.aws/instance-gpu-name"
LABEL_GPU_MEMORY: Final = "karpenter.k8s.aws/instance-gpu-memory"
_GPU_TYPE: Final = re.compile(r"([a-z][a-z0-9]*)(?:-(\d{1,4})gb?)?", re.ASCII)
COMPLETION_INDEX: Final = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_TOOL: Final = {"cpu": "100m", "memory": "256Mi"}
_SHARED_MEMORY: Final = "shared-memory"
_STORAGE: Final = "ephemeral-storage"
_LOG_MOUNT: Final = {"name": n.LOG_VOLUME, "mountPath": n.LOG_DIRECTORY}
_ARCHIVE_FIELD: Final = f"metadata.annotations['{n.ANNOTATION_ARCHIVE}']"


def build_worker(attempt: AttemptSpec, node: int | None = None) -> JsonObject:
    """Return the pod template of the workers; with `node`, of that node only."""
    queue = attempt.settings.queue
    below = queue.pod_template.spec
    containers = [dict(each) for each in below.get("containers") or []]
    own = next((each for each in containers if each["name"] == n.WORKER_CONTAINER), None)
    container = _container(attempt, own or {}, node)
    volumes = _volumes(attempt, node)
    spec: JsonObject = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _grace(container),
        # The node's own DNS knows no Services, so workers would not find each other.
        **({"dnsPolicy": "ClusterFirstWithHostNet"} if below.get("hostNetwork") else {}),
        **below,
        **placement_fields(below, queue),
        "restartPolicy": "Never",
        "subdomain": attempt.name,
        "containers": [container, *(each for each in containers if each["name"] != n.WORKER_CONTAINER)],
    }
    tools = _tools(attempt, below, container)
    if tools:
        spec["initContainers"] = [*tools, *(below.get("initContainers") or [])]
    if volumes or below.get("volumes"):
        ours = {each["name"] for each in volumes}
        spec["volumes"] = [
            *volumes,
            *(each for each in below.get("volumes") or [] if each.get("name") not in ours),
        ]
    return {"metadata": _metadata(attempt, node), "spec": spec}


def pull_secrets(queue: QueueSpec) -> JsonObject:
    """Return the PodSpec field with the pull secrets of the queue, for pods other than workers."""
    secrets = queue.pod_template.spec.get("imagePullSecrets")
    return {"imagePullSecrets": secrets} if secrets else {}


def _metadata(attempt: AttemptSpec, node: int | None) -> JsonObject:
    queue, workspace = attempt.settings.queue, attempt.spec.workspace
    gang = {
        n.ANNOTATION_SKIP_POD_GROUPER: "true",
        n.ANNOTATION_POD_GROUP: n.attempt_name(attempt.name, attempt.number),
    }
    return {
        "labels": {
            **queue.pod_template.metadata.labels,
            **({n.LABEL_KAI_QUEUE: queue.kai_queue} if queue.kai_queue else {}),
            **attempt.attempt_labels,
            n.LABEL_JOB_UID: attempt.uid,
            **({n.LABEL_NODE: str(node)} if node is not None else {}),
        },
        "annotations": {
            names.DO_NOT_DISRUPT: "true",
            **queue.pod_template.metadata.annotations,
            **(gang if attempt.settings.gang else {}),
            **({n.ANNOTATION_ARCHIVE: archive_annotation(workspace)} if workspace is not None else {}),
        },
    }


def _container(attempt: AttemptSpec, below: Mapping[str, Any], node: int | None) -> JsonObject:
    queue = attempt.settings.queue
    command = build_command(
        attempt.spec.command, attempt.spec.args, attempt.rendezvous, attempt.spec.launcher
    )
    resources = below.get("resources") or {}
    ours = worker_resources(attempt)
    home_environment = manifests.user_variables(queue.pod_template.spec, below)
    env = _environment(attempt, node, {**home_environment, **command.environment}, below.get("env") or [])
    mounts = _mounts(attempt)
    paths = {each["mountPath"] for each in mounts}
    return {
        # torchrun's last lines have the exit code of the command (observe.py: command_exit_code).
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **{key: value for key, value in below.items() if key != "args"},
        "name": n.WORKER_CONTAINER,
        "image": queue.image,
        "command": wrap_command(command.words, below.get("terminationMessagePath") or MESSAGE_PATH),
        "workingDir": _working_directory(attempt),
        "env": env,
        "resources": {
            **resources,
            **{
                kind: {**_template_resources(attempt, resources.get(kind) or {}), **ours}
                for kind in ("requests", "limits")
            },
        },
        "volumeMounts": [
            *mounts,
            *(each for each in below.get("volumeMounts") or [] if each.get("mountPath") not in paths),
        ],
    }


def worker_resources(attempt: AttemptSpec) -> dict[str, str]:
    """Return the resources of a worker. With a part of a node's GPUs, it gets the same part of the other resources.

    The sidecar of the workspace counts within this part. Otherwise fewer workers would fit on the node.
    """
    queue, gpus, part = attempt.settings.queue, attempt.size.gpus, _node_fraction(attempt)
    running_sidecars = _TOOL if part < 1 and attempt.spec.workspace is not None else {}
    cpus = _subtract(queue.node_resources.cpus * part, running_sidecars.get("cpu"))
    memory = _subtract(queue.node_resources.memory * part, running_sidecars.get("memory"))
    asked = {"cpu": f"{max(1, floor(cpus * 1000))}m", "memory": in_words(max(1, floor(memory)))}
    return {**asked, **({GPU_RESOURCE: str(gpus)} if gpus else {})}


def _node_fraction(attempt: AttemptSpec) -> Fraction:
    """Return the fraction of the queue's nodeResources that a worker gets."""
    gpus = attempt.size.gpus
    return Fraction(gpus, attempt.settings.queue.node_resources.gpus) if gpus else Fraction(1)


def _subtract(share: quantity.Amount, running_sidecars: str | None) -> quantity.Amount:
    """Return the share without the sidecar's request, if that leaves at least half of it."""
    taken = quantity.parse(running_sidecars) if running_sidecars else 0
    return share - taken if taken * 2 <= share else share


def _template_resources(attempt: AttemptSpec, asked: Mapping[str, Any]) -> JsonObject:
    """Return the template's resources for a worker that may get a part of a node.

    Only workers with a whole node get EFA interfaces and their huge pages: a node may have a single interface, and then
    no other worker would fit. Local storage is divided like cores and memory.
    """
    part, gpus = _node_fraction(attempt), attempt.size.gpus
    if not gpus or gpus == attempt.settings.node_gpus:
        return dict(asked)
    left = {name: amount for name, amount in asked.items() if name != names.EFA_RESOURCE}
    if names.EFA_RESOURCE in asked and not _mounts_huge_pages(attempt.settings.queue.pod_template.spec):
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
    attempt: AttemptSpec, node: int | None, flags: Mapping[str, str], below: Iterable[JsonObject]
) -> list[JsonObject]:
    queue, size = attempt.settings.queue, attempt.size
    threads = floor(queue.node_resources.cpus * _node_fraction(attempt) / size.processes)
    values = {
        n.ENV_THREADS: str(max(1, threads)),
        n.ENV_BACKEND: attempt.spec.backend,
        names.ENV_RUN_ID: attempt.name,
        names.ENV_RESTART: str(attempt.number),
        names.ENV_PROCESSES_PER_NODE: str(size.processes),
        **flags,
    }
    if interface := queue.networking.interface:
        values |= {n.ENV_NCCL_INTERFACE: interface, n.ENV_GLOO_INTERFACE: _gloo(interface)}
    if size.elastic:
        # After a change of the members, the others would look for the store of an agent that is gone
        # (pytorch/pytorch, torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).
        values["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    else:
        values[names.ENV_EXPECTED_NODES] = str(size.nodes)
    rank: JsonObject = {"value": str(node)}
    if node is None:
        rank = {"valueFrom": {"fieldRef": {"fieldPath": COMPLETION_INDEX}}}
    # First, because values of other variables may refer to it.
    fixed: list[JsonObject] = [
        {"name": n.ENV_JOB, "value": attempt.name},
        {"name": n.ENV_ATTEMPT, "value": str(attempt.number)},
        {"name": n.ENV_NODE_RANK, **rank},
        *([{"name": n.ENV_LOG, "value": n.LOG_FILE}] if attempt.logs else []),
    ]
    ours: list[JsonObject] = [{"name": name, "value": value} for name, value in values.items()]
    if size.nodes > 1 and queue.pod_template.spec.get("hostNetwork"):
        # A node's name may not resolve, but a pod's name is in its hosts file. torchrun orders ranks by these names.
        # By addresses, node 0 might not have rank 0
        # (_mark_rendezvous_complete in torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).
        ours.append({"name": "PET_LOCAL_ADDR", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    return _by_name(fixed, ours, below, attempt.spec.env, fixed)


def _gloo(interface: str) -> str:
    """Return the interface names for gloo, without exclusions (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp)."""
    return "" if interface.startswith("^") else interface.removeprefix("=")


def _by_name(*lists: Iterable[JsonObject]) -> list[JsonObject]:
    """Return one variable for each name: at its first place, with its last value. An empty interface is removed."""
    result: dict[str, JsonObject] = {}
    for each in lists:
        for variable in each:
            result[str(variable.get("name"))] = variable
    gloo = result.get(n.ENV_GLOO_INTERFACE, {})
    if gloo.get("value") == "" and "valueFrom" not in gloo:
        del result[n.ENV_GLOO_INTERFACE]
    return list(result.values())


def _grace(container: JsonObject) -> int:
    """Return the seconds from SIGTERM to SIGKILL: torchrun's timeout for its processes and a margin."""
    timeout = next(
        (str(each.get("value")) for each in container["env"] if each["name"] == names.SHUTDOWN_VARIABLE), ""
    )
    seconds = (
        int(timeout)
        if timeout.isdecimal() and timeout.isascii() and len(timeout) < 6
        else names.SHUTDOWN_SECONDS
    )
    return seconds + names.SHUTDOWN_MARGIN_SECONDS


def _working_directory(attempt: AttemptSpec) -> str:
    """Return where the command runs: in the workspace, unless the queue sets another directory."""
    queue = attempt.settings.queue
    moved = attempt.spec.workspace is not None and queue.working_dir == WORKING_DIRECTORY
    return _workspace_path(attempt) if moved else queue.working_dir


def _workspace_path(attempt: AttemptSpec) -> str:
    volume = attempt.settings.queue.volumes.get(WORKSPACE)
    return volume.mount_path if volume is not None else attempt.settings.queue.working_dir


def _volumes(attempt: AttemptSpec, node: int | None) -> list[JsonObject]:
    result: list[JsonObject] = [
        {
            "name": mount.volume,
            "persistentVolumeClaim": {
                "claimName": mount.claim(node or 0),
                **({"readOnly": True} if mount.read_only else {}),
            },
        }
        for mount in attempt.storage.mounts
    ]
    if attempt.spec.workspace is not None:
        if WORKSPACE not in attempt.settings.queue.volumes:
            result.append({"name": WORKSPACE, "emptyDir": {}})
        archive = {"path": n.ARCHIVE_FILE, "fieldRef": {"fieldPath": _ARCHIVE_FIELD}}
        result.append({"name": n.ARCHIVE_VOLUME, "downwardAPI": {"items": [archive]}})
    if attempt.logs:
        result.append({"name": n.LOG_VOLUME, "emptyDir": {}})
    shared = attempt.settings.queue.storage.shm_size_per_gpu
    if shared is not None:
        size = in_words(floor(shared * (attempt.size.gpus or 1)))
        result.append({"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory", "sizeLimit": size}})
    return result


def _mounts(attempt: AttemptSpec) -> list[JsonObject]:
    result: list[JsonObject] = [
        {
            "name": mount.volume,
            "mountPath": mount.path,
            **_workspace_subpath(attempt, mount.volume),
            **({"readOnly": True} if mount.read_only else {}),
        }
        for mount in attempt.storage.mounts
    ]
    if attempt.spec.workspace is not None and WORKSPACE not in attempt.settings.queue.volumes:
        result.append({"name": WORKSPACE, "mountPath": _workspace_path(attempt)})
    if attempt.logs:
        result.append(_LOG_MOUNT)
    if attempt.settings.queue.storage.shm_size_per_gpu is not None:
        result.append({"name": _SHARED_MEMORY, "mountPath": "/dev/shm"})  # noqa: S108 (not a temporary file)
    return result


def _workspace_subpath(attempt: AttemptSpec, volume: str) -> JsonObject:
    """Return the `subPath` of the job's own directory in the claim of the workspace, as a field of a mount.

    A claim may be shared, or retained from an earlier job. In a common directory, a job could run the code of another.
    The uid can't be guessed before the job exists. Kubernetes creates the directory with the mode of the volume's root
    (SafeMakeDir in k8s.io/kubernetes, pkg/volume/util/subpath/subpath_linux.go).
    """
    claimed = volume == WORKSPACE and WORKSPACE in attempt.settings.queue.volumes
    return {"subPath": attempt.uid} if claimed and attempt.spec.workspace is not None else {}


def _tools(attempt: AttemptSpec, below: Mapping[str, Any], container: JsonObject) -> list[JsonObject]:
    """Return the init container and the sidecar for the workspace and the log."""
    workspace = attempt.spec.workspace
    mounts: list[JsonObject] = []
    words: list[str] = []
    logs: list[str] = []
    if workspace is not None:
        # Not at the workers' path, because the tools image has its program in /app.
        mounts.append(
            {"name": WORKSPACE, "mountPath": n.TOOLS_WORKSPACE, **_workspace_subpath(attempt, WORKSPACE)}
        )
        # Without subPath: Kubernetes does not update such a file in a running pod.
        mounts.append({"name": n.ARCHIVE_VOLUME, "mountPath": n.ARCHIVE_DIRECTORY, "readOnly": True})
        sync = [] if workspace.url else ["--sync", sync_pod_url(attempt.name, attempt.namespace)]
        words = ["--archive", f"{n.ARCHIVE_DIRECTORY}/{n.ARCHIVE_FILE}", *sync, "--into", n.TOOLS_WORKSPACE]
        words = [literally(each) for each in words]
    if attempt.logs:
        address = log_url(literally(attempt.logs), attempt.number, f"$({n.ENV_NODE_RANK})")
        logs = ["--log", n.LOG_FILE, "--log-url", address]
    # The tools use the worker's access to the bucket, and its region.
    env = [
        each
        for each in container["env"]
        if str(each["name"]).startswith("AWS_") or (logs and each["name"] == n.ENV_NODE_RANK)
    ]
    common: JsonObject = {
        "image": attempt.cluster.tools_image,
        "resources": {"requests": _TOOL, "limits": _TOOL},
        "securityContext": _tool_security(below, container),
        # The last line has the error, for the job's message.
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
    """Return the worker's user, so that it may change the workspace; root if no user is set."""
    said = {**(below.get("securityContext") or {}), **(container.get("securityContext") or {})}
    user = {key: said[key] for key in ("runAsUser", "runAsGroup", "runAsNonRoot") if key in said}
    if not user:
        user = {"runAsUser": 0, "runAsGroup": 0}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **user}


def placement_fields(template: Mapping[str, Any], queue: QueueSpec) -> JsonObject:
    """Return the PodSpec fields for the placement, from the queue's template and its `scheduling`."""
    selector = {**(template.get("nodeSelector") or {}), **queue.scheduling.node_selector}
    if queue.scheduling.pool:
        selector[names.LABEL_NODEPOOL] = queue.scheduling.pool
    affinity = {**(template.get("affinity") or {}), **queue.scheduling.affinity}
    if queue.node_resources.gpu_type:
        affinity["nodeAffinity"] = _with_gpus(
            affinity.get("nodeAffinity") or {}, queue.node_resources.gpu_type
        )
    given = [*(template.get("tolerations") or []), *queue.scheduling.tolerations]
    if queue.scheduling.pool:
        given += _pool_tolerations(given)
    result: JsonObject = {"tolerations": _tolerations(given)}
    if selector:
        result["nodeSelector"] = selector
    if affinity:
        result["affinity"] = affinity
    if queue.scheduling.priority_class_name:
        result["priorityClassName"] = queue.scheduling.priority_class_name
    if queue.scheduling.scheduler:
        result["schedulerName"] = queue.scheduling.scheduler
    return result


def gpu_terms(gpu_type: str) -> list[JsonObject]:
    """Return alternative node selector terms for GPUs of this type, such as h100-80gb.

    A node has the type by an administrator's label, NVIDIA's product name, or Karpenter's data. The memory may differ
    by 15 % from the type's name, because nodes report a little more or less.
    """
    terms = [[_in_expression(n.LABEL_GPU_TYPE, gpu_type)], [_in_expression(LABEL_GPU_PRODUCT, gpu_type)]]
    sold = _GPU_TYPE.fullmatch(gpu_type.lower())
    if sold is not None:
        expressions = [_in_expression(LABEL_GPU_NAME, sold[1])]
        if sold[2] is not None:
            mebibytes = int(sold[2]) * 1024
            expressions += [
                {"key": LABEL_GPU_MEMORY, "operator": "Gt", "values": [str(mebibytes * 85 // 100)]},
                {"key": LABEL_GPU_MEMORY, "operator": "Lt", "values": [str(mebibytes * 115 // 100)]},
            ]
        terms.append(expressions)
    return [{"matchExpressions": each} for each in terms]


def _in_expression(key: str, value: str) -> JsonObject:
    return {"key": key, "operator": "In", "values": [value]}


def _with_gpus(affinity: Mapping[str, Any], gpu_type: str) -> JsonObject:
    """Add the terms of a GPU type. Terms are alternatives, so each one of the user is joined with each of the type."""
    required = affinity.get(REQUIRED) or {}
    theirs: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or [{}]
    terms = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or []), *more["matchExpressions"]]}
        for term in theirs
        for more in gpu_terms(gpu_type)
    ]
    return {**affinity, REQUIRED: {**required, "nodeSelectorTerms": terms}}


def _pool_tolerations(given: list[JsonObject]) -> list[JsonObject]:
    """Return tolerations for the usual taints of a pool.

    The key of the taint is the resource's name on GPU nodes, and the label's name in a stack's CPU pools.
    """
    keys = {each.get("key") or "" for each in given}
    if "" in keys:
        return []
    return [
        {"key": key, "operator": "Exists", "effect": "NoSchedule"}
        for key in (GPU_RESOURCE, names.LABEL_POOL)
        if key not in keys
    ]


def _tolerations(given: list[JsonObject]) -> list[JsonObject]:
    """Add short tolerations for a lost node, unless the user has set some."""
    said = {each.get("key") for each in given}
    if None in said or "" in said:
        return given
    return given + [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
        for key in LOST_NODE_TAINTS
        if key not in said
    ]


# Sync pods idle most of the time, and many of them share the few system nodes.
_SYNC_REQUESTS: Final = {"cpu": "10m", "memory": "64Mi"}
_SYNC_LIMITS: Final = {"cpu": "1", "memory": "256Mi"}
_MEBI: Final = 2**20
# The smallest limit of the sync pod: a later `sync` may send a larger archive.
_MIN_ARCHIVE: Final = 2**30
# The terms are alternatives. Each node of Karpenter has the label of its NodePool, so Karpenter launches no node for a
# pod that excludes the label (https://karpenter.sh/docs/concepts/scheduling/#node-affinity).
_OUTSIDE_POOLS: Final = {
    "nodeAffinity": {
        REQUIRED: {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": names.LABEL_NODEPOOL, "operator": "DoesNotExist"}]},
                {"matchExpressions": [{"key": n.LABEL_SYNC_PODS, "operator": "In", "values": ["true"]}]},
            ]
        }
    }
}


def owner_reference(name: str, uid: str) -> JsonObject:
    """Return the owner reference to a TorchrunJob."""
    return {
        "apiVersion": n.API_VERSION,
        "kind": n.JOB_KIND,
        "name": name,
        "uid": uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def spec_digest(spec: JsonObject) -> str:
    """Return a digest of a spec before the API server adds defaults."""
    text = json.dumps(spec, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def build_object(
    attempt: AttemptSpec, version: str, kind: str, name: str, labels: dict[str, str], *, owned: bool = True
) -> JsonObject:
    owner = {"ownerReferences": [owner_reference(attempt.name, attempt.uid)]} if owned else {}
    metadata = {"name": name, "namespace": attempt.namespace, "labels": labels, **owner}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def build_service(attempt: AttemptSpec) -> JsonObject:
    """Return the headless Service. It gives each pod a DNS name before it is ready, for the rendezvous."""
    return {
        **build_object(attempt, "v1", "Service", attempt.name, attempt.labels),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {n.LABEL_JOB: attempt.name},
            "ports": [{"name": "rendezvous", "port": attempt.settings.port, "protocol": "TCP"}],
        },
    }


def build_jobs(attempt: AttemptSpec) -> list[JsonObject]:
    """Return the attempt's Indexed Job, or one Job for each node if nodes mount different claims.

    The Jobs are suspended until the status names the attempt.
    """
    if attempt.storage.each_node_its_own:
        return [_build_job(attempt, node) for node in range(attempt.size.nodes)]
    return [_build_job(attempt, None)]


def _build_job(attempt: AttemptSpec, node: int | None) -> JsonObject:
    size, workspace = attempt.size, attempt.spec.workspace
    name = n.node_job(attempt.name, attempt.number, node or 0)
    made = build_object(attempt, "batch/v1", "Job", name, attempt.attempt_labels)
    gang = {n.ANNOTATION_SKIP_POD_GROUPER: "true"} if attempt.settings.gang else {}
    pods = 1 if node is not None else size.nodes
    spec: JsonObject = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": 0,
        "suspend": True,
        "template": build_worker(attempt, node),
    }
    if size.elastic and node is None:
        # torchrun's agents end together, and the Job does not wait for workers without a node. If each node has a Job,
        # `Children.succeeded_attempt` counts them.
        spec["successPolicy"] = {"rules": [{"succeededCount": size.least}]}
    made["metadata"]["annotations"] = {
        n.ANNOTATION_SIZE: attempt.spec.size_key,
        n.ANNOTATION_WORKSPACE: workspace.digest if workspace is not None else "",
        n.ANNOTATION_PARTS: str(size.nodes if node is not None else 1),
        n.ANNOTATION_MADE_OF: spec_digest(spec),
        **gang,
    }
    return {**made, "spec": spec}


def build_claim(attempt: AttemptSpec, claim: Claim) -> JsonObject:
    """Return a PersistentVolumeClaim. A retained one has no owner."""
    made = build_object(
        attempt, "v1", "PersistentVolumeClaim", claim.name, attempt.labels, owned=not claim.retain
    )
    spec: JsonObject = {
        "accessModes": [claim.access_mode],
        "resources": {"requests": {"storage": in_words(claim.size)}},
        **({"storageClassName": claim.storage_class} if claim.storage_class else {}),
    }
    return {**made, "spec": spec}


def build_sync_pod(attempt: AttemptSpec) -> JsonObject:
    """Return the pod that holds the archive of a workspace without a bucket and serves it to the workers.

    It is ready when it has an archive. It has no tolerations of the pool, no claim, and no protection from disruption,
    so it neither launches nor keeps a node of a pool.
    """
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    placed = attempt.settings.queue
    name = n.sync_pod(attempt.name)
    size = attempt.spec.workspace.size_bytes if attempt.spec.workspace is not None else 0
    most = max(_MIN_ARCHIVE, 2 * size)
    # It has two archives while it receives the next one.
    requests = {**_SYNC_REQUESTS, "ephemeral-storage": _storage(2 * size)}
    return {
        **build_object(attempt, "v1", "Pod", name, attempt.labels),
        "spec": {
            **pull_secrets(placed),
            "affinity": _OUTSIDE_POOLS,
            # Without a pool it may share a node with workers, which could preempt it.
            **(
                {"priorityClassName": placed.scheduling.priority_class_name}
                if placed.scheduling.priority_class_name and not placed.scheduling.pool
                else {}
            ),
            "hostname": name,
            "subdomain": attempt.name,
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 5,
            "tolerations": [] if placed.scheduling.pool else list(placed.scheduling.tolerations),
            "securityContext": pod_security(),
            "containers": [
                {
                    "name": n.SYNC_CONTAINER,
                    "image": attempt.cluster.tools_image,
                    "command": _serve_command(attempt),
                    "ports": [{"name": "sync", "containerPort": n.SYNC_PORT}],
                    "readinessProbe": {
                        "httpGet": {"path": "/current", "port": n.SYNC_PORT},
                        "periodSeconds": 1,
                    },
                    "env": [{"name": n.ENV_SYNC_MOST, "value": str(most)}],
                    "resources": {"requests": requests, "limits": _SYNC_LIMITS},
                    "securityContext": security,
                    "volumeMounts": [
                        {"name": "archives", "mountPath": n.SYNC_DIRECTORY},
                        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  (in the container)
                    ],
                }
            ],
            "volumes": [
                {"name": "archives", "emptyDir": {"sizeLimit": _storage(2 * most)}},
                {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
            ],
        },
    }


def _serve_command(attempt: AttemptSpec) -> list[str]:
    """Return the sync pod's command, with the sources of the archive and the timeout."""
    workspace = attempt.spec.workspace
    command = ["python", "-m", "trainyard.workspace", "serve"]
    if workspace is None:
        return command
    command += ["--expect", workspace.digest, "--size", str(workspace.size_bytes)]
    command += [word for address in attempt.nearby for word in ("--nearby", address)]
    return command if attempt.has_started else [*command, "--give-up-seconds", str(n.SYNC_ABANDONED_SECONDS)]


def _storage(size: int) -> str:
    return in_words((size // _MEBI + 1) * _MEBI)


LOG_READER_NAME: Final = "torchrun-log-reader"
LOG_READER_CONTAINER: Final = "logs"
# The pod ends within seconds. If the plugin does not delete it, the job's deletion does.
LOG_READER_SECONDS: Final = 120
_LOG_READER_RESOURCES: Final = {"cpu": "50m", "memory": "128Mi"}


def build_log_reader(
    job: Mapping[str, Any], queue: QueueSpec, image: str, words: Sequence[str], suffix: str
) -> JsonObject:
    """Return the pod's manifest.

    Args:
        job: The TorchrunJob from the API server.
        queue: The spec of its queue, with the job's overrides.
        image: The image of trainyard.workspace.
        words: The arguments of `python -m trainyard.workspace`.
        suffix: The end of the pod's name.
    """
    meta, template = job["metadata"], queue.pod_template.spec
    worker: Mapping[str, Any] = next(
        (each for each in template.get("containers") or [] if each["name"] == n.WORKER_CONTAINER), {}
    )
    account = template.get("serviceAccountName")
    security = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            # Without the job's label: the controller would delete the pod with the job's other pods.
            "name": f"{meta['name']}-logs-{suffix}",
            "namespace": meta["namespace"],
            "labels": {"app.kubernetes.io/name": LOG_READER_NAME},
            "ownerReferences": [{**owner_reference(meta["name"], meta["uid"]), "controller": False}],
        },
        "spec": {
            **pull_secrets(queue),
            **({"serviceAccountName": account} if account else {}),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LOG_READER_SECONDS,
            "terminationGracePeriodSeconds": 0,
            # No tolerations of the queue, and a preference for other nodes: it must not launch or keep a pool's node.
            "affinity": {
                "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [_PREFER_OUTSIDE_POOLS]}
            },
            "securityContext": pod_security(),
            "containers": [
                {
                    "name": LOG_READER_CONTAINER,
                    "image": image,
                    "command": ["python", "-m", "trainyard.workspace", *words],
                    "env": [each for each in worker.get("env") or [] if str(each["name"]).startswith("AWS_")],
                    "resources": {
                        "requests": _LOG_READER_RESOURCES,
                        "limits": {"memory": _LOG_READER_RESOURCES["memory"]},
                    },
                    "securityContext": security,
                }
            ],
        },
    }


_PREFER_OUTSIDE_POOLS: Final = {
    "weight": 100,
    "preference": {"matchExpressions": [{"key": names.LABEL_NODEPOOL, "operator": "DoesNotExist"}]},
}
