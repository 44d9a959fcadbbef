"""Build the objects of a job: Jobs, workers, Service, claims, the sync pod and the log reader. Pure.

The queue's pod template is the base. The other fields of the queue and of the job take precedence.
https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/job-v1/
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from math import floor
from typing import Any, Final

from launcher.manifests import (
    LOST_NODE_TAINTS,
    REQUIRED,
    container_security,
    grace_seconds,
    lost_node_toleration,
    pod_security,
    user_variables,
)
from trainyard.k8s import names, quantity
from trainyard.k8s.quantity import in_words
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.api.job import Workspace
from trainyard.operator.api.queue import WORKSPACE, QueueSpec
from trainyard.operator.command import build_command, literally
from trainyard.operator.context import AttemptSpec
from trainyard.operator.resources import Claim
from trainyard.operator.signal_forwarder import MESSAGE_PATH, wrap_command

GPU_RESOURCE: Final = "nvidia.com/gpu"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
# Set by NVIDIA's GPU feature discovery (https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/).
LABEL_GPU_PRODUCT: Final = "nvidia.com/gpu.product"
# Set by Karpenter on AWS (https://karpenter.sh/docs/concepts/scheduling/): a name such as h100, and MiB of one GPU.
LABEL_GPU_NAME: Final = "karpenter.k8s.aws/instance-gpu-name"
LABEL_GPU_MEMORY: Final = "karpenter.k8s.aws/instance-gpu-memory"
_GPU_TYPE: Final = re.compile(r"([a-z][a-z0-9]*)(?:-(\d{1,4})gb?)?", re.ASCII)
_TOOL: Final = {"cpu": "100m", "memory": "256Mi"}
_TOOL_PROGRAM: Final = ["python", "-m", "trainyard.workspace"]
_STORAGE: Final = "ephemeral-storage"
_LOG_MOUNT: Final = {"name": n.LOG_VOLUME, "mountPath": n.LOG_DIRECTORY}
_SHARED_MEMORY_MOUNT: Final = {"name": "shared-memory", "mountPath": "/dev/shm"}  # noqa: S108 (not a temporary file)
_ARCHIVE_MOUNT: Final = {"name": n.ARCHIVE_VOLUME, "mountPath": n.ARCHIVE_DIRECTORY, "readOnly": True}


def _filled(**fields: Any) -> JsonObject:
    return {name: value for name, value in fields.items() if value}


def build_object(
    attempt: AttemptSpec, version: str, kind: str, name: str, labels: dict[str, str], *, owned: bool = True
) -> JsonObject:
    """Return an object of the job without its spec."""
    owner = {"ownerReferences": [owner_reference(attempt.name, attempt.uid)]} if owned else {}
    metadata = {"name": name, "namespace": attempt.namespace, "labels": labels, **owner}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def owner_reference(name: str, uid: str) -> JsonObject:
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


def build_jobs(attempt: AttemptSpec) -> list[JsonObject]:
    """Return the attempt's Indexed Job, or one Job for each node if nodes mount different claims.

    The Jobs are suspended until the status names the attempt.
    """
    if attempt.storage.each_node_its_own:
        return [_build_job(attempt, node) for node in range(attempt.size.nodes)]
    return [_build_job(attempt, None)]


def _build_job(attempt: AttemptSpec, node: int | None) -> JsonObject:
    size, workspace = attempt.size, attempt.spec.workspace
    pods = 1 if node is not None else size.nodes
    # torchrun's agents end together, and the Job does not wait for workers without a node. If each node has a Job,
    # `Children.succeeded_attempt` counts them.
    elastic = size.elastic and node is None
    spec: JsonObject = {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        "backoffLimit": 0,
        "suspend": True,
        "template": build_worker(attempt, node),
        **({"successPolicy": {"rules": [{"succeededCount": size.minimum}]}} if elastic else {}),
    }
    name = n.node_job(attempt.name, attempt.number, node or 0)
    job = build_object(attempt, "batch/v1", "Job", name, attempt.attempt_labels)
    job["metadata"]["annotations"] = {
        n.ANNOTATION_SIZE: attempt.spec.size_key,
        n.ANNOTATION_WORKSPACE: workspace.digest if workspace is not None else "",
        n.ANNOTATION_PARTS: str(size.nodes if node is not None else 1),
        n.ANNOTATION_MADE_OF: spec_digest(spec),
        **({n.ANNOTATION_SKIP_POD_GROUPER: "true"} if attempt.settings.gang else {}),
    }
    return {**job, "spec": spec}


def build_service(attempt: AttemptSpec) -> JsonObject:
    """Return the headless Service. It gives each pod a DNS name for the rendezvous, even before the pod is ready."""
    return {
        **build_object(attempt, "v1", "Service", attempt.name, attempt.labels),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {n.LABEL_JOB: attempt.name},
            "ports": [{"name": "rendezvous", "port": attempt.settings.port, "protocol": "TCP"}],
        },
    }


def build_claim(attempt: AttemptSpec, claim: Claim) -> JsonObject:
    """Return a PersistentVolumeClaim. A retained one has no owner."""
    kind, owned = "PersistentVolumeClaim", not claim.retain
    return {
        **build_object(attempt, "v1", kind, claim.name, attempt.labels, owned=owned),
        "spec": {
            "accessModes": [claim.access_mode],
            "resources": {"requests": {"storage": in_words(claim.size)}},
            **_filled(storageClassName=claim.storage_class),
        },
    }


def archive_annotation(workspace: Workspace) -> str:
    """Return the annotation with the archive that a worker unpacks (trainyard/workspace/sync_pod.py: Pointer)."""
    pointer = {"digest": workspace.digest, "size": workspace.size_bytes, "url": workspace.url}
    return json.dumps(pointer, sort_keys=True)


def build_worker(attempt: AttemptSpec, node: int | None = None) -> JsonObject:
    """Return the pod template of the workers; with `node`, of the worker on that node."""
    queue, workspace, gang = attempt.settings.queue, attempt.spec.workspace, attempt.settings.gang
    metadata, pod_spec = queue.pod_template.metadata, queue.pod_template.spec
    volumes, mounts = _volumes(attempt, node)
    container = _worker_container(attempt, node, mounts)
    group = n.attempt_name(attempt.name, attempt.number)
    ours = {volume["name"] for volume in volumes}
    return {
        "metadata": {
            "labels": {
                **metadata.labels,
                **({n.LABEL_KAI_QUEUE: queue.kai_queue} if queue.kai_queue else {}),
                **attempt.attempt_labels,
                n.LABEL_JOB_UID: attempt.uid,
                **({n.LABEL_NODE: str(node)} if node is not None else {}),
            },
            "annotations": {
                names.DO_NOT_DISRUPT: "true",
                **metadata.annotations,
                **({n.ANNOTATION_SKIP_POD_GROUPER: "true", n.ANNOTATION_POD_GROUP: group} if gang else {}),
                **({n.ANNOTATION_ARCHIVE: archive_annotation(workspace)} if workspace is not None else {}),
            },
        },
        "spec": {
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": grace_seconds(
                {var["name"]: str(var.get("value")) for var in container["env"]}
            ),
            # The node's own DNS knows no Services, so workers would not find each other.
            **({"dnsPolicy": "ClusterFirstWithHostNet"} if pod_spec.get("hostNetwork") else {}),
            **pod_spec,
            **placement_fields(pod_spec, queue),
            "restartPolicy": "Never",
            "subdomain": attempt.name,
            "containers": [
                container,
                *(
                    dict(item)
                    for item in pod_spec.get("containers") or []
                    if item["name"] != n.WORKER_CONTAINER
                ),
            ],
            **_filled(
                initContainers=[*_tools(attempt, container, mounts), *(pod_spec.get("initContainers") or [])],
                volumes=[
                    *volumes,
                    *(volume for volume in pod_spec.get("volumes") or [] if volume.get("name") not in ours),
                ],
            ),
        },
    }


def _template_worker(queue: QueueSpec) -> Mapping[str, Any]:
    """Return the worker's container in the queue's template, {} if it has none."""
    containers = queue.pod_template.spec.get("containers") or []
    return next((container for container in containers if container["name"] == n.WORKER_CONTAINER), {})


def pull_secrets(queue: QueueSpec) -> JsonObject:
    """Return the PodSpec field with the pull secrets of the queue. It is for pods other than workers."""
    return _filled(imagePullSecrets=queue.pod_template.spec.get("imagePullSecrets"))


def _worker_container(attempt: AttemptSpec, node: int | None, mounts: list[JsonObject]) -> JsonObject:
    queue, spec = attempt.settings.queue, attempt.spec
    template = _template_worker(queue)
    command = build_command(
        spec.command, spec.args, attempt.rendezvous, spec.launcher, spec.literal_variables
    )
    variables = {**user_variables(queue.pod_template.spec, template), **command.environment}
    resources, ours = template.get("resources") or {}, worker_resources(attempt)
    paths = {mount["mountPath"] for mount in mounts}
    return {
        # torchrun's last lines have the exit code of the command (observe.py: command_exit_code).
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **{key: value for key, value in template.items() if key != "args"},
        "name": n.WORKER_CONTAINER,
        "image": queue.image,
        "command": wrap_command(command.words, template.get("terminationMessagePath") or MESSAGE_PATH),
        "workingDir": queue.working_dir if spec.workspace is None else queue.command_directory,
        "env": _environment(attempt, node, variables),
        "resources": {
            **resources,
            "requests": {**_template_resources(attempt, resources.get("requests") or {}), **ours},
            "limits": {**_template_resources(attempt, resources.get("limits") or {}), **ours},
        },
        "volumeMounts": [
            *mounts,
            *(mount for mount in template.get("volumeMounts") or [] if mount.get("mountPath") not in paths),
        ],
    }


def worker_resources(attempt: AttemptSpec) -> dict[str, str]:
    """Return the resources of a worker. With a part of a node's GPUs, it gets the same part of the other resources.

    The sidecar of the workspace is included in this part if at least half of it remains. Otherwise fewer workers would
    fit on the node.
    """
    node, gpus, part = attempt.settings.queue.node_resources, attempt.size.gpus, _node_fraction(attempt)
    shares = {"cpu": node.cpus * part, "memory": node.memory * part}
    if part < 1 and attempt.spec.workspace is not None:
        for name, share in shares.items():
            taken = quantity.parse(_TOOL[name])
            shares[name] = share - taken if taken * 2 <= share else share
    return {
        "cpu": f"{max(1, floor(shares['cpu'] * 1000))}m",
        "memory": in_words(max(1, floor(shares["memory"]))),
        **({GPU_RESOURCE: str(gpus)} if gpus else {}),
    }


def _node_fraction(attempt: AttemptSpec) -> Fraction:
    """Return the fraction of the queue's nodeResources that a worker gets."""
    gpus = attempt.size.gpus
    return Fraction(gpus, attempt.settings.queue.node_resources.gpus) if gpus else Fraction(1)


def _template_resources(attempt: AttemptSpec, requested: Mapping[str, Any]) -> JsonObject:
    """Return the template's resources for a worker that may get a part of a node.

    Only workers with a whole node get EFA interfaces and their huge pages. If a node has a single interface, no other
    worker would fit. Local storage is divided like cores and memory.
    """
    result = dict(requested)
    if attempt.size.gpus in (0, attempt.settings.node_gpus):
        return result
    if names.EFA_RESOURCE in result:
        del result[names.EFA_RESOURCE]
        volumes = attempt.settings.queue.pod_template.spec.get("volumes") or []
        mediums = [str((volume.get("emptyDir") or {}).get("medium") or "") for volume in volumes]
        if not any(medium.startswith("HugePages") for medium in mediums):
            result = {name: amount for name, amount in result.items() if not name.startswith("hugepages-")}
    if _STORAGE in result:
        with suppress(ValueError):  # the queue's dry run says so
            share = quantity.parse(result[_STORAGE]) * _node_fraction(attempt)
            result[_STORAGE] = in_words(max(1, floor(share)))
    return result


def _environment(attempt: AttemptSpec, node: int | None, variables: Mapping[str, str]) -> list[JsonObject]:
    """Return one variable for each name, at its first position and with its last value."""
    queue, size = attempt.settings.queue, attempt.size
    threads = floor(queue.node_resources.cpus * _node_fraction(attempt) / size.processes)
    values = {
        n.ENV_THREADS: str(max(1, threads)),
        n.ENV_BACKEND: attempt.spec.backend,
        names.ENV_RUN_ID: attempt.name,
        names.ENV_RESTART: str(attempt.number),
        names.ENV_PROCESSES_PER_NODE: str(size.processes),
        **variables,
    }
    if interface := queue.networking.interface:
        values[n.ENV_NCCL_INTERFACE] = interface
        # gloo knows no exclusions (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp).
        if not interface.startswith("^"):
            values[n.ENV_GLOO_INTERFACE] = interface.removeprefix("=")
    if size.elastic:
        # After a change of the members, the others would look for the store of an agent that is gone
        # (pytorch/pytorch, torch/distributed/elastic/rendezvous/dynamic_rendezvous.py).
        values["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    else:
        values[names.ENV_EXPECTED_NODES] = str(size.nodes)
    rank = {"value": str(node)} if node is not None else _field(f"metadata.annotations['{n.LABEL_INDEX}']")
    # They are the first variables, because values of other variables may refer to them.
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
        ours.append({"name": "PET_LOCAL_ADDR", **_field("status.podIP")})
    template = _template_worker(queue).get("env") or []
    result = {str(var.get("name")): var for var in (*fixed, *ours, *template, *attempt.spec.env, *fixed)}
    return list(result.values())


def _field(path: str) -> JsonObject:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


def _volumes(attempt: AttemptSpec, node: int | None) -> tuple[list[JsonObject], list[JsonObject]]:
    queue, workspace = attempt.settings.queue, attempt.spec.workspace
    volumes: list[JsonObject] = []
    mounts: list[JsonObject] = []
    for mount in attempt.storage.mounts:
        read_only = _filled(readOnly=mount.read_only)
        claim = {"claimName": mount.claim(node or 0), **read_only}
        volumes.append({"name": mount.volume, "persistentVolumeClaim": claim})
        # A claim may be shared, or retained from an earlier job. In a common directory, a job could run the code of
        # another. The uid can't be guessed before the job exists. Kubernetes creates the directory with the mode of
        # the volume's root (SafeMakeDir in k8s.io/kubernetes, pkg/volume/util/subpath/subpath_linux.go).
        own = {"subPath": attempt.uid} if mount.volume == WORKSPACE and workspace is not None else {}
        mounts.append({"name": mount.volume, "mountPath": mount.path, **own, **read_only})
    if workspace is not None:
        if WORKSPACE not in queue.volumes:
            volumes.append({"name": WORKSPACE, "emptyDir": {}})
            mounts.append({"name": WORKSPACE, "mountPath": queue.workspace_directory})
        field = {"fieldPath": f"metadata.annotations['{n.ANNOTATION_ARCHIVE}']"}
        archive = {"items": [{"path": n.ARCHIVE_FILE, "fieldRef": field}]}
        volumes.append({"name": n.ARCHIVE_VOLUME, "downwardAPI": archive})
    if attempt.logs:
        volumes.append({"name": n.LOG_VOLUME, "emptyDir": {}})
        mounts.append(_LOG_MOUNT)
    if (shared := queue.storage.shm_size_per_gpu) is not None:
        size = in_words(floor(shared * (attempt.size.gpus or 1)))
        volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": size}})
        mounts.append(_SHARED_MEMORY_MOUNT)
    return volumes, mounts


def _tools(attempt: AttemptSpec, worker: JsonObject, worker_mounts: list[JsonObject]) -> list[JsonObject]:
    """Return the init container and the sidecar for the workspace and the log."""
    workspace, pod = attempt.spec.workspace, attempt.settings.queue.pod_template.spec
    mounts: list[JsonObject] = []
    words: list[str] = []
    logs: list[str] = []
    if workspace is not None:
        # Do not mount at the workers' path: the tools image has its program in /app.
        own = (mount for mount in worker_mounts if mount["name"] == WORKSPACE)
        mounts = [{**mount, "mountPath": n.TOOLS_WORKSPACE} for mount in own]
        # Mount without subPath, because Kubernetes does not update such a file in a running pod.
        mounts.append(_ARCHIVE_MOUNT)
        sync = [] if workspace.url else ["--sync", n.sync_pod_url(attempt.name, attempt.namespace)]
        words = ["--archive", f"{n.ARCHIVE_DIRECTORY}/{n.ARCHIVE_FILE}", *sync, "--into", n.TOOLS_WORKSPACE]
        words = [literally(word) for word in words]
    if attempt.logs:
        address = n.log_url(literally(attempt.logs), attempt.number, f"$({n.ENV_NODE_RANK})")
        logs = ["--log", n.LOG_FILE, "--log-url", address]
    contexts = {**(pod.get("securityContext") or {}), **(worker.get("securityContext") or {})}
    user = {key: contexts[key] for key in ("runAsUser", "runAsGroup", "runAsNonRoot") if key in contexts}
    common: JsonObject = {
        "image": attempt.cluster.tools_image,
        "resources": {"requests": _TOOL, "limits": _TOOL},
        # Run as the worker's user, so that it can change the workspace; root if no user is set.
        "securityContext": {**container_security(), **(user or {"runAsUser": 0, "runAsGroup": 0})},
        # The last line has the error, for the job's message.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        # The tools use the worker's access to the bucket, and its region.
        "env": [
            var
            for var in worker["env"]
            if str(var["name"]).startswith("AWS_") or (logs and var["name"] == n.ENV_NODE_RANK)
        ],
    }
    fetch = {
        "name": n.FETCH_CONTAINER,
        "command": [*_TOOL_PROGRAM, "fetch", *words],
        "volumeMounts": mounts,
        **common,
    }
    # A native sidecar: it starts after the init container, and the pod does not wait for its end.
    follow = {
        "name": n.FOLLOW_CONTAINER,
        "command": [*_TOOL_PROGRAM, "follow", *words, *logs],
        "volumeMounts": [*mounts, *([_LOG_MOUNT] if logs else [])],
        "restartPolicy": "Always",
        **common,
    }
    return [*([fetch] if words else []), *([follow] if words or logs else [])]


def placement_fields(template: Mapping[str, Any], queue: QueueSpec) -> JsonObject:
    """Return the PodSpec fields for the placement, from the queue's template and its `scheduling`."""
    scheduling, gpu_type = queue.scheduling, queue.node_resources.gpu_type
    affinity = {**(template.get("affinity") or {}), **scheduling.affinity}
    if gpu_type:
        affinity["nodeAffinity"] = _require_gpus(affinity.get("nodeAffinity") or {}, gpu_type)
    given = [*(template.get("tolerations") or []), *scheduling.tolerations]
    return {
        "tolerations": _add_tolerations(given, in_pool=bool(scheduling.pool)),
        **_filled(
            nodeSelector={
                **(template.get("nodeSelector") or {}),
                **scheduling.node_selector,
                **({names.LABEL_NODEPOOL: scheduling.pool} if scheduling.pool else {}),
            },
            affinity=affinity,
            priorityClassName=scheduling.priority_class_name,
            schedulerName=scheduling.scheduler,
        ),
    }


def gpu_terms(gpu_type: str) -> list[JsonObject]:
    """Return alternative node selector terms for GPUs of this type, such as h100-80gb.

    A node has the type by an administrator's label, NVIDIA's product name, or Karpenter's data. The memory may differ
    by 15 % from the type's name, because nodes report a little more or less.
    """
    terms = [[_expression(key, "In", gpu_type)] for key in (n.LABEL_GPU_TYPE, LABEL_GPU_PRODUCT)]
    if (sold := _GPU_TYPE.fullmatch(gpu_type.lower())) is not None:
        terms.append([_expression(LABEL_GPU_NAME, "In", sold[1])])
        if sold[2] is not None:
            mebibytes = int(sold[2]) * 1024
            terms[-1].append(_expression(LABEL_GPU_MEMORY, "Gt", str(mebibytes * 85 // 100)))
            terms[-1].append(_expression(LABEL_GPU_MEMORY, "Lt", str(mebibytes * 115 // 100)))
    return [{"matchExpressions": expressions} for expressions in terms]


def _expression(key: str, operator: str, *values: str) -> JsonObject:
    return {"key": key, "operator": operator, **_filled(values=list(values))}


def _require_gpus(affinity: Mapping[str, Any], gpu_type: str) -> JsonObject:
    """Add the terms of a GPU type. Terms are alternatives, so each user term is combined with each GPU term."""
    required = affinity.get(REQUIRED) or {}
    theirs: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or [{}]
    terms = [
        {**term, "matchExpressions": [*(term.get("matchExpressions") or []), *more["matchExpressions"]]}
        for term in theirs
        for more in gpu_terms(gpu_type)
    ]
    return {**affinity, REQUIRED: {**required, "nodeSelectorTerms": terms}}


def _add_tolerations(given: list[JsonObject], *, in_pool: bool) -> list[JsonObject]:
    """Add tolerations for the usual taints of a pool, and short ones for a lost node, except for keys of the user.

    The key of a pool's taint is the name of the resource on GPU nodes, and the name of the label in CPU pools of a
    stack.
    """
    keys = {toleration.get("key") or "" for toleration in given}
    if "" in keys:  # it tolerates all taints
        return given
    pool = [
        {"key": key, "operator": "Exists", "effect": "NoSchedule"}
        for key in ((GPU_RESOURCE, names.LABEL_POOL) if in_pool else ())
        if key not in keys
    ]
    lost = (lost_node_toleration(key) for key in LOST_NODE_TAINTS if key not in keys)
    return [*given, *pool, *lost]


# The terms are alternatives. Each node of Karpenter has the label of its NodePool, so Karpenter launches no node for a
# pod that excludes the label (https://karpenter.sh/docs/concepts/scheduling/#node-affinity).
_NO_POOL: Final = {"matchExpressions": [_expression(names.LABEL_NODEPOOL, "DoesNotExist")]}
_FOR_SYNC_PODS: Final = {"matchExpressions": [_expression(n.LABEL_SYNC_PODS, "In", "true")]}
_MEBI: Final = 2**20
# The smallest limit of the sync pod: a later `sync` may send a larger archive.
_MIN_ARCHIVE: Final = 2**30


def build_sync_pod(attempt: AttemptSpec) -> JsonObject:
    """Return the pod that holds the archive of a workspace without a bucket and serves it to the workers.

    It is ready when it has an archive. It has no tolerations of the pool, no claim, and no protection from disruption.
    So it neither launches nor keeps a node of a pool.
    """
    scheduling, workspace = attempt.settings.queue.scheduling, attempt.spec.workspace
    name, size = n.sync_pod(attempt.name), workspace.size_bytes if workspace is not None else 0
    maximum = max(_MIN_ARCHIVE, 2 * size)
    options: list[str] = []
    if workspace is not None:
        options = ["--expect", workspace.digest, "--size", str(size)]
        options += [word for address in attempt.nearby for word in ("--nearby", address)]
        if not attempt.has_started:
            options += ["--give-up-seconds", str(n.SYNC_ABANDONED_SECONDS)]
    container = {
        "name": n.SYNC_CONTAINER,
        "image": attempt.cluster.tools_image,
        "command": [*_TOOL_PROGRAM, "serve", *options],
        "ports": [{"name": "sync", "containerPort": n.SYNC_PORT}],
        "readinessProbe": {"httpGet": {"path": "/current", "port": n.SYNC_PORT}, "periodSeconds": 1},
        "env": [{"name": n.ENV_SYNC_MOST, "value": str(maximum)}],
        # Sync pods idle most of the time, and many of them share the few system nodes. A pod has two archives while
        # it receives the next one.
        "resources": {
            "requests": {"cpu": "10m", "memory": "64Mi", _STORAGE: _mebibytes(2 * size)},
            "limits": {"cpu": "1", "memory": "256Mi"},
        },
        "volumeMounts": [
            {"name": "archives", "mountPath": n.SYNC_DIRECTORY},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  (in the container)
        ],
    }
    # Without a pool it may share a node with workers, which could preempt it.
    priority = "" if scheduling.pool else scheduling.priority_class_name
    return {
        **build_object(attempt, "v1", "Pod", name, attempt.labels),
        "spec": {
            **_tools_pod_spec(attempt.settings.queue, container),
            **_filled(priorityClassName=priority),
            "affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [_NO_POOL, _FOR_SYNC_PODS]}}},
            "hostname": name,
            "subdomain": attempt.name,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 5,
            "tolerations": [] if scheduling.pool else list(scheduling.tolerations),
            "volumes": [
                {"name": "archives", "emptyDir": {"sizeLimit": _mebibytes(2 * maximum)}},
                {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
            ],
        },
    }


def _mebibytes(size: int) -> str:
    return in_words((size // _MEBI + 1) * _MEBI)


def _tools_pod_spec(queue: QueueSpec, container: JsonObject) -> JsonObject:
    """Return the common fields of the pods beside the workers, which run the image of trainyard.workspace."""
    return {
        **pull_secrets(queue),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "containers": [
            {**container, "securityContext": {**container_security(), "readOnlyRootFilesystem": True}}
        ],
    }


LOG_READER_NAME: Final = "torchrun-log-reader"
LOG_READER_CONTAINER: Final = "logs"
# The pod ends within seconds. If the plugin does not delete it, the job's deletion does.
LOG_READER_SECONDS: Final = 120


def build_log_reader(
    job: Mapping[str, Any], queue: QueueSpec, image: str, words: Sequence[str], suffix: str
) -> JsonObject:
    """Return a pod that reads the archived logs of a job from the API server.

    `queue` has the job's overrides. `words` are the arguments of `python -m trainyard.workspace`, in this image.
    """
    meta, env = job["metadata"], _template_worker(queue).get("env") or []
    container = {
        "name": LOG_READER_CONTAINER,
        "image": image,
        "command": [*_TOOL_PROGRAM, *words],
        "env": [var for var in env if str(var["name"]).startswith("AWS_")],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "128Mi"}},
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
            **_tools_pod_spec(queue, container),
            **_filled(serviceAccountName=queue.pod_template.spec.get("serviceAccountName")),
            "restartPolicy": "Never",
            "activeDeadlineSeconds": LOG_READER_SECONDS,
            "terminationGracePeriodSeconds": 0,
            # No tolerations of the queue, and a preference for other nodes: it must not launch or keep a pool's node.
            "affinity": {"nodeAffinity": {PREFERRED: [{"weight": 100, "preference": _NO_POOL}]}},
        },
    }
