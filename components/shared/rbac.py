"""What the launcher's service account may do: the verbs that the launcher calls, and no other (`contract.yaml`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from components.shared.contract import CLUSTER_EVENTS_NAMESPACE, TRAINING_NAMESPACE


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Verbs on resources, in one namespace or (None) in the whole cluster."""

    namespace: str | None
    api_groups: tuple[str, ...]
    resources: tuple[str, ...]
    verbs: tuple[str, ...]


def _rule(namespace: str | None, group: str, resources: str, verbs: str) -> Rule:
    return Rule(
        namespace=namespace,
        api_groups=(group,),
        resources=tuple(resources.split()),
        verbs=tuple(verbs.split()),
    )


LAUNCHER_RULES: Final = (
    _rule(TRAINING_NAMESPACE, "", "pods", "create delete list"),
    _rule(TRAINING_NAMESPACE, "", "events", "create"),
    _rule(TRAINING_NAMESPACE, "batch", "jobs", "get"),
    _rule(TRAINING_NAMESPACE, "coordination.k8s.io", "leases", "create get update"),
    _rule(TRAINING_NAMESPACE, "kubeflow.org", "pytorchjobs", "create get list"),
    _rule(CLUSTER_EVENTS_NAMESPACE, "", "events", "list"),
    _rule(None, "", "nodes pods", "list"),
    _rule(None, "karpenter.sh", "nodeclaims", "delete list"),
    _rule(None, "karpenter.sh", "nodepools", "get"),
    _rule(None, "scheduling.k8s.io", "priorityclasses", "get"),
)
