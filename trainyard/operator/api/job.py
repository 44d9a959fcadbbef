"""The spec of a TorchrunJob: one training, how large it is, and what differs from its queue."""

from __future__ import annotations

from typing import Final

from trainyard.operator.api import queue, words
from trainyard.operator.api.environment import environment
from trainyard.operator.api.fields import (
    FORBIDDEN,
    Field,
    Rule,
    choice,
    group,
    listing,
    named,
    text,
    whole_number,
    yes_or_no,
)
from trainyard.operator.core.job_spec import MOST_GPUS, MOST_NODES, NO_LAUNCHER, TORCHRUN

BACKENDS: Final = ("nccl", "gloo")
RENDEZVOUS: Final = ("c10d", "etcd", "etcd-v2", "static")
# What these fields say is in the pods from their first moment; another training is another job.
FIXED: Final = (
    "jobQueue",
    "numGPUs",
    "command",
    "args",
    "launcher",
    "env",
    "distributed",
    "overrides",
    "persistCheckpoints",
)


def spec() -> Field:
    """`spec` of a TorchrunJob."""
    return group(
        "What is trained, on how many GPUs, in which queue.",
        {
            "jobQueue": words.object_name(
                "The TorchrunQueue of the job's namespace that says how it is made; a job waits for one that is not "
                "there yet.",
                "jobQueue",
            ),
            "numGPUs": whole_number(
                "GPUs of all workers together; 0 for a job on CPUs, whose size numNodes says.", most=MOST_GPUS
            ),
            "numNodes": whole_number(
                "Nodes that the GPUs are spread over, the same number on each; of a job on CPUs, its nodes. A new "
                "value starts the workers anew, which is not counted as a restart.",
                least=1,
                most=MOST_NODES,
                absent="one node if the GPUs fit, else the fewest; of a job on CPUs 1",
            ),
            "command": named(
                "The command, in the syntax of a POSIX shell; launcher defines how often it runs.",
                r"\S",
                "command",
                "a command, such as python train.py",
                most=32768,
            ),
            "args": listing(
                "Words that follow the command as they are.",
                text("One word.", most=32768),
                most=256,
                absent="none",
            ),
            "launcher": choice(
                "What starts the processes: torchrun starts the command once for each GPU. With none, the command runs "
                "once on each node and starts its own processes.",
                (TORCHRUN, NO_LAUNCHER),
                absent="torchrun for Python programs; none for a command with a launcher or an unknown program",
            ),
            "env": environment(),
            "workspace": _workspace(),
            "distributed": _distributed(),
            "elastic": _elastic(),
            "suspend": yes_or_no(
                "Whether the job has no workers for now; its volumes and its status stay.", default=False
            ),
            # Without defaults: those would hide the queue's.
            "ttlSecondsAfterFinished": queue.time_to_live("the queue's jobDefaults.ttlSecondsAfterFinished"),
            "activeDeadlineSeconds": queue.deadline("the queue's jobDefaults.activeDeadlineSeconds"),
            "restartPolicy": queue.restart_policy(absent="the queue's jobDefaults.restartPolicy"),
            "maxRestarts": queue.max_restarts(absent="the queue's jobDefaults.maxRestarts"),
            "persistCheckpoints": yes_or_no("Whether the claim with the checkpoints outlives the job.", default=False),
            "overrides": _overrides(),
        },
        required=("jobQueue", "numGPUs", "command"),
        rules=(*map(_fixed, FIXED), *SIZES, *DISTRIBUTED),
    )  # fmt: skip


def _fixed(name: str) -> Rule:
    """A rule of the whole spec: one of the field alone is not asked when the field comes or goes."""
    return Rule(
        check=f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
        message=f"{name} can't be changed; make a new TorchrunJob",
        path=f".{name}",
        reason=FORBIDDEN,
    )


# Of a size below 1 the minimum of its field speaks, and no rule that would divide by it.
SIZES: Final = (
    Rule(
        check="!has(self.numNodes) || self.numNodes < 1 || self.numGPUs % self.numNodes == 0",
        message="numNodes must divide numGPUs: each node has the same number of GPUs",
        path=".numNodes",
    ),
    Rule(
        check="!(has(self.numNodes) && has(self.elastic))",
        message="numNodes and elastic exclude each other: elastic.minNodes and elastic.maxNodes say the size",
        path=".numNodes",
    ),
    Rule(
        check="!has(self.elastic) || self.elastic.maxNodes < 1 || self.numGPUs % self.elastic.maxNodes == 0",
        message="elastic.maxNodes must divide numGPUs, which are the GPUs of maxNodes nodes",
        path=".elastic.maxNodes",
    ),
)
DISTRIBUTED: Final = (
    Rule(
        check="!(has(self.distributed.backend) && self.distributed.backend == 'nccl' && self.numGPUs == 0)",
        message="distributed.backend nccl needs GPUs and numGPUs is 0; gloo runs on CPUs",
        path=".distributed.backend",
    ),
    Rule(
        check="!(has(self.elastic) && self.distributed.rdzvBackend == 'static')",
        message="distributed.rdzvBackend static fixes the number of nodes; an elastic job needs c10d, etcd or etcd-v2",
        path=".distributed.rdzvBackend",
    ),
)


def _workspace() -> Field:
    return group(
        "The directory that is mounted at the queue's workingDir in every worker, as `kubectl torchrun` sent it. "
        "A new one is brought to the running workers.",
        {
            "digest": named(
                "Digest of the archive, a tar.zst. Workers refuse any other archive.",
                r"^sha256:[0-9a-f]{64}$",
                "workspace.digest",
                "sha256: and 64 hexadecimal digits",
                most=80,
            ),
            "sizeBytes": whole_number(
                "Size of the archive. Workers refuse an archive of another size.",
                least=1,
                unit="bytes",
                wide=True,
            ),
            "url": words.bucket_object(
                "Where the archive is in S3.", "workspace.url", absent="it comes through the job's sync pod"
            ),
            "restartOnSync": yes_or_no(
                "Whether the workers are started anew when a new archive has come.", default=False
            ),
        },
        required=("digest", "sizeBytes"),
        absent="no workspace: what the image has",
    )


def _distributed() -> Field:
    return group(
        "How the processes find each other and exchange.",
        {
            "backend": choice(
                "What the processes exchange through: the script reads it from TORCHRUN_BACKEND, torchrun takes none.",
                BACKENDS,
                absent="nccl with GPUs, gloo without",
            ),
            "rdzvBackend": choice(
                "How the workers meet. etcd and etcd-v2 without rdzvEndpoint become c10d, which condition "
                "RendezvousSubstituted says; c10d needs no other service.",
                RENDEZVOUS,
                default="c10d",
            ),
            "rdzvEndpoint": words.endpoint(
                "Where the workers meet: an etcd's host and port, for instance.",
                "distributed.rdzvEndpoint",
                absent="the first worker",
            ),
            "port": whole_number(
                "Port of the rendezvous on the first worker.",
                least=1024,
                most=65535,
                absent="the queue's networking.port",
            ),
        },
        default={},
        absent="each field's own",
    )


def _elastic() -> Field:
    return group(
        "The job runs with any number of nodes in this range, with as many as there are. A new range starts the "
        "workers anew, which is not counted as a restart.",
        {
            "minNodes": whole_number("The fewest nodes that the job runs with.", least=1, most=MOST_NODES),
            "maxNodes": whole_number(
                "The most nodes; numGPUs is then the GPUs of all of these.", least=1, most=MOST_NODES
            ),
        },
        required=("minNodes", "maxNodes"),
        rules=(
            Rule(
                check="self.minNodes <= self.maxNodes",
                message="elastic.minNodes must not be above elastic.maxNodes",
                path=".minNodes",
            ),
        ),
        absent="the number of nodes is fixed",
    )  # fmt: skip


def _overrides() -> Field:
    """Every field of the queue, so that a job needs no queue of its own to be different."""
    whole = queue.spec().partial("the queue's")
    about = (
        "What is different from the queue: objects are merged with the queue's, lists and single values replace it. "
        "A job makes no queue of KAI Scheduler: its kaiQueue is one that is there, and it has no parentKaiQueue."
    )
    return group(about, whole.fields, rules=(*whole.rules, _NO_QUEUE_OF_ITS_OWN), absent="nothing")


_NO_QUEUE_OF_ITS_OWN: Final = Rule(
    check="!has(self.parentKaiQueue)",
    message="parentKaiQueue is a TorchrunQueue's: a job joins a queue of KAI Scheduler that is there, and makes none",
    path=".parentKaiQueue",
    reason=FORBIDDEN,
)
