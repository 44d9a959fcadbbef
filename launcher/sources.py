"""What the launcher reads of a cluster, each as one list of the API with its selectors, and what it keeps of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from launcher import node_release, observe
from launcher.observe import Claim, Node, NodePool, Pod, Training, Warned
from launcher.request import Request
from trainyard.k8s import names
from trainyard.k8s.client import JsonObject
from trainyard.k8s.informer import ListWatch


@dataclass(frozen=True, kw_only=True)
class Aging:
    """A NodeClaim whose age is counted on. `created` is seconds since the epoch."""

    claim: Claim
    created: float

    def at(self, now: float) -> Claim:
        """The claim as it is at this moment, in seconds since the epoch."""
        return replace(self.claim, age=max(0.0, now - self.created))


def training(request: Request) -> ListWatch[Training]:
    """The PyTorchJob of the run. Its list is never an old one: whether it exists decides on everything else."""
    return ListWatch(
        path=training_jobs(request),
        selectors=(("fieldSelector", f"metadata.name={request.training_job}"),),
        convert=lambda item: observe.training(item, request.run_id),
        cached=False,
    )


def training_jobs(request: Request) -> str:
    """The path of PyTorchJobs in the run's namespace."""
    return f"/apis/kubeflow.org/v1/namespaces/{request.namespace}/pytorchjobs"


def own_pods(request: Request) -> ListWatch[Pod]:
    """The pods of the run, finished ones among them."""
    return ListWatch(
        path=f"/api/v1/namespaces/{request.namespace}/pods",
        selectors=(("labelSelector", f"{names.LABEL_RUN}={request.run_id}"),),
        convert=observe.pod,
    )


def others_pods(request: Request, near: Callable[[str], bool]) -> ListWatch[Pod]:
    """The pods of others that are not finished, and on a node or in want of one of the pool.

    A change is news where the node is `near`. Annotations are left out: nothing is decided on those of others, and they
    can be larger than all the rest.
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


def nodes(request: Request) -> ListWatch[Node]:
    """The nodes of the pool."""
    return nodes_with(request.pool.node_selector)


def nodes_with(labels: Mapping[str, str]) -> ListWatch[Node]:
    """The nodes that have these labels."""
    selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    return ListWatch(path="/api/v1/nodes", selectors=(("labelSelector", selector),), convert=observe.node)


def claims(request: Request) -> ListWatch[Aging]:
    """The NodeClaims of the pool."""
    return claims_of(request.pool.name)


def claims_of(pool: str) -> ListWatch[Aging]:
    """The NodeClaims of the pool of this name."""

    def convert(item: JsonObject) -> Aging:
        created = observe.seconds(item["metadata"].get("creationTimestamp"))
        return Aging(claim=observe.claim(item, created), created=created)

    return ListWatch(
        path="/apis/karpenter.sh/v1/nodeclaims",
        selectors=(("labelSelector", f"{names.LABEL_NODEPOOL}={pool}"),),
        convert=convert,
    )


def unfinished_pods() -> ListWatch[Pod]:
    """The pods of the cluster that are not finished; without annotations, which can be larger than all the rest."""
    return ListWatch(
        path="/api/v1/pods",
        selectors=(("fieldSelector", "status.phase!=Succeeded,status.phase!=Failed"),),
        convert=lambda item: observe.pod({**item, "metadata": {**item["metadata"], "annotations": None}}),
    )


def karpenter_on_pods(namespace: str) -> ListWatch[Warned]:
    """What Karpenter says of pods of a namespace that it can buy no machine for."""
    return ListWatch(
        path=f"/api/v1/namespaces/{namespace}/events",
        selectors=(("fieldSelector", "type=Warning,involvedObject.kind=Pod,source=karpenter"),),
        convert=observe.warned,
    )


def node_pool(request: Request) -> ListWatch[NodePool]:
    """The NodePool of the run."""
    return ListWatch(
        path="/apis/karpenter.sh/v1/nodepools",
        selectors=(("fieldSelector", f"metadata.name={request.pool.name}"),),
        convert=observe.node_pool,
    )


def warnings() -> ListWatch[Warned]:
    """The Warning Events about NodeClaims, of all pools: an Event has no label of its object's pool."""
    return ListWatch(
        path=f"/api/v1/namespaces/{names.CLUSTER_EVENTS_NAMESPACE}/events",
        selectors=(("fieldSelector", "type=Warning,involvedObject.kind=NodeClaim"),),
        convert=observe.warned,
    )
