"""Which pods mount a volume claim, and which objects own these pods. Pure: objects of the API in, names out.

A deleted claim remains as long as a pod uses it, running or not
(https://kubernetes.io/docs/concepts/storage/persistent-volumes/, "Storage Object in Use Protection").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from .kinds import (
    CRON_JOBS,
    DAEMON_SETS,
    DEPLOYMENTS,
    EVERY_JOB,
    REPLICA_SETS,
    STATEFUL_SETS,
    Kind,
    metadata_of,
)

Item = Mapping[str, Any]
# Kinds of Kubernetes that create pods. An operator's own kinds are not here: the objects that they create are, and the
# drain deletes these as often as they are created.
OWNERS: Final[Mapping[tuple[str, str], Kind]] = {
    ("apps", "DaemonSet"): DAEMON_SETS,
    ("apps", "Deployment"): DEPLOYMENTS,
    ("apps", "ReplicaSet"): REPLICA_SETS,
    ("apps", "StatefulSet"): STATEFUL_SETS,
    ("batch", "CronJob"): CRON_JOBS,
    ("batch", "Job"): EVERY_JOB,
}
# A pod's ReplicaSet and its Deployment, or its Job and its CronJob.
MAX_OWNERS: Final = 2


def claims_of(pod: Item) -> frozenset[str]:
    """Return the claims that a pod mounts, `<namespace>/<name>`. An ephemeral volume's has the pod's and its name.

    https://kubernetes.io/docs/concepts/storage/ephemeral-volumes/, "PersistentVolumeClaim naming".
    """
    metadata = metadata_of(pod)
    found = set()
    for volume in pod.get("spec", {}).get("volumes") or []:
        if "persistentVolumeClaim" in volume:
            found.add(str(volume["persistentVolumeClaim"]["claimName"]))
        elif "ephemeral" in volume:
            found.add(f"{metadata['name']}-{volume['name']}")
    return frozenset(f"{metadata['namespace']}/{name}" for name in found)


def top_owner(pod: Item, get: Callable[[Kind, str], Item | None]) -> tuple[Kind, Item] | None:
    """Return the topmost owner of a pod, with its kind; None for a pod without an owner.

    `get` reads an object by its kind and `<namespace>/<name>`; it returns None if there is none.
    """
    found: tuple[Kind, Item] | None = None
    item = pod
    for _ in range(MAX_OWNERS):
        named = _owner(item)
        above = get(*named) if named else None
        if named is None or above is None:
            break
        found, item = (named[0], above), above
    return found


def _owner(item: Item) -> tuple[Kind, str] | None:
    metadata = metadata_of(item)
    for owner in metadata.get("ownerReferences") or []:
        group = str(owner.get("apiVersion", "")).rpartition("/")[0]
        kind = OWNERS.get((group, str(owner.get("kind"))))
        if owner.get("controller") and kind is not None:
            return kind, f"{metadata['namespace']}/{owner['name']}"
    return None
