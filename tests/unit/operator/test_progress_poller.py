"""First workers are asked beside the looks: those that are slow hold up none."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.launcher.api_server import until
from trainyard.operator import progress
from trainyard.operator.plan import PROGRESS_SECONDS
from trainyard.operator.progress import ProgressPoller

pytestmark = pytest.mark.unit


class Workers:
    """What is asked waits for `free` where it is named so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.free = threading.Event()
        self.asking = ProgressPoller(lambda: self.now, self.answer)

    def answer(self, worker: dict[str, Any]) -> dict[str, Any]:
        uid = worker["metadata"]["uid"]
        self.asked.append(uid)
        if uid.startswith("slow"):
            self.free.wait(20)
        return {"step": len(self.asked), "of": uid}


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.free.set()
    made.asking.close()


def worker(uid: str) -> dict[str, Any]:
    return {"metadata": {"name": "vit-0-0-abcde", "uid": uid}}


def test_a_worker_is_asked_when_it_is_due_and_its_answer_is_reported_once(workers: Workers) -> None:
    assert workers.asking.poll("vit", worker("a")) == {"step": 1, "of": "a"}
    assert workers.asking.poll("vit", worker("a")) is None
    workers.now += PROGRESS_SECONDS
    assert workers.asking.poll("vit", worker("a")) == {"step": 2, "of": "a"}
    workers.asking.forget("vit")
    assert workers.asking.poll("vit", worker("b")) == {"step": 3, "of": "b"}


def test_asking_a_slow_worker_is_answered_by_a_later_look(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    monkeypatch.setattr(progress, "_WAIT_SECONDS", 0.01)
    assert [workers.asking.poll(f"job {number}", worker(f"slow {number}")) for number in range(3)] == [
        None
    ] * 3
    assert time.monotonic() - began < 3
    until(lambda: len(workers.asked) == 3)
    monkeypatch.setattr(progress, "_WAIT_SECONDS", 10.0)
    assert workers.asking.poll("vit", worker("quick")) == {"step": 4, "of": "quick"}
    workers.free.set()
    found = workers.asking.poll("job 0", worker("slow 0"))
    assert found is not None
    assert found["of"] == "slow 0"
    assert workers.asked.count("slow 0") == 1, "asked again while it had not answered"


def test_asking_after_a_restart_drops_the_earlier_answer(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_WAIT_SECONDS", 0.01)
    assert workers.asking.poll("vit", worker("slow")) is None
    until(lambda: workers.asked == ["slow"])
    monkeypatch.setattr(progress, "_WAIT_SECONDS", 10.0)
    workers.free.set()
    workers.now += PROGRESS_SECONDS
    assert workers.asking.poll("vit", worker("next")) == {"step": 2, "of": "next"}
