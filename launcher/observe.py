"""Convert Kubernetes objects to the plain data that the launcher's decisions need. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from launcher.manifests import read_marks
from trainyard.k8s import names, quantity
from trainyard.k8s.quantity import Amount

Object = Mapping[str, Any]

_ALL = 2**63
RESERVED = "reserved"
NODE_CLASS_GROUP = "karpenter.k8s.aws"
# Kubernetes' own Events have at most 1,024 characters (k8s.io/client-go, tools/events: maxNoteLength).
_LONGEST_MESSAGE = 1024
# Reasons of a NodePool without a node class (sigs.k8s.io/karpenter v1.14.1,
# pkg/controllers/nodepool/readiness/controller.go).
_CLASS_LOST = frozenset({"NodeClassNotFound", "NodeClassTerminating"})


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node. `allocatable` is in the unit of each resource, and `taints` are (key, effect)."""

    name: str
    labels: Mapping[str, str]
    ready: bool
    cordoned: bool
    deleting: bool
    taints: tuple[tuple[str, str], ...]
    allocatable: Mapping[str, Amount]

    @property
    def initialized(self) -> bool:
        """Whether Karpenter has initialized it: it is ready, with its devices and without startup taints."""
        return self.labels.get(names.LABEL_INITIALIZED) == "true"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A NodeClaim.

    Attributes:
        created: The creation time, in seconds since the epoch.
        instance: The id of its EC2 instance; "" before the launch.
        problem: Karpenter's error at the launch of the instance; "" if there is none, or before the launch.
        marks: The marks of the runs for whose placeholders Karpenter created it (launcher/manifests.py).
    """

    name: str
    node: str
    launched: bool
    initialized: bool
    deleting: bool
    created: float
    uid: str = ""
    instance: str = ""
    problem: str = ""
    marks: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class NodePool:
    """The NodePool of the run.

    Attributes:
        ready: Whether its node class is usable; if not, `problem` has the reason.
        offers: The allowed values of each label in its requirements.
        lost_at: Since when it has no node class, in seconds since the epoch; None if it has one.
        taints: The taints of its nodes: (key, value, effect).
        node: The resources of one of its nodes, as the stack declares them; {} if they are not known.
        reservations: The number of active capacity reservations. None if the pool also launches other instances, or if
            the number is not known.
    """

    limits: Mapping[str, Amount]
    ready: bool
    problem: str
    offers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lost_at: float | None = None
    taints: tuple[tuple[str, str, str], ...] = ()
    node: Mapping[str, Amount] = field(default_factory=dict)
    reservations: int | None = None


@dataclass(frozen=True, kw_only=True)
class Exit:
    """A container that ended with an exit code other than 0.

    Attributes:
        reason: The kubelet's reason.
        at: The time, in seconds since the epoch.
        lines: The termination message, which is the end of the output.
    """

    container: str
    code: int
    reason: str
    at: float
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Pod:
    """An unfinished pod, or a pod of this run.

    Labels, annotations and owners are not trusted. `priority_class` is, because the API server sets a pod's priority by
    its class (https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#priority).

    Attributes:
        requests: The resources that the scheduler reserves for it.
        selector: Its nodeSelector.
        owner: The kind of its controller; "" without one.
        created: The creation time. Times are seconds since the epoch; 0 before the event.
        placed_at: When it was scheduled.
        started_at: When its first container started.
        disruption: Why Kubernetes ended or refused it (`disruption_reason`).
        exit: The first of its containers that failed.
        pending_reason: Why it does not start (`pending_reason`).
        tolerations: Its tolerations if it has no node.
    """

    name: str
    namespace: str
    uid: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    node: str
    phase: str
    deleting: bool
    requests: Mapping[str, Amount]
    selector: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    placed_at: float = 0.0
    started_at: float = 0.0
    disruption: str = ""
    exit: Exit | None = None
    pending_reason: str = ""
    created: float = 0.0
    priority_class: str = ""
    tolerations: tuple[Mapping[str, Any], ...] = ()

    @property
    def finished(self) -> bool:
        """Whether all of its containers have ended and do not restart. Such a pod uses no resources of its node."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, kw_only=True)
class WarningEvent:
    """A Warning Event about a NodeClaim, a NodePool or a pod. `at` is in seconds since the epoch.

    `uid` is that of the Event. A watch that restarts shows the same Event again.
    """

    kind: str
    name: str
    reason: str
    message: str
    at: float
    uid: str = ""


@dataclass(frozen=True, kw_only=True)
class Training:
    """The training job of the run: a PyTorchJob or a TrainJob.

    Attributes:
        ours: Whether a launcher of this run created it.
        outcome: "Succeeded" or "Failed"; "" before.
        created: The creation time, in seconds since the epoch; 0 if it is not known.
        suspended: Whether its field `suspend` is true.
        restart: How many training jobs the run had before.
    """

    uid: str
    ours: bool
    nodes: int
    outcome: str
    message: str
    created: float = 0.0
    deleting: bool = False
    suspended: bool = False
    restart: int = 0


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The state of the cluster at the time `now`, in seconds since the epoch.

    With `fresh`, the lists were read from etcd, not from a watch or the API server's cache, which may lag.
    """

    now: float
    fresh: bool
    nodes: tuple[Node, ...] = ()
    claims: tuple[Claim, ...] = ()
    pool: NodePool | None = None
    pods: tuple[Pod, ...] = ()
    warnings: tuple[WarningEvent, ...] = ()
    training: Training | None = None


def seconds(stamp: str | None) -> float:
    """Return a Kubernetes timestamp in seconds since the epoch; 0 for a missing or invalid one.

    The time stamps of Events are not trusted: Go accepts the years 0 and 10000, Python does not.
    """
    try:
        return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0
    except (ValueError, OverflowError):
        return 0.0


def _amounts(values: Mapping[str, Any] | None) -> dict[str, Amount]:
    return {name: quantity.parse(value) for name, value in (values or {}).items()}


def _condition(item: Object, kind: str) -> Mapping[str, Any]:
    for condition in item.get("status", {}).get("conditions") or ():
        if condition.get("type") == kind:
            return dict(condition)
    return {}


def _holds(item: Object, kind: str) -> bool:
    return _condition(item, kind).get("status") == "True"


def node(item: Object) -> Node:
    """Convert a v1 Node."""
    meta, spec = item["metadata"], item.get("spec", {})
    return Node(
        name=meta["name"],
        labels=meta.get("labels") or {},
        ready=_holds(item, "Ready"),
        cordoned=bool(spec.get("unschedulable")),
        deleting="deletionTimestamp" in meta,
        taints=tuple((taint["key"], taint["effect"]) for taint in spec.get("taints") or ()),
        allocatable=_amounts(item.get("status", {}).get("allocatable")),
    )


def claim(item: Object) -> Claim:
    """Convert a karpenter.sh/v1 NodeClaim."""
    meta = item["metadata"]
    return Claim(
        name=meta["name"],
        node=item.get("status", {}).get("nodeName") or "",
        launched=_holds(item, "Launched"),
        initialized=_holds(item, "Initialized"),
        deleting="deletionTimestamp" in meta,
        created=seconds(meta.get("creationTimestamp")),
        uid=meta.get("uid", ""),
        # aws:///<zone>/<instance id>
        instance=(item.get("status", {}).get("providerID") or "").rpartition("/")[2],
        problem=_launch_problem(item),
        marks=read_marks(item),
    )


def _launch_problem(item: Object) -> str:
    """Return why Karpenter could not launch this NodeClaim at its last try.

    If EC2 has no capacity, Karpenter records an Event and deletes the NodeClaim. Any other error (permissions,
    throttling, a missing image) is in this condition, and Karpenter tries again (sigs.k8s.io/karpenter v1.14.1,
    launchNodeClaim in pkg/controllers/nodeclaim/lifecycle/launch.go).
    """
    condition = _condition(item, "Launched")
    reason = str(condition.get("reason") or "")
    if condition.get("status") in (None, "True") or reason in ("", "AwaitingReconciliation"):
        return ""
    return ": ".join(part for part in (reason, str(condition.get("message") or "")) if part)


def reserved_class(item: Object) -> str:
    """Return the EC2NodeClass of a NodePool that only uses capacity reservations; "" for other NodePools."""
    template = item.get("spec", {}).get("template", {}).get("spec", {})
    named = template.get("nodeClassRef") or {}
    bought = [
        tuple(each.get("values") or ())
        for each in template.get("requirements") or ()
        if each["key"] == names.LABEL_CAPACITY_TYPE and each.get("operator") == "In"
    ]
    alone = bought == [(RESERVED,)] and named.get("group") == NODE_CLASS_GROUP
    return str(named.get("name") or "") if alone else ""


def reservations(node_class: Object | None) -> int | None:
    """Return the number of an EC2NodeClass's capacity reservations that can be used now; None if not known.

    Karpenter lists the active reservations in the status, and uses none that is about to end (karpenter-provider-aws
    v1.14.1, pkg/apis/v1/ec2nodeclass_status.go and pkg/providers/instancetype/offering/reserved_capacity_resolver.go).
    The status does not have their size.
    """
    if node_class is None or not _holds(node_class, "CapacityReservationsReady"):
        return None
    states = [each.get("state") for each in node_class["status"].get("capacityReservations") or ()]
    return len(states) - states.count("expiring")


def node_pool(item: Object, node_class: Object | None = None) -> NodePool:
    """Convert a karpenter.sh/v1 NodePool. `node_class` is its EC2NodeClass if it only uses reservations."""
    # If the node class is not ready, the pool's own condition does not have the reason.
    found = {kind: _condition(item, kind) for kind in ("NodeClassReady", "Ready")}
    failing = {kind: condition for kind, condition in found.items() if condition.get("status") == "False"}
    ready = "Ready" not in failing
    cause = failing.get("NodeClassReady") or failing.get("Ready") or {}
    template = item.get("spec", {}).get("template", {}).get("spec", {})
    return NodePool(
        limits=_amounts(item.get("spec", {}).get("limits")),
        ready=ready,
        problem="" if ready else str(cause.get("message") or cause.get("reason") or ""),
        offers={
            each["key"]: tuple(each.get("values") or ())
            for each in template.get("requirements") or ()
            if each.get("operator") == "In"
        },
        lost_at=seconds(cause.get("lastTransitionTime")) if cause.get("reason") in _CLASS_LOST else None,
        taints=tuple(
            (each["key"], each.get("value") or "", each["effect"]) for each in template.get("taints") or ()
        ),
        node=_node_resources(item.get("metadata", {}).get("annotations") or {}),
        reservations=reservations(node_class),
    )


def _node_resources(annotations: Mapping[str, Any]) -> dict[str, Amount]:
    """Return the resources of a node that the stack declares (components/documents/pool.py)."""
    try:
        return _amounts(json.loads(annotations.get(names.ANNOTATION_NODE_RESOURCES, "{}")))
    except (ValueError, TypeError, AttributeError):
        return {}


def effective_requests(spec: Mapping[str, Any]) -> dict[str, Amount]:
    """Return the resources that the scheduler reserves for a pod with this `spec`.

    Containers and sidecars (init containers with restartPolicy Always) add up. Any other init container runs only with
    the sidecars before it. https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/#resource-sharing-within-containers
    """

    def asked(container: Mapping[str, Any]) -> dict[str, Amount]:
        resources = container.get("resources") or {}
        return {**_amounts(resources.get("limits")), **_amounts(resources.get("requests"))}

    def plus(one: dict[str, Amount], other: dict[str, Amount]) -> dict[str, Amount]:
        if not one or not other:  # most pods have one container
            return one or other
        return {name: one.get(name, 0) + other.get(name, 0) for name in {*one, *other}}

    total: dict[str, Amount] = {}
    for container in spec.get("containers") or ():
        total = plus(total, asked(container))
    sidecars: dict[str, Amount] = {}
    peak: dict[str, Amount] = {}
    for container in spec.get("initContainers") or ():
        together = plus(sidecars, asked(container))
        if container.get("restartPolicy") == "Always":
            sidecars = together
        peak = {name: max(peak.get(name, 0), together.get(name, 0)) for name in {*peak, *together}}
    total = plus(total, sidecars)
    if peak:
        total = {name: max(total.get(name, 0), peak.get(name, 0)) for name in {*total, *peak}}
    return plus(total, _amounts(spec.get("overhead")))


def _requests(spec: Mapping[str, Any]) -> dict[str, Amount]:
    """Return the requests of a pod. A pod with invalid quantities counts as using its whole node."""
    try:
        return effective_requests(spec)
    except (ValueError, TypeError, AttributeError):
        return {"cpu": _ALL}


def pod(item: Object) -> Pod:
    """Convert a v1 Pod."""
    meta, spec = item["metadata"], item.get("spec", {})
    return Pod(
        name=meta["name"],
        namespace=meta.get("namespace", ""),
        uid=meta.get("uid", ""),
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        node=spec.get("nodeName") or "",
        phase=item.get("status", {}).get("phase") or "Pending",
        deleting="deletionTimestamp" in meta,
        requests=_requests(spec),
        selector=spec.get("nodeSelector") or {},
        owner=next(
            (owner["kind"] for owner in meta.get("ownerReferences") or () if owner.get("controller")), ""
        ),
        placed_at=seconds(_condition(item, "PodScheduled").get("lastTransitionTime"))
        if _holds(item, "PodScheduled")
        else 0.0,
        started_at=_first_start(item),
        disruption=disruption_reason(item),
        exit=_first_exit(item),
        pending_reason=pending_reason(item),
        created=seconds(meta.get("creationTimestamp")),
        priority_class=spec.get("priorityClassName") or "",
        tolerations=() if spec.get("nodeName") else tuple(spec.get("tolerations") or ()),
    )


def _container_statuses(item: Object) -> list[Mapping[str, Any]]:
    """Return the statuses of the containers of a pod, init containers first."""
    status = item.get("status") or {}
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _first_start(item: Object) -> float:
    states = [each.get("state") or {} for each in _container_statuses(item)]
    began = [
        seconds((state.get(kind) or {}).get("startedAt"))
        for state in states
        for kind in ("running", "terminated")
    ]
    return min((moment for moment in began if moment), default=0.0)


def disruption_reason(item: Object) -> str:
    """Return why Kubernetes ended or refused a pod; "" if its own program ended.

    https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions; the kubelet's reasons for
    a failed pod (Evicted, NodeShutdown, Preempting, UnexpectedAdmissionError ...) are in `status.reason`.
    """
    if _holds(item, "DisruptionTarget"):
        return str(_condition(item, "DisruptionTarget").get("reason") or "DisruptionTarget")
    status = item.get("status", {})
    return str(status.get("reason") or "") if status.get("phase") == "Failed" else ""


def _first_exit(item: Object) -> Exit | None:
    found = []
    for each in _container_statuses(item):
        ended = (each.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            found.append(
                Exit(
                    container=each.get("name", ""),
                    code=int(ended["exitCode"]),
                    reason=str(ended.get("reason") or ""),
                    at=seconds(ended.get("finishedAt")),
                    lines=tuple(str(ended.get("message") or "").splitlines()),
                )
            )
    return min(found, key=lambda exit_: exit_.at, default=None)


def warning_event(item: Object) -> WarningEvent:
    """Convert a v1 Event. Truncate its texts, because any writer may make them very long."""
    about = item.get("involvedObject", {})
    stamp = item.get("lastTimestamp") or item.get("eventTime") or item["metadata"].get("creationTimestamp")
    return WarningEvent(
        kind=about.get("kind", ""),
        name=about.get("name", ""),
        reason=str(item.get("reason") or "")[:_LONGEST_MESSAGE],
        message=str(item.get("message") or "")[:_LONGEST_MESSAGE],
        at=seconds(stamp),
        uid=item["metadata"].get("uid", ""),
    )


def training(
    item: Object, run_id: str, *, nodes: int, outcomes: Mapping[str, str], suspended: bool
) -> Training:
    """Convert a training job.

    Args:
        outcomes: The outcome of each type of condition that ends a job of this kind. The last one that is True counts.
    """
    meta = item["metadata"]
    labels = meta.get("labels") or {}
    outcome, message = "", ""
    for kind, means in outcomes.items():
        if _holds(item, kind):
            outcome, message = means, str(_condition(item, kind).get("message") or "")
    return Training(
        uid=meta.get("uid", ""),
        ours=labels.get(names.LABEL_RUN) == run_id and labels.get(names.LABEL_MANAGED_BY) == names.MANAGED_BY,
        nodes=nodes,
        outcome=outcome,
        message=message,
        created=seconds(meta.get("creationTimestamp")),
        deleting="deletionTimestamp" in meta,
        suspended=suspended,
        restart=number((meta.get("annotations") or {}).get(names.ANNOTATION_RESTART)),
    )


def number(text: str | None) -> int:
    """Return the whole number in a label or an annotation; 0 if it is invalid, because anybody may change it."""
    return int(text) if text and len(text) < 10 and text.isascii() and text.isdecimal() else 0


# Before this age, a pod is usually about to start: it is scheduled within a second or two, and within several seconds
# on a busy control plane or among a thousand pods.
PATIENCE_SECONDS: Final = 15.0
_PULLING: Final = ("ErrImagePull", "ImagePullBackOff")
_ON_ITS_WAY: Final = ("ContainerCreating", "PodInitializing")
_LINE: Final = 300


def pending_reason(pod: Mapping[str, Any]) -> str:
    """Return why this pod does not start, as a phrase after its name; "" if nothing is wrong.

    The scheduler sets the condition PodScheduled, and the kubelet the state of the first waiting container
    (https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-state-waiting).
    If a pod has neither, its scheduler does not run, or its node does not exist.
    """
    status = pod.get("status") or {}
    conditions = status.get("conditions") or []
    containers = _container_statuses(pod)
    if status.get("phase", "Pending") == "Pending" and not (conditions or containers):
        return _unseen(pod.get("spec") or {})
    for each in conditions:
        if each.get("type") == "PodScheduled" and each.get("status") == "False":
            # Keep only the first sentence. The others are about preemption.
            why = str(each.get("message") or each.get("reason") or "").split(". ")[0]
            return f"waits for a node: {_one_line(why)}"
    for each in containers:
        waiting = (each.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason in _PULLING:
            # The two reasons alternate with different messages. One text for both is printed once.
            return f"can't get image {_one_line(each.get('image'))}: kubectl describe pod says why"
        if reason and reason not in _ON_ITS_WAY:
            text = f"{reason}: {waiting['message']}" if waiting.get("message") else reason
            return f"can't start: {_one_line(text)}"
    return ""


def _unseen(spec: Mapping[str, Any]) -> str:
    if node := spec.get("nodeName"):
        return f"waits for the kubelet of node {_one_line(node)}, which has not reported on it"
    scheduler = spec.get("schedulerName") or "default-scheduler"
    return f"waits for a node: scheduler {_one_line(scheduler)} has not reported on it"


def _one_line(text: Any) -> str:
    return " ".join(str(text or "").split())[:_LINE].rstrip(".")
