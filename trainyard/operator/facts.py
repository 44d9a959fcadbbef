"""What decisions need to know of the cluster, read now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from trainyard.k8s.objects import Objects
from trainyard.operator.core import kai
from trainyard.operator.core import names as n
from trainyard.operator.core.reading import JsonObject
from trainyard.operator.core.record import moment
from trainyard.operator.core.storage import Cluster

# A scheduler or a storage class is installed once in the life of a cluster.
FRESH_SECONDS = 30.0
# What a gang needs. https://kubernetes.io/docs/reference/using-api/api-concepts/#discovery-api
_KAI = ((n.KAI_QUEUE_VERSION, n.KAI_QUEUE_PLURAL), (n.KAI_POD_GROUP_VERSION, n.KAI_POD_GROUP_PLURAL))
_KAI_VERSION = f"{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}"
# https://kubernetes.io/docs/concepts/storage/storage-classes/#default-storageclass
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_POLICY_RESOURCES = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"


class Facts:
    """Not more than `FRESH_SECONDS` old. `tools_image` is the image of trainyard.workspace."""

    def __init__(
        self, objects: Objects, tools_image: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._objects = objects
        self._tools_image = tools_image
        self._clock = clock
        self._read_at = float("-inf")
        self._kai = False
        self._kai_queues: dict[str, kai.KaiQueue] = {}
        self._classes: list[JsonObject] = []
        self._policy_since: float | None = None

    def cluster(self, namespace: str, *, claims: bool, fresh: bool = False) -> Cluster:
        """With the claims of the namespace, read anew, where these matter, and with `fresh` all else, too.

        May raise ApiError and ApiUnavailable.
        """
        if fresh or self._clock() - self._read_at > FRESH_SECONDS:
            self._kai = all(self._serves(*each) for each in _KAI)
            queues = self._objects.list(_KAI_VERSION, "Queue", "") if self._kai else []
            self._kai_queues = {each["metadata"]["name"]: kai.read(each) for each in queues}
            self._classes = self._objects.list("storage.k8s.io/v1", "StorageClass", "")
            self._policy_since = self._read_policy_age()
            self._read_at = self._clock()
        found = self._objects.list("v1", "PersistentVolumeClaim", namespace) if claims else []
        return Cluster(
            tools_image=self._tools_image,
            kai=self._kai,
            kai_queues=self._kai_queues,
            provisioners={
                each["metadata"]["name"]: str(each.get("provisioner", "")) for each in self._classes
            },
            default_class=_default(self._classes),
            policy_since=self._policy_since,
            claims={
                each["metadata"]["name"]: tuple(each.get("spec", {}).get("accessModes") or ())
                for each in found
            },
        )

    def _serves(self, version: str, plural: str) -> bool:
        """Whether the API has this kind: its group's other ones may be there before it."""
        found = self._objects.get(f"/apis/{n.KAI_GROUP}/{version}")
        return any(each.get("name") == plural for each in (found or {}).get("resources") or ())

    def _read_policy_age(self) -> float | None:
        """Return since when the admission policy for jobs is in force, in seconds; None if it is not."""
        policy, binding = (
            self._objects.get(f"{_ADMISSION}/{each}/{n.JOB_POLICY}") for each in _POLICY_RESOURCES
        )
        if policy is None or binding is None:
            return None
        denies = "Deny" in (binding.get("spec") or {}).get("validationActions", ())
        if not denies or (policy.get("spec") or {}).get("failurePolicy") != "Fail":
            return None
        made = [moment(each["metadata"].get("creationTimestamp")) or 0.0 for each in (policy, binding)]
        return max(made)


def _default(classes: list[JsonObject]) -> str:
    """Of several the newest, as the admission of claims takes it; "" without one."""
    marked = [
        each for each in classes if (each["metadata"].get("annotations") or {}).get(_DEFAULT_CLASS) == "true"
    ]
    newest = max(marked, key=lambda each: str(each["metadata"].get("creationTimestamp")), default=None)
    return "" if newest is None else str(newest["metadata"]["name"])
