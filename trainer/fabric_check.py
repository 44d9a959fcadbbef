"""`torchrun ... -m trainer.fabric_check`: measure the network between the processes of a run.

It measures all-reduce over a range of message sizes, as nccl-tests does, then each pair of nodes. It reports the
transport that NCCL chose (EFA, sockets, NVLink) and the bandwidth that the instance type can have. Without torchrun's
variables, `python -m trainer.fabric_check` starts torchrun's agent itself, as `trainer.entrypoint` does.

The variable TRAINYARD_FABRIC_CHECK has the requirements of the pool as JSON: `instanceType`, `gpus` and `efa` (of
a node) and `gigabits` (the bandwidth of its network in Gbit/s, 0 if unknown). Without it nothing is required.

Exit codes: 0 if nothing is wrong, 1 if the nodes have EFA and it was not used, or lack GPUs, 2 for wrong options. With
one node, EFA can't be checked.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal

from trainer import contract
from trainer.contract import CheckExit, Exit, TrainerError
from trainer.world import World

MIN_BYTES, MAX_BYTES = 8, 1 << 30
PAIR_BYTES = 64 << 20
WARM_UP = 5
# A second of measurement is enough for large messages on slow networks; small ones need many repetitions.
MAX_ITERATIONS, SECONDS_PER_SIZE = 100, 1.0
START_SECONDS = 600

Transport = Literal[
    "EFA",
    "libfabric without EFA",
    "sockets",
    "InfiniBand",
    "NVLink or PCIe",
    "shared memory",
    "gloo",
    "unknown",
]

# NCCL's log: src/init.cc ("Using network ..."), src/transport/{net,p2p,shm}.cc ("... via ..."). The plugin for EFA:
# github.com/aws/aws-ofi-nccl, src/nccl_ofi_net.cpp ("Selected provider is ...").
_NETWORK: Final = re.compile(r"NCCL INFO Using network (.+?)\s*$", re.MULTILINE)
_PROVIDER: Final = re.compile(r"NET/OFI Selected [Pp]rovider is (\S+?),? .*?\(found (\d+) nics\)")
_CHANNEL: Final = re.compile(r"NCCL INFO Channel [^\n]* via (NET|P2P|SHM)\b")


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What a node of a pool has: GPUs, EFA interfaces, and network bandwidth in Gbit/s (0: unknown)."""

    instance_type: str = ""
    gpus: int = 0
    efa: int = 0
    gigabits: float = 0

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Requirements:
        """Read TRAINYARD_FABRIC_CHECK. Raise ValueError with a one-line message."""
        text = environ.get(contract.FABRIC_CHECK)
        if text is None:
            return cls()
        try:
            document: Any = json.loads(text)
            values = tuple(document[key] for key in ("instanceType", "gpus", "efa", "gigabits"))
        except (ValueError, KeyError, TypeError):
            values = (None,) * 4
        name, gpus, efa, gigabits = values
        if (
            not isinstance(name, str)
            or type(gpus) is not int
            or type(efa) is not int
            or type(gigabits) not in (int, float)
        ):
            raise ValueError(
                f"{contract.FABRIC_CHECK} is {text}; it must be a JSON object with instanceType (a string), gpus, efa "
                "and gigabits (numbers)"
            )
        return cls(instance_type=name, gpus=gpus, efa=efa, gigabits=gigabits)


@dataclass(frozen=True, kw_only=True)
class NcclLog:
    """What NCCL's log of one process says.

    Attributes:
        network: The network for other nodes, e.g. `Libfabric` or `Socket`; "" if the log names none.
        provider: The libfabric provider, e.g. `efa`; "" without the plugin for EFA.
        interfaces: The interfaces of the provider.
        channels: The kinds of its connections: `NET`, `P2P`, `SHM`.
    """

    network: str = ""
    provider: str = ""
    interfaces: int = 0
    channels: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> NcclLog:
        """Parse the log of NCCL_DEBUG=INFO."""
        network, provider = _NETWORK.search(text), _PROVIDER.search(text)
        return cls(
            network=network[1] if network else "",
            provider=provider[1] if provider else "",
            interfaces=int(provider[2]) if provider else 0,
            channels=frozenset(_CHANNEL.findall(text)),
        )

    def between_nodes(self) -> Transport:
        """Return the transport between nodes."""
        if self.network == "Socket":
            return "sockets"
        if self.network == "IB":
            return "InfiniBand"
        if self.provider:
            return "EFA" if self.provider.startswith("efa") else "libfabric without EFA"
        return "unknown"

    def within_node(self) -> Transport:
        """Return the transport within the node."""
        if "P2P" in self.channels:
            return "NVLink or PCIe"
        return "shared memory" if "SHM" in self.channels else "unknown"


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """An all-reduce of `size` bytes by `processes` processes in `seconds`, the mean over the processes."""

    size: int
    processes: int
    seconds: float

    @property
    def algorithm_bandwidth(self) -> float:
        """GB/s of the message (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md)."""
        return self.size / self.seconds / 1e9

    @property
    def bus_bandwidth(self) -> float:
        """GB/s of the slowest link: the factor of an all-reduce is 2 (n - 1) / n (the same page)."""
        return self.algorithm_bandwidth * 2 * (self.processes - 1) / self.processes


def rounds(count: int) -> Iterator[list[tuple[int, int]]]:
    """Pair each of `count` members with each other one, in at most one pair per round (circle method)."""
    members: list[int | None] = [*range(count), *([None] if count % 2 else [])]
    for _ in range(len(members) - 1):
        half = len(members) // 2
        pairs = zip(members[:half], reversed(members[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None]
        members = [members[0], members[-1], *members[1:-1]]


def message_sizes(smallest: int, largest: int) -> list[int]:
    """Return the sizes from `smallest` to `largest` bytes, each twice the one before."""
    return [smallest << power for power in range(int(math.log2(largest / smallest)) + 1)]


def slowest(pairs: Mapping[tuple[int, int], float]) -> tuple[int | None, tuple[int, int]]:
    """Return the rank with the lowest median over its pairs, and the slowest pair.

    Args:
        pairs: GB/s of each measured pair of ranks.

    The rank is None if both members of the slowest pair are equally slow, for instance with two nodes.
    """
    pair = min(pairs, key=lambda each: pairs[each])
    medians = [statistics.median(rate for ranks, rate in pairs.items() if rank in ranks) for rank in pair]
    if math.isclose(*medians, rel_tol=0.05):
        return None, pair
    return pair[medians.index(min(medians))], pair


class Fabric:
    """Measurements between the processes of the default group. All processes call each method together."""

    def __init__(self, world: World, device: Any) -> None:
        import torch
        import torch.distributed as dist

        self._torch, self._dist, self._world, self._device = torch, dist, world, device

    def all_reduce(self, size: int) -> Measurement:
        """Measure an all-reduce of `size` bytes of float32."""
        tensor = self._torch.zeros(max(1, size // 4), dtype=self._torch.float32, device=self._device)
        seconds = self._time(lambda: self._dist.all_reduce(tensor))
        total = self._torch.tensor([seconds], dtype=self._torch.float64, device=self._device)
        self._dist.all_reduce(total)
        return Measurement(
            size=tensor.numel() * 4, processes=self._world.size, seconds=total.item() / self._world.size
        )

    def pairs(self, size: int) -> dict[tuple[int, int], float]:
        """Measure each pair of nodes, or of processes on one node. Return GB/s in each direction by pair of ranks.

        Process k of a node exchanges with process k of the other node, all processes at once.
        """
        world, dist = self._world, self._dist
        members = world.nodes if world.nodes > 1 else world.size
        width = world.size // members
        send = self._torch.zeros(size // 4, dtype=self._torch.float32, device=self._device)
        receive = self._torch.empty_like(send)
        mine: dict[tuple[int, int], float] = {}
        member, offset = divmod(world.rank, width)
        for pairs in rounds(members):
            partner = next((a + b - member for a, b in pairs if member in (a, b)), None)
            if partner is None:
                self._wait()
                continue
            peer = partner * width + offset

            def exchange(peer: int = peer) -> None:
                operations = [dist.P2POp(dist.isend, send, peer), dist.P2POp(dist.irecv, receive, peer)]
                for request in dist.batch_isend_irecv(operations):
                    request.wait()

            seconds = self._time(exchange, together=False)
            mine[(min(peer, world.rank), max(peer, world.rank))] = size / seconds / 1e9
            self._wait()
        gathered: list[Any] = [None] * world.size
        dist.all_gather_object(gathered, mine)
        result: dict[tuple[int, int], float] = {}
        for each in gathered:
            for pair, rate in each.items():
                result[pair] = min(rate, result.get(pair, math.inf))
        return result

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes by rank."""
        gathered: list[Any] = [None] * self._world.size
        self._dist.all_gather_object(gathered, value)
        return gathered

    def _wait(self) -> None:
        self._dist.barrier()

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            self._torch.cuda.synchronize(self._device)

    def _time(self, work: Callable[[], Any], *, together: bool = True) -> float:
        """Return the seconds of one `work`, the mean of repetitions. All processes repeat it equally often."""
        for _ in range(WARM_UP):
            work()
        self._synchronize()
        began = time.perf_counter()
        work()
        self._synchronize()
        once = time.perf_counter() - began
        if together:
            longest = self._torch.tensor([once], dtype=self._torch.float64, device=self._device)
            self._dist.all_reduce(longest, op=self._dist.ReduceOp.MAX)
            once = longest.item()
            count = max(1, min(MAX_ITERATIONS, int(SECONDS_PER_SIZE / once)))
        else:
            count = 3
        began = time.perf_counter()
        for _ in range(count):
            work()
        self._synchronize()
        return (time.perf_counter() - began) / count


def format_size(size: int) -> str:
    """Return a size such as `64 MiB`."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):g} {unit}"
    return f"{size} B"


def format_time(seconds: float) -> str:
    """Return a time such as `21.3 us`."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.1f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def used_transports(
    logs: Sequence[NcclLog], world: World, backend: str
) -> tuple[list[Transport], list[Transport]]:
    """Return the transports between nodes, and within a node, each one once; empty if there are none."""
    if backend != "nccl":
        return (["gloo"] if world.nodes > 1 else []), (["gloo"] if world.local_size > 1 else [])
    between = sorted({log.between_nodes() for log in logs}) if world.nodes > 1 else []
    within = sorted({log.within_node() for log in logs}) if world.local_size > 1 else []
    return between, within


def check_transport(
    required: Requirements, between: Sequence[Transport], nodes: int, device: str
) -> tuple[CheckExit, str]:
    """Return the exit code and the last line: whether the GPUs and EFA were used."""
    if required.gpus and device == "cpu":
        return (
            CheckExit.UNFIT,
            f"GPUs: {required.instance_type} has {required.gpus}, but torch finds none, so gloo was measured. "
            "Check the driver and the device plugin with `make check-nodes`",
        )
    if not required.efa:
        return CheckExit.FIT, "EFA is not required: the pool has no EFA interfaces"
    if nodes < 2:
        return CheckExit.FIT, "EFA was not checked: one node uses no network. Use at least two nodes"
    if list(between) == ["EFA"]:
        return CheckExit.FIT, "EFA is used between the nodes"
    return (
        CheckExit.UNFIT,
        f"EFA: {required.instance_type} has {required.efa} interfaces, but the processes use {' and '.join(between)}. "
        "Check the EFA device plugin, the pod's requests of vpc.amazonaws.com/efa, and libnccl-net.so of "
        "aws-ofi-nccl in the image",
    )


def describe_pairs(pairs: Mapping[tuple[int, int], float], nodes: Sequence[str], size: int) -> list[str]:
    """Return the lines about the pairs; `nodes` has the name of each rank's node."""
    if not pairs:
        return []
    rank, (first, second) = slowest(pairs)
    middle = statistics.median(pairs.values())
    lines = [
        f"pairs: {len(pairs)} of {format_size(size)} in each direction, median {middle:.2f} GB/s; slowest: "
        f"rank {first} ({nodes[first]}) and rank {second} ({nodes[second]}) with {pairs[first, second]:.2f} GB/s"
    ]
    if rank is not None:
        lines.append(f"slowest rank: {rank} ({nodes[rank]}), which is slow with most others")
    return lines


def check(required: Requirements, options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Run the check as one process of torchrun. Return the exit code."""
    import torch
    import torch.distributed as dist

    from trainer.consistency import check_equal
    from trainer.distributed import common_store, find_device

    world = World.read(environ)
    device = find_device(environ.get(contract.DEVICE), world.local_rank, world.local_size)
    backend = "nccl" if device.type == "cuda" else "gloo"
    limit = timedelta(seconds=START_SECONDS)
    store = common_store(world, limit)
    # Processes with different backends would wait for each other.
    check_equal(store, world, "device", {"device": device.type}, Exit.NO_CUDA)
    directory = Path(tempfile.mkdtemp(prefix="fabric-check-"))
    log = directory / "nccl.log"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        # Read when the first communicator is created (github.com/NVIDIA/nccl, src/debug.cc).
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,P2P,SHM", NCCL_DEBUG_FILE=str(log))
    dist.init_process_group(backend, timeout=limit, store=store, rank=world.rank, world_size=world.size)
    fabric = Fabric(world, device)
    print_line: Callable[[str], None] = _print if world.rank == 0 else _ignore
    try:
        nodes = fabric.gather(environ.get(contract.NODE) or os.uname().nodename)
        where = f" on {required.instance_type}" if required.instance_type else ""
        print_line(f"fabric: {world.nodes} nodes x {world.local_size} processes{where}, {backend}")
        expected = required.gigabits / 8 if world.nodes > 1 else 0.0
        print_line(f"{'size':>10} {'time':>10} {'algbw GB/s':>11} {'busbw GB/s':>11}")
        best = None
        for size in message_sizes(options.min_bytes, options.max_bytes):
            measured = fabric.all_reduce(size)
            if best is None or measured.bus_bandwidth > best.bus_bandwidth:
                best = measured
            print_line(
                f"{format_size(measured.size):>10} {format_time(measured.seconds):>10} "
                f"{measured.algorithm_bandwidth:>11.2f} {measured.bus_bandwidth:>11.2f}"
            )
        pair_bytes = min(PAIR_BYTES, options.max_bytes)
        for line in describe_pairs(fabric.pairs(pair_bytes), nodes, pair_bytes):
            print_line(line)
        logs = fabric.gather(NcclLog.parse(log.read_text(errors="replace") if log.exists() else ""))
        between, within = used_transports(logs, world, backend)
        interfaces = max((each.interfaces for each in logs if each.between_nodes() == "EFA"), default=0)
        ways = [
            f"{' and '.join(used)} {place}"
            for used, place in ((between, "between nodes"), (within, "within a node"))
            if used
        ]
        if interfaces:
            ways.append(f"{interfaces} EFA interfaces")
        print_line(f"transport: {', '.join(ways) or 'none, one process'}")
        if best is not None and world.size > 1:
            share = (
                f", {best.bus_bandwidth / expected:.0%} of {expected:g} GB/s ({required.gigabits:g} Gbit/s)"
                if expected
                else ""
            )
            print_line(
                f"best: {best.bus_bandwidth:.2f} GB/s of bus bandwidth at {format_size(best.size)}{share}"
            )
        code, line = check_transport(required, between, world.nodes, device.type)
        print_line(line)
        dist.barrier()
    finally:
        dist.destroy_process_group()
        log.unlink(missing_ok=True)
        directory.rmdir()
    # torchrun reports a failure of any process; one of them is enough for the exit code of the pod.
    return int(code)


def _print(line: str) -> None:
    print(line, flush=True)


def _ignore(_line: str) -> None:
    pass


def parse_options(arguments: Iterable[str]) -> argparse.Namespace:
    """Parse the options. argparse exits with 2 if one is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m trainer.fabric_check", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--min-bytes", type=int, default=MIN_BYTES, help="the smallest message (default: 8)")
    parser.add_argument(
        "--max-bytes", type=int, default=MAX_BYTES, help="the largest message (default: 1 GiB)"
    )
    options = parser.parse_args(list(arguments))
    if not 4 <= options.min_bytes <= options.max_bytes <= 1 << 36:
        parser.error(
            f"--min-bytes {options.min_bytes} --max-bytes {options.max_bytes}: they must be 4 to 64 GiB, and the first "
            "must not be above the second"
        )
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the fabric as one process of torchrun, or start torchrun's agent. Return the exit code."""
    own = list(sys.argv[1:] if arguments is None else arguments)
    options = parse_options(own)
    try:
        required = Requirements.read(os.environ)
        # Kubeflow's operators set RANK as well, in each pod.
        if "LOCAL_RANK" in os.environ:
            return check(required, options, os.environ)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return int(CheckExit.CONFIGURATION)
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return int(CheckExit.UNFIT)
    from trainer.entrypoint import launch_options, prepare_agent, run_agent

    prepare_agent()
    processes = os.environ.get(contract.PROCESSES_PER_NODE, "")
    options_of_agent = launch_options(int(processes) if processes.isdecimal() else None, os.environ)
    return run_agent("the check", "trainer.fabric_check", own, options_of_agent)


if __name__ == "__main__":
    sys.exit(main())
