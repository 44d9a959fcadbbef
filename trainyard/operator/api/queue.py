"""The spec and status of a TorchrunQueue: how jobs that name it are made."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final

from trainyard.operator import names as n
from trainyard.operator.api import words
from trainyard.operator.api.fields import (
    Field,
    Rule,
    choice,
    foreign,
    group,
    listing,
    mapping,
    named,
    number,
    quantity,
    text,
    whole_number,
    yes_or_no,
)
from trainyard.operator.api.scheduling import scheduling
from trainyard.operator.api.status import conditions, observed_generation
from trainyard.operator.api.storage import VOLUMES, storage
from trainyard.operator.core.queue_spec import DEFAULT_RESTARTS, MOST_RESTARTS

RESTART_POLICIES: Final = ("Never", "OnFailure")
NO_GPUS: Final = Rule(
    check="!has(self.gpuType) || self.gpus > 0",
    message="gpuType is the type of GPUs: gpus must be above 0 where it is given",
    path=".gpuType",
    whole=True,
)


def spec() -> Field:
    """`spec` of a TorchrunQueue."""
    return group(
        "How the jobs of this queue are made.",
        {
            "kaiQueue": words.object_name(
                "Name of the queue of KAI Scheduler that the jobs' pods join; it is made where it is missing.",
                "kaiQueue",
                most=63,
                absent="none is made or joined",
            ),
            "parentKaiQueue": words.object_name(
                "The queue of KAI Scheduler above kaiQueue.",
                "parentKaiQueue",
                most=63,
                default=n.KAI_PARENT_QUEUE,
            ),
            "nodeResources": _node_resources(),
            "image": words.image("Image of the workers' container."),
            "workingDir": words.directory(
                "Directory that the command runs in; the workspace is mounted there. If storage.workspace.mountPath is "
                "another place, and this is /app, a job with a workspace runs there.",
                "workingDir",
                "/app",
                default="/app",
            ),
            "podTemplate": _pod_template(),
            "storage": storage(),
            "scheduling": scheduling(),
            "networking": _networking(),
            "jobDefaults": _job_defaults(),
        },
        required=("nodeResources", "image"),
        rules=_apart(),
    )


def status() -> Field:
    """`status` of a TorchrunQueue."""
    return group(
        "What the controller saw of the queue; written by it alone.",
        {
            "observedGeneration": observed_generation(),
            "conditions": conditions(n.QUEUE_CONDITIONS),
            "jobs": group(
                "How many jobs name this queue.",
                {
                    "active": whole_number("Those that have workers."),
                    "pending": whole_number("Those that wait."),
                },
            ),
            "pool": group(
                "The Karpenter pool of scheduling.pool. `submit` refuses jobs that never fit its limits.",
                {
                    "name": text("Name of the NodePool.", most=253),
                    "found": yes_or_no("Whether the NodePool exists."),
                    "declared": yes_or_no(
                        "Whether the NodePool declares the resources of a node, as in a stack."
                    ),
                    "maxNodes": whole_number("Maximum number of nodes within its limits, if known."),
                    "limits": mapping("Its limits, by resource.", text("A quantity.", most=63), most=64),
                    "nodeResources": mapping(
                        "Resources of one of its nodes.", text("A quantity.", most=63), most=64
                    ),
                    "taints": listing(
                        "The taints of its nodes.",
                        group(
                            "A taint.",
                            {
                                "key": text("Its key.", most=317),
                                "value": text("Its value.", most=63),
                                "effect": text("Its effect.", most=63),
                            },
                        ),
                        most=64,
                    ),
                    "reservations": whole_number(
                        "Active capacity reservations; only of a pool that uses reservations only."
                    ),
                },
            ),
            "kai": group(
                "KAI Scheduler's queue of the gangs. `submit` refuses jobs that it can never admit.",
                {
                    "name": text("Name of KAI's queue.", most=253),
                    "limits": group(
                        "The lowest limits of this queue and those above it.",
                        {
                            "gpu": _kai_limit("GPUs"),
                            "cpu": _kai_limit("cores"),
                            "memory": _kai_limit("bytes"),
                        },
                    ),
                },
            ),
        },
    )


def _kai_limit(unit: str) -> Field:
    return group(
        "Missing if no queue has a limit.",
        {
            "queue": text("Name of KAI's queue with this limit.", most=253),
            "limit": number(f"Its limit in {unit}; in the queue itself KAI has other units."),
        },
        unit=unit,
    )


def _node_resources() -> Field:
    return group(
        "What a worker asks for of its node.",
        {
            "gpus": whole_number("GPUs of a node; 0 for a queue of CPU jobs.", most=64, default=0),
            "cpus": quantity("Processors of a node, with fractions.", "cpus", "96 or 7500m"),
            "memory": quantity("Memory of a node.", "memory", "512Gi", unit="bytes"),
            "gpuType": words.label_value(
                "Type of the GPUs, such as h100-80gb: only nodes with GPUs of this type are used.",
                "gpuType",
                absent="any",
            ),
        },
        required=("cpus", "memory"),
        rules=(NO_GPUS,),
    )


def _pod_template() -> Field:
    return group(
        "What else the workers' pods have: the metadata and spec of a PodTemplateSpec. The container named "
        f"`{n.WORKER_CONTAINER}` is the workers'; what the queue's and the job's other fields say goes above it.",
        {
            "metadata": group(
                "Labels and annotations of the pods.",
                {
                    "labels": words.labels("Labels of the pods.", absent="none"),
                    "annotations": words.labels("Annotations of the pods.", longest=65536, absent="none"),
                },
                absent="none",
            ),
            "spec": foreign(
                "A PodSpec (https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/); a dry run "
                "of a pod says whether it is right, in condition PodTemplateValid.",
                absent="none",
            ),
        },
        absent="none",
    )


def _networking() -> Field:
    return group(
        "How the workers find and reach each other.",
        {
            "port": whole_number(
                "Port of the rendezvous on the first worker.",
                least=1024,
                most=65535,
                default=n.RENDEZVOUS_PORT,
            ),
            "interface": named(
                "Network interfaces of NCCL and gloo as NCCL_SOCKET_IFNAME takes them: a prefix, or with = an exact "
                "name, or with ^ those to leave out (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).",
                r"^(\^|=|\^=)?[A-Za-z0-9._:-]+(,[A-Za-z0-9._:-]+)*$",
                "networking.interface",
                "names of interfaces as NCCL_SOCKET_IFNAME takes them, such as eth0, =eth0 or ^lo",
                most=63,
                absent="NCCL and gloo choose",
            ),
        },
        default={},
        absent="each field's own",
    )


def _job_defaults() -> Field:
    return group(
        "What holds for jobs that do not say it themselves.",
        {
            "ttlSecondsAfterFinished": time_to_live("a finished job is never removed"),
            "activeDeadlineSeconds": deadline("none"),
            "restartPolicy": restart_policy(default="OnFailure"),
            "maxRestarts": max_restarts(default=DEFAULT_RESTARTS),
        },
        default={},
        absent="each field's own",
    )


def time_to_live(absent: str) -> Field:
    """How long a finished job stays."""
    return whole_number(
        "How long after its end a TorchrunJob is removed, with all it made but retained volumes.",
        unit="seconds",
        absent=absent,
    )


def deadline(absent: str) -> Field:
    """How long a job may take."""
    return whole_number(
        "How long after its first start a job is ended as Failed, DeadlineExceeded.",
        least=1,
        unit="seconds",
        absent=absent,
    )


def restart_policy(*, default: str | None = None, absent: str = "") -> Field:
    """Whether a failed job is begun anew."""
    return choice(
        "Whether all workers are started anew after one of them failed.",
        RESTART_POLICIES,
        default=default,
        absent=absent,
    )


def max_restarts(*, default: int | None = None, absent: str = "") -> Field:
    """How often a failed job is begun anew."""
    return whole_number(
        "How often all workers are started anew, with OnFailure, before the job is Failed.",
        most=MOST_RESTARTS,
        default=default,
        absent=absent,
    )


def _apart() -> Sequence[Rule]:
    """Volumes that are mounted in one place would hide each other."""
    return [_two_places(one, other) for one, other in combinations(VOLUMES, 2)]


def _two_places(one: str, other: str) -> Rule:
    def path(volume: str) -> str:
        if volume == "workspace":  # the one without a default of its own
            return "self.storage.workspace.?mountPath.orValue(self.workingDir)"
        return f"self.storage.{volume}.mountPath"

    used = " && ".join(f"has(self.storage.{each}) && self.storage.{each}.enabled" for each in (one, other))
    return Rule(
        check=f"!has(self.storage) || !({used}) || {path(one)} != {path(other)}",
        message=f"storage.{one} and storage.{other} must have different mountPaths",
        path=f".storage.{other}.mountPath",
        whole=True,
    )
