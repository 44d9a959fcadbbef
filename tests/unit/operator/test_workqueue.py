"""The controller's queue: one worker at a time for each thing, pauses after failures, nothing forgotten."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from trainyard.operator import workqueue as module
from trainyard.operator.workqueue import RetryLater, WorkQueue

Look = Callable[[str], Awaitable[float | None]]


def running(look: Look, then: Callable[[WorkQueue[str]], Awaitable[None]], workers: int = 3) -> None:
    """Let `then` use a queue that works."""

    async def main() -> None:
        work = WorkQueue(look, workers)
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


def test_what_comes_while_it_is_looked_at_is_seen_by_another_look_and_never_by_two_at_once() -> None:
    chance = random.Random(4)  # noqa: S311 - not for secrets
    state, seen = dict.fromkeys("abcde", 0), dict.fromkeys("abcde", 0)
    active: set[str] = set()

    async def look(key: str) -> None:
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

    running(look, change)


def test_a_thing_is_looked_at_when_it_asked_for_or_earlier_if_something_comes() -> None:
    looks: list[float] = []

    async def look(_key: str) -> float:
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

    running(look, ask)


def test_a_failure_is_followed_by_longer_and_longer_pauses_whatever_comes_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.04)
    monkeypatch.setattr(random, "uniform", lambda _a, b: b)
    looks: list[float] = []
    others: list[str] = []

    async def look(key: str) -> None:
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

    running(look, disturb, workers=1)


def test_what_is_asked_for_later_and_sooner_again_and_again_takes_no_room() -> None:
    """A job with a deadline in a year is looked at every few seconds."""
    looks = 0

    async def look(_key: str) -> float:
        nonlocal looks
        looks += 1
        return 1e7

    async def disturb(work: WorkQueue[str]) -> None:
        for count in range(2000):
            work.add("a")
            await until(lambda: looks > count)  # noqa: B023 - it is over before the next
        assert len(work._heap) < 100

    running(look, disturb)


def test_the_time_that_the_api_asks_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_PAUSE", 0.001)
    looks: list[float] = []

    async def look(_key: str) -> None:
        looks.append(asyncio.get_running_loop().time())
        if len(looks) == 1:
            raise RetryLater("429 TooManyRequests", 0.3)

    async def disturb(work: WorkQueue[str]) -> None:
        while len(looks) < 2:
            work.add("a")
            await asyncio.sleep(0.005)
        assert looks[1] - looks[0] >= 0.3

    running(look, disturb)


@pytest.mark.parametrize("turns", range(6))
def test_it_ends_when_it_is_cancelled_together_with_the_news_of_something_to_look_at(turns: int) -> None:
    async def main() -> None:
        async def look(_: str) -> None:
            """Nothing to do."""

        work = WorkQueue(look, 3)
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
