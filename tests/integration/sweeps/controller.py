"""`python -m tests.integration.sweeps.controller`: kill the torchrun controller at each of its writes.

The controller is a process of its own, with its service account's permissions, against a real API server and the
controllers of Kubernetes (tests/integration/local/torchrun_machine.py). In each life it is killed once, and restarted
in the same pod, as the kubelet does it. docs/faults.md says what must hold. Lives mostly wait, so several clusters run
at the same time (the variable CLUSTERS). The results are in docs/sweeps/controller.json; a sweep that was stopped
continues there.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.benchmarks.figures import verdict
from tests.faults.proxy import Call, Fault, Proxy
from tests.integration.local import torchrun_pool
from tests.integration.local.own_api_server import ApiServer
from tests.integration.local.torchrun_controller import Running, Team, controller
from tests.integration.local.torchrun_machine import cluster
from tests.integration.sweeps import history, plan
from tests.integration.sweeps.history import Made, differences, figures
from tests.integration.sweeps.kills import Kill, Outcome, Result, pause
from tests.integration.sweeps.torchrun_life import Life
from tests.seed import SEED

# A quiet machine takes 12 to 18 for a life. A controller that is killed right after it wrote a final phase leaves the
# cleaning up to the next one, which looks at all that is over within its first minute.
LIFE_SECONDS = 150.0
# In which nothing happens any more that should not.
QUIET_SECONDS = 1.0
PAUSE_SECONDS = 0.3
TRIES = 3
CLUSTERS = 3
POD = "pod"
# A life begins without the one of the life before, so that all lives come by the same writes.
LEASE = "/apis/coordination.k8s.io/v1/namespaces/torchrun-system/leases/torchrun-controller"


@dataclass
class Place:
    """A cluster with the torchrun kinds and without machines, and how an undisturbed life ends there.

    `calls` are all that the controller asked of the API server in the last life, `writes` the names of what it wrote in
    the undisturbed one and how often.
    """

    server: ApiServer
    directory: Path
    lives: int = 0

    def __post_init__(self) -> None:
        self.first = self.team()
        self.calls: list[Call] = []
        self.undisturbed, _ = self.live(self.first, None, 0.0)
        named = Counter(_name(call, self.first) for call in self.calls)
        self.writes = {name: count for name, count in sorted(named.items()) if name}

    def team(self) -> Team:
        """A new namespace."""
        self.lives += 1
        return Team(self.server, f"life-{self.lives}")

    def strike(self, kill: Kill, rest: float) -> Outcome:
        """Run a life in which the controller is killed once, and started again `rest` seconds later.

        One that a busy machine makes too slow to be read afterwards says nothing, and is lived once more; so is one
        that comes to no such write.
        """
        for left in reversed(range(TRIES)):
            team = self.team()
            try:
                made, at = self.live(team, kill, rest)
                if at:
                    break
            except history.Expired:
                if not left:
                    raise
            finally:
                self.server.request("DELETE", f"/api/v1/namespaces/{team.name}")
        wrongs = [*differences(made, self.undisturbed)]
        if not at and kill.write == 1:
            wrongs.append(f"never made: {kill.of}, in {TRIES} lives")
        # What was over before is looked at by each new controller, too.
        wrongs += [f"{history.BEFORE}{each}" for each in differences(self._first(), self.undisturbed)]
        summary = f"{sum(made.made.values())} objects made, {len(made.left)} left"
        return Outcome(
            kill=kill,
            commit=plan.commit(),
            at=at,
            summary=summary,
            wrongs=tuple(wrongs),
        )

    def live(self, team: Team, kill: Kill | None, rest: float) -> tuple[Made, str]:
        """A life; what it made, and at which write the controller was killed."""
        struck: list[Call] = []
        with Proxy(self.server.url, authority=self.server.authority) as proxy, ExitStack() as stack:
            self.server.request("DELETE", LEASE)
            since = history.begin(team)
            running = stack.enter_context(self._controller(team, proxy, 0))

            def die(call: Call) -> None:
                running.process.kill()
                struck.append(call)

            if kill is not None:
                ours = partial(_is, kill=kill, calls=proxy.calls, team=team)
                proxy.plan(Fault(on=ours, moment=kill.moment, does=die))
            life = Life(team)
            stack.callback(life.close)
            again = False
            end = time.monotonic() + LIFE_SECONDS
            late = ""
            while not life.step():
                if struck and not again:
                    again = True
                    time.sleep(rest)
                    stack.enter_context(self._controller(team, proxy, 1))
                if time.monotonic() > end:
                    late = f"not over within {LIFE_SECONDS:.0f} s"
                    break
                time.sleep(PAUSE_SECONDS)
            time.sleep(QUIET_SECONDS)
            self.calls = proxy.calls
        made = history.read(team, since)
        if late:
            made = Made(made=made.made, left=made.left, wrongs=(late, *made.wrongs))
        return made, _name(struck[0], team) if struck else ""

    @contextmanager
    def _controller(self, team: Team, proxy: Proxy, number: int) -> Iterator[Running]:
        place = self.directory / f"{team.name}-{number}"
        with controller(self.server, place, wait=False, pod=POD, through=proxy.url) as running:
            yield running

    def _first(self) -> Made:
        left = history.left(self.first)
        return Made(made=self.undisturbed.made, left=left)


def _name(call: Call, team: Team) -> str:
    """What the call writes, the same in each life; "" for one that reads or writes nothing."""
    return str(call).replace(team.name, "LIFE") if call.write and "dryRun" not in call.query else ""


def _is(call: Call, kill: Kill, calls: list[Call], team: Team) -> bool:
    """Whether the call is the one to be killed at, of these calls."""
    if _name(call, team) != kill.of:
        return False
    return kill.write == sum(each.write <= call.write and _name(each, team) == kill.of for each in calls)


@contextmanager
def place() -> Iterator[Place]:
    """A cluster of its own; an undisturbed life has been lived there."""
    with cluster(with_kai=True) as server, tempfile.TemporaryDirectory(prefix="trainyard-sweep-") as own:
        torchrun_pool.install(server)
        yield Place(server, Path(own))


def main() -> int:
    """Sweep; the exit code is 1, and the figure is named, when a life ended otherwise than the undisturbed one."""
    given = os.environ.get(SEED)
    clusters = int(os.environ.get("CLUSTERS", CLUSTERS))
    result = Result.resume(int(given) if given else None, of="controller")
    print(f"controller: seed {result.seed}, {len(result.outcomes)} kills tried before", flush=True)
    lock, stop, under_way = threading.Lock(), threading.Event(), set[Kill]()

    def sweep() -> None:
        with place() as here:
            with lock:
                if not result.writes:
                    result.writes = here.writes
                    print(
                        f"controller: an undisturbed life has {sum(here.writes.values())} writes", flush=True
                    )
            while not stop.is_set():
                with lock:
                    kill = result.next(under_way)
                    if kill is None:
                        break
                    under_way.add(kill)
                outcome = here.strike(kill, pause(result.seed, kill))
                with lock:
                    result.add(outcome)
                    ended = "; ".join(outcome.wrongs) or "ended as the undisturbed life"
                    print(f"controller {kill} ({outcome.at or 'not reached'}): {ended}", flush=True)

    with ThreadPoolExecutor(clusters) as threads:
        sweeps = [threads.submit(sweep) for _ in range(clusters)]
        try:
            for each in as_completed(sweeps):
                each.result()
        finally:
            stop.set()
    rows = figures(wrong for each in result.outcomes for wrong in each.wrongs)
    print(f"controller: {len(result.outcomes)} kills", *rows, sep="\n", flush=True)
    return verdict(rows)


if __name__ == "__main__":
    sys.exit(main())
