"""The input and output of a launcher step: memory, actions, and the report with its log line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from launcher.observe import Pod
from launcher.progress import Progress
from trainyard.k8s import names


@dataclass(frozen=True, kw_only=True)
class CreatePlaceholder:
    """Create the placeholder with this index and the label of its wait."""

    index: int
    wait: str


@dataclass(frozen=True, kw_only=True)
class Remove:
    """Delete exactly this pod, not another one with the same name."""

    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class ReleaseNode:
    """Delete exactly this NodeClaim.

    With `late`, its node took too long. Otherwise it is no longer needed.
    """

    claim: str
    uid: str
    reason: str
    late: bool = True


@dataclass(frozen=True, kw_only=True)
class Recount:
    """Observe again, from fresh lists, and call `step` again at once."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """Create the training job for this many nodes."""

    nodes: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Retire:
    """Delete exactly this training job. Its name is free when all of its pods are gone."""

    uid: str


@dataclass(frozen=True, kw_only=True)
class End:
    """Exit with this code."""

    code: int
    reason: str

    @property
    def state(self) -> str:
        """The last state of the run."""
        return names.STATE_SUCCEEDED if self.code == names.EXIT_SUCCEEDED else names.STATE_FAILED


Action = CreatePlaceholder | Remove | ReleaseNode | Recount | Start | Retire | End
# Between two batches, the Lease is renewed if it is due.
MAX_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class Report:
    """The state for the log: usable nodes, requested nodes, and the number of the pool's NodeClaims."""

    state: str
    nodes: int
    of: int
    claims: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The launcher's memory between steps. Times are in seconds since the epoch. Only `progress` survives a crash.

    Attributes:
        quorum_since: When MIN was reached in this wait.
        seen_at: The time of the last observation of a wait.
        idle: The usable nodes at `seen_at`, up to MAX.
        ordered: When the NodeClaim of each node was created, for nodes that were launched for this run.
        complete: When each node was last seen with all of its devices, by the uid of its NodeClaim.
        gang: The uids of the unfinished workers at the last step, by name.
    """

    progress: Progress | None = None
    quorum_since: float | None = None
    seen_at: float | None = None
    idle: int = 0
    ordered: Mapping[str, float] = field(default_factory=dict)
    complete: Mapping[str, float] = field(default_factory=dict)
    gang: Mapping[str, str] = field(default_factory=dict)

    @property
    def candidate_index(self) -> int:
        """Return the candidate whose pool the next observation must contain."""
        return self.progress.candidate if self.progress else 0


@dataclass(frozen=True, kw_only=True)
class Step:
    """The result of one step. The actions are executed in order."""

    memory: Memory
    report: Report
    actions: tuple[Action, ...]


def batches(actions: Iterable[Action]) -> Iterator[tuple[Action, ...]]:
    """Yield the actions in order, in batches that run in parallel.

    A batch has up to `MAX_AT_ONCE` pods to create or to delete, or one other action.
    """
    for kind, some in groupby(actions, type):
        most = MAX_AT_ONCE if kind in (CreatePlaceholder, Remove) else 1
        run = tuple(some)
        yield from (run[start : start + most] for start in range(0, len(run), most))


def remove(pods: tuple[Pod, ...]) -> tuple[Remove, ...]:
    """Return the deletion of each of these pods."""
    return tuple(Remove(name=pod.name, uid=pod.uid) for pod in pods)


# A word with a digit and a hyphen is the name of a node, NodeClaim or pod.
_OBJECT_NAME = re.compile(r"\b(?=[\w.-]*\d)[\w.]+(-[\w.]+)+\b")
_WORKERS = re.compile(r"(\d+ of )?\d+ (workers running|workers finished|finished)(, \d+ finished)?")


def substance(reason: str) -> set[str]:
    """Return the parts of a reason without names, numbers and plurals, which change all the time."""
    return {_without_numbers(part) for part in reason.split("; ")}


def _without_numbers(part: str) -> str:
    part = re.sub(r"\bare\b", "is", re.sub(r"(starting) \([^:)]*", r"\1 (", part))
    part = _WORKERS.sub("WORKERS", part)
    part = re.sub(r"\d+(\.\d+)?", "#", _OBJECT_NAME.sub("NAME", part))
    return re.sub(r"\b(\w{3,}?)s\b", r"\1", part)


def is_news(report: Report, last: Report | None) -> bool:
    """Return whether state, nodes or a part of the reason differ from the last printed report."""
    if last is None or (report.state, report.nodes, report.of) != (last.state, last.nodes, last.of):
        return True
    return not substance(report.reason) <= substance(last.reason)


def line(report: Report, elapsed: float) -> str:
    """Return the log line of this report; `elapsed` is in seconds since the launcher started."""
    return (
        f"launcher state={report.state} nodes={report.nodes}/{report.of} claims={report.claims} "
        f"reason={json.dumps(report.reason, ensure_ascii=False)} elapsed={elapsed:.0f}s"
    )
