"""A save that hangs: it is an alarm while training goes on, and does not keep the training from its end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trainer import checkpoints as module
from trainer.checkpoints import Checkpoints

pytestmark = pytest.mark.trainer


class Saver:
    """Plays a saver whose first saves in flight take so many seconds; `waits` is what was waited at most."""

    def __init__(self, *seconds: float) -> None:
        self._left, self.is_busy = list(seconds), False
        self.done: list[str] = []
        self.counts = SimpleNamespace(last_good_step=3)

    def save(self, *_: object, **__: object) -> float:
        self.done.append("save")
        return 0.0

    def finish(self, timeout: float | None = None) -> bool:
        assert timeout is not None, "a save that hangs is waited for without an end"
        self.is_busy = self._left.pop(0) > timeout
        self.done.append("finish")
        return not self.is_busy

    def close(self) -> None:
        self.done.append("close")


class Owner:
    released = False

    def release(self) -> None:
        self.released = True


def ended(saver: Saver, monkeypatch: pytest.MonkeyPatch, rank: int = 0) -> tuple[bool, list[str], Owner]:
    monkeypatch.setattr(module, "gather", lambda *_: {})
    said: list[str] = []
    own = Checkpoints.__new__(Checkpoints)
    owner = Owner()
    training = SimpleNamespace(
        step=7, position=112, model=None, optimizer=None, world=SimpleNamespace(rank=rank)
    )
    own.__dict__.update(
        _saver=saver, _owner=owner, _trainer=training, _log_line=said.append, _notes=lambda: {}
    )
    return own.end(), said, owner


def test_what_is_in_flight_is_waited_for_and_then_the_last_one_is_saved(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saver = Saver(599, 599)
    well, said, owner = ended(saver, monkeypatch)
    assert (well, said, owner.released) == (True, [], True)
    assert saver.done == ["finish", "save", "finish", "close"]


@pytest.mark.parametrize(
    ("seconds", "done"),
    [((601,), ["finish", "close"]), ((0, 601), ["finish", "save", "finish", "close"])],
)
def test_a_save_that_hangs_is_told_and_the_training_goes_on_to_its_end(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, ...], done: list[str]
) -> None:
    saver = Saver(*seconds)
    well, said, owner = ended(saver, monkeypatch)
    assert not well
    assert said == [
        "alarm=checkpoint step=7 last_good_step=3 "
        "reason=a save was not done after 600 s; the run ends without it"
    ]
    assert saver.done == done
    assert not owner.released, "it still writes"
    assert ended(Saver(*seconds), monkeypatch, rank=1)[1] == []
