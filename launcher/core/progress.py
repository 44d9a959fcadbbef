"""How far a run is: which attempt, which candidate, since when. It survives the launcher, in its Lease. Pure."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from launcher.core import contract as c
from launcher.core.request import Request


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a candidate could not give MIN nodes; `code` is the exit code if nothing else is tried."""

    pool: str
    code: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A machine that was given back: the uid of its NodeClaim, and what a person is told of it."""

    uid: str
    told: str


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Moments are seconds since the epoch.

    `since` is when the run's first wait began and `began` when the one of this candidate did. Between two attempts
    `resumes` is when the next begins; `attempt` and `candidate` are already those of the next then, and `failures`
    those of the last. `idle_node_seconds` is how long usable nodes stood without a training in this attempt; it grows
    all the time and so makes no difference between one progress and another.
    """

    attempt: int
    candidate: int
    since: float
    began: float
    resumes: float | None = None
    failures: tuple[Failure, ...] = ()
    given_back: tuple[Loss, ...] = ()
    idle_node_seconds: float = field(default=0.0, compare=False)

    @property
    def label(self) -> str:
        """What placeholders of this wait are labelled with."""
        return f"{self.attempt}-{self.candidate}"


def begun(now: float) -> Progress:
    """The progress of a run whose first wait begins."""
    return Progress(attempt=1, candidate=0, since=now, began=now)


def resumed(progress: Progress, now: float) -> Progress:
    """The next attempt's first wait begins."""
    return replace(progress, began=now, resumes=None, failures=(), idle_node_seconds=0.0)


def failed(
    progress: Progress, request: Request, failure: Failure, now: float, jitter: float
) -> Progress | None:
    """What comes after a candidate that failed: the next one at once, a pause before the next attempt, or nothing more.

    `jitter`, from 0 to below 1, stretches the pause by up to a fifth, so that runs that failed together do not ask
    again together. Where no candidate can ever give MIN nodes there is no other attempt.
    """
    failures = (*progress.failures, failure)
    if progress.candidate + 1 < request.candidates:
        return replace(progress, candidate=progress.candidate + 1, began=now, failures=failures)
    if progress.attempt < request.attempts and not hopeless(failures):
        pause = request.retry_seconds * (1 + jitter / 5)
        return replace(
            progress, attempt=progress.attempt + 1, candidate=0, resumes=now + pause, failures=failures
        )
    return None


def hopeless(failures: tuple[Failure, ...]) -> bool:
    """Whether waiting helped none of these candidates."""
    return all(failure.code == c.EXIT_IMPOSSIBLE for failure in failures)


def dumps(progress: Progress) -> str:
    """The progress as one line of JSON."""
    values = asdict(progress)
    values["idle_node_seconds"] = round(progress.idle_node_seconds, 1)
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


def loads(text: str, candidates: int) -> Progress:
    """The progress that `dumps` wrote, of a run with so many candidates.

    Raises ValueError with the text for anything else.
    """
    try:
        values: dict[str, Any] = json.loads(text)
        moments = {key: float(values[key]) for key in ("since", "began", "idle_node_seconds")}
        progress = Progress(
            attempt=int(values["attempt"]),
            candidate=int(values["candidate"]),
            since=moments["since"],
            began=moments["began"],
            resumes=None if values["resumes"] is None else float(values["resumes"]),
            failures=tuple(Failure(**failure) for failure in values["failures"]),
            given_back=tuple(Loss(**loss) for loss in values["given_back"]),
            idle_node_seconds=moments["idle_node_seconds"],
        )
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{text[:200]!r} is no progress of a run") from None
    if progress.attempt < 1 or not 0 <= progress.candidate < candidates:
        raise ValueError(f"{text[:200]!r} is no progress of a run with {candidates} candidates")
    return progress
