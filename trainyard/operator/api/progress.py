"""The status of a TorchrunJob: how far it is."""

from __future__ import annotations

from trainyard.operator import names as n
from trainyard.operator.api.fields import (
    Field,
    choice,
    group,
    listing,
    moment,
    number,
    text,
    whole_number,
)
from trainyard.operator.api.status import conditions, observed_generation


def status() -> Field:
    """`status` of a TorchrunJob."""
    return group(
        "What the controller saw of the job; written by it alone.",
        {
            "observedGeneration": observed_generation(),
            "phase": choice(
                f"Where the job is. It stays {' or '.join(n.FINAL_PHASES)}, whatever becomes of its objects.", n.PHASES
            ),
            "reason": text("Why it is there, as one word for programs.", most=1024),
            "message": text("Why it is there, for people.", most=32768),
            "conditions": conditions(n.JOB_CONDITIONS),
            "attempt": whole_number("Number of the attempt that runs, or ran last, from 0."),
            "restarts": whole_number("How often all workers were started anew after one of them failed."),
            "lastRestart": group(
                "The worker that failed last, for which all were started anew; there is none while none failed.",
                {
                    "attempt": whole_number("Number of the attempt that was ended."),
                    "time": moment("When that was decided."),
                    "message": text("Which one, and why.", most=32768),
                },
            ),
            "firstFailure": _first_failure(),
            "attempts": _attempts(),
            "nodes": whole_number("Nodes of this attempt."),
            "gpusPerNode": whole_number("GPUs of each node of this attempt."),
            "gpus": whole_number("GPUs of this attempt."),
            "selector": text("Selects the job's pods; the scale subresource shows it.", most=1024),
            "workers": group(
                "Pods of this attempt.",
                {
                    "active": whole_number("Those that are not over yet."),
                    "ready": whole_number("Of these, those that are ready."),
                    "succeeded": whole_number("Those that ended well."),
                    "failed": whole_number("Those that failed."),
                },
            ),
            "progress": _progress(),
            "startTime": moment("When the job's first Job or worker began."),
            "completionTime": moment("When it came to its end."),
            "exitCode": whole_number("Exit code of the job: that of the worker that failed first, else 0.", most=255),
            "capacity": _capacity(),
            "logs": group(
                "The archive of the workers' logs, with objects attempt-<number>/node-<number>.log. Jobs of a queue "
                "without a bucket have none.",
                {
                    "url": text("Bucket and prefix.", most=2048),
                    "image": text("Image of the pod with which `kubectl torchrun logs` reads them.", most=1024),
                },
            ),
            "workspaceDigest": text("Digest of the workspace that the workers have.", most=80),
        },
    )  # fmt: skip


def _first_failure() -> Field:
    return group(
        "The first failure of the last failed attempt, which caused the others. It is missing if a worker was lost, or "
        "if none failed.",
        {
            "attempt": whole_number("Number of the attempt."),
            "nodeRank": whole_number("Node rank of the worker in the attempt, from 0."),
            "rank": whole_number("Global rank of the failed process, if torchrun reports it."),
            "pod": text("Name of the worker's pod.", most=253),
            "node": text("Name of the Kubernetes node.", most=253),
            "exitCode": whole_number("Exit code of the process; 128 plus the number of a signal.", most=255),
            "reason": text("Reason from Kubernetes, such as OOMKilled.", most=1024),
            "meaning": text("Meaning of the exit code, such as SIGKILL.", most=1024),
            "time": moment("Time of the failure."),
            "error": text("The line of the worker's output with the error.", most=1024),
            "logTail": text("The last lines of its output, up to 4 KiB.", most=4096),
        },
        required=("attempt", "pod"),
    )  # fmt: skip


def _attempts() -> Field:
    entry = group(
        "An unsuccessful attempt.",
        {
            "attempt": whole_number("Number of the attempt."),
            "endTime": moment("Time of its end."),
            "reason": text("Reason for its end, in CamelCase.", most=1024),
            "message": text("Details of the reason.", most=1024),
        },
        required=("attempt", "reason"),
    )
    return listing("The last unsuccessful attempts, the newest last.", entry, most=8)


def _capacity() -> Field:
    return group(
        "The wait for nodes of scheduling.pool; there is none while the job has its nodes.",
        {
            "since": moment("When this try to get nodes began."),
            "tries": whole_number("How many tries there have been, with this one or the next."),
            "enoughSince": moment("Since when there are as many nodes as the job needs at least."),
            "retryTime": moment("When the next try begins; nothing is held until then."),
        },
    )


def _progress() -> Field:
    return group(
        "How far the training is, as the trainer of its first worker tells it; a script that tells nothing has none.",
        {
            "step": whole_number("Steps done.", wide=True),
            "loss": number("Loss of the last step."),
            "throughput": number("What is trained in a second, in `unit`."),
            "unit": text("What `throughput` counts, such as tokens/s.", most=63),
            "checkpointStep": whole_number("Step of the last whole checkpoint.", wide=True),
            "checkpointTime": moment("When the last whole checkpoint was written."),
            "unreadable": text(
                "Why the first worker's progress can't be read. The other fields have earlier values.",
                most=1024,
            ),
        },
    )
