"""The controller's Lease: one controller at a time works."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable
from trainyard.k8s.lease import LeaderElector, Lost, ObjectsStore, Standing
from trainyard.k8s.objects import Objects
from trainyard.operator import names as n

log = logging.getLogger(__name__)


class LeaseHolder:
    """The controller's Lease for one holder.

    Even a Deployment with one replica and the strategy Recreate has two pods if a node stops answering.
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
        store = ObjectsStore(objects, n.CONTROLLER_NAMESPACE, n.CONTROLLER)
        metadata = {"name": n.CONTROLLER, "namespace": n.CONTROLLER_NAMESPACE}
        self._elector = LeaderElector(store, metadata, holder, clock, now)
        self._until = float("-inf")
        self._retry_after = 0.0
        self._lock = threading.Lock()
        self._released = False

    @property
    def pause(self) -> float:
        """Return in how many seconds to keep it again. The API may have asked for longer than the renewal interval."""
        return max(names.LEASE_RENEW_SECONDS, self._retry_after)

    @property
    def other(self) -> str:
        """The holder that was last seen instead of this one."""
        return self._elector.other

    def keep(self) -> float:
        """Take or renew the Lease. Return the time of `clock` when another controller may hold it, possibly past."""
        with self._lock:
            self._retry_after = 0.0
            if self._released:
                return float("-inf")
            try:
                held = self._renew_or_take()
            except (ApiError, ApiUnavailable) as error:
                self._retry_after = error.retry_after
                log.warning("Lease %s: %s", n.CONTROLLER, error)
                return self._until
            self._until = self._elector.renewed + names.LEASE_SECONDS if held else float("-inf")
            return self._until

    def _renew_or_take(self) -> bool:
        if self._elector.held:
            try:
                self._elector.renew({})
                return True
            except Lost:
                pass  # or only an answer was lost: the Lease is read
        return self._elector.take() is Standing.OURS

    def release(self) -> None:
        """Leave the Lease to the next controller, as far as the API allows it.

        A renewal in another thread ends first, so that its version is released. None begins later.
        """
        with self._lock:
            self._released = True
            self._elector.release({})
