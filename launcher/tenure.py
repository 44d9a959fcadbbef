"""One launcher's hold on its run: takes the Lease, renews it, writes the progress into it, releases it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from launcher import lease, progress
from launcher.gateway import Gateway
from launcher.lease import JsonObject, Standing
from launcher.manifests import Owner
from launcher.progress import Progress
from launcher.request import Request
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable

log = logging.getLogger(__name__)


class Lost(Exception):
    """The Lease is another's, or may be: nothing may be done until it is held again."""


@dataclass
class Tenure:
    """The Lease of a run for one holder. Every method may raise ApiError and ApiUnavailable.

    `clock` counts seconds and is never set back; `wall_clock` is seconds since the epoch, for people who read the
    Lease.
    """

    gateway: Gateway
    request: Request
    owner: Owner
    holder: str
    clock: Callable[[], float]
    wall_clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._item: JsonObject | None = None  # as it was last written, while it is held
        self._renewed = 0.0
        self._watched: lease.Watched | None = None

    @property
    def held(self) -> bool:
        """Whether the Lease was held at the last request."""
        return self._item is not None

    @property
    def other(self) -> str:
        """The holder that was last seen instead of this one."""
        return self._watched.record.holder if self._watched else ""

    def take(self) -> Standing:
        """One look at the Lease, which is taken if it is free. OURS says that it is held from now on."""
        asked = self.clock()
        found = self.gateway.lease(self.request)
        record = None if found is None else lease.record(found)
        standing, self._watched = lease.standing(record, self.holder, self._watched, self.clock())
        if standing in (Standing.UNSURE, Standing.TAKEN):
            return standing
        now = self.wall_clock()
        if found is None:
            first = lease.manifest(self.request, self.owner, self.holder, now)
            made = self.gateway.create_lease(self.request, first)
        elif standing is Standing.OURS:
            made = self.gateway.update_lease(self.request, lease.renewed(found, "", now))
        else:
            next_ = lease.taken(found, self.request, self.owner, self.holder, now)
            made = self.gateway.update_lease(self.request, next_)
        if made is None:  # another was faster
            return Standing.UNSURE
        self._item, self._renewed = made, asked
        return Standing.OURS

    def progress(self) -> Progress | None:
        """What the Lease says of how far the run is; None where it says nothing that can be read."""
        text = lease.noted(self._item) if self._item is not None else ""
        try:
            return progress.loads(text, self.request.candidates) if text else None
        except ValueError as error:
            log.warning(
                "Lease %s, annotation %s: %s; it must be an annotation of this version. The run begins anew",
                self.request.lease,
                names.ANNOTATION_ATTEMPT,
                error,
            )
            return None

    def keep(self, now: Progress | None) -> None:
        """Renews the Lease if it is time to. Raises Lost if it is another's by now."""
        if self.clock() - self._renewed >= names.LEASE_RENEW_SECONDS:
            self.write(now)

    def write(self, now: Progress | None) -> None:
        """Renews the Lease and notes the progress in it. Raises Lost if it is another's by now."""
        if self._item is None:
            raise Lost
        text = progress.dumps(now) if now is not None else ""
        asked = self.clock()
        made = self.gateway.update_lease(self.request, lease.renewed(self._item, text, self.wall_clock()))
        if made is None:
            # Another's, or an answer that was lost: `take` finds out.
            self._item = None
            raise Lost
        self._item, self._renewed = made, asked

    def release(self, now: Progress | None) -> None:
        """Leaves the Lease to the next, as far as the API lets it."""
        if self._item is None:
            return
        text = progress.dumps(now) if now is not None else ""
        item, self._item = self._item, None
        try:
            self.gateway.update_lease(self.request, lease.released(item, text, self.wall_clock()))
        except (ApiError, ApiUnavailable) as error:
            log.warning("Lease %s is not released and runs out by itself: %s", self.request.lease, error)
