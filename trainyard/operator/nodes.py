"""Choose the nodes of an attempt in a Karpenter pool, by the rules of the launcher. Pure. Entry point: `choose_nodes`.

Placeholders make Karpenter launch nodes, and reserve them for the job. A node counts if a placeholder of the job runs
there, because then no other job can get it. `capacity` of the job's status keeps the state between two reconciles.
The queue's status has the limits of its pool, for `kubectl torchrun submit`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any, Final, NamedTuple

from launcher import capacity, manifests, node_release, observe
from launcher.actions import CreatePlaceholder, Recount, ReleaseNode, Remove
from launcher.capacity import Count, GiveUp, Submit, placeholders, shortfall
from launcher.manifests import LOST_NODE_TAINTS, REQUIRED, Owner, add_mark, mark, stamp
from launcher.observe import NodePool, Observation
from launcher.progress import Progress
from launcher.request import NodeRequest, Placeholder, Pool, count_of
from launcher.state_machine import hold_nodes, is_of_this_wait
from trainyard.k8s import names, quantity
from trainyard.k8s.quantity import Amount
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.children import GPU_RESOURCE, build_worker, owner_reference, pull_secrets, spec_digest
from trainyard.operator.context import AttemptSpec, CapacityStatus, PendingReason, ReconcileContext
from trainyard.operator.observe import OVER
from trainyard.operator.plan import Deletion, ReconcilePlan, deletions_of

# The requeue intervals of a job that waits for nodes, and of one that only a change of the pool can help.
CAPACITY_POLL_SECONDS: Final = 2.0
IMPOSSIBLE_SECONDS: Final = 30.0
# The defaults of a launcher's run (docs/settings.md: training.capacityDeadlineSeconds and others).
DEADLINE_SECONDS: Final = 1200
HOLD_SECONDS: Final = 60
NODE_START_SECONDS: Final = 900
RETRY_SECONDS: Final = 240
# Up to a fifth is added to `RETRY_SECONDS`, so that jobs that failed together do not retry together.
_JITTER: Final = 0.2
# Workers preempt placeholders within a second or two. Some schedulers and priority classes never preempt placeholders.
# Those are deleted: at once with a scheduler that is not Kubernetes' own, otherwise after this time.
PLACEHOLDER_SECONDS: Final = 20.0
DEFAULT_SCHEDULERS: Final = ("", "default-scheduler")
# Karpenter's message for a pod that no node of its pool can ever run, which is not a temporary shortage
# (sigs.k8s.io/karpenter v1.14.1, InstanceTypeFilterError in pkg/controllers/provisioning/scheduling/nodeclaim.go).
_NEVER: Final = re.compile(
    r"no instance type (has enough resources|met all requirements|"
    r"met the scheduling requirements or had enough resources),"
)
# The kind and the reason of its Event for a NodePool without available instance types (NoCompatibleInstanceTypes in
# pkg/controllers/provisioning/scheduling/events.go).
_NO_TYPE: Final = ("NodePool", "NoCompatibleInstanceTypes")


def pool_to_count(ctx: ReconcileContext) -> str:
    """Return the pool whose nodes decide on the next step of this job, "" for none."""
    needs_no_nodes = ctx.status.final or ctx.status.running or ctx.spec.suspend
    if needs_no_nodes or ctx.settings is None or not ctx.is_spec_readable:
        return ""
    return ctx.settings.queue.scheduling.pool


def choose_nodes(
    ctx: ReconcileContext, attempt: AttemptSpec, leaving: int, workspace: PendingReason | None = None
) -> Submit | PendingReason | Recount:
    """Return the number of nodes for the attempt, or why there are not enough yet.

    `leaving` earlier workers still run. While the job waits for its `workspace`, no placeholders are created, but a job
    that the pool can never fit is reported.
    """
    if not attempt.cluster.placeholders:
        name, pool = names.PLACEHOLDER_PRIORITY_CLASS, attempt.settings.queue.scheduling.pool
        message = (
            f"PriorityClass {name} does not exist. Pods with this class reserve the nodes of pool {pool}. Create it: "
            f"kubectl create priorityclass {name} --value=-100 --preemption-policy=Never"
        )
        return pending_without_nodes(ctx, n.REASON_PRIORITY_CLASS_NOT_FOUND, message, IMPOSSIBLE_SECONDS)
    state = _read_capacity(ctx)
    if ctx.refused:
        message = f"the API server rejects a placeholder, the pod that reserves a node: {ctx.refused}"
        reason = n.REASON_PLACEHOLDER_REFUSED
        return PendingReason(reason=reason, message=message, requeue_after=IMPOSSIBLE_SECONDS, capacity=state)
    assert ctx.pool is not None  # noqa: S101 (the pool of `pool_to_count`)
    try:
        request = build_request(attempt, ctx.pool.pool)
    except ValueError as error:
        return pending_without_nodes(ctx, n.REASON_QUEUE_INVALID, str(error), None)
    seen = _observe(ctx, attempt, request, ctx.pool)
    if message := _impossible(attempt, request, seen, state.since):
        reason = n.REASON_CAPACITY_IMPOSSIBLE if seen.pool is not None else n.REASON_POOL_NOT_FOUND
        return pending_without_nodes(ctx, reason, message, IMPOSSIBLE_SECONDS)
    if workspace is not None:
        return workspace
    if state.retry is not None:
        if ctx.now < state.retry:
            return _pause(ctx, state, state.retry)
        state = CapacityStatus(since=ctx.now, tries=state.tries)
    return _decide(ctx, attempt, request, seen, state, leaving)


def _decide(
    ctx: ReconcileContext,
    attempt: AttemptSpec,
    request: JobRequest,
    seen: Observation,
    state: CapacityStatus,
    leaving: int,
) -> Submit | PendingReason | Recount:
    """Start, wait with placeholders, or end this try. Anything but a wait needs a read without caches."""
    since = state.since
    # A job has one pool. The launcher labels the placeholders with the number of the try.
    progress = Progress(attempt=state.tries, candidate=0, since=since, began=since)
    free = capacity.count(request, seen)
    counted = _count_reserved(request, seen, free)
    decision = capacity.decide(request, seen, counted, began=since, quorum_since=state.quorum_since)
    never = "" if counted.usable else _find_verdict(request, seen, since, has_free_node=bool(free.usable))
    initialized = {claim.uid: ctx.now for claim in seen.claims if claim.initialized}
    late = node_release.overdue(request, seen, since=since, watched_since=since, complete=initialized)
    if not seen.fresh and (never or late or not isinstance(decision, capacity.Wait)):
        return Recount()
    if never:  # Events are not trusted, so no NodeClaim is deleted
        return _end_try(ctx, state, n.REASON_CAPACITY_IMPOSSIBLE, never)
    unneeded = [
        _delete("NodeClaim", each.claim, each.uid)
        for each in node_release.unneeded(request, seen, since=since)
    ]
    if isinstance(decision, Submit):
        # Delete the placeholders on nodes that are not chosen. The next reconcile counts again.
        chosen = counted.usable[: decision.nodes]
        surplus = [
            _delete("Pod", pod.name, pod.uid, request.namespace)
            for pod in placeholders(request, seen)
            if pod.node not in chosen or not is_of_this_wait(pod, progress)
        ]
        deletions = (*surplus, *(() if decision.by_events else unneeded))
        if not deletions:
            return decision
        return PendingReason(
            reason=n.REASON_HOLDING_FOR_MORE,
            message=decision.reason,
            requeue_after=0.0,
            capacity=state,
            deletions=deletions,
        )
    missing = shortfall(request, seen, counted, since)
    if isinstance(decision, GiveUp):
        message = f"{decision.reason}: {missing}"
        return _end_try(ctx, state, n.REASON_INSUFFICIENT_CAPACITY, message, unneeded)
    # Keep the placeholders, and delete nodes that never became usable.
    actions = hold_nodes(request, seen, progress, max(0, capacity.target(request, seen) - leaving))
    creations = [
        build_placeholder(attempt, request, action.index, action.wait)
        for action in actions
        if isinstance(action, CreatePlaceholder)
    ]
    released = [
        _delete("NodeClaim", action.claim, action.uid) for action in late if isinstance(action, ReleaseNode)
    ]
    removed = [
        _delete("Pod", action.name, action.uid, request.namespace)
        for action in (*late, *actions)
        if isinstance(action, Remove)
    ]
    reason = n.REASON_WAITING_FOR_NODES if decision.quorum_since is None else n.REASON_HOLDING_FOR_MORE
    ready = count_of(request.max_nodes, "node is ready", "nodes are ready")
    message = f"{len(counted.usable)} of {ready}: {missing}"
    created = (manifest["metadata"]["name"] for manifest in creations)
    if taken := next((name for name in created if ("Pod", name) in ctx.children.foreign_objects), ""):
        reason, creations = n.REASON_NAME_TAKEN, []
        message = f"Pod {taken} does not belong to this job, which needs the name. Delete the pod"
    return PendingReason(
        reason=reason,
        message=message,
        requeue_after=CAPACITY_POLL_SECONDS,
        capacity=replace(state, quorum_since=decision.quorum_since),
        deletions=(*released, *removed),
        creations=tuple(creations),
    )


def pending_without_nodes(
    ctx: ReconcileContext,
    reason: str,
    message: str,
    requeue_after: float | None,
    capacity: CapacityStatus | None = None,
    claims: Iterable[Deletion] = (),
) -> PendingReason:
    """Return a wait during which the job holds no nodes. These NodeClaims are deleted as well."""
    return PendingReason(
        reason=reason,
        message=message,
        requeue_after=requeue_after,
        capacity=capacity,
        deletions=(*delete_placeholders(ctx), *claims),
    )


def _observe(
    ctx: ReconcileContext, attempt: AttemptSpec, request: JobRequest, read: Observation
) -> Observation:
    """Return the pool with the placeholders as they were read for the job."""
    digest = build_placeholder(attempt, request, 0, "")["metadata"]["annotations"][n.ANNOTATION_MADE_OF]
    pods = [
        pod
        for pod in read.pods
        if pod.namespace != request.namespace or pod.labels.get(names.LABEL_RUN) != request.run_id
    ]
    for pod in map(observe.pod, ctx.children.placeholders):
        if pod.annotations.get(n.ANNOTATION_MADE_OF) != digest:
            # A placeholder of an earlier spec counts as one of an earlier wait.
            pod = replace(pod, labels={**pod.labels, names.LABEL_ATTEMPT: ""})
        pods.append(pod)
    pool = read.pool
    if pool is not None:
        # The pool itself declares its instance types here, so nothing else is compared with them.
        compared = (names.LABEL_INSTANCE_TYPE, names.LABEL_ZONE)
        offers = {label: values for label, values in pool.offers.items() if label not in compared}
        pool = replace(pool, offers=offers)
    return replace(read, now=ctx.now, pool=pool, pods=tuple(pods))


def _impossible(attempt: AttemptSpec, request: JobRequest, seen: Observation, since: float) -> str:
    """Return why the pool can never fit the job, whose wait began at `since`; "" if it may.

    `capacity.decide` tests `preflight` too, but is not called for a job that waits for its workspace or its next try.
    """
    if problem := capacity.preflight(request, seen, since):
        return problem
    return taint_problem(attempt, seen.pool) if seen.pool is not None else ""


def _count_reserved(request: JobRequest, seen: Observation, free: Count) -> Count:
    """Count those of the free nodes on which a placeholder of the job runs.

    Two jobs may see the same idle node at the same moment. The scheduler gives it to one of them. No placeholder starts
    on a node that the workers' node affinity excludes.
    """
    reserved = {pod.node for pod in placeholders(request, seen) if pod.phase not in OVER}
    idle = {name: capacity.FREE for name in {*free.usable} - reserved}
    usable = tuple(name for name in free.usable if name in reserved)
    return replace(free, usable=usable, unusable={**free.unusable, **idle})


def _find_verdict(request: JobRequest, seen: Observation, since: float, *, has_free_node: bool) -> str:
    """Return Karpenter's message if it can never launch a node for a placeholder of this wait.

    A message about the whole pool does not count with a free node, on which a placeholder may be about to start.
    """
    pool = request.pool.name
    own = {request.placeholder_name(index) for index in range(request.max_nodes)}
    for event in seen.warnings:
        if event.at < since:
            continue
        if (event.kind, event.reason) == _NO_TYPE and event.name == pool and not has_free_node:
            return f"pool {pool} has no available instance type: {event.message}. Set another type or zone in the pool"
        if event.kind == "Pod" and event.name in own and _NEVER.search(event.message):
            message = event.message.removeprefix("Failed to schedule pod, ")
            return f"pool {pool} has no instance type that can run a worker: {message}"
    return ""


def _end_try(
    ctx: ReconcileContext, state: CapacityStatus, reason: str, message: str, claims: Iterable[Deletion] = ()
) -> PendingReason:
    """End this try, and delete these NodeClaims. There are no placeholders until the next try."""
    chance = random.Random(f"{ctx.meta.uid} {state.tries}").random()  # noqa: S311 (jitter)
    retry = ctx.now + RETRY_SECONDS * (1 + _JITTER * chance)
    state = replace(state, tries=state.tries + 1, quorum_since=None, retry=retry)
    message = f"{message}; {_next_try(state.tries, retry)}"
    return pending_without_nodes(ctx, reason, message, retry - ctx.now, state, claims)


def _pause(ctx: ReconcileContext, state: CapacityStatus, retry: float) -> PendingReason:
    """Keep the reason and the message of the last try until the next one."""
    reason, message = (ctx.status.raw.get(key) for key in ("reason", "message"))
    known = (n.REASON_INSUFFICIENT_CAPACITY, n.REASON_CAPACITY_IMPOSSIBLE)
    if reason not in known or message is None:
        reason, message = known[0], _next_try(state.tries, retry)
    return pending_without_nodes(ctx, reason, message, retry - ctx.now, state)


def _next_try(number: int, at: float) -> str:
    return f"try {number} starts at {stamp(at)}"


def _delete(kind: str, name: str, uid: str, namespace: str = "") -> Deletion:
    version = "v1" if kind == "Pod" else "karpenter.sh/v1"
    return Deletion(api_version=version, kind=kind, namespace=namespace, name=name, uid=uid)


def _read_capacity(ctx: ReconcileContext) -> CapacityStatus:
    """Return the state of the wait. A changed spec starts a new wait.

    Times that are too far in the future, after a change of the clock, are reduced.
    """
    before, now = ctx.status.capacity, ctx.now
    if before is None:
        return CapacityStatus(since=now)
    if ctx.status.raw.get("observedGeneration") != ctx.meta.generation:
        return CapacityStatus(since=now, tries=before.tries)
    longest = now + RETRY_SECONDS * (1 + _JITTER)
    retry = None if before.retry is None else min(before.retry, longest)
    return replace(before, since=min(before.since, now), retry=retry)


def delete_placeholders(ctx: ReconcileContext) -> tuple[Deletion, ...]:
    """Delete all placeholders of the job."""
    return tuple(deletions_of(ctx.children.placeholders))


def release_placeholders(ctx: ReconcileContext) -> ReconcilePlan:
    """Delete the placeholders that workers no longer need."""
    settings, nodes, present = ctx.settings, ctx.status.raw.get("nodes"), delete_placeholders(ctx)
    placed = sum(bool(worker.node) or worker.finished for worker in ctx.workers)
    preempts = settings is not None and settings.queue.scheduling.scheduler in DEFAULT_SCHEDULERS
    if not present or not preempts or (isinstance(nodes, int) and placed >= nodes):
        return ReconcilePlan(deletions=present)
    # A quota may have no room for both workers and placeholders. Then the workers have no pods.
    starts = [job.started for job in ctx.jobs if job.started is not None]
    left = min(starts, default=ctx.now) + PLACEHOLDER_SECONDS - ctx.now
    return ReconcilePlan(deletions=present) if left <= 0 else ReconcilePlan(requeue_after=left)


class UnplacedWorker(NamedTuple):
    """The name of a worker without a node, "" for none. `requeue_after` is when there may be one, in seconds."""

    name: str
    requeue_after: float | None = None


def find_unplaced_worker(ctx: ReconcileContext) -> UnplacedWorker:
    """Return a worker that has had no node for NODE_START_SECONDS.

    With a fixed size, the other workers wait for it on their nodes. Karpenter gets as much time as for any node to
    launch another one. With another scheduler nothing is returned, because it may let pods wait for its own reasons.
    """
    scheduling = ctx.settings.queue.scheduling if ctx.settings is not None else None
    is_elastic = any(job.minimum is not None for job in ctx.jobs)
    if is_elastic or not (scheduling and scheduling.pool and scheduling.scheduler in DEFAULT_SCHEDULERS):
        return UnplacedWorker("")
    waiting = [
        (worker.created, worker.name)
        for worker in ctx.workers
        if not (worker.node or worker.finished or worker.deleting) and worker.created is not None
    ]
    since, name = min(waiting, default=(None, ""))
    left = None if since is None else since + NODE_START_SECONDS - ctx.now
    return UnplacedWorker(name) if left is not None and left <= 0 else UnplacedWorker("", left)


@dataclass(frozen=True, kw_only=True)
class JobRequest(NodeRequest):
    """The request of a job. Its placeholders are named after the job.

    A run of the launcher takes whole nodes. A worker of a job may request a part of a node, but counts as one node.
    """

    job: str  # the name of the job
    requests: Mapping[str, str]  # the resource requests of a worker, and so of a placeholder
    affinity: Mapping[str, Any]  # the workers' nodeAffinity; {} for none
    gpus: int  # the GPUs of the job, if its number of nodes follows from them; else 0
    gpus_per_node: int  # the GPUs of a node in the queue

    def describe_need(self) -> str:
        if not self.gpus:
            return super().describe_need()
        total = count_of(self.gpus, "GPU is", "GPUs are")
        each = f"{count_of(self.pool.per_node, 'GPU')} each"
        setting = f"nodeResources.gpus of the queue is {self.gpus_per_node}"
        return f"{total} {count_of(self.min_nodes, 'node')} with {each} ({setting})"

    def describe_amount(self, nodes: int) -> str:
        return count_of(nodes * self.gpus_per_node, "GPU") if self.gpus else super().describe_amount(nodes)

    def placeholder_name(self, index: int) -> str:
        return n.hold_pod(self.job, index)

    @property
    def resources(self) -> dict[str, str]:
        return dict(self.requests)


def build_request(attempt: AttemptSpec, pool: NodePool | None) -> JobRequest:
    """Return the request for the nodes of an attempt. Raises ValueError."""
    size, queue = attempt.size, attempt.settings.queue
    spec, amounts = _worker_spec(attempt), worker_requests(attempt)
    resource = GPU_RESOURCE if size.gpus else "cpu"
    offers = pool.offers if pool is not None else {}
    return JobRequest(
        job=attempt.name,
        requests=_format_amounts(amounts),
        affinity=(spec.get("affinity") or {}).get("nodeAffinity") or {},
        gpus=size.total_gpus if attempt.spec.num_nodes is None and attempt.spec.elastic is None else 0,
        gpus_per_node=queue.node_resources.gpus,
        run_id=f"{n.RUN_PREFIX}{attempt.name}",
        namespace=attempt.namespace,
        pool=Pool(
            name=queue.scheduling.pool,
            instance_type=", ".join(offers.get(names.LABEL_INSTANCE_TYPE, ())) or "any type",
            zone=", ".join(offers.get(names.LABEL_ZONE, ())) or "any zone",
            resource=resource,
            per_node=size.gpus or max(1, int(amounts.get(resource, 1))),
            max_nodes=size.nodes,  # the NodePool's limit is the real maximum
            efa_per_node=int(amounts.get(names.EFA_RESOURCE, 0)),
            node_selector=spec["nodeSelector"],
            tolerations=_placeholder_tolerations(spec["tolerations"], pool),
        ),
        min_nodes=size.minimum,
        max_nodes=size.nodes,
        deadline_seconds=DEADLINE_SECONDS,
        hold_seconds=HOLD_SECONDS,
        node_start_seconds=NODE_START_SECONDS,
        active_deadline_seconds=None,
        placeholder=Placeholder(
            image=attempt.cluster.tools_image, priority_class=names.PLACEHOLDER_PRIORITY_CLASS
        ),
    )


def _worker_spec(attempt: AttemptSpec) -> JsonObject:
    spec: JsonObject = build_worker(attempt, 0 if attempt.storage.each_node_its_own else None)["spec"]
    return spec


def worker_requests(attempt: AttemptSpec) -> dict[str, Amount]:
    """Return the resources that the scheduler reserves for a worker. Raises ValueError for an invalid quantity."""
    try:
        return observe.effective_requests(_worker_spec(attempt))
    except (ValueError, TypeError, AttributeError) as error:
        message = (
            f"podTemplate.spec: invalid quantity in resources: {error}. Use a quantity such as 500m or 16Gi"
        )
        raise ValueError(message) from None


def format_amount(amount: Amount) -> str:
    """Return an amount as a quantity, rounded up to a thousandth."""
    return f"{ceil(amount * 1000)}m" if isinstance(amount, Fraction) else str(amount)


def _placeholder_tolerations(
    tolerations: Iterable[JsonObject], pool: NodePool | None
) -> tuple[JsonObject, ...]:
    """Return the worker's tolerations, each for one key. A toleration of all taints would hide startup taints."""
    own = [each for each in tolerations if each.get("key") and each["key"] not in LOST_NODE_TAINTS]
    keys = {each["key"] for each in own}
    of_pool = [
        {"key": key, "operator": "Exists", "effect": effect}
        for key, value, effect in (pool.taints if pool is not None else ())
        if key not in keys and node_release.tolerates(tolerations, (key, value, effect))
    ]
    return (*own, *of_pool)


def taint_problem(attempt: AttemptSpec, pool: NodePool) -> str:
    """Return which taints of the queue's pool keep the workers off its nodes; "" if none does."""
    tolerations = _worker_spec(attempt)["tolerations"]
    taints = ", ".join(
        f"{key}={value}:{effect}" if value else f"{key}:{effect}"
        for key, value, effect in pool.taints
        if effect != "PreferNoSchedule" and not node_release.tolerates(tolerations, (key, value, effect))
    )
    return taints and (
        f"NodePool {attempt.settings.queue.scheduling.pool} has taints that the workers do not tolerate: {taints}. "
        "Add them to scheduling.tolerations of the queue"
    )


def build_placeholder(attempt: AttemptSpec, request: JobRequest, index: int, wait: str) -> JsonObject:
    """Return the launcher's placeholder, owned by the job: one per node, with the workers' node affinity."""
    made = manifests.placeholder(request, index, Owner(name=attempt.name, uid=attempt.uid), wait)
    meta, spec = made["metadata"], made["spec"]
    meta["labels"] |= attempt.labels
    meta["ownerReferences"] = [owner_reference(attempt.name, attempt.uid)]
    apart = {"matchLabels": {n.LABEL_JOB: attempt.name, names.LABEL_ROLE: names.ROLE_PLACEHOLDER}}
    spec["affinity"] = {
        "nodeAffinity": add_mark(request.affinity, mark(request.namespace, request.run_id)),
        "podAntiAffinity": {REQUIRED: [{"labelSelector": apart, "topologyKey": "kubernetes.io/hostname"}]},
    }
    # The kernel ignores SIGTERM for a first process without a handler. The trap ends the process at once.
    spec["containers"][0]["command"] = ["sh", "-c", "trap 'exit 0' TERM; sleep infinity & wait"]
    spec |= pull_secrets(attempt.settings.queue)
    meta["annotations"][n.ANNOTATION_MADE_OF] = spec_digest(spec)
    return made


def pool_status(name: str, pool: NodePool | None) -> JsonObject:
    """Return `pool` of the queue's status."""
    if pool is None:
        return {"name": name, "found": False}
    max_nodes = [
        int(limit // (1 if resource == "nodes" else pool.node[resource]))
        for resource, limit in pool.limits.items()
        if resource == "nodes" or pool.node.get(resource)
    ]
    taints = [dict(zip(("key", "value", "effect"), each, strict=True)) for each in pool.taints]
    return {
        "name": name,
        "found": True,
        "limits": _format_amounts(pool.limits),
        "nodeResources": _format_amounts(pool.node),
        "declared": bool(pool.node),
        **({"maxNodes": min(max_nodes)} if max_nodes else {}),
        **({"reservations": pool.reservations} if pool.reservations is not None else {}),
        **({"taints": taints} if taints else {}),
    }


def pool_rejection_reason(status: Any, attempt: AttemptSpec, now: float) -> str:
    """Return why the pool of a queue with this status can never provide the attempt's nodes; "" if it can."""
    fields = _read_pool_status(status, attempt.settings.queue.scheduling.pool)
    if not fields:
        return ""
    pool = NodePool(
        limits=_parse_amounts(fields.get("limits")),
        ready=True,
        problem="",
        node=_parse_amounts(fields.get("nodeResources")),
        taints=tuple(
            (each.get("key", ""), each.get("value", ""), each.get("effect", ""))
            for each in fields.get("taints") or ()
        ),
    )
    seen = Observation(now=now, fresh=False, pool=pool if fields.get("found") else None)
    try:
        return _impossible(attempt, build_request(attempt, seen.pool), seen, now)
    except ValueError as error:
        return str(error)


def reservation_warning(status: Any, name: str) -> str:
    """Return a message if the pool of this name launches only reserved capacity and has no active reservation, else "".

    A reservation that begins later changes that.
    """
    return capacity.no_reservation(name) if _read_pool_status(status, name).get("reservations") == 0 else ""


def _read_pool_status(queue_status: Any, name: str) -> Mapping[str, Any]:
    """Return `pool` of a queue's status if it is that of the pool `name`, else {}."""
    fields: Mapping[str, Any] = (queue_status or {}).get("pool") or {}
    return fields if name and fields.get("name") == name else {}


def _format_amounts(amounts: Mapping[str, Amount]) -> dict[str, str]:
    return {name: format_amount(amount) for name, amount in sorted(amounts.items())}


def _parse_amounts(texts: Mapping[str, str] | None) -> dict[str, Amount]:
    """Return the amounts that `_format_amounts` wrote to a status."""
    return {name: quantity.parse(text) for name, text in (texts or {}).items()}
