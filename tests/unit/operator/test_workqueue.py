"""The controller's queue: one worker at a time for each thing, pauses after failures, nothing forgotten."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from trainyard.operator import workqueue as module
from trainyard.operator.workqueue import RetryLater, WorkQueue

Process = Callable[[str], Awaitable[float | None]]


def running(process: Process, then: Callable[[WorkQueue[str]], Awaitable[None]], workers: int = 3) -> None:
    """Let `then` use a queue that works."""

    async def main() -> None:
        work = WorkQueue(process, workers)
        task = asyncio.create_task(work.run())
        try:
            async with asyncio.timeout(20):
                await then(work)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


def test_queue_key_added_during_a_call_is_called_again() -> None:
    chance = random.Random(4)  # noqa: S311 - not for secrets
    state, seen = dict.fromkeys("abcde", 0), dict.fromkeys("abcde", 0)
    active: set[str] = set()

    async def process(key: str) -> None:
        assert key not in active
        active.add(key)
        found = state[key]
        await asyncio.sleep(chance.random() * 0.004)
        seen[key] = found
        active.remove(key)

    async def change(work: WorkQueue[str]) -> None:
        for _ in range(300):
            key = chance.choice("abcde")
            state[key] += 1
            work.add(key)
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.003)
        await until(lambda: len(work) == 0)
        assert seen == state
        assert not work._entries, "a thing that is done is still known"

    running(process, change)


def test_queue_key_is_called_when_due_or_sooner() -> None:
    looks: list[float] = []

    async def process(_key: str) -> float:
        looks.append(asyncio.get_running_loop().time())
        return 0.2

    async def ask(work: WorkQueue[str]) -> None:
        work.add("a", 30)
        work.add("a")
        await until(lambda: len(looks) == 2)
        assert 0.19 < looks[1] - looks[0] < 1
        work.add("a", 60)  # does not put it off
        await until(lambda: len(looks) == 3)
        work.add("a")
        await until(lambda: len(looks) == 4)
        assert looks[3] - looks[2] < 0.15

    running(process, ask)


def test_queue_failed_key_pauses_longer_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.04)
    monkeypatch.setattr(random, "uniform", lambda _a, b: b)
    looks: list[float] = []
    others: list[str] = []

    async def process(key: str) -> None:
        if key != "poison":
            others.append(key)
            return
        looks.append(asyncio.get_running_loop().time())
        if len(looks) < 5:
            raise ValueError("not today")

    async def disturb(work: WorkQueue[str]) -> None:
        while len(looks) < 5:
            work.add("poison")
            work.add(f"healthy {len(others)}")
            await asyncio.sleep(0.002)
        pauses = [after - before for before, after in pairwise(looks)]
        for pause, least in zip(pauses, (0.04, 0.08, 0.16, 0.32), strict=True):
            assert pause >= least
        assert len(others) > 20, "one that fails holds up the others"
        work.add("poison")
        await until(lambda: len(looks) >= 6)

    running(process, disturb, workers=1)


def test_queue_requests_of_one_key_use_no_memory() -> None:
    """A job with a deadline in a year is looked at every few seconds."""
    looks = 0

    async def process(_key: str) -> float:
        nonlocal looks
        looks += 1
        return 1e7

    async def disturb(work: WorkQueue[str]) -> None:
        for count in range(2000):
            work.add("a")
            await until(lambda: looks > count)  # noqa: B023 - it is over before the next
        assert len(work._heap) < 100

    running(process, disturb)


def test_queue_retry_waits_as_long_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)
    looks: list[float] = []

    async def process(_key: str) -> None:
        looks.append(asyncio.get_running_loop().time())
        if len(looks) == 1:
            raise RetryLater("429 TooManyRequests", 0.3)

    async def disturb(work: WorkQueue[str]) -> None:
        while len(looks) < 2:
            work.add("a")
            await asyncio.sleep(0.005)
        assert looks[1] - looks[0] >= 0.3

    running(process, disturb)


@pytest.mark.parametrize("turns", range(6))
def test_queue_cancelled_with_a_new_key_ends(turns: int) -> None:
    async def main() -> None:
        async def process(_: str) -> None:
            """Nothing to do."""

        work = WorkQueue(process, 3)
        task = asyncio.create_task(work.run())
        work.add("later", 60)
        await asyncio.sleep(0.01)  # by now all its workers wait
        work.add("now")
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=2)
        assert done

    asyncio.run(main())
