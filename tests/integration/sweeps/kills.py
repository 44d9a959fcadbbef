"""Which kills of a launcher or a controller a sweep tries, and what is kept of each."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests import seed as seeds
from tests.faults.proxy import Moment
from tests.integration.sweeps import plan

MOMENTS: tuple[Moment, ...] = ("before", "after")
# The next one does not come at once.
LONGEST_PAUSE_SECONDS = 3.0


@dataclass(frozen=True, kw_only=True)
class Kill:
    """It is killed at its `write`-th write `of` this name, from 1: before it is sent on, or after it was carried out.

    Writes of the name "" are those of any.
    """

    write: int
    moment: Moment
    of: str = ""

    def __str__(self) -> str:
        return f"killed {self.moment} write {self.write}{self.of and ' of '}{self.of}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a kill led to at this commit: no `wrongs` are a success.

    `at` is the write, with its path; empty where the run had fewer writes and ended undisturbed. `summary` is what the
    run came to, in words.
    """

    kill: Kill
    commit: str
    at: str
    summary: str
    wrongs: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Whether the run ended as an undisturbed one."""
        return not self.wrongs


def pause(seed: int, kill: Kill) -> float:
    """How many seconds the next one takes after this kill; a seed gives the same again."""
    chance = random.Random(f"{seed} {kill}")  # noqa: S311 - not for secrets
    return round(chance.uniform(0, LONGEST_PAUSE_SECONDS), 1)


def every(writes: Mapping[str, int]) -> list[Kill]:
    """All kills of a run that has so many writes of each name."""
    return [
        Kill(write=write, moment=moment, of=of)
        for of, count in writes.items()
        for write in range(1, count + 1)
        for moment in MOMENTS
    ]


def sample(seed: int, count: int, writes: Mapping[str, int]) -> list[Kill]:
    """So many different ones of them."""
    return random.Random(seed).sample(every(writes), count)  # noqa: S311 - not for secrets


@dataclass(kw_only=True)
class Result:
    """A sweep as docs/sweeps has it, by the name of what is killed (`of`): it is written after each kill.

    `commit` is the one that the sweep went on with last; each outcome names the one that it was seen at. `complete`
    says that every write was tried: those in `writes`, by name how many there are of it, where runs come by the same
    ones in another order; without, all in their order.
    """

    of: str
    commit: str
    seed: int
    writes: Mapping[str, int] = field(default_factory=dict)
    outcomes: list[Outcome] = field(default_factory=list)
    complete: bool = False

    @staticmethod
    def path(of: str) -> Path:
        """Where the result is."""
        return plan.RESULTS / f"{of}.json"

    @classmethod
    def read(cls, of: str) -> Result:
        """The sweep as it was kept. Whether it is complete is seen from what it tried."""
        read = json.loads(cls.path(of).read_text())
        outcomes = [_outcome(each) for each in read["outcomes"]]
        kept = cls(
            of=of, commit=read["commit"], seed=read["seed"], writes=read.get("writes", {}), outcomes=outcomes
        )
        kept.complete = kept.next() is None
        return kept

    @classmethod
    def resume(cls, seed: int | None, *, of: str) -> Result:
        """The unfinished sweep, or a new one (with the given seed, where there is one).

        What went wrong at an earlier commit is no outcome of this one: those kills are tried again.
        """
        now = plan.commit()
        if cls.path(of).exists():
            read = cls.read(of)
            kept = [each for each in read.outcomes if each.good or each.commit == now]
            if seed in (None, read.seed) and not (read.complete and len(kept) == len(read.outcomes)):
                return cls(of=of, commit=now, seed=read.seed, writes=read.writes, outcomes=kept)
        return cls(of=of, commit=now, seed=seeds.of_run() if seed is None else seed)

    def next(self, under_way: Collection[Kill] = ()) -> Kill | None:
        """Return the next kill to try; None when every write of the run was tried, or is `under_way`.

        Some writes depend on the clock, so runs differ by one or two. Without names of the writes, the first run that
        ends before its kill therefore ends the sweep.
        """
        tried = {each.kill: each for each in self.outcomes}
        if self.writes:
            left = (kill for kill in every(self.writes) if kill not in tried and kill not in under_way)
            return next(left, None)
        write = 1
        while True:
            for moment in MOMENTS:
                kill = Kill(write=write, moment=moment)
                if kill not in tried:
                    return kill
                if not tried[kill].at:
                    return None
            write += 1

    def add(self, outcome: Outcome) -> None:
        """Keep one outcome."""
        self.outcomes.append(outcome)
        self.complete = self.next() is None
        document = {
            "commit": self.commit,
            "seed": self.seed,
            "complete": self.complete,
            "writes": dict(self.writes),
            "done": len(self.outcomes),
            "clean": sum(each.good for each in self.outcomes),
            "outcomes": [asdict(each) for each in self.outcomes],
        }
        plan.write(self.path(self.of), document)


def _outcome(read: Mapping[str, Any]) -> Outcome:
    given = dict(read)
    kill, wrongs = Kill(**given.pop("kill")), tuple(given.pop("wrongs"))
    return Outcome(kill=kill, wrongs=wrongs, **given)
