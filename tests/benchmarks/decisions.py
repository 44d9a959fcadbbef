"""How long the launcher takes from what decides to the answer that the training is made."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

from launcher.capacity import count
from launcher.gateway import Gateway
from launcher.loop import POLL_SECONDS, Launcher
from launcher.observe import Observation
from launcher.request import Request
from tests.benchmarks import api_process
from tests.benchmarks.api_process import ApiProcess
from tests.benchmarks.figures import Figure, Note, percentile
from tests.unit.launcher import cluster
from tests.unit.launcher.conftest import asked
from trainyard.k8s.client import Client

SMALL, LARGE, LARGE_PODS = 4, 256, 2000
SMALL_SAMPLES, LARGE_SAMPLES = 100, 10
# Lists that a waiting launcher watches.
WATCHES = 7
# Launchers that wait for the end of their hold window at the same time: they sleep nearly all of it.
TOGETHER = 4
# From the last placeholder to the node that decides: the launcher has nothing left to do by then.
_QUIET_SECONDS = 0.2
_LONGEST_SECONDS = 60.0
# The gateway's wall clock is the monotonic one from here on, so that what was seen has a monotonic moment.
_EPOCH = 1_800_000_000.0


class TimedGateway(Gateway):
    """The real gateway, with the monotonic moments of the first look that saw MIN and of the training's answer."""

    def __init__(self, rest: Client) -> None:
        super().__init__(rest, lambda: _EPOCH + time.monotonic())
        self.reached: float | None = None
        self.answered = 0.0
        self.busy = 0.0
        self.made = threading.Event()

    def observe(self, request: Request, *, fresh: bool) -> Observation:
        seen = super().observe(request, fresh=fresh)
        if self.reached is None and len(count(request, seen).usable) >= request.min_nodes:
            self.reached = seen.now - _EPOCH
        return seen

    def create_training(self, request: Request, manifest: dict[str, Any]) -> bool:
        made = super().create_training(request, manifest)
        self.answered = time.monotonic()
        self.busy += time.process_time()
        self.made.set()
        return made


def sized(nodes: int, **changes: Any) -> Request:
    """A run of MIN 1 to this MAX whose hold window is far longer than a sample, unless `changes` say otherwise.

    Its workers leave room for the pods of others that `cluster.grow` puts on every node, a CPU each.
    """
    request = asked(maxNodes=nodes, minNodes=1, capacityDeadlineSeconds=3000)
    pool = dataclasses.replace(request.pool, max_nodes=nodes)
    worker = dataclasses.replace(request.worker, cpu="30")
    return dataclasses.replace(request, **{"pool": pool, "worker": worker, "hold_seconds": 1000, **changes})


def at_most(process: ApiProcess, nodes: int, pods: int = 0) -> tuple[float, float]:
    """Seconds from the change that makes MAX nodes usable to the answer, and those of them on a processor of ours.

    With `pods` the cluster has real sizes: NodeClaims, nodes of 12 KB, and so many pods of 5 KB.
    """
    with process.server() as server, closing(TimedGateway(server.client())) as gateway:
        if pods:
            server.call(cluster.grow, nodes - 1, pods)
        else:
            server.call(api_process.put_nodes, nodes - 1)
        with Running(sized(nodes), gateway):
            server.until(api_process.watching, WATCHES, nodes)
            time.sleep(_QUIET_SECONDS)
            gateway.busy = -time.process_time()
            changed = server.call(api_process.put_last)
            return _answer(server, gateway, nodes) - changed, gateway.busy


def at_hold_end(process: ApiProcess, hold: float) -> float:
    """Return the seconds from the end of a hold window to the answer, with two of four nodes."""
    request = sized(SMALL, min_nodes=2, hold_seconds=hold)
    with process.server() as server, closing(TimedGateway(server.client())) as gateway:
        server.call(api_process.put_nodes, 2)
        with Running(request, gateway):
            answered = _answer(server, gateway, 2)
            assert gateway.reached is not None
            return answered - (gateway.reached + hold)


class Running:
    """A launcher in a thread of its own; it is stopped at the end."""

    def __init__(self, request: Request, gateway: TimedGateway) -> None:
        self._gateway = gateway
        self._launcher = Launcher(
            request,
            "launch-r1",
            gateway,
            log_line=lambda _: None,
            wall_clock=lambda: _EPOCH + time.monotonic(),
        )
        self._thread = threading.Thread(target=self._launcher.run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._launcher.stopping.set()
        self._gateway.wake()
        self._thread.join(_LONGEST_SECONDS)


def _answer(server: api_process.Server, gateway: TimedGateway, nodes: int) -> float:
    if not gateway.made.wait(_LONGEST_SECONDS):
        raise TimeoutError(f"no training for {nodes} nodes within {_LONGEST_SECONDS:.0f} s")
    made = server.call(api_process.replicas)
    if made != nodes:
        raise AssertionError(f"a training of {made} nodes was made, of {nodes} that there were")
    return gateway.answered


def holds(samples: int) -> list[float]:
    """Hold windows that end at every moment of the launcher's poll equally often."""
    return [1.0 + POLL_SECONDS * index / samples for index in range(samples)]


def measure() -> Iterator[Figure | Note]:
    """All figures of decisions; about two minutes."""
    with ApiProcess() as process:
        at_most(process, SMALL)  # what is loaded once, by both processes
        small = [at_most(process, SMALL)[0] for _ in range(SMALL_SAMPLES)]
        yield from small_figures(f"MAX of {SMALL} nodes", small)
        with ThreadPoolExecutor(TOGETHER) as pool:
            ends = list(pool.map(lambda hold: at_hold_end(process, hold), holds(SMALL_SAMPLES)))
        yield from small_figures("end of the hold window, 2 nodes", ends)
        large = [at_most(process, LARGE, LARGE_PODS) for _ in range(LARGE_SAMPLES)]
        yield from large_figures([seconds for seconds, _ in large])
        busy = percentile([busy for _, busy in large], 0.5)
        yield Note(name=f"decision, MAX of {LARGE} nodes: processor", text=f"{busy:.3f} s, median")


def small_figures(what: str, seconds: list[float]) -> Iterator[Figure | Note]:
    """Raises ValueError for too few samples."""
    if len(seconds) < SMALL_SAMPLES:
        raise ValueError(f"{len(seconds)} samples; there must be {SMALL_SAMPLES} at least")
    name = f"decision, {what}"
    yield Figure(name=f"{name}: median", value=percentile(seconds, 0.5), limit=0.3, unit="s", digits=3)
    yield Figure(name=f"{name}: p99", value=percentile(seconds, 0.99), limit=1.0, unit="s", digits=3)
    yield Note(name=f"{name}: worst", text=f"{max(seconds):.3f} s of {len(seconds)} samples")


def large_figures(seconds: list[float]) -> Iterator[Figure | Note]:
    """Raises ValueError for too few samples."""
    if len(seconds) < LARGE_SAMPLES:
        raise ValueError(f"{len(seconds)} samples; there must be {LARGE_SAMPLES} at least")
    name = f"decision, MAX of {LARGE} nodes"
    yield Figure(name=f"{name}: worst", value=max(seconds), limit=2.0, unit="s", digits=3)
    median = percentile(seconds, 0.5)
    yield Note(
        name=f"{name}: median", text=f"{median:.3f} s of {len(seconds)} samples, beside {LARGE_PODS} pods"
    )
