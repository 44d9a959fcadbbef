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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from trainer import contract
from trainer.contract import CheckExit, Exit, TrainerError
from trainer.world import World

if TYPE_CHECKING:
    import torch
    from torch import Tensor


MIN_BYTES, MAX_BYTES = 8, 1 << 30
PAIR_BYTES = 64 << 20
WARM_UP, PAIR_ITERATIONS = 5, 3
# A second of measurement is enough for large messages on slow networks; small ones need many repetitions.
MAX_ITERATIONS, SECONDS_PER_SIZE = 100, 1.0
START_SECONDS = 600

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
            found = json.loads(text)
            return cls(
                instance_type=found["instanceType"],
                gpus=found["gpus"],
                efa=found["efa"],
                gigabits=found["gigabits"],
            )
        except (ValueError, KeyError, TypeError):
            keys = "instanceType, gpus, efa and gigabits"
            raise ValueError(
                f"{contract.FABRIC_CHECK} is {text}; it must be a JSON object with {keys}"
            ) from None


class Transport(NamedTuple):
    """The transports between nodes and within a node, and the EFA interfaces, as NCCL's log of one process has them."""

    between: str
    within: str
    interfaces: int

    @classmethod
    def parse(cls, log: str) -> Transport:
        """Parse the log of NCCL_DEBUG=INFO."""
        network, provider = _NETWORK.search(log), _PROVIDER.search(log)
        channels = set(_CHANNEL.findall(log))
        between = {"Socket": "sockets", "IB": "InfiniBand"}.get(network[1] if network else "", "unknown")
        if between == "unknown" and provider:
            between = "EFA" if provider[1].startswith("efa") else "libfabric without EFA"
        within = (
            "NVLink or PCIe" if "P2P" in channels else "shared memory" if "SHM" in channels else "unknown"
        )
        return cls(between, within, int(provider[2]) if provider and between == "EFA" else 0)


def bandwidths(size: int, seconds: float, processes: int) -> tuple[float, float]:
    """Return algorithm and bus bandwidth of an all-reduce in GB/s, as github.com/NVIDIA/nccl-tests counts them.

    The factor is 2 (n - 1) / n (doc/PERFORMANCE.md there).
    """
    algorithm = size / seconds / 1e9
    return algorithm, algorithm * 2 * (processes - 1) / processes


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


# All processes call each of these functions together. torch is imported late: the check of the options needs none.


def all_reduce_seconds(size: int, device: torch.device) -> float:
    """Return the seconds of an all-reduce of `size` bytes of float32, the mean over the processes."""
    import torch.distributed as dist

    tensor, once, total = zeros(size, device), zeros(4, device), zeros(4, device)
    once += mean_seconds(lambda: dist.all_reduce(tensor), 1, device)
    dist.all_reduce(once, op=dist.ReduceOp.MAX)  # all processes repeat it equally often
    count = max(1, min(MAX_ITERATIONS, int(SECONDS_PER_SIZE / once.item())))
    total += mean_seconds(lambda: dist.all_reduce(tensor), count, device)
    dist.all_reduce(total)
    return float(total.item()) / dist.get_world_size()


def pair_rates(size: int, world: World, device: torch.device) -> dict[tuple[int, int], float]:
    """Measure each pair of nodes, or of processes on one node. Return GB/s in each direction by pair of ranks.

    Process k of a node exchanges with process k of the other node, all processes at once.
    """
    import torch.distributed as dist

    from trainer.distributed import gather_objects

    members = world.nodes if world.nodes > 1 else world.size
    width = world.size // members
    member, offset = divmod(world.rank, width)
    send, receive = zeros(size, device), zeros(size, device)
    mine: dict[tuple[int, int], float] = {}

    def exchange(peer: int) -> None:
        operations = [dist.P2POp(dist.isend, send, peer), dist.P2POp(dist.irecv, receive, peer)]
        for request in dist.batch_isend_irecv(operations):
            request.wait()

    for pairs in rounds(members):
        partner = next((a + b - member for a, b in pairs if member in (a, b)), None)
        if partner is not None:
            peer = partner * width + offset
            seconds = mean_seconds(partial(exchange, peer), PAIR_ITERATIONS, device)
            mine[(min(peer, world.rank), max(peer, world.rank))] = size / seconds / 1e9
        dist.barrier()
    result: dict[tuple[int, int], float] = {}
    for each in gather_objects(mine):
        for pair, rate in each.items():
            result[pair] = min(rate, result.get(pair, math.inf))
    return result


def zeros(size: int, device: torch.device) -> Tensor:
    """Return `size` bytes of float32."""
    import torch

    return torch.zeros(max(1, size // 4), dtype=torch.float32, device=device)


def mean_seconds(work: Callable[[], object], count: int, device: torch.device) -> float:
    """Return the seconds of one `work`, the mean of `count` repetitions after a warm-up."""
    import torch

    for repetitions in (WARM_UP, count):
        began = time.perf_counter()
        for _ in range(repetitions):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
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


def used_transports(logs: Sequence[Transport], world: World, backend: str) -> tuple[list[str], list[str]]:
    """Return the transports between nodes, and within a node, each one once; empty if there are none."""
    if backend != "nccl":
        logs = [Transport("gloo", "gloo", 0)]
    between = sorted({log.between for log in logs}) if world.nodes > 1 else []
    within = sorted({log.within for log in logs}) if world.local_size > 1 else []
    return between, within


def check_transport(
    required: Requirements, between: Sequence[str], nodes: int, device: str
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
    """Return the lines about the pairs and their GB/s; `nodes` has the name of each rank's node.

    The slowest rank has the lower median over its pairs. It is not named if both members of the slowest pair are
    equally slow, for instance with two nodes.
    """
    if not pairs:
        return []
    first, second = slowest = min(pairs, key=lambda each: pairs[each])
    lines = [
        f"pairs: {len(pairs)} of {format_size(size)} in each direction, median "
        f"{statistics.median(pairs.values()):.2f} GB/s; slowest: rank {first} ({nodes[first]}) and rank {second} "
        f"({nodes[second]}) with {pairs[slowest]:.2f} GB/s"
    ]
    medians = [statistics.median(rate for ranks, rate in pairs.items() if rank in ranks) for rank in slowest]
    if not math.isclose(*medians, rel_tol=0.05):
        rank = slowest[medians.index(min(medians))]
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
    with tempfile.TemporaryDirectory(prefix="fabric-check-") as directory:
        log = Path(directory, "nccl.log")
        if device.type == "cuda":
            torch.cuda.set_device(device)
            # Read when the first communicator is created (github.com/NVIDIA/nccl, src/debug.cc).
            os.environ.update(
                NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,NET,P2P,SHM", NCCL_DEBUG_FILE=str(log)
            )
        dist.init_process_group(backend, timeout=limit, store=store, rank=world.rank, world_size=world.size)
        try:
            code = measure(required, options, environ, world, device, backend, log)
            dist.barrier()
        finally:
            dist.destroy_process_group()
    # torchrun reports a failure of any process; one of them is enough for the exit code of the pod.
    return int(code)


def measure(
    required: Requirements,
    options: argparse.Namespace,
    environ: Mapping[str, str],
    world: World,
    device: torch.device,
    backend: str,
    log: Path,
) -> CheckExit:
    """Measure, and print the result in rank 0. `log` is the file of NCCL's log of this process."""
    from trainer.distributed import gather_objects

    def report(line: str) -> None:
        if world.rank == 0:
            print(line, flush=True)

    nodes = gather_objects(environ.get(contract.NODE) or os.uname().nodename)
    where = f" on {required.instance_type}" if required.instance_type else ""
    report(f"fabric: {world.nodes} nodes x {world.local_size} processes{where}, {backend}")
    report(f"{'size':>10} {'time':>10} {'algbw GB/s':>11} {'busbw GB/s':>11}")
    best, best_size = -1.0, 0
    for size in message_sizes(options.min_bytes, options.max_bytes):
        seconds = all_reduce_seconds(size, device)
        algorithm, bus = bandwidths(size, seconds, world.size)
        if bus > best:
            best, best_size = bus, size
        report(f"{format_size(size):>10} {format_time(seconds):>10} {algorithm:>11.2f} {bus:>11.2f}")
    pair_bytes = min(PAIR_BYTES, options.max_bytes)
    for line in describe_pairs(pair_rates(pair_bytes, world, device), nodes, pair_bytes):
        report(line)
    logs = gather_objects(Transport.parse(log.read_text(errors="replace") if log.exists() else ""))
    between, within = used_transports(logs, world, backend)
    ways = [
        f"{' and '.join(used)} {place}"
        for used, place in ((between, "between nodes"), (within, "within a node"))
        if used
    ]
    if interfaces := max(each.interfaces for each in logs):
        ways.append(f"{interfaces} EFA interfaces")
    report(f"transport: {', '.join(ways) or 'none, one process'}")
    if world.size > 1:
        line = f"best: {best:.2f} GB/s of bus bandwidth at {format_size(best_size)}"
        if world.nodes > 1 and required.gigabits:
            expected = required.gigabits / 8
            line += f", {best / expected:.0%} of {expected:g} GB/s ({required.gigabits:g} Gbit/s)"
        report(line)
    code, line = check_transport(required, between, world.nodes, device.type)
    report(line)
    return code


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
    except (ValueError, TrainerError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return int(CheckExit.UNFIT if isinstance(error, TrainerError) else CheckExit.CONFIGURATION)
    from trainer.entrypoint import launch_options, prepare_agent, run_agent

    prepare_agent()
    processes = os.environ.get(contract.PROCESSES_PER_NODE, "")
    options_of_agent = launch_options(int(processes) if processes.isdecimal() else None, os.environ)
    return run_agent("the check", "trainer.fabric_check", own, options_of_agent)


if __name__ == "__main__":
    sys.exit(main())
