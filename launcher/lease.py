"""The Lease of a run. Only its holder acts, and an annotation stores the progress."""

from __future__ import annotations

import logging
from collections.abc import Callable

from launcher.gateway import Gateway
from launcher.manifests import Owner, labels, owner_reference
from launcher.progress import Progress, dumps, loads
from launcher.request import Request
from trainyard.k8s import names
from trainyard.k8s.lease import LeaderElector

log = logging.getLogger(__name__)


class RunLease(LeaderElector):
    """The Lease of a run for one holder. `owner` is the launcher's Job."""

    def __init__(
        self,
        gateway: Gateway,
        request: Request,
        owner: Owner,
        holder: str,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        metadata = {
            "name": request.lease,
            "namespace": request.namespace,
            "labels": labels(request, names.ROLE_LAUNCHER),
            "annotations": {},
            "ownerReferences": [owner_reference(owner)],
        }
        super().__init__(gateway.lease_store(), metadata, holder, clock, wall_clock)
        self.owner = owner
        self._candidate_count = request.candidate_count

    def progress(self) -> Progress | None:
        """Return the progress in the Lease; None if there is none, or if it is invalid."""
        text = self.annotations.get(names.ANNOTATION_ATTEMPT)
        try:
            return loads(text, self._candidate_count) if text else None
        except ValueError as error:
            log.warning(
                "Lease %s, annotation %s: %s; it must be an annotation of this version. The run starts from the"
                " beginning",
                self.metadata["name"],
                names.ANNOTATION_ATTEMPT,
                error,
            )
            return None

    def keep(self, progress: Progress | None) -> None:
        """Renew the Lease if it is due. Raises Lost if another launcher holds it."""
        if not self.is_holder or self.is_due():
            self.write(progress)

    def write(self, progress: Progress | None) -> None:
        """Renew the Lease with this progress. Raises Lost if another launcher holds it."""
        self.renew(_annotations(progress))

    def end(self, progress: Progress | None) -> None:
        """Release the Lease with this progress for the next launcher, if the API allows it."""
        self.release(_annotations(progress))


def _annotations(progress: Progress | None) -> dict[str, str]:
    return {names.ANNOTATION_ATTEMPT: dumps(progress)} if progress is not None else {}
