"""A world that is not what was promised, shown before it is refused: which machines came, with what.

Nothing is joined then but the store of torchrun's agents, which met already: a process group of devices that nobody
expected might hang.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta

from torch.distributed import Store  # type: ignore[attr-defined]

from trainer.say import say
from trainer.table import Expected, Process, describe, table
from trainer.world import World

# All processes are started at about the same time. Of one that does not come the table has no line.
WAIT_SECONDS = 20.0
_PLACE, _SHOWN = "refused", "refused shown"


def show(store: Store, world: World, expected: Expected, device: str) -> None:
    """Rank 0 prints the table of the world; called by all processes. Returns when it is printed, or not to be.

    The others stay until then: torchrun stops those that are left when the first one ends. Raises nothing.
    """
    own = describe(world, int(os.environ.get("GROUP_RANK", "0")), device)
    until = time.monotonic() + WAIT_SECONDS
    with suppress(RuntimeError):  # the store is gone, and with it whoever would read or print
        store.set(f"{_PLACE} {world.rank}", json.dumps(asdict(own)))
        if world.rank != 0:
            store.wait([_SHOWN], timedelta(seconds=2 * WAIT_SECONDS))
            return
        found = [own]
        for rank in range(1, world.size):
            with suppress(RuntimeError):  # it did not come
                store.wait([f"{_PLACE} {rank}"], timedelta(seconds=max(0.1, until - time.monotonic())))
                found.append(Process(**json.loads(store.get(f"{_PLACE} {rank}"))))
        for line in table(found, expected):
            say(line)
        store.set(_SHOWN, "1")
