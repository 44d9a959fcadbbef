"""Input and output of a step of the launcher: its memory, the actions, and the report with its log line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from launcher.capacity import is_placeholder
from launcher.observe import Observation, Pod
from launcher.progress import Progress
from launcher.request import Request


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Create the placeholder with this index, labelled with the wait that it is of."""

    index: int
    wait: str


@dataclass(frozen=True, kw_only=True)
class Remove:
    """Delete exactly this pod; another one of the same name is left alone."""

    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class GiveBack:
    """Delete exactly this NodeClaim, whose machine is of no use; `reason` says why.

    `late` says that it took too long, and not only that it is not waited for any more.
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
    """Create the PyTorchJob for this many nodes."""

    nodes: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Retire:
    """Delete exactly this PyTorchJob, whose name is free again once all of its pods are gone."""

    uid: str


@dataclass(frozen=True, kw_only=True)
class End:
    """Exit with this code."""

    code: int
    reason: str


Action = Hold | Remove | GiveBack | Recount | Start | Retire | End
# Between two batches the Lease is renewed where it is time to.
MOST_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a person may see of this step: nodes that are there, out of how many, and NodeClaims of the pool."""

    state: str
    nodes: int
    of: int
    claims: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What a launcher carries from step to step; only `progress` survives it. Moments are seconds since the epoch.

    `seen_at` and `idle` are the last observation of a wait and the usable nodes in it, up to MAX. `ordered` says when
    the machines were ordered that came for this run, by their nodes, and `complete` when each was last seen with all of
    its devices, by the uid of its NodeClaim; after a crash they are empty, and a line of the report shorter. `gang` has
    the uids of the workers that were last seen unfinished, by their names.
    """

    progress: Progress | None = None
    quorum_since: float | None = None
    training_uid: str = ""
    seen_at: float | None = None
    idle: int = 0
    ordered: Mapping[str, float] = field(default_factory=dict)
    complete: Mapping[str, float] = field(default_factory=dict)
    gang: Mapping[str, str] = field(default_factory=dict)

    @property
    def candidate(self) -> int:
        """The candidate whose pool the next observation has to be of."""
        return self.progress.candidate if self.progress else 0


@dataclass(frozen=True, kw_only=True)
class Step:
    """The outcome of one step; the actions are to be done in their order."""

    memory: Memory
    report: Report
    actions: tuple[Action, ...]


def batches(actions: Iterable[Action]) -> Iterator[tuple[Action, ...]]:
    """The actions in their order, those together that may be done at the same time: up to `MOST_AT_ONCE` of a kind.

    These are pods to make, and pods to remove; every other action is alone.
    """
    for kind, some in groupby(actions, type):
        most = MOST_AT_ONCE if kind in (Hold, Remove) else 1
        run = tuple(some)
        yield from (run[start : start + most] for start in range(0, len(run), most))


def placeholders(request: Request, seen: Observation) -> tuple[Pod, ...]:
    """The placeholders of this run that are not yet on their way out, whichever wait they are of."""
    return tuple(pod for pod in seen.pods if is_placeholder(pod, request) and not pod.deleting)


def remove(pods: tuple[Pod, ...]) -> tuple[Remove, ...]:
    """The removal of each of these pods."""
    return tuple(Remove(name=pod.name, uid=pod.uid) for pod in pods)


# A word with a digit and a hyphen is the name of a node, NodeClaim or pod.
_OBJECT_NAME = re.compile(r"\b(?=[\w.-]*\d)[\w.]+(-[\w.]+)+\b")
_WORKERS = re.compile(r"(\d+ of )?\d+ (workers running|workers finished|finished)(, \d+ finished)?")


def substance(reason: str) -> set[str]:
    """Return the parts of a reason without what changes all the time: names, numbers, the plural."""
    return {_without_numbers(part) for part in reason.split("; ")}


def _without_numbers(part: str) -> str:
    part = re.sub(r"(NodeClaims? starting):.*", r"\1", part)
    part = _WORKERS.sub("WORKERS", part)
    part = re.sub(r"\d+(\.\d+)?", "#", _OBJECT_NAME.sub("NAME", part))
    return re.sub(r"\b(\w{3,}?)s\b", r"\1", part)


def is_news(report: Report, last: Report | None) -> bool:
    """Return whether the report differs from the last printed one in its state, its nodes or a part of its reason."""
    if last is None or (report.state, report.nodes, report.of) != (last.state, last.nodes, last.of):
        return True
    return not substance(report.reason) <= substance(last.reason)


def line(report: Report, elapsed: float) -> str:
    """The line for this report; `elapsed` in seconds since this launcher began."""
    return (
        f"launcher state={report.state} nodes={report.nodes}/{report.of} claims={report.claims} "
        f"reason={json.dumps(report.reason, ensure_ascii=False)} elapsed={elapsed:.0f}s"
    )
