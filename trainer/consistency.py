"""Checks before training that all processes have the same settings and data, and the nodes that were expected.

Processes with different batch sizes or numbers of steps would wait for each other without end. With another seed or
other data, they would train a model that nobody asked for.

Rank 0 prints a table of the world at the start: each node with its devices and versions, compared with what was
expected. Each process reports its own. A version that differs, or a missing GPU, is marked, because it often explains a
failed or slow first step. If the world is not as expected, the table is printed before the run is refused. At that time
only the store of torchrun's agents is used, because a process group of unexpected devices may hang.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Final

import torch
import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from trainer.config import Config
from trainer.contract import Exit, TrainerError
from trainer.machine import GPU, driver_version
from trainer.process import say
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


NONE: Final = "none"
MARK: Final = "*"


@dataclass(frozen=True, kw_only=True)
class Process:
    """What one process tells of itself and its machine; versions are those it runs with, `none` for what is not there.

    `node` is the machine's place among the torchrun agents, `device` the name of this process's own device.
    """

    rank: int
    node: int
    host: str
    device: str
    python: str
    torch: str
    cuda: str
    nccl: str
    driver: str


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the launcher promised; None where nothing was."""

    nodes: int | None = None
    processes_per_node: int | None = None


# Columns after the machine's own: title, attribute of `Process`.
_VERSIONS: Final = (
    ("python", "python"),
    ("torch", "torch"),
    ("cuda", "cuda"),
    ("nccl", "nccl"),
    ("driver", "driver"),
)


def describe(world: World, node: int, device: str) -> Process:
    """This process. `node` is torchrun's GROUP_RANK, `device` is `cuda` or `cpu`, as the process joined with it.

    A process beyond the GPUs of its machine has none.
    """
    on_gpu = device == "cuda"
    own_gpu = on_gpu and world.local_rank < torch.cuda.device_count()
    gpu = torch.cuda.get_device_name(world.local_rank) if own_gpu else NONE
    return Process(
        rank=world.rank,
        node=node,
        host=socket.gethostname(),
        device=gpu if on_gpu else f"CPU {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        cuda=(torch.version.cuda or NONE) if on_gpu else NONE,
        nccl=".".join(map(str, torch.cuda.nccl.version())) if on_gpu else NONE,  # type: ignore[no-untyped-call]
        driver=(driver_version(GPU) or NONE) if on_gpu else NONE,
    )


def gather(process: Process, group: dist.ProcessGroup | None) -> list[Process]:
    """What all processes tell, by rank. All call it together, with a gloo group; None is for a process alone."""
    if group is None:
        return [process]
    found: list[Process | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, process, group)
    return [each for each in found if each is not None]


def table(processes: Sequence[Process], expected: Expected, longest: int = 16) -> list[str]:
    """The lines: what was expected and found, a row for each machine, and which of them differ. Pure.

    A value with MARK differs from that of most machines. Of more than `longest` machines only the first and those that
    differ have a row.
    """
    machines = _machines(processes)
    rows = [_row(machine) for machine in machines]
    usual = [Counter(column).most_common(1)[0][0] for column in zip(*(row[2:] for row in rows), strict=True)]
    marked = [
        row[:2]
        + [value if value == most else value + MARK for value, most in zip(row[2:], usual, strict=True)]
        for row in rows
    ]
    differs = [any(value.endswith(MARK) for value in row) for row in marked]
    shown = [row for index, row in enumerate(marked) if len(rows) <= longest or index == 0 or differs[index]]
    titles = ["node", "host", "devices", *(title for title, _ in _VERSIONS)]
    lines = [_headline(machines, expected), *_aligned([titles, *shown])]
    if len(shown) < len(rows):
        lines.append(f"and {len(rows) - len(shown)} more nodes like most")
    if any(differs):
        named = ", ".join(row[0] for row, odd in zip(rows, differs, strict=True) if odd)
        lines.append(f"warning: {MARK} differs from most nodes: node {named}")
    return lines


def _machines(processes: Sequence[Process]) -> list[list[Process]]:
    """The processes of each machine, by rank; machines in their own order."""
    found: dict[tuple[int, str], list[Process]] = {}
    for process in sorted(processes, key=lambda each: each.rank):
        found.setdefault((process.node, process.host), []).append(process)
    return [found[key] for key in sorted(found)]


def _row(machine: Sequence[Process]) -> list[str]:
    first = machine[0]
    versions = [
        _counted([getattr(each, name) for each in machine], only_if_mixed=True) for _, name in _VERSIONS
    ]
    return [str(first.node), first.host, _counted([each.device for each in machine]), *versions]


def _counted(values: Sequence[str], only_if_mixed: bool = False) -> str:
    """Each value with how often it is there: `4 x NVIDIA A10G`."""
    counts = Counter(values)
    if only_if_mixed and len(counts) == 1:
        return values[0]
    return ", ".join(f"{count} x {value}" for value, count in counts.items())


def _headline(machines: Sequence[Sequence[Process]], expected: Expected) -> str:
    sizes = [len(machine) for machine in machines]
    each = str(sizes[0]) if len(set(sizes)) == 1 else " and ".join(map(str, sorted(set(sizes))))
    found = f"found {len(machines)} nodes x {each} processes, {sum(sizes)} in all"
    if expected.nodes is None and expected.processes_per_node is None:
        return f"world: {found}; nothing was promised"
    promised = f"{expected.nodes or 'any'} nodes x {expected.processes_per_node or 'any'} processes"
    return f"world: expected {promised}, {found}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


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
