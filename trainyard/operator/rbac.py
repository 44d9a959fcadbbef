"""Build the RBAC roles of the controller and of its users.

The controller's ClusterRole has each verb for a reason. It has no access to Secrets, `exec` or roles. Kubernetes checks
a server-side apply as `patch`, and also as `create` if the object does not exist (kubernetes 1.35.4,
k8s.io/apiserver/pkg/endpoints/handlers/patch.go: withAuthorization).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from launcher.observe import NODE_CLASS_GROUP
from trainyard.operator import names as n

API_GROUP: Final = "rbac.authorization.k8s.io"
_LABELS: Final = {"app.kubernetes.io/name": n.CONTROLLER}
_READ: Final = "get list watch"
_CHANGE: Final = "create delete deletecollection patch update"


@dataclass(frozen=True)
class Rule:
    """A PolicyRule with the reason for it.

    Attributes:
        group: The API group, "" for the core group.
        resources: Resources and subresources, separated by spaces.
        verbs: Verbs, separated by spaces.
        reason: What the verbs are used for.
        name: The only object that the rule allows, "" for all objects.
    """

    group: str
    resources: str
    verbs: str
    reason: str
    name: str = ""

    def manifest(self) -> dict[str, Any]:
        """Return the PolicyRule."""
        return {
            "apiGroups": [self.group],
            "resources": self.resources.split(),
            **({"resourceNames": [self.name]} if self.name else {}),
            "verbs": self.verbs.split(),
        }


CLUSTER_RULES: Final = (
    Rule(n.GROUP, n.JOB_PLURAL, "delete get list watch",
         "reads jobs; deletes finished jobs after ttlSecondsAfterFinished"),
    Rule(n.GROUP, n.QUEUE_PLURAL, "get list patch watch", "reads queues; sets its finalizer on them"),
    Rule(n.GROUP, f"{n.JOB_PLURAL}/status {n.QUEUE_PLURAL}/status", "update",
         "writes the status if the object has not changed since it was read"),
    Rule("batch", "jobs", "create delete get list patch watch",
         "creates the Jobs of an attempt; deletes those of an attempt that ended or is suspended"),
    Rule("", "services", "create get list patch watch",
         "creates the Service with the workers' names; Kubernetes deletes it with its job"),
    Rule("", "persistentvolumeclaims", "create get list watch",
         "creates the workers' volumes; Kubernetes deletes them with their job"),
    Rule("", "pods", "create delete get list patch watch",
         "annotates workers with the workspace archive; creates sync pods and placeholders; dry-runs pod templates"),
    Rule("", "events", "create list", "records events; reads Karpenter's events of NodeClaims and placeholders"),
    Rule("", "nodes", "list", "counts the nodes of a pool that can run workers"),
    Rule("karpenter.sh", "nodeclaims", "delete list",
         "counts nodes that are starting; deletes those that no job waits for"),
    Rule("karpenter.sh", "nodepools", "get", "reads how many nodes a pool may have"),
    Rule(NODE_CLASS_GROUP, "ec2nodeclasses", "get", "checks whether a pool of reserved capacity has a reservation"),
    Rule("storage.k8s.io", "storageclasses", "list",
         "derives the access mode of a volume from the provisioner of its class"),
    Rule("scheduling.k8s.io", "priorityclasses", "get", "checks that the PriorityClass of placeholders exists"),
    Rule("admissionregistration.k8s.io", "validatingadmissionpolicies validatingadmissionpolicybindings", "get",
         "checks that the policy for restricted fields is in force", n.JOB_POLICY),
    Rule(n.KAI_GROUP, n.KAI_QUEUE_PLURAL, "create delete get list patch watch",
         "creates and deletes KAI's queue of a TorchrunQueue, which has no owner because it is cluster-scoped"),
    Rule(n.KAI_GROUP, n.KAI_POD_GROUP_PLURAL, "create delete get list patch watch",
         "creates the gang of an attempt; lowers minMember when a worker has succeeded"),
)  # fmt: skip
NAMESPACE_RULES: Final = (
    Rule("coordination.k8s.io", "leases", "get update", "holds the Lease of the one active controller", n.CONTROLLER),
    Rule("coordination.k8s.io", "leases", "create", "creates the Lease; RBAC can't restrict create to a name"),
)  # fmt: skip
_VIEW: Final = (
    Rule(n.GROUP, f"{n.JOB_PLURAL} {n.QUEUE_PLURAL}", _READ, "reads jobs and the queues that they name"),
    Rule(n.GROUP, f"{n.JOB_PLURAL}/scale {n.JOB_PLURAL}/status {n.QUEUE_PLURAL}/status", "get",
         "the same with `kubectl get --subresource` and `kubectl scale`"),
)  # fmt: skip
_EDIT: Final = (
    *_VIEW,
    Rule(n.GROUP, n.JOB_PLURAL, _CHANGE, "submits, suspends, resumes and cancels jobs"),
    Rule(
        n.GROUP, f"{n.JOB_PLURAL}/scale", "patch update", "changes the number of nodes with `kubectl scale`"
    ),
)
_ADMIN: Final = (
    *_EDIT,
    Rule(
        n.GROUP,
        n.QUEUE_PLURAL,
        _CHANGE,
        "defines the nodes, the image, the volumes and the KAI queue of jobs",
    ),
)
# Kubernetes adds the rules of each role to its own ClusterRole of that name, by a label. `edit` contains `view`, and
# `admin` contains `edit` (https://kubernetes.io/docs/reference/access-authn-authz/rbac/#aggregated-clusterroles).
USER_ROLES: Final = {"view": _VIEW, "edit": _EDIT, "admin": _ADMIN}


def roles() -> list[tuple[dict[str, Any], tuple[Rule, ...]]]:
    """Return each role of the controller and of users without its rules, and the rules."""
    users = [
        (_role("ClusterRole", f"torchrun-{name}", {f"{API_GROUP}/aggregate-to-{name}": "true"}), rules)
        for name, rules in USER_ROLES.items()
    ]
    return [
        (_role("ClusterRole", n.CONTROLLER), CLUSTER_RULES),
        (_role("Role", n.CONTROLLER), NAMESPACE_RULES),
        *users,
    ]


def bindings() -> list[dict[str, Any]]:
    """Return the bindings of the controller's roles to its service account."""
    account = {"kind": "ServiceAccount", "name": n.CONTROLLER, "namespace": n.CONTROLLER_NAMESPACE}
    return [
        {
            **_role(f"{kind}Binding", n.CONTROLLER),
            "roleRef": {"apiGroup": API_GROUP, "kind": kind, "name": n.CONTROLLER},
            "subjects": [account],
        }
        for kind in ("ClusterRole", "Role")
    ]


def _role(kind: str, name: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    namespace = {} if kind.startswith("Cluster") else {"namespace": n.CONTROLLER_NAMESPACE}
    metadata = {"name": name, **namespace, "labels": {**_LABELS, **(labels or {})}}
    return {"apiVersion": f"{API_GROUP}/v1", "kind": kind, "metadata": metadata}
