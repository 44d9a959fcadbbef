"""What must be the same in all processes, compared before the training: settings, and the data that each has found.

Processes that differ in a batch size or a number of steps would wait for each other in vain; with another seed or other
data they would train, and what comes out would be nobody's run.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import torch
from torch.distributed import Store  # type: ignore[attr-defined]

from trainer.config import Config
from trainer.contract import Exit, TrainerError
from trainer.workloads import Workload
from trainer.world import World

# What each machine may have in its own way: where its data lie, what is watched and written there, how long it waits.
_OWN = frozenset(
    {
        *("data", "device", "notice_file", "timeout_seconds", "start_timeout_seconds"),
        *("metrics_directory", "metrics_port", "owner", "expected_nodes", "processes_per_node", "restart"),
    }
)
# The store may be kept by rank 0: it stays that long for those who have not read yet what differs.
READ_SECONDS = 5.0
_MOST_RANKS = 8


def must_agree(config: Config, device: torch.device) -> dict[str, str]:
    """The settings that are of the run and not of a machine, and the kind of device that each process has."""
    settings = {name: str(value) for name, value in asdict(config).items() if name not in _OWN}
    return {**settings, "device": device.type}


def described(workload: Workload) -> dict[str, str]:
    """What tells these data and this model from others, wherever they lie."""
    numbers = (workload.train_samples, workload.test_samples, workload.units_per_sample, workload.parameters)
    names = ("train_samples", "test_samples", "units_per_sample", "weights")
    told = dict(zip(names, map(str, numbers), strict=True))
    return {"model": workload.name, "sha256": workload.digest, **told}


def differences(told: Sequence[Mapping[str, str]]) -> list[str]:
    """What each process tells, by rank: each name whose values differ, with its values and who has them. Pure."""
    found = []
    for name in sorted(set().union(*told)):
        ranks: dict[str, list[int]] = {}
        for rank, values in enumerate(told):
            ranks.setdefault(values.get(name, "nothing"), []).append(rank)
        if len(ranks) > 1:
            found.append(f"{name}: " + ", ".join(f"{value} in {_named(who)}" for value, who in ranks.items()))
    return found


def check_same(store: Store, world: World, about: str, mine: Mapping[str, str], code: Exit) -> None:
    """Compare `mine` with what all others tell: called by all processes together.

    Raises TrainerError with `code` in all of them where anything differs, and RuntimeError when one does not come
    within the store's timeout.
    """
    if world.size == 1:
        return
    place = f"same {about}"
    store.set(f"{place} {world.rank}", json.dumps(dict(mine)))
    if world.rank == 0:
        told = store.multi_get([f"{place} {rank}" for rank in range(world.size)])
        store.set(place, "; ".join(differences([json.loads(each) for each in told])))
    found = store.get(place).decode()
    if not found:
        return
    read = store.add(f"{place} read", 1)
    until = time.monotonic() + READ_SECONDS
    while world.rank == 0 and read < world.size and time.monotonic() < until:
        time.sleep(0.05)
        read = store.add(f"{place} read", 0)
    raise TrainerError(code, f"the processes differ in their {about}: {found}; expected the same in all")


def _named(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:_MOST_RANKS]))
    more = f" and {len(ranks) - _MOST_RANKS} more" if len(ranks) > _MOST_RANKS else ""
    return f"process {listed}{more}" if len(ranks) == 1 else f"processes {listed}{more}"
