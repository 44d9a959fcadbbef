"""What the controller may do: its ClusterRole, every verb for a reason. It has none on Secrets, pods' exec, or roles.

Kubernetes counts a server-side apply as `patch`, and as `create` too where the object is not there yet (kubernetes
1.35.4, k8s.io/apiserver/pkg/endpoints/handlers/patch.go: withAuthorization).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from launcher.observe import NODE_CLASS_GROUP
from trainyard.operator.core import names as n

RBAC: Final = "rbac.authorization.k8s.io"


@dataclass(frozen=True, kw_only=True)
class Right:
    """Verbs on resources of one API group, and what they are for; with `names` on those of these names alone."""

    group: str
    resources: Sequence[str]
    verbs: Sequence[str]
    why: str
    names: Sequence[str] = ()

    def rule(self) -> dict[str, Any]:
        """The PolicyRule."""
        named = {"resourceNames": list(self.names)} if self.names else {}
        return {
            "apiGroups": [self.group],
            "resources": list(self.resources),
            **named,
            "verbs": list(self.verbs),
        }


RIGHTS: Final = (
    Right(
        group=n.GROUP,
        resources=(n.JOB_PLURAL,),
        verbs=("delete", "get", "list", "watch"),
        why="reads jobs, removes those whose time to live is over",
    ),
    Right(
        group=n.GROUP,
        resources=(n.QUEUE_PLURAL,),
        verbs=("get", "list", "patch", "watch"),
        why="reads queues, keeps its finalizer on them",
    ),
    Right(
        group=n.GROUP,
        resources=(f"{n.JOB_PLURAL}/status", f"{n.QUEUE_PLURAL}/status"),
        verbs=("update",),
        why="writes what it saw, as long as nobody changed the object since",
    ),
    Right(
        group="batch",
        resources=("jobs",),
        verbs=("create", "delete", "get", "list", "patch", "watch"),
        why="one Job for each attempt; that of an attempt that is over, or suspended, is deleted",
    ),
    Right(
        group="",
        resources=("services",),
        verbs=("create", "get", "list", "patch", "watch"),
        why="the workers' names; Kubernetes removes it with the job that owns it",
    ),
    Right(
        group="",
        resources=("persistentvolumeclaims",),
        verbs=("create", "get", "list", "watch"),
        why="the workers' volumes; Kubernetes removes them with the job that owns them, and others never",
    ),
    Right(
        group="",
        resources=("pods",),
        verbs=("create", "delete", "get", "list", "patch", "watch"),
        why="names the archive of workers; makes sync pods and pods that hold nodes; tries a queue's template",
    ),
    Right(
        group="",
        resources=("events",),
        verbs=("create", "list"),
        why="tells what happens, reads what Karpenter says of machines and of pods that hold them",
    ),
    Right(
        group="",
        resources=("nodes",),
        verbs=("list",),
        why="counts the nodes of a queue's pool that can take workers",
    ),
    Right(
        group="karpenter.sh",
        resources=("nodeclaims",),
        verbs=("delete", "list"),
        why="sees machines on their way, gives back those that no job waits for any more",
    ),
    Right(
        group="karpenter.sh",
        resources=("nodepools",),
        verbs=("get",),
        why="knows how many machines a queue's pool may have",
    ),
    Right(
        group=NODE_CLASS_GROUP,
        resources=("ec2nodeclasses",),
        verbs=("get",),
        why="knows whether a pool of reserved capacity has a reservation",
    ),
    Right(
        group="storage.k8s.io",
        resources=("storageclasses",),
        verbs=("list",),
        why="a class's provisioner says who may mount its volumes",
    ),
    Right(
        group="scheduling.k8s.io",
        resources=("priorityclasses",),
        verbs=("get",),
        why="the class of pods that hold nodes has to exist",
    ),
    Right(
        group="admissionregistration.k8s.io",
        resources=("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
        verbs=("get",),
        names=(n.JOB_POLICY,),
        why="checks that the policy for restricted fields is in force",
    ),
    Right(
        group="apiextensions.k8s.io",
        resources=("customresourcedefinitions",),
        verbs=("list", "watch"),
        why="notices when KAI Scheduler is installed or removed",
    ),
    Right(
        group=n.KAI_GROUP,
        resources=(n.KAI_QUEUE_PLURAL,),
        verbs=("create", "delete", "get", "list", "patch", "watch"),
        why="KAI's queue of a TorchrunQueue; cluster-scoped, so that nobody else removes it",
    ),
    Right(
        group=n.KAI_GROUP,
        resources=(n.KAI_POD_GROUP_PLURAL,),
        verbs=("create", "delete", "get", "list", "patch", "watch"),
        why="the gang of an attempt, which needs no more members once a worker has succeeded",
    ),
)  # fmt: skip
# In its own namespace alone.
OWN_RIGHTS: Final = (
    Right(
        group="coordination.k8s.io",
        resources=("leases",),
        verbs=("get", "update"),
        names=(n.CONTROLLER,),
        why="one controller works at a time: the one that holds the Lease",
    ),
    Right(
        group="coordination.k8s.io",
        resources=("leases",),
        verbs=("create",),
        why="makes it; of what is not there yet no name can be asked",
    ),
)


def roles() -> list[dict[str, Any]]:
    """The ClusterRole, and the Role in the controller's namespace, each with its rules."""
    return [
        {**_named("ClusterRole"), "rules": [each.rule() for each in RIGHTS]},
        {**_named("Role"), "rules": [each.rule() for each in OWN_RIGHTS]},
    ]


def bindings() -> list[dict[str, Any]]:
    """Give the roles to the controller's service account."""
    account = {"kind": "ServiceAccount", "name": n.CONTROLLER, "namespace": n.CONTROLLER_NAMESPACE}
    return [
        {
            **_named(f"{kind}Binding"),
            "roleRef": {"apiGroup": RBAC, "kind": kind, "name": n.CONTROLLER},
            "subjects": [account],
        }
        for kind in ("ClusterRole", "Role")
    ]


def _named(kind: str) -> dict[str, Any]:
    placed = {} if kind.startswith("Cluster") else {"namespace": n.CONTROLLER_NAMESPACE}
    labels = {"app.kubernetes.io/name": n.CONTROLLER}
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": {"name": n.CONTROLLER, **placed, "labels": labels},
    }
