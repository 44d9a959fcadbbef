"""The stager copies a GPU's state in its own thread."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
import torch

from trainer.checkpoint.save import new_stager

pytestmark = pytest.mark.trainer


@pytest.mark.filterwarnings("ignore:Ignoring pin_memory flag")
def test_stager_thread_sets_its_gpu_before_the_first_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[tuple[str, int]] = []

    class Stream:
        def __enter__(self) -> None:
            events.append(("copy", threading.get_ident()))

        def __exit__(self, *_: object) -> None: ...

        def synchronize(self) -> None: ...

    monkeypatch.setattr(torch, "Stream", Stream)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda device: events.append((str(device), threading.get_ident()))
    )
    stager = new_stager(torch.device("cuda", 3), shared=False)
    try:
        for _ in range(2):
            staged = stager.stage({"a": torch.ones(2)})
            assert isinstance(staged, Future)
            assert torch.equal(staged.result()["a"], torch.ones(2))
    finally:
        stager.close()
    assert [what for what, _ in events] == ["cuda:3", "copy", "copy"]
    assert len({thread for _, thread in events} | {threading.get_ident()}) == 2


def test_stager_without_a_gpu_copies_synchronously(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: pytest.fail("there is none"))
    state = {"a": torch.ones(2)}
    staged = new_stager(torch.device("cpu"), shared=False).stage(state)
    state["a"].zero_()
    assert isinstance(staged, dict)
    assert torch.equal(staged["a"], torch.ones(2))
