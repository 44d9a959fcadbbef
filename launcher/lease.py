"""The Lease of a run: one launcher at a time acts for it, and its progress stands in an annotation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher import progress
from launcher.gateway import Gateway
from launcher.manifests import Owner, labels, owner_reference
from launcher.progress import Progress
from launcher.request import Request
from trainyard.k8s import names
from trainyard.k8s.client import JsonObject
from trainyard.k8s.lease import LeaderElector, Standing

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Store:
    """A LeaseStore for the Lease of a run."""

    gateway: Gateway
    request: Request

    def read(self) -> JsonObject | None:
        return self.gateway.lease(self.request)

    def create(self, item: JsonObject) -> JsonObject | None:
        return self.gateway.create_lease(self.request, item)

    def replace(self, item: JsonObject) -> JsonObject | None:
        return self.gateway.update_lease(self.request, item)


class RunLease:
    """The Lease of a run for one holder. Methods may raise ApiError and ApiUnavailable; see LeaderElector."""

    def __init__(
        self,
        gateway: Gateway,
        request: Request,
        owner: Owner,
        holder: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._request = request
        metadata = {
            "name": request.lease,
            "namespace": request.namespace,
            "labels": labels(request, names.ROLE_LAUNCHER),
            "annotations": {},
            "ownerReferences": [owner_reference(owner)],
        }
        self._elector = LeaderElector(_Store(gateway, request), metadata, holder, clock, wall_clock)

    @property
    def held(self) -> bool:
        """Whether the Lease was held at the last request."""
        return self._elector.held

    @property
    def other(self) -> str:
        """The holder that was last seen instead of this one."""
        return self._elector.other

    def take(self) -> Standing:
        """Read the Lease and take it if it is free. OURS says that it is held from now on."""
        return self._elector.take()

    def progress(self) -> Progress | None:
        """Return the progress of the run that stands in the Lease; None where there is none that can be read."""
        text = self._elector.annotations.get(names.ANNOTATION_ATTEMPT)
        try:
            return progress.loads(text, self._request.candidates) if text else None
        except ValueError as error:
            log.warning(
                "Lease %s, annotation %s: %s; it must be an annotation of this version. The run starts from the"
                " beginning",
                self._request.lease,
                names.ANNOTATION_ATTEMPT,
                error,
            )
            return None

    def keep(self, now: Progress | None) -> None:
        """Renew the Lease if it is time to. Raises Lost if another launcher holds it by now."""
        if not self.held or self._elector.is_due():
            self.write(now)

    def write(self, now: Progress | None) -> None:
        """Renew the Lease with this progress. Raises Lost if another launcher holds it by now."""
        self._elector.renew(_annotations(now))

    def release(self, now: Progress | None) -> None:
        """Leave the Lease with this progress to the next launcher, as far as the API allows it."""
        self._elector.release(_annotations(now))


def noted(item: Mapping[str, Any]) -> str:
    """Return the progress that stands in a Lease; empty where there is none."""
    return str((item["metadata"].get("annotations") or {}).get(names.ANNOTATION_ATTEMPT) or "")


def _annotations(now: Progress | None) -> dict[str, str]:
    return {names.ANNOTATION_ATTEMPT: progress.dumps(now)} if now is not None else {}
