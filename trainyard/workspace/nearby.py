"""An archive that the sync pod of another job has: a new job's pod gets it from there, and nobody sends it again."""

from __future__ import annotations

import http.client
import logging
import time
from collections.abc import Sequence
from typing import Final

from trainyard.workspace.errors import NotThere, WorkspaceError
from trainyard.workspace.sources import SyncPod
from trainyard.workspace.store import Store

LOG: Final = logging.getLogger("workspace")
# A pod that was there a moment ago answers at once; who sends it all waits meanwhile.
_SECONDS: Final = 3.0
# Then a person's line is likely the faster way; whoever sends takes a minute's silence for a broken connection
# (trainyard/k8s/exec.py).
_MOST_SECONDS: Final = 30.0


def copied(store: Store, digest: str, size: int, addresses: Sequence[str]) -> bool:
    """Whether the archive is here now: it was already, or one of these sync pods, asked in turn, had it whole.

    What a pod sends is believed only as far as its digest. What went wrong is logged: the archive can still be sent.
    All together they have half a minute.
    """
    if store.archive(digest).exists():
        return True
    until = time.monotonic() + _MOST_SECONDS
    for address in addresses:
        try:
            with SyncPod(address, _SECONDS).opened(digest) as answer:
                store.receive(digest, size, _Until(answer, until), apart=True)
        except (NotThere, WorkspaceError, http.client.HTTPException) as error:
            LOG.info("%s is not copied from %s: %s", digest, address, error)
        else:
            LOG.info("%s was copied from %s, %d bytes", digest, address, size)
            return True
    return False


class _Until:
    """An answer that is read no longer than to this time (time.monotonic)."""

    def __init__(self, answer: http.client.HTTPResponse, until: float) -> None:
        self._answer, self._until = answer, until

    def read(self, size: int) -> bytes:
        """What has come, at most `size` bytes. Raises NotThere when the time is over."""
        if time.monotonic() > self._until:
            raise NotThere("it is too slow")
        try:
            return self._answer.read1(size)
        except OSError as error:
            raise NotThere(f"it broke off: {error}") from None
