"""How far a run is: which attempt, which candidate, since when. It survives the launcher, in its Lease. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.observe import Training
from launcher.request import Request
from trainyard.k8s import names

# `jitter`, from 0 to below 1, stretches a pause by up to a fifth.
_LONGEST_STRETCH = 1.2


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
    those of the last. `restarts` are those that count against the run's budget and `trainings` all that were begun and
    are over; `retiring` is the uid of the last of them until it and its pods are gone, `why` the reason for which it
    is, and `trained` for how many seconds there was a training. `suspended` says that the training was last seen so.
    `idle_node_seconds` is how long usable nodes stood without a training in this attempt; it grows
    all the time and so makes no difference between one progress and another.
    """

    attempt: int
    candidate: int
    since: float
    began: float
    resumes: float | None = None
    failures: tuple[Failure, ...] = ()
    given_back: tuple[Loss, ...] = ()
    restarts: int = 0
    trainings: int = 0
    retiring: str = ""
    why: str = ""
    trained: float = 0.0
    suspended: bool = False
    idle_node_seconds: float = field(default=0.0, compare=False)

    @property
    def label(self) -> str:
        """What placeholders of this wait are labelled with."""
        restart = f"-{self.trainings}" if self.trainings else ""
        return f"{self.attempt}-{self.candidate}{restart}"


def begun(now: float) -> Progress:
    """The progress of a run whose first wait begins."""
    return Progress(attempt=1, candidate=0, since=now, began=now)


def resumed(progress: Progress, now: float) -> Progress:
    """The next attempt's first wait begins."""
    return replace(progress, began=now, resumes=None, failures=(), idle_node_seconds=0.0)


def not_ahead(progress: Progress, request: Request, now: float) -> Progress:
    """The progress with no moment that lies further ahead than it can, after the clock was set back.

    Otherwise a wait, or a pause, would last as much longer as the clock was set back.
    """
    resumes = progress.resumes
    return replace(
        progress,
        since=min(progress.since, now),
        began=min(progress.began, now),
        resumes=None if resumes is None else min(resumes, now + request.retry_seconds * _LONGEST_STRETCH),
    )


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
        pause = request.retry_seconds * (1 + jitter * (_LONGEST_STRETCH - 1))
        return replace(
            progress, attempt=progress.attempt + 1, candidate=0, resumes=now + pause, failures=failures
        )
    return None


def retired(progress: Progress, training: Training, why: str, now: float, *, counted: bool) -> Progress:
    """The progress of a run whose training is to be begun anew, for this reason; `counted` against the budget.

    The next capacity decision begins in the pool where the survivors are.
    """
    spent = 0.0 if progress.suspended else max(0.0, now - training.created)
    return replace(
        progress,
        began=now,
        failures=(),
        restarts=progress.restarts + counted,
        trainings=progress.trainings + 1,
        retiring=training.uid,
        why=why,
        trained=round(progress.trained + spent, 1),
        suspended=False,
    )


def suspended(progress: Progress, training: Training, now: float) -> Progress:
    """The progress of a run whose training is suspended; its time to train stands still from the first look on."""
    if progress.suspended:
        return progress
    spent = max(0.0, now - training.created)
    return replace(progress, suspended=True, trained=round(progress.trained + spent, 1))


def gone(progress: Progress, now: float) -> Progress:
    """The last training has left nothing: the wait for the next one begins."""
    return replace(progress, retiring="", began=now)


def adopted(progress: Progress | None, training: Training, now: float) -> Progress:
    """The progress of a run that has this training, with what the training itself says where no Lease does."""
    found = progress or begun(now)
    missed = max(0, training.restart - found.trainings)
    return replace(found, restarts=found.restarts + missed, trainings=found.trainings + missed)


def asked(request: Request, progress: Progress) -> Request:
    """The request as the present candidate has it, with what is left of its time to train."""
    candidate = request.candidate(progress.candidate)
    if candidate.active_deadline_seconds is None:
        return candidate
    left = max(1, candidate.active_deadline_seconds - round(progress.trained))
    return replace(candidate, active_deadline_seconds=left)


def counted(request: Request, progress: Progress) -> str:
    """Which restart this is, in words; empty where nothing was begun anew."""
    if not progress.trainings:
        return ""
    resumed = progress.trainings - progress.restarts
    restart = f"restart {progress.restarts} of {request.max_restarts}" if progress.restarts else ""
    return ", ".join(part for part in (restart, f"resumed {resumed}x" if resumed else "") if part)


def hopeless(failures: tuple[Failure, ...]) -> bool:
    """Whether waiting helped none of these candidates."""
    return all(failure.code == names.EXIT_IMPOSSIBLE for failure in failures)


def dumps(progress: Progress) -> str:
    """The progress as one line of JSON."""
    values = vars(progress) | {
        "failures": [vars(failure) for failure in progress.failures],
        "given_back": [vars(loss) for loss in progress.given_back],
        "idle_node_seconds": round(progress.idle_node_seconds, 1),
    }
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False)


def loads(text: str, candidates: int) -> Progress:
    """The progress that `dumps` wrote, of a run with so many candidates.

    Raises ValueError with the text for anything else.
    """
    try:
        values: dict[str, Any] = json.loads(text)
        moments = {key: float(values[key]) for key in ("since", "began", "idle_node_seconds", "trained")}
        progress = Progress(
            attempt=int(values["attempt"]),
            candidate=int(values["candidate"]),
            since=moments["since"],
            began=moments["began"],
            resumes=None if values["resumes"] is None else float(values["resumes"]),
            failures=tuple(Failure(**failure) for failure in values["failures"]),
            given_back=tuple(Loss(**loss) for loss in values["given_back"]),
            restarts=int(values["restarts"]),
            trainings=int(values["trainings"]),
            retiring=str(values["retiring"]),
            why=str(values["why"]),
            trained=moments["trained"],
            suspended=bool(values["suspended"]),
            idle_node_seconds=moments["idle_node_seconds"],
        )
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{text[:200]!r} is no progress of a run") from None
    if progress.attempt < 1 or not 0 <= progress.candidate < candidates or progress.restarts < 0:
        raise ValueError(f"{text[:200]!r} is no progress of a run with {candidates} candidates")
    return progress
