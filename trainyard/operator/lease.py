"""One controller at a time: the Lease that it holds while it works. The rules are launcher/lease.py's."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from launcher import lease
from launcher.lease import Standing, Watched
from launcher.manifests import stamp
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable
from trainyard.k8s.objects import Objects, path_of
from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject

# https://kubernetes.io/docs/concepts/architecture/leases/
_VERSION = "coordination.k8s.io/v1"

log = logging.getLogger(__name__)


class LeaseHolder:
    """The controller's Lease for one holder.

    A Deployment of one replica that is recreated has two pods all the same where a node stops answering.
    `clock` counts seconds and is never set back; `now` is seconds since the epoch, for people who read the Lease.
    """

    def __init__(
        self,
        objects: Objects,
        holder: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._objects = objects
        self._holder = holder
        self._clock = clock
        self._now = now
        self._watched: Watched | None = None
        self._until = float("-inf")
        self._asked = 0.0

    @property
    def pause(self) -> float:
        """In how many seconds to keep it again: the API may have asked for longer than it is renewed after."""
        return max(names.LEASE_RENEW_SECONDS, self._asked)

    @property
    def other(self) -> str:
        """The holder that was last seen instead of this one."""
        return self._watched.record.holder if self._watched is not None else ""

    def keep(self) -> float:
        """Takes or renews it; returns the moment of `clock` from which it may be another's, which may be past."""
        asked, self._asked = self._clock(), 0.0
        try:
            if self._take(asked):
                self._until = asked + names.LEASE_SECONDS
            else:
                self._until = float("-inf")
        except (ApiError, ApiUnavailable) as error:
            self._asked = error.retry_after
            log.warning("Lease %s: %s", n.CONTROLLER, error)
        return self._until

    def _take(self, asked: float) -> bool:
        found = self._objects.get(path_of(_manifest(self._holder, 0.0)))
        record = None if found is None else lease.record(found)
        standing, self._watched = lease.standing(record, self._holder, self._watched, asked)
        if standing in (Standing.TAKEN, Standing.UNSURE):
            return False
        fresh = _manifest(self._holder, self._now())
        if found is None:
            return self._objects.create(fresh)
        ours = standing is Standing.OURS
        kept = {"acquireTime": found["spec"].get("acquireTime")} if ours else {}
        spec = {
            **fresh["spec"],
            **kept,
            "leaseTransitions": lease.record(found).transitions + (not ours),
        }
        return self._objects.put({**found, "spec": spec}) is not None

    def release(self) -> None:
        """Leaves it to the next controller, as far as the API lets it."""
        try:
            found = self._objects.get(path_of(_manifest(self._holder, 0.0)))
            if found is not None and lease.record(found).holder == self._holder:
                spec = {**found["spec"], "holderIdentity": None, "leaseDurationSeconds": 1}
                self._objects.put({**found, "spec": spec})
        except (ApiError, ApiUnavailable) as error:
            log.warning("Lease %s is not released and runs out by itself: %s", n.CONTROLLER, error)


def _manifest(holder: str, now: float) -> JsonObject:
    moment = stamp(now, "microseconds")
    return {
        "apiVersion": _VERSION,
        "kind": "Lease",
        "metadata": {"name": n.CONTROLLER, "namespace": n.CONTROLLER_NAMESPACE},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": names.LEASE_SECONDS,
            "acquireTime": moment,
            "renewTime": moment,
            "leaseTransitions": 0,
        },
    }
