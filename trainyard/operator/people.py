"""What people may do with torchrun jobs and queues: three ClusterRoles that Kubernetes' own take in.

Who is bound to `view`, `edit` or `admin`, in a namespace or everywhere, has these rights there, too; nobody is bound to
them here. `edit` takes in what `view` may, and `admin` what `edit` may
(https://kubernetes.io/docs/reference/access-authn-authz/rbac/#aggregated-clusterroles).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from trainyard.operator.core import names as n
from trainyard.operator.rights import RBAC, Right

_CHANGES: Final = ("create", "delete", "deletecollection", "patch", "update")
_VIEW: Final = (
    Right(
        group=n.GROUP,
        resources=(n.JOB_PLURAL, n.QUEUE_PLURAL),
        verbs=("get", "list", "watch"),
        why="sees and follows jobs, and the queues that they name",
    ),
    Right(
        group=n.GROUP,
        resources=(f"{n.JOB_PLURAL}/scale", f"{n.JOB_PLURAL}/status", f"{n.QUEUE_PLURAL}/status"),
        verbs=("get",),
        why="the same, as `kubectl get --subresource` and `kubectl scale` ask for it",
    ),
)
_EDIT: Final = (
    *_VIEW,
    Right(
        group=n.GROUP,
        resources=(n.JOB_PLURAL,),
        verbs=_CHANGES,
        why="submits, suspends, resumes and cancels jobs",
    ),
    Right(
        group=n.GROUP,
        resources=(f"{n.JOB_PLURAL}/scale",),
        verbs=("patch", "update"),
        why="`kubectl scale`: another number of nodes",
    ),
)
_ADMIN: Final = (
    *_EDIT,
    Right(
        group=n.GROUP,
        resources=(n.QUEUE_PLURAL,),
        verbs=_CHANGES,
        why="says on which machines, with which image and volumes, and in which queue of KAI's jobs run",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Role:
    """`to` is Kubernetes' own role that takes it in."""

    to: str
    rights: tuple[Right, ...]

    def manifest(self) -> dict[str, Any]:
        """The ClusterRole."""
        labels = {"app.kubernetes.io/name": n.CONTROLLER, f"{RBAC}/aggregate-to-{self.to}": "true"}
        return {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": f"torchrun-{self.to}", "labels": labels},
            "rules": [each.rule() for each in self.rights],
        }


ROLES: Final = (
    Role(to="view", rights=_VIEW),
    Role(to="edit", rights=_EDIT),
    Role(to="admin", rights=_ADMIN),
)
