"""Which interruptions a sweep tries, and what is kept of each."""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tests import seed as seeds
from trainyard.cli.engine import ROOT

RESULTS = ROOT / "docs" / "sweeps"
Command = Literal["up", "destroy"]


@dataclass(frozen=True, kw_only=True)
class Interruption:
    """A command that is killed when it has finished `at` resources."""

    command: Command
    at: int

    def __str__(self) -> str:
        return f"{self.command} killed at resource {self.at}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an interruption led to at this commit: empty `left` and code 0 of the one `make down` are a success."""

    interruption: Interruption
    commit: str
    reached: int
    down: int
    left: tuple[str, ...]
    taken_over: int
    swept: int

    @property
    def good(self) -> bool:
        """Whether one `make down` left nothing."""
        return self.down == 0 and not self.left


def interruptions(seed: int, count: int, resources: int) -> list[Interruption]:
    """`count` interruptions of a stack of so many resources, half of them of `destroy`; a seed gives the same again."""
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    return [
        Interruption(command="destroy" if index % 2 else "up", at=chance.randint(1, resources))
        for index in range(count)
    ]


def commit() -> str:
    """The commit of the checkout, with a mark where files differ from it. Results themselves don't count."""
    words = ["git", "describe", "--always", "--abbrev=12", "--exclude=*"]
    name = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    status = [
        "git",
        "status",
        "--porcelain",
        "--untracked-files=no",
        "--",
        ".",
        ":!docs/sweeps",
        ":!docs/lives",
    ]
    changed = subprocess.run(status, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    return f"{name}-changed" if changed else name


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Keep what a sweep has seen so far."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


@dataclass(kw_only=True)
class Result:
    """A sweep of one stack, as docs/sweeps has it: it is written after each interruption.

    `commit` is the one that the sweep went on with last; each outcome names the one that it was seen at.
    """

    stack: str
    commit: str
    seed: int
    count: int
    outcomes: list[Outcome]

    @staticmethod
    def path(stack: str) -> Path:
        """Where a stack's result is."""
        return RESULTS / f"{stack}.json"

    @classmethod
    def resume(cls, stack: str, seed: int | None, count: int) -> Result:
        """The unfinished sweep, or a new one (with the given seed, where there is one).

        What an earlier commit left is no outcome of this one: those interruptions are tried again.
        """
        now = commit()
        path = cls.path(stack)
        if path.exists():
            read = json.loads(path.read_text())
            outcomes = [_outcome(each) for each in read["outcomes"]]
            kept = [each for each in outcomes if each.good or each.commit == now]
            if read["count"] == count and seed in (None, read["seed"]) and len(kept) < count:
                return cls(stack=stack, commit=now, seed=read["seed"], count=count, outcomes=kept)
        chosen = seeds.of_run() if seed is None else seed
        return cls(stack=stack, commit=now, seed=chosen, count=count, outcomes=[])

    def todo(self, resources: int) -> list[Interruption]:
        """What has not been tried yet, of a stack of so many resources."""
        tried = Counter(each.interruption for each in self.outcomes)
        left = []
        for each in interruptions(self.seed, self.count, resources):
            if tried[each]:
                tried[each] -= 1
            else:
                left.append(each)
        # A stack that has grown since has other interruptions: as many as are missing, the later ones.
        return left[len(left) - (self.count - len(self.outcomes)) :]

    def add(self, outcome: Outcome) -> None:
        """Keep one outcome."""
        self.outcomes.append(outcome)
        document = {
            "stack": self.stack,
            "commit": self.commit,
            "seed": self.seed,
            "count": self.count,
            "done": len(self.outcomes),
            "clean": sum(each.good for each in self.outcomes),
            "outcomes": [asdict(each) for each in self.outcomes],
        }
        write(self.path(self.stack), document)


def _outcome(read: Mapping[str, Any]) -> Outcome:
    given = dict(read)
    interruption = Interruption(**given.pop("interruption"))
    left = tuple(given.pop("left"))
    return Outcome(interruption=interruption, left=left, **given)
