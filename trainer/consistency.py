"""Checks before training that all processes have the same settings and data, and the nodes that were expected.

Processes with different batch sizes or numbers of steps would wait for each other without end. With another seed or
other data, they would train a model that nobody asked for.

Rank 0 prints a table of the world at the start: each node with its devices and versions, compared with what was
expected. Each process reports its own. A version that differs, or a missing GPU, is marked, because it often explains a
failed or slow first step. If the world is not as expected, the table is printed before the run is refused. Only
the store of torchrun's agents is used, because a process group of unexpected devices may hang.
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
from torch.distributed import DistNetworkError, Store  # type: ignore[attr-defined]

from trainer.config import Config
from trainer.contract import Exit, TrainerError
from trainer.node import GPU, driver_version
from trainer.process import log_line
from trainer.workloads import Workload
from trainer.world import World

# Settings that may differ between nodes: paths, timeouts, and what the launcher sets per worker.
_PER_NODE = frozenset(
    {
        *("data", "device", "notice_file", "timeout_seconds", "start_timeout_seconds"),
        *("metrics_directory", "metrics_port", "owner", "expected_nodes", "processes_per_node", "restart"),
    }
)
# Rank 0 may serve the store. It waits this long for processes that have not read the differences yet.
READ_SECONDS = 5.0
_MAX_RANKS = 8


def common_settings(config: Config, device: torch.device) -> dict[str, str]:
    """Return the settings that must be equal in all processes, and the type of the device."""
    settings = {name: str(value) for name, value in asdict(config).items() if name not in _PER_NODE}
    return {**settings, "device": device.type}


def describe_workload(workload: Workload) -> dict[str, str]:
    """Return the properties that identify the data and the model, independent of their path."""
    numbers = (workload.train_samples, workload.test_samples, workload.units_per_sample, workload.parameters)
    names = ("train_samples", "test_samples", "units_per_sample", "weights")
    counts = dict(zip(names, map(str, numbers), strict=True))
    return {"model": workload.name, "sha256": workload.digest, **counts}


def differences(reports: Sequence[Mapping[str, str]]) -> list[str]:
    """Return a line for each name whose values differ, with the values and their ranks. `reports` is by rank. Pure."""
    found = []
    for name in sorted(set().union(*reports)):
        ranks: dict[str, list[int]] = {}
        for rank, values in enumerate(reports):
            ranks.setdefault(values.get(name, "nothing"), []).append(rank)
        if len(ranks) > 1:
            found.append(f"{name}: " + ", ".join(f"{value} in {_named(who)}" for value, who in ranks.items()))
    return found


def check_equal(store: Store, world: World, about: str, mine: Mapping[str, str], code: Exit) -> None:
    """Compare `mine` with the values of all other processes. All processes call this together.

    Raises:
        TrainerError: Values differ. All processes raise this, with `code`.
        RuntimeError: A process did not come within the timeout of the store.
    """
    if world.size == 1:
        return
    place = f"same {about}"
    store.set(f"{place} {world.rank}", json.dumps(dict(mine)))
    if world.rank == 0:
        reports = store.multi_get([f"{place} {rank}" for rank in range(world.size)])
        store.set(place, "; ".join(differences([json.loads(each) for each in reports])))
    found = store.get(place).decode()
    if not found:
        return
    read = store.add(f"{place} read", 1)
    until = time.monotonic() + READ_SECONDS
    while world.rank == 0 and read < world.size and time.monotonic() < until:
        time.sleep(0.05)
        read = store.add(f"{place} read", 0)
    raise TrainerError(code, f"the processes differ in their {about}: {found}; they must be the same in all")


def _named(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:_MAX_RANKS]))
    more = f" and {len(ranks) - _MAX_RANKS} more" if len(ranks) > _MAX_RANKS else ""
    return f"process {listed}{more}" if len(ranks) == 1 else f"processes {listed}{more}"


NONE: Final = "none"
MARK: Final = "*"
MAX_ROWS: Final = 16


@dataclass(frozen=True, kw_only=True)
class ProcessInfo:
    """One process, its node and its versions; `none` for what it does not have.

    `node` is the rank of the torchrun agent, `device` the name of the device of this process.
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


# The last columns of the table, which are attributes of `ProcessInfo`.
_VERSIONS: Final = ("python", "torch", "cuda", "nccl", "driver")


def describe(world: World, node: int, device: str) -> ProcessInfo:
    """Describe this process. `node` is torchrun's GROUP_RANK, `device` is `cuda` or `cpu`.

    A process without a GPU of its own gets the device `none`.
    """
    on_gpu = device == "cuda"
    own_gpu = on_gpu and world.local_rank < torch.cuda.device_count()
    gpu = torch.cuda.get_device_name(world.local_rank) if own_gpu else NONE
    return ProcessInfo(
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


def table(processes: Sequence[ProcessInfo], expected: str | None = None) -> list[str]:
    """Return the table of the world: what was expected and found, and a row per node. Pure.

    A value with MARK differs from the value of most nodes. With more than MAX_ROWS nodes, only the first one and those
    that differ have a row.
    """
    nodes: dict[tuple[int, str], list[ProcessInfo]] = {}
    for process in sorted(processes, key=lambda each: (each.node, each.host, each.rank)):
        nodes.setdefault((process.node, process.host), []).append(process)
    rows = [_row(node) for node in nodes.values()]
    sizes = " and ".join(map(str, sorted({len(node) for node in nodes.values()})))
    found = f"found {len(nodes)} nodes x {sizes} processes, {len(processes)} in all"
    lines = [f"world: expected {expected}, {found}" if expected else f"world: {found}"]
    usual = [Counter(column).most_common(1)[0][0] for column in zip(*(row[2:] for row in rows), strict=True)]
    marked = [
        row[:2]
        + [value if value == most else value + MARK for value, most in zip(row[2:], usual, strict=True)]
        for row in rows
    ]
    differs = [any(value.endswith(MARK) for value in row) for row in marked]
    shown = [row for index, row in enumerate(marked) if len(rows) <= MAX_ROWS or index == 0 or differs[index]]
    cells = [["node", "host", "devices", *_VERSIONS], *shown]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines += [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    if len(shown) < len(rows):
        lines.append(f"and {len(rows) - len(shown)} more nodes like most")
    if any(differs):
        named = ", ".join(row[0] for row, odd in zip(rows, differs, strict=True) if odd)
        lines.append(f"warning: {MARK} differs from most nodes: node {named}")
    return lines


def _row(node: Sequence[ProcessInfo]) -> list[str]:
    first = node[0]
    versions = [_counted([getattr(each, name) for each in node], only_if_mixed=True) for name in _VERSIONS]
    return [str(first.node), first.host, _counted([each.device for each in node]), *versions]


def _counted(values: Sequence[str], only_if_mixed: bool = False) -> str:
    """Return each value with its count: `4 x NVIDIA A10G`."""
    counts = Counter(values)
    if only_if_mixed and len(counts) == 1:
        return values[0]
    return ", ".join(f"{count} x {value}" for value, count in counts.items())


# All processes start at about the same time. A process that takes longer is not in the table, and a line names it.
WAIT_SECONDS = 20.0
_PLACE, _SHOWN = "process", "table shown"


def show(store: Store, world: World, expected: str | None, device: str, *, is_refused: bool = False) -> None:
    """Print the table of the world in rank 0. All processes call this; it never fails.

    If the world is refused, the other processes wait for the table: torchrun stops all when the first one ends.
    """
    own = describe(world, int(os.environ.get("GROUP_RANK", "0")), device)
    until = time.monotonic() + WAIT_SECONDS
    with suppress(RuntimeError):  # the store is gone
        if world.rank != 0:
            store.set(f"{_PLACE} {world.rank}", json.dumps(asdict(own)))
            if is_refused:
                store.wait([_SHOWN], timedelta(seconds=2 * WAIT_SECONDS))
            return
        found, missing = [own], []
        for rank in range(1, world.size):
            try:
                store.wait([f"{_PLACE} {rank}"], timedelta(seconds=max(0.01, until - time.monotonic())))
                found.append(ProcessInfo(**json.loads(store.get(f"{_PLACE} {rank}"))))
            except DistNetworkError:
                raise
            except RuntimeError:
                missing.append(rank)
        for line in table(found, expected):
            log_line(line)
        if missing:
            log_line(
                f"warning: not in the table: {_named(missing)}, no description within {WAIT_SECONDS:g} s"
            )
        store.set(_SHOWN, "1")
