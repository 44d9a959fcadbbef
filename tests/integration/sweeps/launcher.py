"""`python -m tests.integration.sweeps.launcher`: kill the launcher at each write; the run ends as an undisturbed one.

Stack `local` on a cloud of its own; each run begins without machines, is killed once, and is taken up by a second
launcher, as by the next pod of its Job. docs/faults.md says what must hold. The results stand in
docs/sweeps/launcher.json; a sweep that was stopped goes on where it was.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from local.guard import cloud_environment
from tests.faults.place import LONGEST_SECONDS, Place, until
from tests.faults.proxy import Call, Fault
from tests.faults.run import JOBS, Run
from tests.integration.sweeps import plan
from tests.integration.sweeps.kills import Kill, Outcome, Result, pause
from tests.seed import SEED
from tests.world import World, world
from trainyard.cli.engine import Engine

STACK = "local"
LEAST, MOST = 1, 2
# So short that the next run begins soon, and so long that a machine survives the death of a launcher only by what the
# launcher has made.
IDLE = "10s"
RUN_SECONDS = 300.0


def main() -> int:
    """Sweep; the exit code is 1 when a run ended otherwise than an undisturbed one."""
    given = os.environ.get(SEED)
    result = Result.resume(int(given) if given else None, of="launcher")
    print(f"launcher: seed {result.seed}, {len(result.outcomes)} kills tried before", flush=True)
    with (
        tempfile.TemporaryDirectory(prefix="trainyard-sweep-") as directory,
        world(Path(directory) / "home", STACK) as made,
    ):
        made.up()
        place = of_world(made)
        until(lambda: _has_ended(place), "the stack's own run has ended", RUN_SECONDS)
        with place.settings_of_pool(machines=MOST, idle=IDLE):
            place.without_machines()
            while (kill := result.next()) is not None:
                outcome = strike(place, Path(directory), kill, pause(result.seed, kill), idle=True)
                result.add(outcome)
                ending = "; ".join(outcome.wrongs) or "ended as an undisturbed run"
                print(f"launcher {kill} ({outcome.at or 'not reached'}): {ending}", flush=True)
    return 0 if all(each.good for each in result.outcomes) else 1


def of_world(made: World) -> Place:
    """The cluster of a world's stack."""
    return Place(made.home, Engine(made.home.root, made.stack, cloud_environment(made.home)).outputs())


def _has_ended(place: Place) -> bool:
    return all(job["status"].get("succeeded") for job in place.items(JOBS))


def strike(
    place: Place, directory: Path, kill: Kill, rest: float, *, idle: bool, most: int = MOST
) -> Outcome:
    """One run of up to `most` machines whose launcher is killed once, and taken up `rest` seconds later.

    With `idle` its machines must be given back by Karpenter at its end, so that nothing is left that holds one.
    """
    struck: list[Call] = []
    with place.proxy() as proxy, Run(place, proxy, directory, least=LEAST, most=most) as run:
        launcher = run.launch()

        def die(call: Call) -> None:
            launcher.kill()
            struck.append(call)

        proxy.plan(Fault(on=lambda call: call.write == kill.write, moment=kill.moment, does=die))
        code = launcher.wait(RUN_SECONDS)
        if struck:
            time.sleep(rest)
            code = run.launch().wait(RUN_SECONDS)
        wrongs = run.wrongs(code)
        training = run.training()
        nodes = int(training["metadata"]["annotations"]["trainyard.dev/nodes"]) if training else 0
        if idle:
            try:
                until(lambda: not place.claims(), "the machines are given back", LONGEST_SECONDS)
            except AssertionError as error:
                wrongs.append(str(error))
    return Outcome(
        kill=kill,
        commit=plan.commit(),
        at=str(struck[0]).replace(run.id, "RUN") if struck else "",
        summary=f"code {code}, {nodes} nodes",
        wrongs=tuple(wrongs),
    )


if __name__ == "__main__":
    sys.exit(main())
