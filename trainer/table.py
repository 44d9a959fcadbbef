"""The table of the world that rank 0 prints at the start: which machines, with what, against what was expected.

Every process tells of itself. A version that differs between machines, or a machine that lacks a GPU that others have,
is marked: a first step that fails, or is slow, mostly comes from one of them.
"""

from __future__ import annotations

import platform
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
import torch.distributed as dist

from trainer.machine import GPU, driver_version
from trainer.world import World

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
