"""A save that hangs raises an alarm and does not block the end of the run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trainer.checkpoint.checkpointer import Checkpointer

pytestmark = pytest.mark.trainer


class Saver:
    """A fake saver. `seconds` are the durations of its saves in flight."""

    def __init__(self, *seconds: float) -> None:
        self._left, self.is_busy = list(seconds), False
        self.done: list[str] = []
        self.counts = SimpleNamespace(last_good_step=3)

    def save(self, *_: object, **__: object) -> float:
        self.done.append("save")
        return 0.0

    def finish(self, timeout: float | None = None) -> bool:
        assert timeout is not None, "the wait for a save has no timeout"
        self.is_busy = self._left.pop(0) > timeout
        self.done.append("finish")
        return not self.is_busy

    def close(self) -> None:
        self.done.append("close")


class Owner:
    released = False

    def release(self) -> None:
        self.released = True


def end_run(saver: Saver, rank: int = 0) -> tuple[bool, list[str], Owner]:
    lines: list[str] = []
    checkpointer = Checkpointer.__new__(Checkpointer)
    owner = Owner()
    training = SimpleNamespace(
        step=7, position=112, model=None, optimizer=None, world=SimpleNamespace(rank=rank)
    )
    checkpointer.__dict__.update(
        _saver=saver, _owner=owner, _trainer=training, _log_line=lines.append, _notes=dict, _gather=dict
    )
    return checkpointer.close(), lines, owner


def test_end_waits_for_the_save_in_flight_and_saves_again() -> None:
    saver = Saver(599, 599)
    is_saved, lines, owner = end_run(saver)
    assert (is_saved, lines, owner.released) == (True, [], True)
    assert saver.done == ["finish", "save", "finish", "close"]


@pytest.mark.parametrize(
    ("seconds", "done"),
    [((601,), ["finish", "close"]), ((0, 601), ["finish", "save", "finish", "close"])],
)
def test_end_with_a_hanging_save_raises_an_alarm(seconds: tuple[float, ...], done: list[str]) -> None:
    saver = Saver(*seconds)
    is_saved, lines, owner = end_run(saver)
    assert not is_saved
    assert lines == [
        "alarm=checkpoint step=7 last_good_step=3 "
        "reason=a save was not done after 600 s; the run ends without it"
    ]
    assert saver.done == done
    assert not owner.released, "the save still writes"
    assert end_run(Saver(*seconds), rank=1)[1] == []
