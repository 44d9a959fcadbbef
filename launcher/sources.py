"""The lists of the Kubernetes API that the launcher reads: path, selectors and conversion."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from launcher import backends, node_release, observe
from launcher.observe import Claim, Node, NodePool, Pod, Training, WarningEvent
from launcher.request import Request
from trainyard.k8s import names
from trainyard.k8s.client import JsonObject
from trainyard.k8s.informer import ListWatch


def training(request: Request) -> ListWatch[Training]:
    """Return the list of the run's training job. It is never cached, because every decision depends on the job."""
    return ListWatch(
        path=backends.of(request).path(request.namespace),
        selectors=(("fieldSelector", f"metadata.name={request.training_job}"),),
        convert=lambda item: backends.of(request).parse(item, request.run_id),
        cached=False,
    )


def own_pods(request: Request) -> ListWatch[Pod]:
    """Return the list of the run's pods, including finished ones."""
    return ListWatch(
        path=f"/api/v1/namespaces/{request.namespace}/pods",
        selectors=(("labelSelector", f"{names.LABEL_RUN}={request.run_id}"),),
        convert=observe.pod,
    )


def foreign_pods(request: Request, near: Callable[[str], bool]) -> ListWatch[Pod]:
    """Return the list of unfinished pods of other workloads that have a node, or may wait for one of the pool.

    A change wakes the launcher only if the node is `near`. Annotations are dropped, because no decision needs them, and
    they may be large.
    """

    def convert(item: JsonObject) -> Pod | None:
        meta = item["metadata"]
        run = (meta.get("labels") or {}).get(names.LABEL_RUN)
        if meta.get("namespace") == request.namespace and run == request.run_id:
            return None
        pod = observe.pod({**item, "metadata": {**meta, "annotations": None}})
        return pod if pod.node or node_release.wants_pool(pod, request) else None

    return ListWatch(
        path="/api/v1/pods",
        selectors=(("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed"),),
        convert=convert,
        matters=lambda before, after: any(pod is not None and near(pod.node) for pod in (before, after)),
    )


def nodes(labels: Mapping[str, str]) -> ListWatch[Node]:
    """Return the list of nodes with these labels."""
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return ListWatch(path="/api/v1/nodes", selectors=(("labelSelector", selector),), convert=observe.node)


def claims(pool: str) -> ListWatch[Claim]:
    """Return the list of the NodeClaims of this NodePool."""
    return ListWatch(
        path="/apis/karpenter.sh/v1/nodeclaims",
        selectors=(("labelSelector", f"{names.LABEL_NODEPOOL}={pool}"),),
        convert=observe.claim,
    )


def unfinished_pods() -> ListWatch[Pod]:
    """Return the list of the cluster's unfinished pods, without annotations, which can be large."""
    return ListWatch(
        path="/api/v1/pods",
        selectors=(("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed"),),
        convert=lambda item: observe.pod({**item, "metadata": {**item["metadata"], "annotations": None}}),
    )


def karpenter_on_pods(namespace: str) -> ListWatch[WarningEvent]:
    """Return the list of Karpenter's Events about pods of a namespace for which it can't launch a node."""
    return ListWatch(
        path=f"/api/v1/namespaces/{namespace}/events",
        selectors=(("fieldSelector", "type=Warning,involvedObject.kind=Pod,source=karpenter"),),
        convert=observe.warning_event,
    )


def node_pool(request: Request) -> ListWatch[NodePool]:
    """Return the list of the run's NodePool."""
    return ListWatch(
        path="/apis/karpenter.sh/v1/nodepools",
        selectors=(("fieldSelector", f"metadata.name={request.pool.name}"),),
        convert=observe.node_pool,
    )


def warnings() -> ListWatch[WarningEvent]:
    """Return the list of Warning Events about NodeClaims of all pools. An Event has no label of its pool."""
    return ListWatch(
        path=f"/api/v1/namespaces/{names.CLUSTER_EVENTS_NAMESPACE}/events",
        selectors=(("fieldSelector", "type=Warning,involvedObject.kind=NodeClaim"),),
        convert=observe.warning_event,
    )
