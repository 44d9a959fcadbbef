"""What a launcher asks of the API while it waits. Time is simulated: it passes `SPEED` times as fast, on both sides."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from launcher.gateway import Gateway
from launcher.loop import POLL_SECONDS, Launcher
from launcher.request import Request
from tests.benchmarks import api_process
from tests.benchmarks.api_process import ApiProcess, Server
from tests.benchmarks.figures import Figure, Note
from tests.unit.launcher import cluster
from tests.unit.launcher.api_server import FakeApi
from tests.unit.launcher.conftest import asked
from trainyard.k8s.client import RetryPolicy

Call = tuple[str, str, bool]
SPEED = 50.0
# In simulated seconds. Both quiet waits begin when the launcher has nothing left to do.
SETTLING = 60.0
QUIET = (300.0, 1200.0)
BUSY = 300.0
CHANGE_EVERY = 1.0
WATCHES = 7
_EPOCH = 1_800_000_000.0


def kinds(calls: Iterable[Call]) -> Counter[str]:
    """The requests by what they are for: renewals of the Lease, watches, and all the rest."""
    found: Counter[str] = Counter()
    for method, path, watch in calls:
        renewal = method == "PUT" and "/leases/" in path
        found["lease" if renewal else "watch" if watch else "other"] += 1
    return found


def simulated() -> float:
    """Seconds of the simulated clock."""
    return SPEED * time.monotonic()


def sleep(seconds: float) -> None:
    """Simulated seconds."""
    time.sleep(seconds / SPEED)


@contextmanager
def waiting(process: ApiProcess, least: int, present: int) -> Iterator[Server]:
    """A launcher that waits for `least` of 4 nodes, of which so many are there. Its deadline is far away."""
    request: Request = dataclasses.replace(asked(maxNodes=4, minNodes=least), deadline_seconds=100_000)
    usual = RetryPolicy()
    hurried = RetryPolicy(
        timeout=usual.timeout, initial_delay=usual.initial_delay / SPEED, max_delay=usual.max_delay / SPEED
    )
    with process.server(SPEED) as server:
        server.call(api_process.put_nodes, present)
        with closing(Gateway(server.client(hurried), lambda: _EPOCH + simulated())) as gateway:
            launcher = Launcher(
                request,
                "launch-r1",
                gateway,
                log_line=lambda _: None,
                wall_clock=lambda: _EPOCH + simulated(),
                clock=simulated,
                poll_seconds=POLL_SECONDS / SPEED,
            )
            thread = threading.Thread(target=launcher.run)
            thread.start()
            try:
                yield server
                if not thread.is_alive() or server.call(api_process.replicas) is not None:
                    raise AssertionError("the launcher did not wait to the end of the measurement")
            finally:
                launcher.stopping.set()
                gateway.wake()
                thread.join(30.0)


def quiet(process: ApiProcess) -> tuple[Counter[str], ...]:
    """The requests of waits as long as QUIET says, in which nothing changes in the cluster."""
    with waiting(process, least=2, present=1) as server:
        server.until(api_process.watching, WATCHES, 4)
        sleep(SETTLING)
        before = kinds(server.call(api_process.requests))
        began, found = simulated(), []
        for seconds in QUIET:
            sleep(max(0.0, began + seconds - simulated()))
            found.append(kinds(server.call(api_process.requests)) - before)
    return tuple(found)


def busy(process: ApiProcess) -> Counter[str]:
    """All requests of a wait from its begin on, in which something changes every second."""
    chance = random.Random(7)  # noqa: S311
    with waiting(process, least=4, present=2) as server:
        began, step = simulated(), 0
        while simulated() - began < BUSY:
            step += 1
            server.call(change, step, chance.random())
            sleep(max(0.0, began + CHANGE_EVERY * step - simulated()))
        return kinds(server.call(api_process.requests))


def change(api: FakeApi, step: int, drawn: float) -> None:
    """One thing of those that happen while machines are waited for. Two of the nodes flap; the third comes late."""
    match step % 5:
        case 0:
            cluster.put_warning(api, f"refused-{step}", f"small-{step}")
        case 1:
            cluster.put_pod(api, f"other-{step % 40}", f"n{step % 3}")
        case 2:
            cluster.put_claim(api, f"small-{step % 40}", "")
        case 3 if step > 150:
            cluster.put_node(api, "n2")
        case _:
            item: dict[str, Any] = api.objects[f"{cluster.NODES}/n{step % 2}"]
            ready = "True" if drawn < 0.5 else "Unknown"
            conditions = [{"type": "Ready", "status": ready}]
            api.put(
                f"{cluster.NODES}/n{step % 2}",
                {**item, "status": {**item["status"], "conditions": conditions}},
            )


def measure() -> Iterator[Figure | Note]:
    """All figures of waits; half a minute."""
    with ApiProcess() as process:
        yield from busy_figures(busy(process))
        yield from quiet_figures(*quiet(process))


def busy_figures(calls: Counter[str]) -> Iterator[Figure | Note]:
    per_second = calls.total() / BUSY
    name = f"API calls, {BUSY:.0f} s of changes"
    yield Figure(name=f"{name}: mean", value=per_second, limit=1.0, unit="/s", digits=2)
    yield Note(name=f"{name}: all", text=summarize(calls))


def quiet_figures(short: Counter[str], long: Counter[str]) -> Iterator[Figure | Note]:
    """What a longer wait without a change costs more. Each watch is ended by the API server after some minutes."""
    for seconds, calls in zip(QUIET, (short, long), strict=True):
        yield Note(name=f"API calls, {seconds:.0f} s without a change: all", text=summarize(calls))
    mean = long.total() / QUIET[1]
    yield Figure(name="API calls without a change: mean", value=mean, limit=1.0, unit="/s", digits=2)
    grown = float(long["other"] - short["other"])
    yield Figure(name="API calls that grow with the wait", value=grown, limit=0.0, unit="", digits=0)


def summarize(calls: Counter[str]) -> str:
    return (
        f"{calls.total()}: {calls['lease']} renewals of the Lease, {calls['watch']} watches started,"
        f" {calls['other']} others"
    )
