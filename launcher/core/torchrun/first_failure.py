"""The first failure of an attempt: which worker failed first, of which rank, with which error. Pure.

When one process of a gang fails, the others fail after it: their connections close, the agent or the kubelet ends them.
Containers report their ends in any order, and in whole seconds. So the order is not enough: an error that follows from
a lost peer never comes before one that does not. The entry point is `first`.

A worker's termination message has the last lines of the process that failed first on its node, and torchrun's summary
(launcher/core/torchrun/first_process.py writes it). Without that it has the end of the container's log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from launcher.core.error_lines import RANK_PREFIX, error_line, follows
from launcher.core.exit_codes import OUT_OF_MEMORY
from launcher.core.torchrun.observe import Worker

# A worker that failed first may be reported after one that failed because of it: the kubelet looks at its containers
# once a second (PLEG), and a node may be busy. An error that follows from another one is worth a longer wait.
SETTLE_SECONDS: Final = 2.0
FOLLOWING_SETTLE_SECONDS: Final = 6.0
TAIL_BYTES: Final = 4096
_SUMMARY: Final = re.compile(r"^Root Cause \(first observed failure\):$", re.M)
_RANK: Final = re.compile(r"^ *rank *: (\d{1,9}) \(local_rank: (\d{1,9})\)", re.M)
# Local time of the container (torch/distributed/elastic/multiprocessing/errors/__init__.py, `timestamp_isoformat`).
_TIME: Final = re.compile(r"^ *time *: (\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)$", re.M)
_QUARTER_HOUR: Final = 900
_FARTHEST_ZONE: Final = 15 * 3600
# torchrun's --tee puts the role and the local rank before each line.
_PREFIX: Final = re.compile(r"^\[[A-Za-z_]+(\d+)\]: ?")
# torchrun's own log: how it says that a process failed, before its own traceback.
_AGENT: Final = re.compile(r"^[EW]\d{4} .*torch/distributed/elastic/.*(failed \(exitcode|Sending process)")
_AGENT_LOG: Final = re.compile(r"^[EWI]\d{4} \S+ +\d+ torch/distributed/")
_ENDED_FROM_OUTSIDE: Final = (130, 143)
_OWN, _SILENT, _FOLLOWING = range(3)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A worker that failed.

    Attributes:
        rank: The global rank of the process that failed first on its node; None where torchrun does not say it.
        error: The line that says what was wrong, "" where there is none.
        follows: Whether that error follows from the end of another process.
        at: When the process failed, in seconds since the epoch.
        tail: Its last lines, TAIL_BYTES at most.
    """

    worker: Worker
    rank: int | None
    error: str
    follows: bool
    at: float | None
    tail: str


def first(workers: Iterable[Worker]) -> Failure | None:
    """Return the failure from which the others follow, None where no worker failed."""
    found = [read(each) for each in workers if each.failed]
    return min(found, key=_order, default=None)


def settles_in(failure: Failure, workers: Iterable[Worker], now: float) -> float:
    """Return in how many seconds `failure` is certainly the first one: until then others may be reported.

    A clock of a node that is far from ours costs no time.
    """
    if failure.worker.taken or all(each.over or each.end.code is not None for each in workers):
        return 0.0
    ends = [each.end.at for each in workers if each.failed and each.end.at is not None]
    patience = SETTLE_SECONDS if _class(failure) == _OWN else FOLLOWING_SETTLE_SECONDS
    left = min(ends, default=now - patience) + patience - now
    return left if 0.0 < left <= patience else 0.0


def read(worker: Worker) -> Failure:
    """Return what a failed worker's termination message says."""
    end = worker.end
    own = not end.before and not end.said
    text = end.text if own else ""
    summary = _last_summary(text)
    rank = _RANK.search(summary)
    lines = _lines(text, rank[2] if rank else "", bool(summary))
    at = _failed_at(summary, end.at)
    removed = worker.removed is not None and at is not None and at > worker.removed
    outside = end.code in _ENDED_FROM_OUTSIDE or removed
    killed = bool(worker.taken) or end.reason == OUT_OF_MEMORY
    return Failure(
        worker=worker,
        rank=int(rank[1]) if rank else None,
        error=error_line(lines),
        follows=own and not killed and (follows(lines) or outside),
        at=at,
        tail=_bounded("\n".join(lines) or end.text.strip()),
    )


def _order(failure: Failure) -> tuple[int, bool, float, int, str]:
    worker = failure.worker
    rank = worker.node_rank if worker.node_rank is not None else 0
    return _class(failure), failure.at is None, failure.at or 0.0, rank, worker.name


def _class(failure: Failure) -> int:
    if failure.follows:
        return _FOLLOWING
    end = failure.worker.end
    knows = failure.error or failure.worker.taken or end.before or end.said or (end.code or 0) > 1
    return _OWN if knows else _SILENT


def _last_summary(text: str) -> str:
    starts = [each.start() for each in _SUMMARY.finditer(text)]
    return text[starts[-1] :] if starts else ""


def _lines(text: str, local_rank: str, summed_up: bool) -> list[str]:
    """The lines of the process that failed, without torchrun's own; of all processes where it is not known."""
    lines = [line.rstrip("\r") for line in text.splitlines()]
    if summed_up:
        end = max(place for place, line in enumerate(lines) if _SUMMARY.match(line))
        lines = lines[:end]
        agents = [place for place, line in enumerate(lines) if _AGENT.match(line)]
        prefixed = [line for line in lines if (found := _PREFIX.match(line)) and found[1] == local_rank]
        lines = prefixed or (lines[: agents[0]] if agents else [])
    return [RANK_PREFIX.sub("", _PREFIX.sub("", line)) for line in lines if not _AGENT_LOG.match(line)]


def _failed_at(summary: str, finished: float | None) -> float | None:
    """When torchrun saw the failure, else when the container finished. The zone of torchrun's time is not told."""
    found = _TIME.search(summary)
    if found is None or finished is None:
        return finished
    try:
        told = datetime.strptime(found[1], "%Y-%m-%d_%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:  # a worker may print anything
        return finished
    zone = round((finished - told) / _QUARTER_HOUR) * _QUARTER_HOUR
    return told + zone if abs(zone) <= _FARTHEST_ZONE else finished


def _bounded(text: str) -> str:
    """The last whole lines that fit."""
    data = text.encode(errors="replace")
    if len(data) <= TAIL_BYTES:
        return text
    _, _, whole = data[-TAIL_BYTES:].partition(b"\n")
    return (whole or data[-TAIL_BYTES:]).decode(errors="ignore")
