"""`make bench-operator`: limits of the figures, and what counts as a wrong object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest

from tests.benchmarks import idle_jobs, operator, plugin_commands, pod_creation, sweep_results
from tests.benchmarks.figures import Figure, Note
from tests.integration.local.own_api_server import Answer
from tests.integration.local.torchrun_controller import Team
from tests.integration.sweeps import history
from tests.integration.sweeps.kills import MOMENTS, Kill, Outcome, Result
from trainyard.operator import names as n

# Jobs of the first ten, and the first ones that wait for the queues `later-0` and `later-1`.
RESUMED, SUSPENDED, SUCCEEDED, STARTED, WAITING = (
    "suspended-0",
    "suspended-53",
    "succeeded-4",
    "waiting-7",
    "waiting-17",
)


def missed(rows: Iterator[Figure | Note]) -> list[str]:
    return [row.name for row in rows if isinstance(row, Figure) and row.missed]


class Namespace:
    """A namespace after the restart: names by plural, and the rest of the object of each name."""

    def __init__(self) -> None:
        jobs = idle_jobs.expected_jobs()
        self.objects: dict[str, dict[str, dict[str, Any]]] = {
            "jobs": {name: {"spec": {}} for name in jobs},
            "services": {name.removesuffix("-0"): {} for name in jobs},
            "pods": {},
            "persistentvolumeclaims": {},
            n.JOB_PLURAL: {
                RESUMED: {"status": {"phase": n.PHASE_PROVISIONING}},
                SUSPENDED: {"status": {"phase": n.PHASE_SUSPENDED}},
                SUCCEEDED: {"status": {"phase": n.PHASE_SUCCEEDED}},
                STARTED: {"status": {"phase": n.PHASE_PROVISIONING}},
                WAITING: {"status": {"phase": n.PHASE_PENDING}},
            },
        }
        self.team = Team.__new__(Team)  # its constructor needs a server
        self.team.name = "thousand"
        self.team.server = cast(Any, self)

    def request(self, method: str, path: str) -> Answer:
        assert method == "GET"
        found = self.objects[path.rpartition("/")[2]]
        items = [{"metadata": {"name": name}, **rest} for name, rest in found.items()]
        return Answer(status=200, body={"items": items}, warnings=())


@pytest.fixture
def namespace() -> Namespace:
    return Namespace()


def test_jobs_are_suspended_succeeded_and_waiting() -> None:
    kinds = Counter(idle_jobs.kind_of(each) for each in range(1000))
    assert kinds == {"suspended": 400, "succeeded": 300, "waiting": 300}


def test_expected_jobs_are_resumed_ones_and_of_the_new_queue() -> None:
    expected = idle_jobs.expected_jobs()
    assert {f"{RESUMED}-0", f"{STARTED}-0", "waiting-157-0"} <= expected
    assert not {f"{SUSPENDED}-0", f"{SUCCEEDED}-0", f"{WAITING}-0"} & expected
    assert len(expected) == idle_jobs.RESUMED + len(idle_jobs.waiting_for(0))


def test_right_namespace_has_no_wrong_object(namespace: Namespace) -> None:
    assert idle_jobs._is_right(namespace.team)
    assert idle_jobs._wrong(namespace.team) == 0


@pytest.mark.parametrize(
    ("plural", "name", "rest", "right"),
    [
        ("jobs", f"{SUSPENDED}-0", {"spec": {}}, False),
        ("jobs", f"{SUSPENDED}-0", {"spec": {"suspend": True}}, True),  # does not run
        ("services", SUSPENDED, {}, True),
        ("pods", "sync", {}, True),
        ("persistentvolumeclaims", "vit-checkpoints", {}, True),
        (n.JOB_PLURAL, SUCCEEDED, {"status": {"phase": n.PHASE_RUNNING}}, True),
        (n.JOB_PLURAL, "succeeded-5", {}, True),
        (n.JOB_PLURAL, RESUMED, {"status": {"phase": n.PHASE_SUSPENDED}}, True),
        (n.JOB_PLURAL, STARTED, {"status": {"phase": n.PHASE_PENDING}}, True),
        (n.JOB_PLURAL, WAITING, {"status": {"phase": n.PHASE_PROVISIONING}}, True),
    ],
)
def test_additional_object_or_wrong_phase_is_counted(
    namespace: Namespace, plural: str, name: str, rest: dict[str, Any], right: bool
) -> None:
    namespace.objects[plural][name] = rest
    assert idle_jobs._wrong(namespace.team) == 1
    assert idle_jobs._is_right(namespace.team) is right


@pytest.mark.parametrize(
    ("plural", "name", "right"), [("jobs", f"{STARTED}-0", False), ("services", STARTED, True)]
)
def test_missing_object_is_counted(namespace: Namespace, plural: str, name: str, right: bool) -> None:
    del namespace.objects[plural][name]
    assert idle_jobs._wrong(namespace.team) == 1
    assert idle_jobs._is_right(namespace.team) is right


def test_wrong_objects_of_all_kinds_are_added(namespace: Namespace) -> None:
    namespace.objects["pods"] = {"one": {}, "two": {}}
    del namespace.objects["jobs"][f"{STARTED}-0"]
    namespace.objects["jobs"][f"{WAITING}-0"] = {"spec": {}}
    assert idle_jobs._wrong(namespace.team) == 4


PYTORCH, TRAIN = "PyTorchJob", "TrainJob"


@pytest.mark.parametrize(
    ("nodes", "ours", "pytorch", "train", "names"),
    [
        (1, 0.11, 0.01, 0.2, []),
        (1, 0.12, 0.01, 0.2, ["submit to 1 pods, later than PyTorchJob"]),
        (8, 0.3, 0.25, 0.29, ["submit to 8 pods, later than TrainJob"]),
        (8, 0.3, 0.25, 0.3, []),
        (64, 0.9, 3.0, 3.0, []),
        (64, 0.91, 3.0, 4.0, ["submit to 64 pods, to PyTorchJob's"]),
        (64, 0.9, 3.0, 2.9, ["submit to 64 pods, to TrainJob's"]),
    ],
)
def test_few_pods_are_compared_by_difference_many_by_ratio(
    nodes: int, ours: float, pytorch: float, train: float, names: list[str]
) -> None:
    # The median counts, not the worst.
    seconds = {
        "TorchrunJob": [ours, ours, 99.0],
        PYTORCH: [pytorch, pytorch, 98.0],
        TRAIN: [train, train, 97.0],
    }
    rows = list(pod_creation.evaluate(nodes, seconds))
    assert missed(iter(rows)) == names
    (note,) = (row for row in rows if isinstance(row, Note))
    assert all(f"worst {worst}.000" in note.text for worst in (99, 98, 97))


def sweep(*wrongs: str, complete: bool = True) -> Result:
    """Return the result of a sweep with one write; its first kill led to these wrong objects."""
    kills = [(Kill(write=1, moment=moment), "POST /api") for moment in MOMENTS]
    tried = [*kills, (Kill(write=2, moment="before"), "")] if complete else kills
    made = [
        Outcome(kill=kill, commit="abc", at=at, summary="", wrongs=() if index else wrongs)
        for index, (kill, at) in enumerate(tried)
    ]
    return Result(of="controller", commit="abc", seed=1, outcomes=made, complete=complete)


@pytest.mark.parametrize(
    ("wrongs", "name"),
    [
        ((), ""),
        (("made in addition: Job vit-0 of TorchrunJob (1 times)",), "duplicates"),
        (("left in addition: Pod x of nobody",), "orphans"),
        (("before: after its end: Job vit-1 of TorchrunJob was made",), "re-runs"),
        (("never made: Service vit of TorchrunJob",), "missing"),
    ],
)
def test_sweep_with_a_wrong_object_misses_its_figure(wrongs: tuple[str, ...], name: str) -> None:
    assert missed(sweep_results.evaluate(sweep(*wrongs), "abc", set())) == (
        [f"{sweep_results.NAME}: {name}"] if name else []
    )


def test_incomplete_sweep_is_missed() -> None:
    assert missed(sweep_results.evaluate(sweep(complete=False), "abc", set())) == [
        f"{sweep_results.NAME}: incomplete sweeps"
    ]


def test_note_names_commits_and_files_changed_since_the_sweep() -> None:
    (note,) = (row for row in sweep_results.evaluate(sweep(), "def", set()) if isinstance(row, Note))
    assert note.text == "3 kills at commits abc; this is def"
    for names, end in (("ba", "a.py, b.py"), ("edcba", "a.py, b.py, c.py and 2 more")):
        changed = {f"{name}.py" for name in names}
        (note,) = (row for row in sweep_results.evaluate(sweep(), "def", changed) if isinstance(row, Note))
        assert note.text.endswith(f"; files of the operator changed since: {end}")


def test_stored_sweep_has_each_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_results.plan, "commit", lambda: "abc")
    monkeypatch.setattr(sweep_results, "_changed", lambda commits: commits)  # a checkout may have no history
    names = [row.name for row in sweep_results.measure() if isinstance(row, Figure)]
    figures = [each.name for each in history.figures(())]
    assert names == [f"{sweep_results.NAME}: {each}" for each in ("incomplete sweeps", *figures)]


@pytest.mark.parametrize(
    ("rows", "measured", "stacks", "builds"),
    [
        (
            list(operator.ROWS),
            ["sweep_results", "idle_jobs", "plugin_commands bench", "pod_creation bench"],
            1,
            2,
        ),
        (["idle", "sweep"], ["sweep_results", "idle_jobs"], 0, 0),
        (["plugin"], ["plugin_commands bench"], 1, 0),
        (["pods"], ["pod_creation bench"], 1, 2),
    ],
)
def test_chosen_rows_are_measured_with_what_they_need(
    rows: list[str], measured: list[str], stacks: int, builds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, built = [], []

    class Stack:
        def __enter__(self) -> str:
            started.append(self)
            return "bench"

        def __exit__(self, *_: object) -> None:
            """Nothing to end."""

    monkeypatch.setattr(operator, "torchrun_stack", Stack)
    monkeypatch.setattr(operator, "ensure_other", lambda *tools: built.extend(tools))
    for module in (sweep_results, idle_jobs, plugin_commands, pod_creation):
        name = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(
            module,
            "measure",
            lambda *given, name=name: iter([Note(name=" ".join((name, *given)), text="")]),
        )
    assert [row.name for row in operator.measure(rows)] == measured
    assert (len(started), len(built)) == (stacks, builds)
