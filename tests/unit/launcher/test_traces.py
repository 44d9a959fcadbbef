"""Whole runs of the launcher on seeded traces.

Late nodes, flaps, refusals by zone, late GPUs and GPUs that never come, losses before, at and after the submit, kills
between any two writes, further attempts and other pools.
"""

from __future__ import annotations

from collections import Counter

import pytest

from launcher.core import contract as c
from tests.unit.launcher.conftest import asked, fallback
from tests.unit.launcher.trace import FINAL, Trace, several
from tests.unit.launcher.world import EPOCH, TICK

pytestmark = pytest.mark.unit

TRACES = 240


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    """The traces, run to their ends."""
    request = asked(fallbacks=[fallback()])
    ran = [several(request, seed) for seed in range(TRACES)]
    for trace in ran:
        trace.run()
    return ran


def counts(traces: list[Trace]) -> str:
    """What the traces were made of, for whoever reads a failure."""
    return (
        f"{len(traces)} traces, {sum(trace.kills for trace in traces)} kills,"
        f" {sum(trace.submits for trace in traces)} submits, {sum(trace.given_back for trace in traces)} given back,"
        f" ends {dict(Counter(trace.code for trace in traces))},"
        f" events {dict(Counter(event for trace in traces for event in trace.events))}"
    )


def test_no_trace_ends_in_a_wrong_count_a_surplus_or_a_leftover(traces: list[Trace]) -> None:
    wrongs = {trace.seed: trace.world.wrongs for trace in traces if trace.world.wrongs}
    assert wrongs == {}, counts(traces)


def test_the_traces_are_a_mix_that_is_worth_something(traces: list[Trace]) -> None:
    told = counts(traces)
    ends = Counter(trace.code for trace in traces)
    assert set(ends) <= FINAL, told
    assert ends[c.EXIT_SUCCEEDED] > 60, told
    assert ends[c.EXIT_BELOW_MINIMUM] > 30, told
    assert ends[c.EXIT_IMPOSSIBLE] > 5, told
    assert ends[c.EXIT_TRAINING_FAILED] > 3, told
    assert sum(trace.kills for trace in traces) > 100, told
    assert sum(trace.given_back for trace in traces) > 30, told
    events = Counter(event for trace in traces for event in trace.events)
    assert min(events[name] for name in ("AttemptFailed", "PoolGivenUp", "MachineGivenBack")) > 20, told
    large = sum("pool large: " in line for trace in traces for line in trace.said if "submitting" in line)
    assert large > 10, told


def test_each_trace_submits_once_or_not_at_all(traces: list[Trace]) -> None:
    trained = {c.EXIT_SUCCEEDED, c.EXIT_TRAINING_FAILED}
    wrong = {trace.seed: trace.submits for trace in traces if trace.submits != (trace.code in trained)}
    assert wrong == {}, counts(traces)


def test_a_wait_ends_at_its_deadline_and_not_before(traces: list[Trace]) -> None:
    plain = [trace for trace in traces if trace.request.candidates == trace.request.attempts == 1]
    ended = [trace for trace in plain if trace.kills == 0 and trace.code == c.EXIT_BELOW_MINIMUM]
    assert len(ended) > 5, counts(traces)
    for trace in ended:
        last = float(trace.said[-1].rpartition("elapsed=")[2].removesuffix("s"))
        deadline = trace.request.deadline_seconds
        assert deadline <= last <= deadline + 2 * TICK + 1, (trace.seed, last)
    assert ended[0].world.now > EPOCH
