"""What a launcher has counted so far: each step adds to it. Pure; the metrics are made of it.

Everything counts from the launcher's own beginning, as Prometheus has it of a process that starts anew: what the
launcher before this one has counted is not counted again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import floor
from typing import NamedTuple

from launcher.actions import Memory, Step
from launcher.capacity import target
from launcher.observe import Observation
from launcher.progress import Progress
from launcher.refusals import refusals
from launcher.request import Request
from trainyard.k8s import names

# An Event's uid is remembered for as long as it is seen, and this long: the API server's cache, from which some lists
# come, may be older than what a watch has told.
REMEMBERED_SECONDS = 7200.0
_WITHOUT_TRAINING = frozenset(
    {names.STATE_WAITING, names.STATE_HOLDING, names.STATE_PAUSING, names.STATE_RESTARTING}
)
_ASKING = frozenset({names.STATE_WAITING, names.STATE_HOLDING})


class Refusal(NamedTuple):
    """What EC2 refused: the machine, where, and with which error code."""

    pool: str
    zone: str
    instance_type: str
    code: str


@dataclass(frozen=True, kw_only=True)
class Tally:
    """The counts of one launcher.

    `ready_nodes` and `nodes_wanted` are of `pool`, the one that the last observation was of. `decision_seconds` is the
    time from the fresh lists to the answer that the PyTorchJob is made, None before. `began` is when the first
    observation was made, in seconds since the epoch, and `known` has the Events that were counted, by uid, with their
    times.
    """

    run: str
    pool: str
    waiting: bool = False
    ready_nodes: int = 0
    nodes_wanted: int = 0
    attempts: int = 0
    restarts: int = 0
    machines_given_back: int = 0
    idle_node_seconds: float = 0.0
    decision_seconds: float | None = None
    refused: Mapping[Refusal, int] = field(default_factory=dict)
    began: float | None = None
    known: Mapping[str, float] = field(default_factory=dict)


def nothing(request: Request) -> Tally:
    """Before the first observation."""
    return Tally(run=request.run_id, pool=request.pool.name)


def stepped(tally: Tally, request: Request, before: Memory, step: Step, seen: Observation) -> Tally:
    """The counts after a step that was taken from `before`, when this was seen."""
    candidate, report = request.candidate(before.candidate), step.report
    wanted = target(candidate, seen) if report.state in _ASKING else report.nodes
    tally = replace(
        tally,
        pool=candidate.pool.name,
        waiting=report.state in _WITHOUT_TRAINING,
        ready_nodes=report.nodes,
        nodes_wanted=0 if report.state == names.STATE_PAUSING else wanted,
        attempts=tally.attempts + _begun(step.memory.progress) - _begun(before.progress),
        restarts=tally.restarts + _restarts(step.memory.progress) - _restarts(before.progress),
        machines_given_back=tally.machines_given_back
        + _given_back(step.memory.progress)
        - _given_back(before.progress),
        idle_node_seconds=tally.idle_node_seconds + _idle(before.progress, step.memory.progress),
        began=seen.now if tally.began is None else tally.began,
    )
    return _refused(tally, candidate, before.progress or step.memory.progress, seen)


def decided(tally: Tally, seconds: float) -> Tally:
    """The counts after a training was asked for, this long after the lists were read."""
    return replace(tally, decision_seconds=seconds)


def _begun(progress: Progress | None) -> int:
    """How many attempts have begun; in a pause the next one is noted already."""
    return 0 if progress is None else progress.attempt - (progress.resumes is not None)


def _restarts(progress: Progress | None) -> int:
    return 0 if progress is None else progress.restarts


def _given_back(progress: Progress | None) -> int:
    return 0 if progress is None else len(progress.given_back)


def _idle(before: Progress | None, after: Progress | None) -> float:
    """Node-seconds of this step. The progress has those of its attempt, and begins each one with none."""
    if after is None:
        return 0.0
    same = before is not None and _begun(before) == _begun(after)
    return after.idle_node_seconds - (before.idle_node_seconds if before is not None and same else 0.0)


def _refused(tally: Tally, candidate: Request, progress: Progress | None, seen: Observation) -> Tally:
    """Adds the refusals of this wait that are not counted yet."""
    if progress is None or tally.began is None:
        return tally
    # Events have whole seconds, cut off.
    since = floor(max(progress.began, tally.began))
    there = {warning.uid: (warning, code) for warning, code in refusals(candidate, seen.warnings, since)}
    if there.keys() <= tally.known.keys():
        return tally
    refused = dict(tally.refused)
    pool = candidate.pool
    for uid in there.keys() - tally.known.keys():
        kind = Refusal(pool=pool.name, zone=pool.zone, instance_type=pool.instance_type, code=there[uid][1])
        refused[kind] = refused.get(kind, 0) + 1
    oldest = seen.now - REMEMBERED_SECONDS
    kept = {uid: at for uid, at in tally.known.items() if at > oldest}
    return replace(
        tally, refused=refused, known={**kept, **{uid: warning.at for uid, (warning, _) in there.items()}}
    )
