"""The launcher and the two baselines on seeded traces: wrong worlds, restarts, node-seconds without a training."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from launcher.request import Request
from tests.benchmarks.baselines import JOIN_SECONDS, elastic, polling
from tests.benchmarks.figures import Figure, Note, ratio
from tests.benchmarks.tallies import Outcome, TalliedTrace
from tests.unit.launcher.conftest import asked, fallback
from tests.unit.launcher.test_traces import TRACES
from tests.unit.launcher.trace import several

LEAST_TRACES = 200
OURS, POLLING, ELASTIC = "launcher", "baseline A", "baseline B"
# A worker that a machine was still preparing for is there by then.
LATE_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True)
class Trio:
    """One seed's outcomes."""

    ours: Outcome
    polling: Outcome
    elastic: Outcome

    @property
    def reached(self) -> bool:
        """Whether MIN machines were usable under the launcher or under baseline A, before it decided."""
        return self.ours.reached or self.polling.reached


def whole(seed: int) -> Trio:
    """The trace of this seed as the unit tests run it, with crashes, attempts and fallbacks where it has them."""
    trace = several(asked(fallbacks=[fallback()]), seed)
    return _trio(trace.request, seed, trace.crashes)


def single(seed: int) -> Trio:
    """The same without what the baselines have not: one pool, one attempt, no crash, no restart."""
    request = several(asked(), seed).request
    return _trio(dataclasses.replace(request, attempts=1, fallbacks=(), max_restarts=0), seed, 0.0)


def _trio(request: Request, seed: int, crashes: float) -> Trio:
    return Trio(
        ours=TalliedTrace(request, seed, crashes=crashes).outcome(),
        polling=polling(request, seed),
        elastic=elastic(request, seed),
    )


def measure() -> Iterator[Figure | Note]:
    """All figures of traces; about a minute."""
    yield from world_figures([whole(seed) for seed in range(TRACES)])
    yield from idle_figures([single(seed) for seed in range(TRACES)])


def world_figures(trios: Sequence[Trio]) -> Iterator[Figure | Note]:
    """Raises ValueError for too few traces."""
    if len(trios) < LEAST_TRACES:
        raise ValueError(f"{len(trios)} traces; there must be {LEAST_TRACES} at least")
    ours = [trio.ours for trio in trios]
    wrong = sum(start.wrong for outcome in ours for start in outcome.starts)
    yield Figure(name=f"wrong worlds, {len(trios)} traces", value=float(wrong), limit=0, unit="", digits=0)
    yield Note(name=f"worlds: {OURS}", text=worlds(ours))
    yield Note(name=f"worlds: {POLLING}", text=worlds([trio.polling for trio in trios]))
    yield Note(name=f"worlds: {ELASTIC}", text=worlds([trio.elastic for trio in trios]))
    idle = sum(outcome.idle for outcome in ours)
    yield Note(name=f"idle: {OURS}, with attempts and fallbacks", text=f"{idle:.0f} node-seconds")


def worlds(outcomes: Sequence[Outcome]) -> str:
    """Describe the started runs."""
    starts = [start for outcome in outcomes for start in outcome.starts]
    waits = [outcome.gathered for outcome in outcomes if outcome.gathered is not None]
    late = sum(seconds > LATE_SECONDS for seconds in waits)
    never = sum(seconds > JOIN_SECONDS for seconds in waits)
    restarts = sum(outcome.restarts for outcome in outcomes)
    arrivals = sum(outcome.by_arrival for outcome in outcomes)
    parts = [
        f"{len(starts)} started",
        f"{sum(start.wrong for start in starts)} wrong ({sum(start.below for start in starts)} below MIN)",
        f"{late} without all workers after {LATE_SECONDS:.0f} s, {never} for good" if waits else "",
        f"{restarts} restarts ({arrivals} by arrivals)",
        f"{sum(outcome.trained for outcome in outcomes)} trained to the end",
    ]
    return ", ".join(part for part in parts if part)


def idle_figures(trios: Sequence[Trio]) -> Iterator[Figure | Note]:
    """Raises ValueError where one of the two kinds of traces has none."""
    kinds = {
        "MIN never reached": ([trio for trio in trios if not trio.reached], 0.5),
        "MIN reached": ([trio for trio in trios if trio.reached], 1.0),
    }
    for kind, (some, limit) in kinds.items():
        if not some:
            raise ValueError(f"no trace with {kind}")
        idle = {
            OURS: sum(trio.ours.idle for trio in some),
            POLLING: sum(trio.polling.idle for trio in some),
            ELASTIC: sum(trio.elastic.idle for trio in some),
        }
        value = ratio(idle[OURS], idle[POLLING])
        yield Figure(
            name=f"idle node-seconds, {kind}: to {POLLING}", value=value, limit=limit, unit="", digits=2
        )
        each = ", ".join(f"{name} {seconds:.0f}" for name, seconds in idle.items())
        restarts = sum(trio.elastic.restarts for trio in some)
        yield Note(
            name=f"idle node-seconds, {kind}: all",
            text=f"{each} with {restarts} restarts; {len(some)} traces",
        )
