"""Find the first failure of an attempt: the worker, its rank and its error. Pure. Entry point: `find_first_failure`.

When one process of a gang fails, the others fail after it: their connections close, or the agent or the kubelet
terminates them. Containers report their end in any order and in whole seconds, so the reported order is not enough. An
error that is a consequence of a lost peer therefore always sorts after an error that is not.

The termination message of a worker contains the last lines of the process that failed first on its node, and
torchrun's summary (trainyard/operator/signal_forwarder.py writes it). Otherwise it is the end of the container's log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from launcher.errors import OUT_OF_MEMORY, RANK_PREFIX, TORCHRUN_LOG, describe, error_line, is_consequence
from trainyard.operator.observe import Worker

# The first failure may be reported after its consequences: the kubelet checks its containers once a second (PLEG), and
# a node may be busy. If the only known error is a consequence, the controller waits longer for its cause.
SETTLE_SECONDS: Final = 2.0
FOLLOWING_SETTLE_SECONDS: Final = 6.0
TAIL_BYTES: Final = 4096
_SUMMARY: Final = re.compile(r"^Root Cause \(first observed failure\):$", re.M)
_RANK: Final = re.compile(r"^ *rank *: (\d{1,9}) \(local_rank: (\d{1,9})\)", re.M)
# The container's local time (torch/distributed/elastic/multiprocessing/errors/__init__.py, `timestamp_isoformat`).
_TIME: Final = re.compile(r"^ *time *: (\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)$", re.M)
_QUARTER_HOUR: Final = 900
_MAX_ZONE_OFFSET: Final = 15 * 3600
# The prefix of torchrun's --tee: the role and the local rank.
_PREFIX: Final = re.compile(r"^\[[A-Za-z_]+(\d+)\]: ?")
# The line of torchrun's own log that reports a failed process, before torchrun's traceback.
_AGENT: Final = re.compile(r"^[EW]\d{4} .*torch/distributed/elastic/.*(failed \(exitcode|Sending process)")
_SIGNALLED_CODES: Final = (130, 143)
_CAUSE, _SILENT, _CONSEQUENCE = range(3)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A worker that failed.

    Attributes:
        worker: The worker.
        rank: The global rank of the process that failed first on its node; None if torchrun does not report it.
        error: The error line, "" if there is none.
        described: The error for a message: the error line, or the last line of the log.
        is_consequence: Whether that error is a consequence of another process's end.
        at: The time of the failure, in seconds since the epoch.
        tail: The last lines of the process, at most TAIL_BYTES.
    """

    worker: Worker
    rank: int | None
    error: str
    described: str
    is_consequence: bool
    at: float | None
    tail: str


def find_first_failure(workers: Iterable[Worker]) -> Failure | None:
    """Return the failure that caused the others; None if no worker failed."""
    found = [read_failure(each) for each in workers if each.failed]
    return min(found, key=_sort_key, default=None)


def settle_seconds(failure: Failure, workers: Iterable[Worker], now: float) -> float:
    """Return the seconds until `failure` is final. Until then, an earlier failure may still be reported.

    If the clock of a node differs too much from the controller's, there is no wait.
    """
    if failure.worker.disruption or all(each.finished or each.end.code is not None for each in workers):
        return 0.0
    ends = [each.end.at for each in workers if each.failed and each.end.at is not None]
    duration = SETTLE_SECONDS if _rank_cause(failure) == _CAUSE else FOLLOWING_SETTLE_SECONDS
    left = min(ends, default=now - duration) + duration - now
    return left if 0.0 < left <= duration else 0.0


def read_failure(worker: Worker) -> Failure:
    """Return the failure from a worker's termination message and status."""
    end = worker.end
    own = not end.before and not end.said
    text = end.text if own else ""
    summary = _last_summary(text)
    rank = _RANK.search(summary)
    lines = _lines(text, rank[2] if rank else "", bool(summary))
    at = _failed_at(summary, end.at)
    removed = worker.deletion_time is not None and at is not None and at > worker.deletion_time
    outside = end.code in _SIGNALLED_CODES or removed
    killed = bool(worker.disruption) or end.reason == OUT_OF_MEMORY
    return Failure(
        worker=worker,
        rank=int(rank[1]) if rank else None,
        error=error_line(lines),
        described=describe(lines),
        is_consequence=own and not killed and (is_consequence(lines) or outside),
        at=at,
        tail=_truncate("\n".join(lines) or end.text.strip()),
    )


def _sort_key(failure: Failure) -> tuple[int, bool, float, int, str]:
    worker = failure.worker
    rank = worker.node_rank if worker.node_rank is not None else 0
    return _rank_cause(failure), failure.at is None, failure.at or 0.0, rank, worker.name


def _rank_cause(failure: Failure) -> int:
    if failure.is_consequence:
        return _CONSEQUENCE
    end = failure.worker.end
    knows = failure.error or failure.worker.disruption or end.before or end.said or (end.code or 0) > 1
    return _CAUSE if knows else _SILENT


def _last_summary(text: str) -> str:
    starts = [each.start() for each in _SUMMARY.finditer(text)]
    return text[starts[-1] :] if starts else ""


def _lines(text: str, local_rank: str, summed_up: bool) -> list[str]:
    """Return the lines of the failed process without torchrun's own; the lines of all processes if it is not known."""
    lines = [line.rstrip("\r") for line in text.splitlines()]
    if summed_up:
        end = max(place for place, line in enumerate(lines) if _SUMMARY.match(line))
        lines = lines[:end]
        agents = [place for place, line in enumerate(lines) if _AGENT.match(line)]
        prefixed = [line for line in lines if (found := _PREFIX.match(line)) and found[1] == local_rank]
        lines = prefixed or (lines[: agents[0]] if agents else [])
    return [RANK_PREFIX.sub("", _PREFIX.sub("", line)) for line in lines if not TORCHRUN_LOG.match(line)]


def _failed_at(summary: str, finished: float | None) -> float | None:
    """Return the time of the failure in torchrun's summary, else the end of the container.

    The summary has local time without a time zone, so the zone is computed from the end of the container.
    """
    found = _TIME.search(summary)
    if found is None or finished is None:
        return finished
    try:
        local = datetime.strptime(found[1], "%Y-%m-%d_%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:  # a worker may print anything
        return finished
    zone = round((finished - local) / _QUARTER_HOUR) * _QUARTER_HOUR
    return local + zone if abs(zone) <= _MAX_ZONE_OFFSET else finished


def _truncate(text: str) -> str:
    """Return the last complete lines within TAIL_BYTES."""
    data = text.encode(errors="replace")
    if len(data) <= TAIL_BYTES:
        return text
    _, _, whole = data[-TAIL_BYTES:].partition(b"\n")
    return (whole or data[-TAIL_BYTES:]).decode(errors="ignore")
