"""Choose the nodes of an attempt: for queues with a pool, by `launcher.capacity`. Pure.

Placeholders make Karpenter buy machines, and hold them: a node counts where one of the job's own placeholders is, since
then the scheduler has given it to this job and to no other. What must be remembered between two looks stands in the
job's status, `capacity`; everything else is seen anew.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from launcher import capacity, giveback, observe
from launcher.actions import GiveBack, Hold, Remove, placeholders, remove
from launcher.capacity import Count, GiveUp, Submit
from launcher.holding import hold
from launcher.manifests import stamp
from launcher.observe import Observation, Pod
from launcher.progress import Progress
from launcher.reasons import shortfall
from trainyard.k8s import names
from trainyard.operator.core import affinity, job_spec, placement, pool_limits, pool_request, record
from trainyard.operator.core import names as n
from trainyard.operator.core.decision import Removal, removal
from trainyard.operator.core.displaced import withdrawn
from trainyard.operator.core.look import Look
from trainyard.operator.core.pods import Making
from trainyard.operator.core.pool_request import JobRequest, Unreadable
from trainyard.operator.core.reading import JsonObject
from trainyard.operator.core.record import Gathering
from trainyard.operator.core.resolve import resolve

# While nodes are waited for, and while nothing but somebody's change of the pool helps.
LOOK_SECONDS: Final = 2.0
IMPOSSIBLE_SECONDS: Final = 30.0
# `RETRY_SECONDS` and up to a fifth more by chance, so that jobs that failed together do not ask again together.
_STRETCH: Final = 0.2
_FINISHED: Final = ("Succeeded", "Failed")
# What Karpenter says of a pod that no machine of its pool can ever take, and of no passing lack
# (sigs.k8s.io/karpenter v1.14.1, InstanceTypeFilterError in pkg/controllers/provisioning/scheduling/nodeclaim.go).
_NEVER: Final = re.compile(
    r"no instance type (has enough resources|met all requirements|"
    r"met the scheduling requirements or had enough resources),"
)
# Its Event for a NodePool without available instance types (NoCompatibleInstanceTypes in
# pkg/controllers/provisioning/scheduling/events.go).
_POOL: Final = "NodePool"
_NO_TYPE: Final = "NoCompatibleInstanceTypes"


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The attempt may begin with so many nodes."""

    nodes: int
    message: str


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """The attempt can't begin yet. `gathering` is what to remember, None for nothing; `again` as in a Decision."""

    reason: str
    message: str
    gathering: Gathering | None = None
    removals: tuple[Removal, ...] = ()
    makes: tuple[JsonObject, ...] = ()
    again: float | None = None
    recount: bool = False


def pool_to_count(job: JsonObject, queue: JsonObject | None) -> str:
    """The pool whose nodes decide on the next step of this job; empty where none does: they need not be read."""
    noted = record.read(job.get("status"))
    spec, _ = job_spec.parse(job.get("spec"))
    if spec is None or queue is None or noted.final or noted.running or spec.suspend:
        return ""
    settings, _ = resolve(queue.get("spec") or {}, spec)
    return settings.queue.pool if settings is not None else ""


def choose(look: Look, making: Making, leaving: int, first: Waiting | None = None) -> Chosen | Waiting:
    """Return the number of nodes for the attempt, or how to wait for them. `leaving` earlier workers still run.

    While there is another wait `first`, no placeholders are created. An impossible job is reported before that.
    """
    if not making.cluster.placeholders:
        message = (
            f"there is no PriorityClass {names.PLACEHOLDER_PRIORITY_CLASS}, which pods have that hold the nodes of"
            f" pool {making.settings.queue.pool}; the job begins when it is there"
        )
        return Waiting(
            reason=n.REASON_PRIORITY_CLASS_NOT_FOUND,
            message=message,
            removals=withdrawn(look),
            again=IMPOSSIBLE_SECONDS,
        )
    if look.refused:
        return Waiting(
            reason=n.REASON_PLACEHOLDER_REFUSED,
            message=f"a pod that would hold a node is refused: {look.refused}",
            gathering=_gathering(look),
            again=IMPOSSIBLE_SECONDS,
        )
    if look.pool is None:  # it was read for another spec
        return Waiting(reason=n.REASON_WAITING_FOR_NODES, message="the pool is not read yet", again=0.0)
    try:
        request = pool_request.request_of(making, look.pool.pool)
    except Unreadable as error:
        return Waiting(reason=n.REASON_QUEUE_INVALID, message=str(error), removals=withdrawn(look))
    choice = _Choice(look, making, request, leaving)
    return choice.hopeless() or first or choice.made()


class _Choice:
    """One choice: what it is made from, and the wait that it is of."""

    def __init__(self, look: Look, making: Making, request: JobRequest, leaving: int) -> None:
        self.look, self.making, self.request, self.leaving = look, making, request, leaving
        self.old, self.seen = _observation(look, making, request)
        self.gathering = _gathering(look)

    def hopeless(self) -> Waiting | None:
        """Return the wait of a job that the pool can never fit, without placeholders; None for other jobs."""
        why = self._hopeless()
        if not why:
            return None
        there = self.seen.pool is not None
        return Waiting(
            reason=n.REASON_CAPACITY_IMPOSSIBLE if there else n.REASON_POOL_NOT_FOUND,
            message=why,
            removals=withdrawn(self.look),
            again=IMPOSSIBLE_SECONDS,
        )

    def made(self) -> Chosen | Waiting:
        if self.gathering.retry is not None:
            if self.look.now < self.gathering.retry:
                return self._paused(self.gathering.retry)
            self.gathering = Gathering(since=self.look.now, tries=self.gathering.tries)
        found = _allowed(self.making, self.request, self.seen)
        counted = _held(self.request, self.seen, found)
        verdict = "" if found.usable else self._verdict()
        if verdict:
            return self._failed(n.REASON_CAPACITY_IMPOSSIBLE, verdict, by_events=True)
        since, enough = self.gathering.since, self.gathering.enough_since
        decision = capacity.decide(self.request, self.seen, counted, started=since, quorum_since=enough)
        if isinstance(decision, Submit):
            return self._begin(counted, decision)
        missing = shortfall(self.request, self.seen, counted, since)
        if isinstance(decision, GiveUp):
            return self._failed(n.REASON_INSUFFICIENT_CAPACITY, f"{decision.reason}: {missing}")
        self.gathering = replace(self.gathering, enough_since=decision.since)
        return self._hold(counted, missing)

    @property
    def progress(self) -> Progress:
        """Return the wait as `launcher.holding` takes it."""
        since = self.gathering.since
        return Progress(attempt=self.gathering.tries, candidate=0, since=since, began=since)

    def _hopeless(self) -> str:
        given_up = capacity.preflight(self.request, self.seen, self.gathering.since)
        if given_up is not None:
            return given_up.reason
        return pool_request.taint_problem(self.making, self.seen.pool) if self.seen.pool else ""

    def _verdict(self) -> str:
        """What Karpenter says of the placeholders of this wait, where it can never buy a machine for one."""
        names = {self.request.placeholder_name(index) for index in range(self.request.max_nodes)}
        for each in self.seen.warnings:
            recent = each.at >= self.gathering.since
            if recent and (each.kind, each.name, each.reason) == (_POOL, self.request.pool.name, _NO_TYPE):
                return (
                    f"pool {self.request.pool.name} has no available instance type: {each.message}; "
                    "set another type or zone in the pool"
                )
            about = each.kind == "Pod" and each.name in names and recent
            if about and _NEVER.search(each.message):
                said = each.message.removeprefix("Failed to schedule pod, ")
                return f"pool {self.request.pool.name} has no machine that can take a worker: {said}"
        return ""

    def _hold(self, counted: Count, missing: str) -> Waiting:
        """Keeps the placeholders that there should be; machines that never became of use go back."""
        initialized = {each.uid: self.look.now for each in self.seen.claims if each.initialized}
        since = self.gathering.since
        late = giveback.overdue(self.request, self.seen, since=since, heard=since, complete=initialized)
        if late and not self.seen.fresh:
            return _RECOUNT
        back = [self._given_back(each.claim.name, each.claim.uid) for each in late]
        back += [self._removed(pod) for each in late for pod in remove(each.held_by)]
        number = max(0, capacity.target(self.request, self.seen) - self.leaving)
        actions = hold(self.request, self.seen, self.progress, number)
        makes = tuple(
            pool_request.placeholder(self.making, self.request, each.index, each.wait)
            for each in actions
            if isinstance(each, Hold)
        )
        taken = [name for name in (each["metadata"]["name"] for each in makes) if self._is_taken(name)]
        have = f"{len(counted.usable)} of {self.request.max_nodes} nodes"
        enough = self.gathering.enough_since is not None
        waiting = Waiting(
            reason=n.REASON_HOLDING_FOR_MORE if enough else n.REASON_WAITING_FOR_NODES,
            message=f"{have}: {missing}",
            gathering=self.gathering,
            removals=(
                *map(removal, self.old),
                *back,
                *(self._removed(each) for each in actions if isinstance(each, Remove)),
            ),
            makes=makes,
            again=LOOK_SECONDS,
        )
        if not taken:
            return waiting
        message = f"Pod {taken[0]} belongs to something else; the job begins when it is gone"
        return replace(waiting, reason=n.REASON_NAME_TAKEN, message=message, makes=())

    def _begin(self, counted: Count, decision: Submit) -> Chosen | Waiting:
        """What holds none of the chosen nodes goes first; then the count has to hold without it."""
        if not self.seen.fresh:
            return _RECOUNT
        chosen = frozenset(counted.usable[: decision.nodes])
        surplus = [pod for pod in placeholders(self.request, self.seen) if pod.node not in chosen]
        unneeded = () if decision.by_events else self._unneeded()
        if not (surplus or unneeded or self.old):
            return Chosen(nodes=decision.nodes, message=decision.reason)
        return Waiting(
            reason=n.REASON_HOLDING_FOR_MORE,
            message=decision.reason,
            gathering=self.gathering,
            removals=(
                *map(removal, self.old),
                *map(self._removed, remove(tuple(surplus))),
                *self._back(unneeded),
            ),
            again=0.0,
        )

    def _failed(self, reason: str, message: str, *, by_events: bool = False) -> Waiting:
        """End this try. There are no placeholders until the next one.

        If only Events are the reason, delete no NodeClaims, because Events are not trusted.
        """
        if not self.seen.fresh:
            return _RECOUNT
        tries = self.gathering.tries
        chance = random.Random(f"{self.look.meta.uid} {tries}").random()  # noqa: S311 (jitter)
        retry = self.look.now + self.request.retry_seconds * (1 + _STRETCH * chance)
        unneeded = () if by_events else self._unneeded()
        return Waiting(
            reason=reason,
            message=f"{message}; try {tries + 1} begins at {stamp(retry)}",
            gathering=replace(self.gathering, tries=tries + 1, enough_since=None, retry=retry),
            removals=(*withdrawn(self.look), *self._back(unneeded)),
            again=retry - self.look.now,
        )

    def _paused(self, retry: float) -> Waiting:
        raw = self.look.record.raw
        said = (n.REASON_INSUFFICIENT_CAPACITY, n.REASON_CAPACITY_IMPOSSIBLE)
        known = raw.get("reason") in said and isinstance(raw.get("message"), str)
        return Waiting(
            reason=raw["reason"] if known else n.REASON_INSUFFICIENT_CAPACITY,
            message=raw["message"] if known else f"try {self.gathering.tries} begins at {stamp(retry)}",
            gathering=self.gathering,
            removals=withdrawn(self.look),
            again=retry - self.look.now,
        )

    def _unneeded(self) -> tuple[GiveBack, ...]:
        return giveback.unneeded(self.request, self.seen, since=self.gathering.since)

    def _back(self, claims: Iterable[GiveBack]) -> list[Removal]:
        return [self._given_back(each.claim, each.uid) for each in claims]

    def _given_back(self, name: str, uid: str) -> Removal:
        return Removal(api_version="karpenter.sh/v1", kind="NodeClaim", namespace="", name=name, uid=uid)

    def _removed(self, pod: Remove) -> Removal:
        namespace = self.request.namespace
        return Removal(api_version="v1", kind="Pod", namespace=namespace, name=pod.name, uid=pod.uid)

    def _is_taken(self, name: str) -> bool:
        return ("Pod", name) in self.look.seen.others


_RECOUNT: Final = Waiting(reason=n.REASON_WAITING_FOR_NODES, message="", recount=True)


def _gathering(look: Look) -> Gathering:
    """The wait that the job is in, without a moment further ahead than it can be, after the clock was set back.

    A spec that was changed since is waited for anew.
    """
    noted, now = look.record.gathering, look.now
    if noted is None:
        return Gathering(since=now)
    if look.record.raw.get("observedGeneration") != look.meta.generation:
        return Gathering(since=now, tries=noted.tries)
    longest = now + pool_request.RETRY_SECONDS * (1 + _STRETCH)
    retry = None if noted.retry is None else min(noted.retry, longest)
    return replace(noted, since=min(noted.since, now), retry=retry)


def _observation(look: Look, making: Making, request: JobRequest) -> tuple[list[JsonObject], Observation]:
    """The placeholders that were made of another spec, and what there is of the pool, these as if they left already."""
    read: Any = look.pool
    made = pool_request.placeholder(making, request, 0, "")["metadata"]["annotations"][n.ANNOTATION_MADE_OF]
    old, own = [], []
    for item in look.seen.placeholders:
        pod = observe.pod(item)
        if pod.annotations.get(n.ANNOTATION_MADE_OF) != made and not pod.deleting:
            old.append(item)
            pod = replace(pod, deleting=True)
        own.append(pod)
    others = [pod for pod in read.pods if not _is_own(pod, request)]
    known = read.pool and pool_limits.with_node_resources(
        read.pool, read.nodes, pool_limits.node_resources(look.queue_status, request.pool.name)
    )
    # What a machine of the pool is, the pool itself says here: nothing else could contradict it.
    pool = known and replace(
        known,
        offers={
            label: values
            for label, values in known.offers.items()
            if label not in (names.LABEL_INSTANCE_TYPE, names.LABEL_ZONE)
        },
    )
    return old, replace(read, now=look.now, pool=pool, pods=(*own, *others))


def _is_own(pod: Pod, request: JobRequest) -> bool:
    return pod.namespace == request.namespace and pod.labels.get(names.LABEL_RUN) == request.run_id


def _allowed(making: Making, request: JobRequest, seen: Observation) -> Count:
    """The pool's nodes, of which those are not usable that the workers' node affinity leaves out.

    No placeholder gets there. Counted as usable, they would have the job wait for that, whatever Karpenter says.
    """
    found, gpu_type = capacity.count(request, seen), making.settings.queue.gpu_type
    of_type = {affinity.REQUIRED: {"nodeSelectorTerms": placement.gpu_terms(gpu_type)}} if gpu_type else {}
    out = {}
    for node in seen.nodes:
        if node.name not in found.usable or affinity.allows(request.affinity, node):
            continue
        out[node.name] = "left out by the workers' node affinity"
        if not affinity.allows(of_type, node):
            out[node.name] = f"its GPUs are not known to be of type {gpu_type}"
    return Count(
        usable=tuple(name for name in found.usable if name not in out),
        foreign=found.foreign,
        unusable={**found.unusable, **out},
    )


def _held(request: JobRequest, seen: Observation, found: Count) -> Count:
    """Of the nodes that could take a worker those that one of the job's placeholders holds.

    Two jobs that look at the same moment see the same idle node, and the scheduler gives it to one of them.
    """
    holding = {pod.node for pod in placeholders(request, seen) if pod.phase not in _FINISHED}
    return Count(
        usable=tuple(name for name in found.usable if name in holding),
        foreign=found.foreign,
        unusable={
            **found.unusable,
            **{name: "free, and no placeholder there yet" for name in found.usable if name not in holding},
        },
    )
