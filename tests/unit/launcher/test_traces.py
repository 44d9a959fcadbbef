"""Whole runs of the launcher on seeded traces.

Late nodes, flaps, refusals by zone, late GPUs and GPUs that never come, losses before, at and after the submit, workers
that fail, restarts, kills between any two writes, further attempts and other pools.
"""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from tests.unit.launcher.conftest import asked, fallback
from tests.unit.launcher.trace import FINAL, Trace, several
from tests.unit.launcher.world import EPOCH, TICK
from trainyard.k8s import names

pytestmark = pytest.mark.long

TRACES = 240
TRAINJOB_TRACES = 48


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    """The traces, run to their ends."""
    request = asked(fallbacks=[fallback()])
    ran = [several(request, seed) for seed in range(TRACES)]
    for trace in ran:
        trace.run()
    return ran


def counts(traces: list[Trace]) -> str:
    """What the traces were made of, for the reader of a failure."""
    return (
        f"{len(traces)} traces, {sum(trace.kills for trace in traces)} kills,"
        f" {sum(trace.submits for trace in traces)} submits, {sum(trace.released for trace in traces)} given back,"
        f" ends {dict(Counter(trace.code for trace in traces))},"
        f" events {dict(Counter(event for trace in traces for event in trace.events))}"
    )


def test_trace_ends_without_wrong_count_or_leftover(traces: list[Trace]) -> None:
    wrongs = {trace.seed: trace.world.wrongs for trace in traces if trace.world.wrongs}
    assert wrongs == {}, counts(traces)


def test_trainjob_trace_ends_without_wrong_count() -> None:
    request = asked(fallbacks=[fallback()], backend="trainjob")
    ran = [several(request, seed) for seed in range(TRAINJOB_TRACES)]
    for trace in ran:
        trace.run()
    wrongs = {trace.seed: trace.world.wrongs for trace in ran if trace.world.wrongs}
    assert wrongs == {}, counts(ran)
    ends = Counter(trace.code for trace in ran)
    assert ends[names.EXIT_SUCCEEDED] > 15, counts(ran)
    assert sum(trace.submits > 1 for trace in ran) > 5, counts(ran)


def test_traces_cover_all_events(traces: list[Trace]) -> None:
    summary = counts(traces)
    ends = Counter(trace.code for trace in traces)
    assert set(ends) <= FINAL, summary
    assert ends[names.EXIT_SUCCEEDED] > 60, summary
    assert ends[names.EXIT_BELOW_MINIMUM] > 30, summary
    assert ends[names.EXIT_IMPOSSIBLE] > 5, summary
    assert ends[names.EXIT_TRAINING_FAILED] > 3, summary
    assert sum(trace.kills for trace in traces) > 100, summary
    assert sum(trace.released for trace in traces) > 30, summary
    events = Counter(event for trace in traces for event in trace.events)
    assert min(events[name] for name in ("AttemptFailed", "PoolGivenUp", "NodeReleased")) > 20, summary
    assert events["Restarting"] > 20, summary
    again = [pair for trace in traces for pair in itertools.pairwise(trace.sizes)]
    assert sum(after < before for before, after in again) > 3, "restarts on fewer nodes: " + summary
    assert sum(after > before for before, after in again) > 3, "restarts on more nodes: " + summary
    used_up = [trace for trace in traces if trace.submits == 1 + trace.request.max_restarts > 1]
    assert any(trace.code == names.EXIT_TRAINING_FAILED for trace in used_up), (
        "a budget that is used up: " + summary
    )
    large = sum("pool large: " in line for trace in traces for line in trace.said if "submitting" in line)
    assert large > 10, summary


def test_trace_submits_once_per_restart(traces: list[Trace]) -> None:
    trained = {names.EXIT_SUCCEEDED, names.EXIT_TRAINING_FAILED}
    for trace in traces:
        noted = trace.progress
        assert noted is not None
        assert noted.restarts == noted.total_restarts <= trace.request.max_restarts, trace.seed
        assert trace.submits == noted.restarts + (trace.code in trained), trace.seed


def test_a_wait_ends_at_its_deadline_and_not_before(traces: list[Trace]) -> None:
    once = [trace for trace in traces if trace.submits == 0]
    plain = [trace for trace in once if trace.request.candidate_count == trace.request.attempts == 1]
    ended = [trace for trace in plain if trace.kills == 0 and trace.code == names.EXIT_BELOW_MINIMUM]
    assert len(ended) > 5, counts(traces)
    for trace in ended:
        last = float(trace.said[-1].rpartition("elapsed=")[2].removesuffix("s"))
        deadline = trace.request.deadline_seconds
        assert deadline <= last <= deadline + 2 * TICK + 1, (trace.seed, last)
    assert ended[0].world.now > EPOCH
