"""`make bench-launcher`: what is judged, at which limit, and what a miss does."""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.benchmarks import decisions, launcher, scores, waits
from tests.benchmarks.figures import Figure, Note, percentile, ratio
from tests.benchmarks.scores import Trio
from tests.benchmarks.tallies import Outcome, Start


def judged(rows: Iterator[Figure | Note]) -> dict[str, Figure]:
    return {row.name: row for row in rows if isinstance(row, Figure)}


def missed(rows: Iterator[Figure | Note]) -> list[str]:
    return [name for name, figure in judged(rows).items() if figure.missed]


def start(nodes: int, usable: int) -> Start:
    return Start(nodes=nodes, usable=usable, least=2, most=4)


def outcome(idle: float = 0.0, *starts: Start, reached: bool = True, **more: float) -> Outcome:
    return Outcome(starts=starts, idle=idle, reached=reached, trained=True, **more)


def trio(ours: Outcome, polling: Outcome) -> Trio:
    return Trio(ours=ours, polling=polling, elastic=outcome(9.0, restarts=2))


@pytest.mark.parametrize(("value", "missed_"), [(9.9, False), (10, False), (10.01, True), (math.nan, True)])
def test_a_figure_is_missed_above_its_limit_and_where_it_is_no_number(value: float, missed_: bool) -> None:
    assert Figure(name="a", value=value, limit=10, unit="s").missed is missed_


def test_a_figure_shows_the_digits_that_decide() -> None:
    assert "0.304 s" in str(Figure(name="a", value=0.304, limit=0.3, unit="s", digits=3))


@pytest.mark.parametrize(("part", "value"), [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0), (0.001, 1.0)])
def test_a_percentile_is_the_value_that_so_many_do_not_exceed(part: float, value: float) -> None:
    assert percentile([float(number) for number in range(100, 0, -1)], part) == value


def test_there_is_no_percentile_of_nothing() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


@pytest.mark.parametrize(
    ("ours", "baseline", "value"), [(1.0, 4.0, 0.25), (0.0, 4.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, math.inf)]
)
def test_a_ratio_to_nothing_is_no_success(ours: float, baseline: float, value: float) -> None:
    assert ratio(ours, baseline) == value


@pytest.mark.parametrize(
    ("seconds", "names"),
    [
        ([0.3] * 99 + [9.0], []),
        ([0.3] * 98 + [1.01] * 2, ["decision, x: p99"]),
        ([0.1] * 49 + [0.301] * 51, ["decision, x: median"]),
    ],
)
def test_decisions_at_few_nodes_are_judged_by_median_and_p99(seconds: list[float], names: list[str]) -> None:
    assert missed(decisions.small_figures("x", seconds)) == names


@pytest.mark.parametrize(("worst", "count"), [(2.0, 0), (2.01, 1)])
def test_decisions_at_many_nodes_are_judged_by_the_worst(worst: float, count: int) -> None:
    assert len(missed(decisions.large_figures([0.1] * 9 + [worst]))) == count


def test_too_few_samples_are_no_figure() -> None:
    with pytest.raises(ValueError, match="99 samples; there must be 100"):
        list(decisions.small_figures("x", [0.1] * 99))
    with pytest.raises(ValueError, match="9 samples; there must be 10"):
        list(decisions.large_figures([0.1] * 9))
    with pytest.raises(ValueError, match="199 traces; there must be 200"):
        list(scores.world_figures([trio(outcome(), outcome())] * 199))


def test_hold_windows_end_at_every_moment_of_the_poll() -> None:
    phases = sorted(hold % decisions.POLL_SECONDS for hold in decisions.holds(100))
    gaps = [after - before for before, after in itertools.pairwise(phases)]
    assert min(gaps) > 0
    assert max(gaps) <= 1.01 * decisions.POLL_SECONDS / 100


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (start(3, 3), False),
        (start(4, 6), False),  # MAX of more than MAX
        (start(3, 4), True),
        (start(4, 3), True),
        (start(1, 1), True),  # below MIN
    ],
)
def test_a_world_is_wrong_that_is_not_min_to_max_of_the_usable_machines(found: Start, wrong: bool) -> None:
    assert found.wrong is wrong
    ours = [trio(outcome(0.0, found), outcome())] + [trio(outcome(), outcome())] * 199
    assert bool(missed(scores.world_figures(ours))) is wrong


def test_baseline_wrong_worlds_are_reported_not_scored() -> None:
    late = outcome(0.0, start(3, 2), start(1, 1), gathered=61.0)
    never = outcome(0.0, start(3, 2), gathered=math.inf)
    rows = [trio(outcome(), late), trio(outcome(), never)] + [trio(outcome(), outcome())] * 198
    found = list(scores.world_figures(rows))
    assert missed(iter(found)) == []
    text = next(row.text for row in found if isinstance(row, Note) and row.name == "worlds: baseline A")
    assert text.startswith(
        "3 started, 3 wrong (1 below MIN), 2 without all workers after 60 s, 1 for good, 0 restarts"
    )


@pytest.mark.parametrize(
    ("never", "reached", "names"),
    [
        (5.0, 10.0, []),
        (5.1, 10.0, ["idle node-seconds, MIN never reached: to baseline A"]),
        (5.0, 10.1, ["idle node-seconds, MIN reached: to baseline A"]),
    ],
)
def test_idle_machines_are_judged_apart_where_min_is_never_reached(
    never: float, reached: float, names: list[str]
) -> None:
    traces = [
        trio(outcome(never, reached=False), outcome(10.0, reached=False)),
        trio(outcome(reached, reached=False), outcome(10.0)),  # under one of them it was
    ]
    assert missed(scores.idle_figures(traces)) == names


def test_idle_machines_of_no_trace_are_no_figure() -> None:
    with pytest.raises(ValueError, match="no trace with MIN never reached"):
        list(scores.idle_figures([trio(outcome(), outcome())]))


def test_requests_are_counted_by_what_they_are_for() -> None:
    lease = "/apis/coordination.k8s.io/v1/namespaces/training/leases"
    calls = [
        ("PUT", f"{lease}/launch-r1", False),
        ("GET", f"{lease}/launch-r1", False),
        ("POST", lease, False),
        ("GET", "/api/v1/nodes", True),
        ("GET", "/api/v1/nodes", False),
    ]
    assert waits.kinds(calls) == Counter(lease=1, watch=1, other=3)


@pytest.mark.parametrize(("calls", "count"), [(waits.BUSY, 0), (waits.BUSY + 1, 1)])
def test_requests_of_a_wait_are_judged_by_the_second(calls: float, count: int) -> None:
    assert len(missed(waits.busy_figures(Counter(other=int(calls) - 10, lease=8, watch=2)))) == count


def test_what_grows_with_the_wait_is_judged_but_for_the_lease_and_watches_that_end() -> None:
    short = Counter(lease=50, watch=7, other=1)
    assert missed(waits.quiet_figures(short, Counter(lease=200, watch=28, other=1))) == []
    grown = waits.quiet_figures(short, Counter(lease=200, watch=28, other=2))
    assert missed(grown) == ["API calls that grow with the wait"]


@pytest.mark.parametrize(("slow", "code", "text"), [(11, 1, "missed: slow one\n"), (10, 0, "")])
def test_a_missed_figure_is_named_and_the_exit_code_says_so(
    slow: float, code: int, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure() -> Iterator[Figure | Note]:
        yield Figure(name="good one", value=5, limit=10, unit="s")
        yield Note(name="beside", text="nothing")
        yield Figure(name="slow one", value=slow, limit=10, unit="s")

    monkeypatch.setattr(launcher, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["launcher"])
    assert launcher.main() == code
    output = capsys.readouterr()
    assert output.err == text
    table = output.out.partition("all figures:\n")[2].splitlines()
    assert [line.split()[0] for line in table] == ["good", "slow"]


def test_every_measurement_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.benchmarks import footprint

    for part in (decisions, waits, footprint, scores):
        name = part.__name__
        monkeypatch.setattr(part, "measure", lambda name=name: iter([Note(name=name, text="")]))
    names = [row.name.rpartition(".")[2] for row in launcher.measure()]
    assert names == ["decisions", "waits", "footprint", "scores"]
