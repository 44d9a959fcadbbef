"""Find out why an attempt ended: the first failed worker, its rank and its error. Pure. Entry point: `find_end`.

When one process of a gang fails, the others fail after it: their connections close, or the agent or the kubelet
terminates them. Containers report their end in any order and in whole seconds, so this order is not enough. Therefore
an error that is a consequence of a lost peer always sorts after other errors.

The termination message of a worker contains the last lines of the process that failed first on its node, and
torchrun's summary (trainyard/operator/signal_forwarder.py writes it). Otherwise it is the end of the container's log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from launcher.errors import (
    OUT_OF_MEMORY,
    RANK_PREFIX,
    TORCHRUN_LOG,
    describe,
    error_line,
    is_consequence,
    meaning,
)
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator.context import ReconcileContext
from trainyard.operator.nodes import NODE_START_SECONDS, find_unplaced_worker
from trainyard.operator.observe import TerminationMessage, Worker, read_termination_message

# The first failure may be reported after its consequences: the kubelet checks its containers once a second (PLEG), and
# a node may be busy. If the only known error is a consequence, the controller waits longer for its cause.
SETTLE_SECONDS: Final = 2.0
FOLLOWING_SETTLE_SECONDS: Final = 6.0
TAIL_BYTES: Final = 4096
_QUARTER_HOUR: Final = 900
# The prefix of torchrun's --tee: the role and the local rank.
_PREFIX: Final = re.compile(r"^\[[A-Za-z_]+(\d+)\]: ?")
# The line of torchrun's own log that reports a failed process, before torchrun's traceback.
_AGENT: Final = re.compile(r"^[EW]\d{4} .*torch/distributed/elastic/.*(failed \(exitcode|Sending process)")
_SIGNALLED_CODES: Final = (130, 143)
_CAUSE, _SILENT, _CONSEQUENCE = range(3)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A worker that failed."""

    worker: Worker
    # The global rank of the process that failed first on its node; None if torchrun does not report it.
    rank: int | None
    error: str  # the error line, "" if there is none
    described: str  # the error for a message: the error line, or the last line of the log
    is_consequence: bool  # whether that error is a consequence of another process's end
    at: float | None  # the time of the failure, in seconds since the epoch
    tail: str  # the last lines of the process, at most TAIL_BYTES

    @property
    def _certainty(self) -> int:
        end = self.worker.end
        if self.is_consequence:
            return _CONSEQUENCE
        known = (
            self.error
            or self.worker.disruption
            or end.failed_init_container
            or end.start_error
            or (end.code or 0) > 1
        )
        return _CAUSE if known else _SILENT

    @property
    def order(self) -> tuple[int, bool, float, int, str]:
        """Return the key that sorts the first failure first."""
        return self._certainty, self.at is None, self.at or 0.0, self.worker.node_rank or 0, self.worker.name

    @property
    def patience(self) -> float:
        """Return the seconds during which an earlier failure may still be reported."""
        return SETTLE_SECONDS if self._certainty == _CAUSE else FOLLOWING_SETTLE_SECONDS


def settle_seconds(failure: Failure, workers: Iterable[Worker], now: float) -> float:
    """Return the seconds until `failure` is final. Until then, an earlier failure may still be reported.

    If the clock of a node differs too much from the controller's, there is no wait.
    """
    if failure.worker.disruption or all(worker.finished or worker.end.code is not None for worker in workers):
        return 0.0
    ends = [worker.end.at for worker in workers if worker.failed and worker.end.at is not None]
    left = min(ends, default=now - failure.patience) + failure.patience - now
    return left if 0.0 < left <= failure.patience else 0.0


def read_failure(worker: Worker) -> Failure:
    """Return the failure from a worker's termination message and status."""
    end = worker.end
    own = not end.failed_init_container and not end.start_error
    message = end.message if own else read_termination_message("")
    lines = _process_lines(message)
    at = _failed_at(message, end.at)
    removed = worker.deletion_time is not None and at is not None and at > worker.deletion_time
    outside = end.code in _SIGNALLED_CODES or removed
    killed = bool(worker.disruption) or end.reason == OUT_OF_MEMORY
    return Failure(
        worker=worker,
        rank=message.rank,
        error=error_line(lines),
        described=describe(lines),
        is_consequence=own and not killed and (is_consequence(lines) or outside),
        at=at,
        tail=_truncate("\n".join(lines) or end.message.text.strip()),
    )


def _process_lines(message: TerminationMessage) -> list[str]:
    """Return the lines of the failed process without torchrun's own lines; all lines if it is not known."""
    lines = [line.rstrip("\r") for line in message.log.splitlines()]
    if message.has_summary:
        own = [line for line in lines if (found := _PREFIX.match(line)) and found[1] == message.local_rank]
        agents = [place for place, line in enumerate(lines) if _AGENT.match(line)]
        lines = own or (lines[: agents[0]] if agents else [])
    return [RANK_PREFIX.sub("", _PREFIX.sub("", line)) for line in lines if not TORCHRUN_LOG.match(line)]


def _failed_at(message: TerminationMessage, finished: float | None) -> float | None:
    """Return the time of the failure in torchrun's summary, else the end of the container.

    The summary has local time without a time zone, so the zone is computed from the end of the container.
    """
    if not message.time or finished is None:
        return finished
    try:
        local = datetime.strptime(message.time, "%Y-%m-%d_%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:  # a worker may print anything
        return finished
    return local + round((finished - local) / _QUARTER_HOUR) * _QUARTER_HOUR


def _truncate(text: str) -> str:
    """Return the last complete lines within TAIL_BYTES."""
    data = text.encode(errors="replace")
    if len(data) <= TAIL_BYTES:
        return text
    _, _, whole = data[-TAIL_BYTES:].partition(b"\n")
    return (whole or data[-TAIL_BYTES:]).decode(errors="ignore")


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """Why an attempt ended."""

    why: str  # the message
    exit_code: int | None = None  # the exit code of the worker that ended it, if one did
    final: bool = False  # whether its exit code means that the command fails each time
    failure: Failure | None = None  # the failure of this worker
    settle_seconds: float = 0.0  # the seconds until no earlier failure can be reported any more


def find_end(ctx: ReconcileContext) -> AttemptEnd | None:
    """Return why the attempt ended, None while it runs. One lost worker ends the whole attempt."""
    jobs = ctx.jobs
    if not jobs:
        return AttemptEnd(why=f"Job {n.attempt_name(ctx.meta.name, ctx.status.attempt)} is gone")
    # A suspended Job deletes its workers, and creates them again when it is resumed.
    suspended = {job.uid for job in jobs if job.suspended}
    kept = [worker for worker in ctx.workers if not (worker.deleting and worker.job in suspended)]
    failures = (read_failure(worker) for worker in kept if worker.failed)
    failure = min(failures, key=lambda each: each.order, default=None)  # the cause of the others
    lost = [
        worker for worker in kept if worker.deleting and (worker.deleted_gracefully or not worker.finished)
    ]
    # After a disruption, the Job controller deletes the other workers as well.
    first_lost = min(lost, key=lambda each: not each.disruption, default=None)
    disrupted = first_lost if first_lost is not None and first_lost.disruption else None
    if failure is not None and failure.is_consequence and disrupted is not None:
        return AttemptEnd(why=_describe_loss(disrupted), exit_code=disrupted.end.code)
    if failure is not None:
        end = failure.worker.end
        return AttemptEnd(
            why=_describe_failure(failure),
            exit_code=end.code,
            # The exit code of an init container says nothing about the command.
            final=not end.failed_init_container and end.code in names.WORKER_FINAL_EXIT_CODES,
            failure=failure,
            settle_seconds=settle_seconds(failure, kept, ctx.now),
        )
    for job in jobs:
        if job.failed:
            cause = f": {_describe_loss(disrupted)}" if disrupted is not None else ""
            return AttemptEnd(why=f"Job {job.name} failed{cause}")
        if job.deleting:
            return AttemptEnd(why=f"Job {job.name} was deleted")
    if len(jobs) < jobs[0].job_count:
        return AttemptEnd(why=f"{jobs[0].job_count - len(jobs)} Jobs of the attempt are gone")
    if any(job.uid in ctx.children.succeeded_jobs for job in jobs):
        return None
    if first_lost is not None:
        return AttemptEnd(why=_describe_loss(first_lost))
    name = find_unplaced_worker(ctx).name
    return AttemptEnd(why=f"worker {name} has no node after {NODE_START_SECONDS} s") if name else None


def _describe_worker(worker: Worker, rank: int | None = None) -> str:
    ranks = [("node rank", worker.node_rank), ("rank", rank)]
    which = ", ".join(f"{name} {number}" for name, number in ranks if number is not None)
    return f"worker {worker.name}{f' ({which})' if which else ''} on node {worker.node or 'unknown'}"


def _describe_disruption(worker: Worker) -> str:
    return f" ({worker.disruption})" if worker.disruption not in ("", worker.end.reason) else ""


def _describe_loss(worker: Worker) -> str:
    return f"{_describe_worker(worker)} is lost{_describe_disruption(worker)}"


def _describe_failure(failure: Failure) -> str:
    worker, end = failure.worker, failure.worker.end
    ended = f"ended with exit code {end.code}" if end.code is not None else "failed"
    if end.failed_init_container:
        cause = end.start_error or end.reason or "no message"
        ended = f"did not start: its init container {end.failed_init_container} {ended} ({cause})"
    elif end.start_error:
        ended = f"did not start: {end.start_error} ({end.reason}, exit code {end.code})"
    elif means := meaning(end.code, end.reason) or end.reason:
        ended = f"{ended} ({means})"
    details = [end.pod_message, "" if end.failed_init_container or end.start_error else failure.described]
    first = f"{_describe_worker(worker, failure.rank)} {ended}{_describe_disruption(worker)}"
    return ": ".join([first, *filter(None, details)])
