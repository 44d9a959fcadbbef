"""One whole life of a stack on a local cloud of its own: `up` to the run's end, nothing to do twice, `down`."""

from __future__ import annotations

from pathlib import Path

from tests.account import things
from tests.stacks.life import Life, differences
from tests.stacks.record import Times
from tests.stacks.shown import faults
from tests.world import world


def live(stack: str, root: Path) -> Times:
    """A life from nothing to nothing, in `root`; returns how long its commands took.

    Raises AssertionError, or what the engine says, at the first thing wrong.
    """
    times = Times()
    with world(root / "home", stack) as made:
        with times.of("up"):
            process = made.deploy("up")
            output, _ = process.communicate(timeout=1500)
        print(output)
        assert process.returncode == 0, f"make up STACK={stack} ended with {process.returncode}"
        life = Life(made)
        if "trainyard:training" in made.settings:
            run = made.settings["trainyard:training"]["runId"]
            assert f"run {run} succeeded" in output
        machines(life)
        folder = root / "checkov"
        folder.mkdir()
        found = faults(life, folder)
        assert not found, "\n".join(found)
        assert life.surprises() == []
        with times.of("up again"):
            life.unchanged("up")
        with times.of("refresh"):
            life.unchanged("refresh")
        assert life.breaches() == []
        with times.of("down"):
            code, output = made.down()
        print(output)
        assert code == 0, f"make down STACK={stack} ended with {code}"
        assert sorted(things(made.client) - made.before) == []
        assert made.tagged() == []
    return times


def machines(life: Life) -> None:
    """System nodes and the machines of each pool are as the settings say, and each pool keeps as many as it should."""
    system = life.made.settings["trainyard:cluster"]["systemNodes"]
    assert life.system_nodes() == [system["instanceType"]] * system["count"]
    for pool in life.pools:
        life.await_kept(pool)
        assert life.warm_nodes(pool) == pool.get("warmNodes", 0)
        if not life.nodes(pool):
            life.buy(pool)
        found = [differences(pool, node, life.instance(node)) for node in life.nodes(pool)]
        assert found, f"pool {pool['name']} has no machine"
        assert [line for lines in found for line in lines] == []
