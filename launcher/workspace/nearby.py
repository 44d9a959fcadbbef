"""An archive that the sync pod of another job has: a new job's pod gets it from there, and nobody sends it again."""

from __future__ import annotations

import http.client
import logging
from collections.abc import Sequence
from typing import Final

from launcher.workspace.errors import NotThere, WorkspaceError
from launcher.workspace.sources import SyncPod
from launcher.workspace.store import Store

LOG: Final = logging.getLogger("workspace")
# A pod that was there a moment ago answers at once; who sends it all waits meanwhile.
_SECONDS: Final = 3.0


def copied(store: Store, digest: str, size: int, addresses: Sequence[str]) -> bool:
    """Whether the archive is here now: it was already, or one of these sync pods, asked in turn, had it whole.

    What a pod sends is believed only as far as its digest. What went wrong is logged: the archive can still be sent.
    """
    if store.archive(digest).exists():
        return True
    for address in addresses:
        try:
            with SyncPod(address, _SECONDS).opened(digest) as answer:
                store.receive(digest, size, answer, apart=True)
        except (NotThere, WorkspaceError, http.client.HTTPException) as error:
            LOG.info("%s is not copied from %s: %s", digest, address, error)
        else:
            LOG.info("%s was copied from %s, %d bytes", digest, address, size)
            return True
    return False
