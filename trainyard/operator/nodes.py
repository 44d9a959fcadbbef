"""Choose the nodes of an attempt: for queues with a pool, by `launcher.capacity`. Pure.

Placeholders make Karpenter launch nodes, and hold them. A node counts if a placeholder of the job runs there, because
then the scheduler has given it to this job only. `capacity` of the job's status keeps the state between two reconciles.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, Final

from launcher import capacity, manifests, node_release, observe
from launcher.actions import Hold, ReleaseNode, Remove, placeholders, remove
from launcher.capacity import Count, GiveUp, Submit, shortfall
from launcher.manifests import Owner, add_mark, mark, stamp
from launcher.observe import Node, NodePool, Observation, Pod
from launcher.progress import Progress
from launcher.request import GPU_RESOURCE, Placeholder, Pool, Request, Worker
from launcher.state_machine import hold_nodes
from trainyard.k8s import names, quantity
from trainyard.k8s.quantity import Amount
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.api.job import parse_job
from trainyard.operator.api.resolve import resolve
from trainyard.operator.children import (
    LOST_NODE_TAINTS,
    REQUIRED,
    build_worker,
    gpu_terms,
    owner_reference,
    pull_secrets,
    spec_digest,
)
from trainyard.operator.context import AttemptSpec, ReconcileContext
from trainyard.operator.diagnostics import jobs_without_pods
from trainyard.operator.plan import Deletion, deletion
from trainyard.operator.status import CapacityWait, read_status

# The interval while a job waits for nodes, and while only a change of the pool can help.
CAPACITY_POLL_SECONDS: Final = 2.0
IMPOSSIBLE_SECONDS: Final = 30.0
# Up to a fifth is added to `RETRY_SECONDS`, so that jobs that failed together do not retry together.
_JITTER: Final = 0.2
_FINISHED: Final = ("Succeeded", "Failed")
# Karpenter's message for a pod that no node of its pool can ever run, which is not a temporary shortage
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
class NodesChosen:
    """The attempt may start with this number of nodes."""

    nodes: int
    message: str


@dataclass(frozen=True, kw_only=True)
class NodesWait:
    """The attempt can't start yet. `gathering` is the state to keep, None for none."""

    reason: str
    message: str
    capacity_wait: CapacityWait | None = None
    deletions: tuple[Deletion, ...] = ()
    creations: tuple[JsonObject, ...] = ()
    requeue_after: float | None = None
    recount: bool = False


def pool_to_count(job: JsonObject, queue: JsonObject | None) -> str:
    """Return the pool whose nodes decide on the next step of this job, "" for none."""
    noted = read_status(job.get("status"))
    spec, _ = parse_job(job.get("spec"))
    if spec is None or queue is None or noted.final or noted.running or spec.suspend:
        return ""
    settings, _ = resolve(queue.get("spec") or {}, spec)
    return settings.queue.scheduling.pool if settings is not None else ""


def choose_nodes(
    ctx: ReconcileContext, attempt: AttemptSpec, leaving: int, first: NodesWait | None = None
) -> NodesChosen | NodesWait:
    """Return the number of nodes for the attempt, or how to wait for them. `leaving` earlier workers still run.

    While there is another wait `first`, no placeholders are created. An impossible job is reported before that.
    """
    if not attempt.cluster.placeholders:
        message = (
            f"there is no PriorityClass {names.PLACEHOLDER_PRIORITY_CLASS}, which pods have that hold the nodes of"
            f" pool {attempt.settings.queue.scheduling.pool}; the job begins when it is there"
        )
        return NodesWait(
            reason=n.REASON_PRIORITY_CLASS_NOT_FOUND,
            message=message,
            deletions=delete_placeholders(ctx),
            requeue_after=IMPOSSIBLE_SECONDS,
        )
    if ctx.refused:
        return NodesWait(
            reason=n.REASON_PLACEHOLDER_REFUSED,
            message=f"a pod that would hold a node is refused: {ctx.refused}",
            capacity_wait=_capacity_wait(ctx),
            requeue_after=IMPOSSIBLE_SECONDS,
        )
    if ctx.pool is None:  # the spec has changed since the read
        return NodesWait(
            reason=n.REASON_WAITING_FOR_NODES, message="the pool is not read yet", requeue_after=0.0
        )
    try:
        request = build_request(attempt, ctx.pool.pool)
    except Unreadable as error:
        return NodesWait(
            reason=n.REASON_QUEUE_INVALID, message=str(error), deletions=delete_placeholders(ctx)
        )
    choice = _Choice(ctx, attempt, request, leaving)
    return choice.hopeless() or first or choice.made()


class _Choice:
    """One choice of nodes."""

    def __init__(
        self, ctx: ReconcileContext, attempt: AttemptSpec, request: JobRequest, leaving: int
    ) -> None:
        self.ctx, self.attempt, self.request, self.leaving = ctx, attempt, request, leaving
        self.old, self.seen = _observation(ctx, attempt, request)
        self.capacity_wait = _capacity_wait(ctx)

    def hopeless(self) -> NodesWait | None:
        """Return the wait of a job that the pool can never fit, without placeholders; None for other jobs."""
        why = self._hopeless()
        if not why:
            return None
        there = self.seen.pool is not None
        return NodesWait(
            reason=n.REASON_CAPACITY_IMPOSSIBLE if there else n.REASON_POOL_NOT_FOUND,
            message=why,
            deletions=delete_placeholders(self.ctx),
            requeue_after=IMPOSSIBLE_SECONDS,
        )

    def made(self) -> NodesChosen | NodesWait:
        if self.capacity_wait.retry is not None:
            if self.ctx.now < self.capacity_wait.retry:
                return self._paused(self.capacity_wait.retry)
            self.capacity_wait = CapacityWait(since=self.ctx.now, tries=self.capacity_wait.tries)
        found = _count_allowed(self.attempt, self.request, self.seen)
        counted = _count_held(self.request, self.seen, found)
        verdict = "" if found.usable else self._verdict()
        if verdict:
            return self._failed(n.REASON_CAPACITY_IMPOSSIBLE, verdict, by_events=True)
        since, enough = self.capacity_wait.since, self.capacity_wait.quorum_since
        decision = capacity.decide(self.request, self.seen, counted, started=since, quorum_since=enough)
        if isinstance(decision, Submit):
            return self._begin(counted, decision)
        missing = shortfall(self.request, self.seen, counted, since)
        if isinstance(decision, GiveUp):
            return self._failed(n.REASON_INSUFFICIENT_CAPACITY, f"{decision.reason}: {missing}")
        self.capacity_wait = replace(self.capacity_wait, quorum_since=decision.since)
        return self._hold(counted, missing)

    @property
    def progress(self) -> Progress:
        """Return the wait as `launcher.state_machine` takes it."""
        since = self.capacity_wait.since
        return Progress(attempt=self.capacity_wait.tries, candidate=0, since=since, began=since)

    def _hopeless(self) -> str:
        given_up = capacity.preflight(self.request, self.seen, self.capacity_wait.since)
        if given_up is not None:
            return given_up.reason
        return taint_problem(self.attempt, self.seen.pool) if self.seen.pool else ""

    def _verdict(self) -> str:
        """Return Karpenter's message if it can never launch a node for a placeholder of this wait."""
        names = {self.request.placeholder_name(index) for index in range(self.request.max_nodes)}
        for each in self.seen.warnings:
            recent = each.at >= self.capacity_wait.since
            if recent and (each.kind, each.name, each.reason) == (_POOL, self.request.pool.name, _NO_TYPE):
                return (
                    f"pool {self.request.pool.name} has no available instance type: {each.message}; "
                    "set another type or zone in the pool"
                )
            about = each.kind == "Pod" and each.name in names and recent
            if about and _NEVER.search(each.message):
                said = each.message.removeprefix("Failed to schedule pod, ")
                return f"pool {self.request.pool.name} has no instance type that can run a worker: {said}"
        return ""

    def _hold(self, counted: Count, missing: str) -> NodesWait:
        """Keep the placeholders, and delete nodes that never became usable."""
        initialized = {each.uid: self.ctx.now for each in self.seen.claims if each.initialized}
        since = self.capacity_wait.since
        late = node_release.overdue(self.request, self.seen, since=since, heard=since, complete=initialized)
        if late and not self.seen.fresh:
            return _RECOUNT
        back = [self._delete_claim(each.claim.name, each.claim.uid) for each in late]
        back += [self._removed(pod) for each in late for pod in remove(each.placeholders)]
        number = max(0, capacity.target(self.request, self.seen) - self.leaving)
        actions = hold_nodes(self.request, self.seen, self.progress, number)
        creations = tuple(
            build_placeholder(self.attempt, self.request, each.index, each.wait)
            for each in actions
            if isinstance(each, Hold)
        )
        taken = [name for name in (each["metadata"]["name"] for each in creations) if self._is_taken(name)]
        have = f"{len(counted.usable)} of {self.request.max_nodes} nodes"
        enough = self.capacity_wait.quorum_since is not None
        waiting = NodesWait(
            reason=n.REASON_HOLDING_FOR_MORE if enough else n.REASON_WAITING_FOR_NODES,
            message=f"{have}: {missing}",
            capacity_wait=self.capacity_wait,
            deletions=(
                *map(deletion, self.old),
                *back,
                *(self._removed(each) for each in actions if isinstance(each, Remove)),
            ),
            creations=creations,
            requeue_after=CAPACITY_POLL_SECONDS,
        )
        if not taken:
            return waiting
        message = f"Pod {taken[0]} belongs to something else; the job begins when it is gone"
        return replace(waiting, reason=n.REASON_NAME_TAKEN, message=message, creations=())

    def _begin(self, counted: Count, decision: Submit) -> NodesChosen | NodesWait:
        """Delete the placeholders on nodes that are not chosen. Then the count must be the same without them."""
        if not self.seen.fresh:
            return _RECOUNT
        chosen = frozenset(counted.usable[: decision.nodes])
        surplus = [pod for pod in placeholders(self.request, self.seen) if pod.node not in chosen]
        unneeded = () if decision.by_events else self._unneeded()
        if not (surplus or unneeded or self.old):
            return NodesChosen(nodes=decision.nodes, message=decision.reason)
        return NodesWait(
            reason=n.REASON_HOLDING_FOR_MORE,
            message=decision.reason,
            capacity_wait=self.capacity_wait,
            deletions=(
                *map(deletion, self.old),
                *map(self._removed, remove(tuple(surplus))),
                *self._back(unneeded),
            ),
            requeue_after=0.0,
        )

    def _failed(self, reason: str, message: str, *, by_events: bool = False) -> NodesWait:
        """End this try. There are no placeholders until the next one.

        If only Events are the reason, delete no NodeClaims, because Events are not trusted.
        """
        if not self.seen.fresh:
            return _RECOUNT
        tries = self.capacity_wait.tries
        chance = random.Random(f"{self.ctx.meta.uid} {tries}").random()  # noqa: S311 (jitter)
        retry = self.ctx.now + self.request.retry_seconds * (1 + _JITTER * chance)
        unneeded = () if by_events else self._unneeded()
        return NodesWait(
            reason=reason,
            message=f"{message}; try {tries + 1} begins at {stamp(retry)}",
            capacity_wait=replace(self.capacity_wait, tries=tries + 1, quorum_since=None, retry=retry),
            deletions=(*delete_placeholders(self.ctx), *self._back(unneeded)),
            requeue_after=retry - self.ctx.now,
        )

    def _paused(self, retry: float) -> NodesWait:
        raw = self.ctx.status.raw
        said = (n.REASON_INSUFFICIENT_CAPACITY, n.REASON_CAPACITY_IMPOSSIBLE)
        known = raw.get("reason") in said and isinstance(raw.get("message"), str)
        return NodesWait(
            reason=raw["reason"] if known else n.REASON_INSUFFICIENT_CAPACITY,
            message=raw["message"] if known else f"try {self.capacity_wait.tries} begins at {stamp(retry)}",
            capacity_wait=self.capacity_wait,
            deletions=delete_placeholders(self.ctx),
            requeue_after=retry - self.ctx.now,
        )

    def _unneeded(self) -> tuple[ReleaseNode, ...]:
        return node_release.unneeded(self.request, self.seen, since=self.capacity_wait.since)

    def _back(self, claims: Iterable[ReleaseNode]) -> list[Deletion]:
        return [self._delete_claim(each.claim, each.uid) for each in claims]

    def _delete_claim(self, name: str, uid: str) -> Deletion:
        return Deletion(api_version="karpenter.sh/v1", kind="NodeClaim", namespace="", name=name, uid=uid)

    def _removed(self, pod: Remove) -> Deletion:
        namespace = self.request.namespace
        return Deletion(api_version="v1", kind="Pod", namespace=namespace, name=pod.name, uid=pod.uid)

    def _is_taken(self, name: str) -> bool:
        return ("Pod", name) in self.ctx.children.others


_RECOUNT: Final = NodesWait(reason=n.REASON_WAITING_FOR_NODES, message="", recount=True)


def _capacity_wait(ctx: ReconcileContext) -> CapacityWait:
    """Return the state of the wait, without times too far in the future after a change of the clock.

    A changed spec starts a new wait.
    """
    noted, now = ctx.status.capacity_wait, ctx.now
    if noted is None:
        return CapacityWait(since=now)
    if ctx.status.raw.get("observedGeneration") != ctx.meta.generation:
        return CapacityWait(since=now, tries=noted.tries)
    longest = now + RETRY_SECONDS * (1 + _JITTER)
    retry = None if noted.retry is None else min(noted.retry, longest)
    return replace(noted, since=min(noted.since, now), retry=retry)


def _observation(
    ctx: ReconcileContext, attempt: AttemptSpec, request: JobRequest
) -> tuple[list[JsonObject], Observation]:
    """Return the placeholders of an earlier spec, and the pool as if these were gone."""
    read: Any = ctx.pool
    made = build_placeholder(attempt, request, 0, "")["metadata"]["annotations"][n.ANNOTATION_MADE_OF]
    old, own = [], []
    for item in ctx.children.placeholders:
        pod = observe.pod(item)
        if pod.annotations.get(n.ANNOTATION_MADE_OF) != made and not pod.deleting:
            old.append(item)
            pod = replace(pod, deleting=True)
        own.append(pod)
    others = [pod for pod in read.pods if not _is_own(pod, request)]
    known = read.pool and with_node_resources(
        read.pool, read.nodes, node_resources(ctx.queue_status, request.pool.name)
    )
    # The pool itself declares its instance types here, so nothing else is compared with them.
    pool = known and replace(
        known,
        offers={
            label: values
            for label, values in known.offers.items()
            if label not in (names.LABEL_INSTANCE_TYPE, names.LABEL_ZONE)
        },
    )
    return old, replace(read, now=ctx.now, pool=pool, pods=(*own, *others))


def _is_own(pod: Pod, request: JobRequest) -> bool:
    return pod.namespace == request.namespace and pod.labels.get(names.LABEL_RUN) == request.run_id


def _count_allowed(attempt: AttemptSpec, request: JobRequest, seen: Observation) -> Count:
    """Count the pool's nodes without those that the workers' node affinity excludes.

    No placeholder starts there. As usable nodes, they would make the job wait for it without end.
    """
    found, gpu_type = capacity.count(request, seen), attempt.settings.queue.node_resources.gpu_type
    of_type = {REQUIRED: {"nodeSelectorTerms": gpu_terms(gpu_type)}} if gpu_type else {}
    out = {}
    for node in seen.nodes:
        if node.name not in found.usable or affinity_allows(request.affinity, node):
            continue
        out[node.name] = "left out by the workers' node affinity"
        if not affinity_allows(of_type, node):
            out[node.name] = f"its GPUs are not known to be of type {gpu_type}"
    return Count(
        usable=tuple(name for name in found.usable if name not in out),
        foreign=found.foreign,
        unusable={**found.unusable, **out},
    )


def _count_held(request: JobRequest, seen: Observation, found: Count) -> Count:
    """Count the nodes on which a placeholder of the job runs.

    Two jobs may see the same idle node at the same moment. The scheduler gives it to one of them.
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


# Workers replace placeholders within a second or two. With some schedulers and priority classes they never would.
PLACEHOLDER_SECONDS: Final = 20.0
DEFAULT_SCHEDULERS: Final = ("", "default-scheduler")


def delete_placeholders(ctx: ReconcileContext) -> tuple[Deletion, ...]:
    """Delete all placeholders of the job."""
    return tuple(
        deletion(each) for each in ctx.children.placeholders if "deletionTimestamp" not in each["metadata"]
    )


def release_placeholders(ctx: ReconcileContext) -> tuple[tuple[Deletion, ...], float | None]:
    """Return the placeholders that workers no longer need, and the seconds until more may be due."""
    workers, settings = ctx.children.workers_of(ctx.status.attempt), ctx.settings
    nodes, here = ctx.status.raw.get("nodes"), delete_placeholders(ctx)
    if not here:
        return (), None
    placed = sum(bool(each.node) or each.finished for each in workers)
    displaces = settings is not None and settings.queue.scheduling.scheduler in DEFAULT_SCHEDULERS
    if not displaces or (isinstance(nodes, int) and placed >= nodes):
        return here, None
    # A quota may have no room for workers beside the placeholders. Then the workers have no pods.
    waiting = [each.created for each in workers if not each.node and each.created is not None]
    since = min([*waiting, *(start for start, _, _ in jobs_without_pods(ctx))], default=None)
    left = PLACEHOLDER_SECONDS if since is None else since + PLACEHOLDER_SECONDS - ctx.now
    return (here, None) if left <= 0 else ((), left)


def find_unplaced_worker(ctx: ReconcileContext) -> tuple[str, float | None]:
    """Return a worker that lost its node and got no other; else the seconds until there may be one.

    The other workers of a fixed size wait for it on their nodes. Karpenter may launch another node within the time that
    any node may take. Another scheduler may let pods wait for its own reasons.
    """
    settings = ctx.settings
    if settings is None or not settings.queue.scheduling.pool:
        return "", None
    if any(each.least is not None for each in ctx.children.of(ctx.status.attempt)):
        return "", None
    if settings.queue.scheduling.scheduler not in DEFAULT_SCHEDULERS:
        return "", None
    waiting = [
        (each.created, each.name)
        for each in ctx.children.workers_of(ctx.status.attempt)
        if not (each.node or each.finished or each.deleting) and each.created is not None
    ]
    since, name = min(waiting, default=(None, ""))
    left = None if since is None else since + NODE_START_SECONDS - ctx.now
    return (name, None) if left is not None and left <= 0 else ("", left)


_NAME_FIELD: Final = "metadata.name"


def affinity_allows(affinity: Mapping[str, Any], node: Node) -> bool:
    """Return whether the required part of a nodeAffinity matches the node, as Kubernetes' scheduler decides.

    An unreadable affinity excludes no node.
    https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#node-affinity
    """
    try:
        required = affinity.get(REQUIRED)
        return not required or any(_term_matches(term, node) for term in required["nodeSelectorTerms"])
    except (AttributeError, KeyError, TypeError, IndexError):  # the API server refuses such pods
        return True


def _term_matches(term: JsonObject, node: Node) -> bool:
    """Return whether a term matches the node. An empty term matches none."""
    labels, fields = term.get("matchExpressions") or [], term.get("matchFields") or []
    asked = [(each, node.labels) for each in labels] + [(each, {_NAME_FIELD: node.name}) for each in fields]
    return bool(asked) and all(_matches(each, values) for each, values in asked)


def _matches(asked: JsonObject, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(asked["key"]), asked.get("values") or []
    match asked["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compare(value, values[0], operator)
    return True


def _compare(value: str | None, bound: str, operator: str) -> bool:
    try:
        mine, theirs = int(value or ""), int(bound)
    except ValueError:
        return False
    return mine > theirs if operator == "Gt" else mine < theirs


# The defaults of a launcher's run (docs/settings.md: training.capacityDeadlineSeconds and others).
DEADLINE_SECONDS: Final = 1200
HOLD_SECONDS: Final = 60
NODE_START_SECONDS: Final = 900
RETRY_SECONDS: Final = 240
# A first process without a handler ignores SIGTERM, so the trap ends it at once.
_PLACEHOLDER_COMMAND: Final = ["sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"]
_HOSTNAME: Final = "kubernetes.io/hostname"
_SOFT_EFFECT: Final = "PreferNoSchedule"


class Unreadable(ValueError):
    """An amount in the pod template can't be read; the message says which."""


@dataclass(frozen=True, kw_only=True)
class JobRequest(Request):
    """The request of a job. Its placeholders are named after it, and request `asks`, as its workers do.

    A run of the launcher takes whole nodes. A worker may request a part of a node, and each one still counts as one
    node. `affinity` is the workers' nodeAffinity, {} for none.
    """

    job: str
    asks: Mapping[str, str]
    affinity: Mapping[str, Any]

    def placeholder_name(self, index: int) -> str:
        return n.hold_pod(self.job, index)

    @property
    def resources(self) -> dict[str, str]:
        return dict(self.asks)


def build_request(attempt: AttemptSpec, pool: NodePool | None) -> JobRequest:
    """Return the request for the nodes of an attempt. Raises Unreadable."""
    size, queue = attempt.size, attempt.settings.queue
    spec = _worker_spec(attempt)
    amounts = worker_requests(attempt)
    resource = GPU_RESOURCE if size.gpus else "cpu"
    return JobRequest(
        job=attempt.name,
        asks={name: format_amount(amount) for name, amount in amounts.items()},
        affinity=_node_affinity(spec),
        run_id=f"{n.RUN_PREFIX}{attempt.name}",
        namespace=attempt.namespace,
        pool=Pool(
            name=queue.scheduling.pool,
            instance_type=_offered(pool, names.LABEL_INSTANCE_TYPE) or "any type",
            zone=_offered(pool, names.LABEL_ZONE) or "any zone",
            resource=resource,
            per_node=size.gpus or max(1, int(amounts.get(resource, 1))),
            max_nodes=size.nodes,  # the NodePool's limit is the real maximum
            efa_per_node=int(amounts.get(names.EFA_RESOURCE, 0)),
            node_selector=spec["nodeSelector"],
            tolerations=_tolerations(spec["tolerations"], pool),
        ),
        min_nodes=size.least,
        max_nodes=size.nodes,
        deadline_seconds=DEADLINE_SECONDS,
        hold_seconds=HOLD_SECONDS,
        node_start_seconds=NODE_START_SECONDS,
        attempts=1,
        retry_seconds=RETRY_SECONDS,
        max_restarts=attempt.settings.max_restarts,
        shape=names.SHAPE_ELASTIC if size.elastic else names.SHAPE_STATIC,
        active_deadline_seconds=None,
        placeholder=Placeholder(
            image=attempt.cluster.tools_image, priority_class=names.PLACEHOLDER_PRIORITY_CLASS
        ),
        worker=Worker(
            image=queue.image,
            service_account="",
            priority_class=queue.scheduling.priority_class_name,
            processes_per_node=size.processes,
            cpu=format_amount(amounts.get("cpu", 0)),
            memory=format_amount(amounts.get("memory", 0)),
            shared_memory="0",
            env={},
            args=(),
            command=None,
            mounts={},
        ),
        fallbacks=(),
    )


def _worker_spec(attempt: AttemptSpec) -> JsonObject:
    node = 0 if attempt.storage.each_node_its_own else None
    spec: JsonObject = build_worker(attempt, node)["spec"]
    return spec


def _node_affinity(spec: JsonObject) -> Mapping[str, Any]:
    return (spec.get("affinity") or {}).get("nodeAffinity") or {}


def worker_requests(attempt: AttemptSpec) -> dict[str, quantity.Amount]:
    """Return what the scheduler reserves for a worker.

    Raises:
        Unreadable: An amount can't be read.
    """
    try:
        return observe.effective_requests(_worker_spec(attempt))
    except (ValueError, TypeError, AttributeError) as error:
        raise Unreadable(f"podTemplate.spec asks for what is no amount: {error}") from None


def format_amount(amount: quantity.Amount) -> str:
    """Return an amount as a quantity, rounded up to a thousandth."""
    return f"{ceil(amount * 1000)}m" if isinstance(amount, Fraction) else str(amount)


def _offered(pool: NodePool | None, label: str) -> str:
    return ", ".join(pool.offers.get(label, ())) if pool is not None else ""


def _tolerations(given: Iterable[Mapping[str, Any]], pool: NodePool | None) -> tuple[Mapping[str, Any], ...]:
    """Return the worker's tolerations, each for one key. One for all taints would hide startup taints."""
    own = [each for each in given if each.get("key") and each.get("key") not in LOST_NODE_TAINTS]
    keys = {each.get("key") for each in own}
    taints = pool.taints if pool is not None else ()
    named = [
        {"key": key, "operator": "Exists", "effect": effect}
        for key, value, effect in taints
        if key not in keys and any(_tolerates(each, key, value, effect) for each in given)
    ]
    return (*own, *named)


def untolerated_taints(attempt: AttemptSpec, pool: NodePool) -> list[str]:
    """Return the pool's taints that the workers do not tolerate."""
    given = _worker_spec(attempt)["tolerations"]
    return [
        f"{key}={value}:{effect}" if value else f"{key}:{effect}"
        for key, value, effect in pool.taints
        if effect != _SOFT_EFFECT and not any(_tolerates(each, key, value, effect) for each in given)
    ]


def taint_problem(attempt: AttemptSpec, pool: NodePool) -> str:
    """Return which taints of the queue's pool keep the workers off its nodes; "" if none does."""
    refused = untolerated_taints(attempt, pool)
    if not refused:
        return ""
    name = attempt.settings.queue.scheduling.pool
    return (
        f"NodePool {name} has taints that the workers do not tolerate: {', '.join(refused)}; "
        "scheduling.tolerations of the queue must have them"
    )


def _tolerates(toleration: Mapping[str, Any], key: str, value: str, effect: str) -> bool:
    """Return whether a toleration matches a taint.

    https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    if (toleration.get("key") or key) != key or (toleration.get("effect") or effect) != effect:
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == value


def build_placeholder(attempt: AttemptSpec, request: JobRequest, index: int, wait: str) -> JsonObject:
    """Return the launcher's placeholder, owned by the job, each on a node of its own, where workers may run."""
    made = manifests.placeholder(request, index, Owner(name=attempt.name, uid=attempt.uid), wait)
    meta, spec = made["metadata"], made["spec"]
    meta["labels"] |= attempt.labels
    meta["ownerReferences"] = [owner_reference(attempt.name, attempt.uid)]
    apart = {"matchLabels": {n.LABEL_JOB: attempt.name, names.LABEL_ROLE: names.ROLE_PLACEHOLDER}}
    spec["affinity"] = {
        "nodeAffinity": add_mark(request.affinity, mark(request.namespace, request.run_id)),
        "podAntiAffinity": {REQUIRED: [{"labelSelector": apart, "topologyKey": _HOSTNAME}]},
    }
    spec["containers"][0]["command"] = list(_PLACEHOLDER_COMMAND)
    spec |= pull_secrets(attempt.settings.queue)
    meta["annotations"][n.ANNOTATION_MADE_OF] = spec_digest(spec)
    return made


NAME: Final = "name"
FOUND: Final = "found"
LIMITS: Final = "limits"
NODE: Final = "nodeResources"
NODES: Final = "maxNodes"
DECLARED: Final = "declared"
RESERVATIONS: Final = "reservations"
TAINTS: Final = "taints"
_TAINT: Final = ("key", "value", "effect")


def pool_status(name: str, seen: Observation, before: Any) -> JsonObject:
    """Return `pool` of the queue's status. `before` is the previous status."""
    if seen.pool is None:
        return {NAME: name, FOUND: False}
    pool = with_node_resources(seen.pool, seen.nodes, node_resources(before, name))
    maximum = max_nodes(pool)
    return {
        NAME: name,
        FOUND: True,
        LIMITS: _format_amounts(pool.limits),
        NODE: _format_amounts(pool.node),
        DECLARED: pool.declared,
        **({NODES: maximum} if maximum is not None else {}),
        **({RESERVATIONS: pool.reservations} if pool.reservations is not None else {}),
        **({TAINTS: [dict(zip(_TAINT, each, strict=True)) for each in pool.taints]} if pool.taints else {}),
    }


def with_node_resources(pool: NodePool, nodes: Iterable[Node], before: Mapping[str, Amount]) -> NodePool:
    """Return the pool with the resources of one node, if the pool does not declare them.

    They come from the present nodes of the pool, or from `before`. A pool with several instance types does not change,
    because the type of its next node is not known.
    """
    if pool.node or len(pool.offers.get(names.LABEL_INSTANCE_TYPE, ())) != 1:
        return pool
    node = dict(before)
    for each in nodes:
        if each.ready and each.labels.get(names.LABEL_INITIALIZED) == "true":
            node |= {name: max(amount, node.get(name, 0)) for name, amount in each.allocatable.items()}
    return replace(pool, node={name: amount for name, amount in node.items() if amount})


def max_nodes(pool: NodePool) -> int | None:
    """Return the maximum number of nodes of the pool; None if it is not known."""
    found = [
        int(limit // (1 if name == "nodes" else pool.node[name]))
        for name, limit in pool.limits.items()
        if name == "nodes" or pool.node.get(name)
    ]
    return min(found, default=None)


def node_resources(status: Any, name: str) -> Mapping[str, Amount]:
    """Return the resources of a node of this pool from a queue's status; {} if the status has none."""
    pool = status.get("pool") if isinstance(status, Mapping) else None
    if not isinstance(pool, Mapping) or pool.get(NAME) != name:
        return {}
    return _parse_amounts(pool.get(NODE))


def pool_rejection_reason(status: Any, attempt: AttemptSpec, now: float) -> str:
    """Return why the pool of a queue with this status can never provide the nodes of `making`; "" if it can."""
    name = attempt.settings.queue.scheduling.pool
    pool_fields = status.get("pool") if isinstance(status, Mapping) else None
    if not name or not isinstance(pool_fields, Mapping) or pool_fields.get(NAME) != name:
        return ""
    pool = NodePool(
        limits=_parse_amounts(pool_fields.get(LIMITS)),
        ready=True,
        problem="",
        node=_parse_amounts(pool_fields.get(NODE)),
        declared=pool_fields.get(DECLARED) is True,
        taints=_parse_taints(pool_fields.get(TAINTS)),
    )
    found = pool if pool_fields.get(FOUND) is True else None
    try:
        request = build_request(attempt, found)
    except Unreadable as error:
        return str(error)
    why = capacity.preflight(request, Observation(now=now, fresh=False, pool=found), now)
    if why is not None or found is None:
        return why.reason if why is not None else ""
    return taint_problem(attempt, found)


def reservation_warning(status: Any, name: str) -> str:
    """Return why the pool of this name can't buy a node now, which a reservation that begins later changes; or ""."""
    kept = status.get("pool") if isinstance(status, Mapping) else None
    if not name or not isinstance(kept, Mapping) or kept.get(NAME) != name or kept.get(RESERVATIONS) != 0:
        return ""
    return capacity.no_reservation(name)


def _format_amounts(amounts: Mapping[str, Amount]) -> dict[str, str]:
    return {name: format_amount(amount) for name, amount in sorted(amounts.items())}


def _parse_amounts(texts: Any) -> dict[str, Amount]:
    try:
        return {str(name): quantity.parse(text) for name, text in texts.items()}
    except (AttributeError, ValueError, TypeError):
        return {}


def _parse_taints(items: Any) -> tuple[tuple[str, str, str], ...]:
    taints = [each for each in items if isinstance(each, Mapping)] if isinstance(items, list) else []
    return tuple(
        (str(each.get("key", "")), str(each.get("value", "")), str(each.get("effect", ""))) for each in taints
    )
