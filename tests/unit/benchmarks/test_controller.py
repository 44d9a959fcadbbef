"""`make bench-controller`: what is judged, at which limit, what is counted as wrong, and what a miss does."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.benchmarks import arrivals, controller, resting, sending, swept
from tests.benchmarks.figures import Figure, Note
from tests.integration.local.own_api_server import Answer
from tests.integration.local.torchrun_controller import Team
from tests.integration.sweeps import history
from tests.integration.sweeps.kills import MOMENTS, Kill, Outcome, Result
from trainyard.operator import names as n

pytestmark = pytest.mark.unit


def missed(rows: Iterator[Figure | Note]) -> list[str]:
    return [row.name for row in rows if isinstance(row, Figure) and row.missed]


class Namespace:
    """A team's, of which only lists are read: names by plural, and what else an object of that name has."""

    def __init__(self) -> None:
        begun = resting._expected()
        self.objects: dict[str, dict[str, dict[str, Any]]] = {
            "jobs": {name: {"spec": {}} for name in begun},
            "services": {name.removesuffix("-0"): {} for name in begun},
            "pods": {},
            "persistentvolumeclaims": {},
            n.JOB_PLURAL: {
                "succeeded-0": {"status": {"phase": n.PHASE_SUCCEEDED}},
                "suspended-20": {"status": {"phase": n.PHASE_SUSPENDED}},
                "suspended-19": {"status": {"phase": n.PHASE_PROVISIONING}},
                "waiting-15": {"status": {"phase": n.PHASE_PROVISIONING}},
                "waiting-1": {"status": {"phase": n.PHASE_PENDING}},
            },
        }
        self.team = Team.__new__(Team)  # without a server there is nowhere to make a namespace
        self.team.name = "rest"
        self.team.server = cast(Any, self)

    def request(self, method: str, path: str) -> Answer:
        assert method == "GET"
        found = self.objects[path.rpartition("/")[2]]
        items = [{"metadata": {"name": name}, **rest} for name, rest in found.items()]
        return Answer(status=200, body={"items": items}, warnings=())


@pytest.fixture
def namespace() -> Namespace:
    return Namespace()


def test_what_begins_are_those_that_were_resumed_and_those_whose_queue_came() -> None:
    begun = resting._expected()
    assert len(begun) == 2 * resting.CHANGED
    assert {"suspended-0-0", "suspended-19-0", "waiting-0-0", "waiting-285-0"} <= begun


def test_what_is_as_it_should_be_is_right_and_has_nothing_wrong(namespace: Namespace) -> None:
    assert resting._right(namespace.team)
    assert resting._wrong(namespace.team) == 0


@pytest.mark.parametrize(
    ("plural", "name", "rest", "right"),
    [
        ("jobs", "suspended-399-0", {"spec": {}}, False),
        ("jobs", "suspended-399-0", {"spec": {"suspend": True}}, True),  # is there, and does not run
        ("services", "suspended-399", {}, True),
        ("pods", "sync", {}, True),
        ("persistentvolumeclaims", "vit-checkpoints", {}, True),
        (n.JOB_PLURAL, "succeeded-0", {"status": {"phase": n.PHASE_RUNNING}}, True),
        (n.JOB_PLURAL, "succeeded-1", {}, True),
        (n.JOB_PLURAL, "suspended-19", {"status": {"phase": n.PHASE_SUSPENDED}}, True),
        (n.JOB_PLURAL, "waiting-15", {"status": {"phase": n.PHASE_PENDING}}, True),
        (n.JOB_PLURAL, "waiting-16", {"status": {"phase": n.PHASE_PROVISIONING}}, True),
    ],
)
def test_each_object_that_should_not_be_there_is_counted(
    namespace: Namespace, plural: str, name: str, rest: dict[str, Any], right: bool
) -> None:
    namespace.objects[plural][name] = rest
    assert resting._wrong(namespace.team) == 1
    assert resting._right(namespace.team) is right


@pytest.mark.parametrize(
    ("plural", "name", "right"), [("jobs", "waiting-15-0", False), ("services", "waiting-15", True)]
)
def test_each_object_that_is_missing_is_counted(
    namespace: Namespace, plural: str, name: str, right: bool
) -> None:
    del namespace.objects[plural][name]
    assert resting._wrong(namespace.team) == 1
    assert resting._right(namespace.team) is right


def test_wrong_objects_of_all_kinds_are_one_sum(namespace: Namespace) -> None:
    namespace.objects["pods"] = {"one": {}, "two": {}}
    del namespace.objects["jobs"]["waiting-0-0"]
    namespace.objects["jobs"]["waiting-1-0"] = {"spec": {}}
    assert resting._wrong(namespace.team) == 4


@pytest.mark.parametrize(
    ("nodes", "ours", "theirs", "names"),
    [
        (1, 0.5, 0.01, []),
        (1, 0.52, 0.01, ["submit to 1 pods, later than PyTorchJob"]),
        (8, 3.5, 3.0, []),
        (8, 3.51, 3.0, ["submit to 8 pods, later than PyTorchJob"]),
        (8, 0.1, 3.0, []),
        (64, 4.8, 4.0, []),
        (64, 4.81, 4.0, ["submit to 64 pods, to PyTorchJob's"]),
    ],
)
def test_few_pods_are_judged_by_the_difference_and_many_by_the_ratio(
    nodes: int, ours: float, theirs: float, names: list[str]
) -> None:
    rows = list(arrivals._judged(nodes, ours, theirs, 99.0, 98.0))
    assert missed(iter(rows)) == names
    (note,) = (row for row in rows if isinstance(row, Note))
    assert "worst 99.000" in note.told
    assert "worst 98.000" in note.told


def sweep(*wrongs: str, complete: bool = True) -> Result:
    """One of a life of a single write, with what the first kill led to."""
    kills = [(Kill(write=1, moment=moment), "POST /api") for moment in MOMENTS]
    tried = [*kills, (Kill(write=2, moment="before"), "")] if complete else kills
    made = [
        Outcome(kill=kill, commit="abc", at=at, told="", wrongs=() if index else wrongs)
        for index, (kill, at) in enumerate(tried)
    ]
    return Result(of="controller", commit="abc", seed=1, outcomes=made, complete=complete)


@pytest.mark.parametrize(
    ("wrongs", "name"),
    [
        ((), ""),
        (("made besides: Job vit-0 of TorchrunJob (1 times)",), "duplicates"),
        (("left besides: Pod x of nobody",), "orphans"),
        (("before: after its end: Job vit-1 of TorchrunJob was made",), "re-runs"),
        (("never made: Service vit of TorchrunJob",), "missing"),
    ],
)
def test_each_kind_of_wrong_of_the_sweep_is_judged_by_itself(wrongs: tuple[str, ...], name: str) -> None:
    assert missed(swept.judged(sweep(*wrongs), "abc", set())) == ([f"{swept.NAME}: {name}"] if name else [])


def test_a_sweep_that_is_not_at_its_end_is_no_success() -> None:
    assert missed(swept.judged(sweep(complete=False), "abc", set())) == [
        f"{swept.NAME}: sweeps not at their end"
    ]


def test_it_is_told_at_which_commits_the_sweep_was_seen() -> None:
    (note,) = (row for row in swept.judged(sweep(), "def", set()) if isinstance(row, Note))
    assert note.told == "3 kills, seen at abc; this is def"
    changed = {"launcher/b.py", "launcher/a.py"}
    (note,) = (row for row in swept.judged(sweep(), "def", changed) if isinstance(row, Note))
    assert note.told.endswith("2 of the controller's files changed since: launcher/a.py, launcher/b.py")


def test_the_sweep_that_is_kept_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each figure is there, whatever it is by now."""
    monkeypatch.setattr(swept.plan, "commit", lambda: "abc")
    monkeypatch.setattr(swept, "_changed", lambda commits: commits)  # a checkout may have no history
    names = [row.name for row in swept.measure() if isinstance(row, Figure)]
    told = [each.name for each in history.figures(())]
    assert names == [f"{swept.NAME}: {each}" for each in ("sweeps not at their end", *told)]


@pytest.mark.parametrize(("slow", "code", "told"), [(11, 1, "missed: slow one\n"), (10, 0, "")])
def test_a_missed_figure_is_named_and_the_exit_code_says_so(
    slow: float, code: int, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure() -> Iterator[Figure | Note]:
        yield Figure(name="good one", value=5, limit=10, unit="s")
        yield Note(name="beside", told="nothing")
        yield Figure(name="slow one", value=slow, limit=10, unit="s")

    monkeypatch.setattr(controller, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["controller"])
    assert controller.main() == code
    output = capsys.readouterr()
    assert output.err == told
    assert [line.split()[0] for line in output.out.splitlines()] == ["good", "beside", "slow"]


def test_every_measurement_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stack:
        def __enter__(self) -> str:
            return "bench"

        def __exit__(self, *_: object) -> None:
            """Nothing to end."""

    monkeypatch.setattr(controller, "torchrun_stack", Stack)
    for part in (swept, resting, sending, arrivals):
        name = part.__name__.rpartition(".")[2]
        monkeypatch.setattr(
            part,
            "measure",
            lambda *given, name=name: iter([Note(name=" ".join((name, *given)), told="")]),
        )
    assert [row.name for row in controller.measure()] == [
        "swept",
        "resting",
        "sending bench",
        "arrivals bench",
    ]
