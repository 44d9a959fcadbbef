"""A leftover of a stack, and the tags that identify the resources of its cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from components.documents.tags import CNI_CLUSTER as CNI
from infra.settings import Settings
from trainyard.preflight.aws import Aws
from trainyard.preflight.findings import own_tags

KARPENTER: Final = "eks:eks-cluster-name"
NODE_GROUP: Final = "eks:cluster-name"
OWNED: Final = "kubernetes.io/cluster/{cluster}"
LOAD_BALANCER: Final = "elbv2.k8s.aws/cluster"
# Tags with the cluster's name, by kind: Pulumi's state does not have these resources. The value of `OWNED` is `owned`.
# Sources: Karpenter `concepts/nodeclasses`, EKS user guide (`eks:cluster-name`), VPC CNI `pkg/awsutils`, AWS EBS CSI
# driver `docs/tagging.md`, AWS Load Balancer Controller `guide/service/annotations`.
CLUSTER_TAGS: Final[dict[str, tuple[str, ...]]] = {
    "EC2 instance": (KARPENTER, NODE_GROUP),
    "network interface": (CNI, KARPENTER),
    "launch template": (KARPENTER, NODE_GROUP),
    "volume": (KARPENTER, OWNED, "KubernetesCluster"),
    "security group": (LOAD_BALANCER, OWNED, "aws:eks:cluster-name"),
    "Auto Scaling group": (NODE_GROUP,),
    "load balancer": (LOAD_BALANCER, OWNED),
    **dict.fromkeys(("IAM role", "IAM policy", "instance profile", "OIDC provider"), (KARPENTER,)),
}


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A leftover resource: its kind, its id or name, and a note such as its name or state.

    `needs` are ids of resources that can't be deleted before this one.
    """

    kind: str
    identity: str
    note: str = field(default="", compare=False)
    needs: frozenset[str] = field(default=frozenset(), compare=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.identity}" + (f" ({self.note})" if self.note else "")


Reader = Callable[[Settings, Aws], list[Leftover]]


def own_cluster(settings: Settings) -> str | None:
    """Return the name of a cluster that the stack creates. Others may use the tags of an existing cluster."""
    return None if settings.cluster.existing else settings.cluster.name


def tag_sets(settings: Settings, kind: str) -> Iterator[dict[str, str]]:
    """Yield the tags of a kind's resources: the stack's, and each of the cluster's."""
    yield own_tags(settings)
    if cluster := own_cluster(settings):
        for name in CLUSTER_TAGS.get(kind, ()):
            yield {name.format(cluster=cluster): "owned" if name == OWNED else cluster}
