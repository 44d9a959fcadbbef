"""The permissions of the launcher's service account: the verbs that the launcher calls, and no others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainyard.k8s.names import CLUSTER_EVENTS_NAMESPACE, TRAINING_NAMESPACE


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


# What is listed is watched, too: the launcher hears of a change instead of asking again.
LAUNCHER_RULES: Final = (
    _rule(TRAINING_NAMESPACE, "", "pods", "create delete list watch"),
    _rule(TRAINING_NAMESPACE, "", "events", "create"),
    _rule(TRAINING_NAMESPACE, "batch", "jobs", "get"),
    # Which launcher a run belongs to, and what its next one must know (the Lease launch-<run>). It is deleted with the
    # launcher's Job, whose dependent it is. A right to create can't be bound to a name
    # (https://kubernetes.io/docs/reference/access-authn-authz/rbac/#referring-to-resources).
    _rule(TRAINING_NAMESPACE, "coordination.k8s.io", "leases", "create get update"),
    _rule(TRAINING_NAMESPACE, "kubeflow.org", "pytorchjobs", "create delete get list watch"),
    _rule(CLUSTER_EVENTS_NAMESPACE, "", "events", "list watch"),
    _rule(None, "", "nodes pods", "list watch"),
    # Deleted are machines that never become usable (`training.nodeStartSeconds`), which Karpenter itself keeps without
    # end. NodeClaims have no namespace and names that Karpenter makes up, so that the right is one to all of them.
    _rule(None, "karpenter.sh", "nodeclaims", "delete list watch"),
    _rule(None, "karpenter.sh", "nodepools", "list watch"),
    _rule(None, "scheduling.k8s.io", "priorityclasses", "get"),
)
