"""Two ways to start a training without this launcher, on the worlds of the launcher's traces.

Neither has attempts or fallbacks: both use the first pool of the request, once.
"""

from __future__ import annotations

import math

from launcher.manifests import stamp
from launcher.request import Request
from tests.benchmarks.tallies import Object, Outcome, Start, TalliedWorld
from tests.unit.launcher.trace import LONGEST
from tests.unit.launcher.world import TICK, TRAINING_SECONDS

POLL_SECONDS = 10.0
# torch@2.15.0, torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, RendezvousTimeout: how long a worker waits
# for the others, and how long a rendezvous that has its minimum waits for more.
JOIN_SECONDS = 600.0
LAST_CALL_SECONDS = 30.0


def polling(request: Request, seed: int) -> Outcome:
    """Baseline A: polls, counts Ready nodes, starts with what is Ready at MIN or at the deadline.

    What the document that it is of does not say is taken in its favour: MAX placeholders make Karpenter buy and are
    replaced when they are lost, the list of nodes is never stale, no time passes between count and submit, and nothing
    is left at the end. Its PyTorchJob has as many workers as nodes were counted, and trains once all of them run.
    """
    world = TalliedWorld(request, seed)
    while True:
        nodes = world.show(request.pool.name, fresh=True).nodes
        ready = min(sum(node.ready for node in nodes), request.max_nodes)
        if ready >= request.min_nodes or world.elapsed() >= request.deadline_seconds:
            break
        for _ in range(round(POLL_SECONDS / TICK)):
            world.keep("hold", request.max_nodes)
            world.advance(TICK)
    world.decided, world.wanted = True, ready
    starts = [world.start(ready)] if ready else []
    world.remove("hold")
    gathered = _gathered(world, ready) if starts else None
    trained = gathered is not None and gathered < math.inf and _trained(world)
    world.run_out()
    return world.outcome(starts, trained=trained, gathered=gathered)


def _gathered(world: TalliedWorld, workers: int) -> float:
    """The seconds until all workers of a PyTorchJob of this size run; infinite if that is too late for the first."""
    submitted = world.now
    while len(world.placed()) < workers:
        if world.now - submitted >= JOIN_SECONDS:
            return math.inf
        world.keep("w", workers)
        world.advance(TICK)
    return world.now - submitted


def _trained(world: TalliedWorld) -> bool:
    """The course of a PyTorchJob of a fixed size whose workers all run; whether it ran to its end."""
    training: Object = {"metadata": {"creationTimestamp": stamp(world.now)}, "status": {}}
    world.training = training
    while not training["status"]:
        world.advance(TICK)
    return bool(training["status"]["conditions"][0]["type"] == "Succeeded")


def elastic(request: Request, seed: int) -> Outcome:
    """Baseline B: a PyTorchJob with elasticPolicy MIN to MAX and nothing else.

    Its MAX workers pend and make Karpenter buy; lost ones are replaced. torchrun's rules: a world begins when MAX
    workers are there, or MIN and no more came within the last call; a later arrival or departure restarts all workers,
    by a rendezvous with a last call of its own. In its favour no progress is lost by a restart, and a worker on a node
    that is not Ready or is cordoned by now trains on. It has no deadline: what does not end is cut off where a trace
    of the launcher has to have ended.
    """
    world = TalliedWorld(request, seed)
    starts: list[Start] = []
    left, restarts, by_arrival, closes = TRAINING_SECONDS, 0, 0, None
    while left > 0 and world.elapsed() < LONGEST:
        world.keep("w", request.max_nodes)
        world.advance(TICK)
        here, members = world.placed(), world.members
        if members and here == members:
            left -= TICK
            continue
        if members:
            restarts += 1
            by_arrival += members < here
            world.members, closes = frozenset(), None
        if len(here) < request.min_nodes:
            closes = None
            continue
        closes = world.now + LAST_CALL_SECONDS if closes is None else closes
        if len(here) == request.max_nodes or world.now >= closes:
            world.members = here
            starts.append(world.start(len(here), here))
    world.run_out()
    return world.outcome(starts, trained=left <= 0, restarts=restarts, by_arrival=by_arrival)
