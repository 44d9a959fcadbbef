"""A clock that is set back in a run: no wait becomes longer than it is asked to be."""

from __future__ import annotations

from collections.abc import Callable

from launcher import node_release, state_machine
from launcher.actions import End, Memory, Start, Step
from launcher.observe import Claim
from launcher.progress import Failure, Progress, initial_progress
from launcher.request import Request
from tests.unit.launcher.conftest import asked
from tests.unit.launcher.test_capacity import NOW, node, seen
from tests.unit.launcher.test_state_machine_attempts import at
from trainyard.k8s import names

HOUR = 3600
BACK = NOW - HOUR


def steps(
    request: Request, memory: Memory, nodes: str, *moments: float
) -> tuple[Step, Callable[[float], Step]]:
    """The last of these steps, and what the next one would be."""
    looked = seen([node(name) for name in nodes])
    for moment in moments[:-1]:
        memory = state_machine.step(request, memory, at(looked, moment)).memory
    last = state_machine.step(request, memory, at(looked, moments[-1]))
    return last, lambda moment: state_machine.step(request, last.memory, at(looked, moment))


def test_hold_after_clock_set_back_keeps_window(request_: Request) -> None:
    last, then = steps(request_, Memory(), "ab", NOW, NOW + 5, BACK, BACK + 29)
    assert last.report.state == names.STATE_HOLDING
    assert [type(action) for action in then(BACK + 30).actions] == [Start]


def test_wait_after_clock_set_back_keeps_deadline(request_: Request) -> None:
    last, then = steps(request_, Memory(), "a", NOW, BACK, BACK + 299)
    assert last.report.state == names.STATE_WAITING
    (end,) = then(BACK + 300).actions
    assert isinstance(end, End)
    assert end.code == names.EXIT_BELOW_MINIMUM


def test_pause_after_clock_set_back_keeps_limit() -> None:
    failure = Failure(pool="small", code=names.EXIT_BELOW_MINIMUM, reason="none came")
    paused = Progress(
        attempt=2, candidate=0, since=NOW - 300, began=NOW - 300, pause_until=NOW + 240, failures=(failure,)
    )
    last, then = steps(asked(attempts=2), Memory(progress=paused), "", NOW, BACK, BACK + 287)
    assert last.report.state == names.STATE_PAUSING
    assert then(BACK + 288).report.state == names.STATE_WAITING


def test_overdue_after_clock_set_back_keeps_limit(request_: Request) -> None:
    claim = Claim(
        name="small-a", uid="u", node="", launched=True, initialized=False, deleting=False, created=BACK
    )
    before = node_release.complete_at(request_, seen([], claims=(claim,), now=BACK), {"u": NOW})
    assert before == {"u": BACK}


def test_a_clock_that_goes_on_changes_nothing() -> None:
    """Else the Lease would be written in each round."""
    first = initial_progress(NOW)
    step = state_machine.step(asked(), Memory(progress=first), seen([node("a")], now=NOW + 10))
    assert step.memory.progress == first
