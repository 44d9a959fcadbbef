"""Who mounts a volume claim, and what makes such pods anew. Pure: objects as the API serves them in, names out.

A claim that is deleted stays as long as there is a pod with it, running or not
(https://kubernetes.io/docs/concepts/storage/persistent-volumes/, "Storage Object in Use Protection").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from components.draining.kinds import (
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
# What Kubernetes itself makes pods by. Those of an operator's own kinds are not here: what they made is, and is ended
# as often as they make it.
MAKERS: Final[Mapping[tuple[str, str], Kind]] = {
    ("apps", "DaemonSet"): DAEMON_SETS,
    ("apps", "Deployment"): DEPLOYMENTS,
    ("apps", "ReplicaSet"): REPLICA_SETS,
    ("apps", "StatefulSet"): STATEFUL_SETS,
    ("batch", "CronJob"): CRON_JOBS,
    ("batch", "Job"): EVERY_JOB,
}
# A pod's ReplicaSet and its Deployment, or its Job and its CronJob.
MOST_MAKERS: Final = 2


def claims_of(pod: Item) -> frozenset[str]:
    """Claims that a pod mounts, `<namespace>/<name>`; the one of an ephemeral volume has pod's and volume's name.

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


def first_maker(pod: Item, get: Callable[[Kind, str], Item | None]) -> tuple[Kind, Item] | None:
    """The object at whose deletion a pod goes for good, with its kind; None for a pod that nothing makes anew.

    `get` reads an object by its kind and `<namespace>/<name>`; it gives None for one that is gone.
    """
    found: tuple[Kind, Item] | None = None
    item = pod
    for _ in range(MOST_MAKERS):
        named = _maker(item)
        above = get(*named) if named else None
        if named is None or above is None:
            break
        found, item = (named[0], above), above
    return found


def _maker(item: Item) -> tuple[Kind, str] | None:
    metadata = metadata_of(item)
    for owner in metadata.get("ownerReferences") or []:
        group = str(owner.get("apiVersion", "")).rpartition("/")[0]
        kind = MAKERS.get((group, str(owner.get("kind"))))
        if owner.get("controller") and kind is not None:
            return kind, f"{metadata['namespace']}/{owner['name']}"
    return None
