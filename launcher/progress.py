"""The progress of a run: attempt, candidate pool, restarts and times. It is stored in the run's Lease. Pure."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from launcher.observe import Training
from launcher.request import Request
from trainyard.k8s import names

# Jitter makes a pause up to 20 % longer.
_LONGEST_STRETCH = 1.2
# A larger number in a Lease is not valid: times are seconds since the epoch.
_MAX_NUMBER: Final = 10**12


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a candidate had fewer than MIN nodes. `code` is the exit code if nothing else is tried."""

    pool: str
    code: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Loss:
    """A released node: the uid of its NodeClaim, and the message about it."""

    uid: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a run has used.

    Attributes:
        node_seconds: The seconds of all nodes.
        idle_node_seconds: Those without a worker.
        unpriced_node_seconds: Those without a known price.
        usd: The price of the others.
    """

    node_seconds: float = 0.0
    idle_node_seconds: float = 0.0
    unpriced_node_seconds: float = 0.0
    usd: float = 0.0

    def describe(self) -> str:
        """Return the node-hours, their idle share and their price for a message; "" for none."""
        if not self.node_seconds:
            return ""
        idle = f"{self.idle_node_seconds / self.node_seconds:.0%} idle"
        text = f"{_decimals(self.node_seconds / 3600)} node-hours, {idle}"
        if not self.usd:
            return f"{text}, price not known"
        least = "at least" if self.unpriced_node_seconds else "about"
        return f"{text}, {least} {_decimals(self.usd)} USD"


def _decimals(value: float) -> str:
    """Return a number with two decimals, and a small one with four."""
    return f"{value:.{2 if value >= 0.1 else 4}f}"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run. Times are in seconds since the epoch.

    Attributes:
        attempt: The number of the attempt, from 1. In a pause, it is already the next one.
        candidate: The index of the pool. In a pause, it is already that of the next attempt.
        since: The start of the run's first wait.
        began: The start of the wait for this candidate.
        pause_until: The end of the pause; None outside of a pause.
        failures: The failures of this attempt; in a pause, of the last one.
        released: The nodes that were released because they took too long.
        restarts: The restarts that count against `maxRestarts`.
        total_restarts: All restarts, including those after a suspension.
        training_uid: The uid of the training job since the launcher saw it; "" while there is none to follow.
        retiring: The uid of the last training job until it and its pods are gone.
        retiring_nodes: The number of nodes of that training job.
        why: The reason of the last restart.
        trained: For how many seconds training jobs of the run existed and were not suspended.
        suspended: Whether the training job was suspended at the last observation.
        idle_node_seconds: How long usable nodes had no job in this attempt. Comparisons ignore it, because it grows
            with each observation.
        usage: What the run has used so far. Comparisons ignore it, too.
    """

    attempt: int
    candidate: int
    since: float
    began: float
    pause_until: float | None = None
    failures: tuple[Failure, ...] = ()
    released: tuple[Loss, ...] = ()
    restarts: int = 0
    total_restarts: int = 0
    training_uid: str = ""
    retiring: str = ""
    retiring_nodes: int = 0
    why: str = ""
    trained: float = 0.0
    suspended: bool = False
    idle_node_seconds: float = field(default=0.0, compare=False)
    usage: Usage = field(default_factory=Usage, compare=False)

    @property
    def label(self) -> str:
        """The value of the label on the placeholders of this wait."""
        restart = f"-{self.total_restarts}" if self.total_restarts else ""
        return f"{self.attempt}-{self.candidate}{restart}"

    def end_pause(self, now: float) -> Progress:
        """Return the progress at the end of a pause, when the next attempt starts."""
        return replace(self, began=now, pause_until=None, failures=(), idle_node_seconds=0.0)

    def limit_to_now(self, request: Request, now: float) -> Progress:
        """Return the progress without times that are too far in the future.

        Otherwise a wait or a pause would be longer after the clock was set back.
        """
        end = self.pause_until
        return replace(
            self,
            since=min(self.since, now),
            began=min(self.began, now),
            pause_until=None if end is None else min(end, now + request.retry_seconds * _LONGEST_STRETCH),
        )

    def fail(self, request: Request, failure: Failure, now: float, jitter: float) -> Progress | None:
        """Return the progress after a candidate failed: the next candidate, or a pause before the next attempt.

        Args:
            jitter: From 0 to below 1. It makes the pause up to 20 % longer, so that runs do not retry at the same time.

        Returns:
            None if there is no further attempt, or if no candidate can ever have MIN nodes.
        """
        failures = (*self.failures, failure)
        if self.candidate + 1 < request.candidate_count:
            return replace(self, candidate=self.candidate + 1, began=now, failures=failures)
        if self.attempt < request.attempts and not is_impossible(failures):
            pause = request.retry_seconds * (1 + jitter * (_LONGEST_STRETCH - 1))
            return replace(
                self, attempt=self.attempt + 1, candidate=0, pause_until=now + pause, failures=failures
            )
        return None

    def retire(self, training: Training, why: str, now: float, *, counted: bool) -> Progress:
        """Return the progress at the start of a restart, for the reason `why`.

        The next capacity decision starts in the same pool, because the remaining nodes are there.

        Args:
            counted: Whether the restart counts against `maxRestarts`.
        """
        spent = 0.0 if self.suspended else max(0.0, now - training.created)
        return replace(
            self,
            began=now,
            failures=(),
            restarts=self.restarts + counted,
            total_restarts=self.total_restarts + 1,
            training_uid="",
            retiring=training.uid,
            retiring_nodes=training.nodes,
            why=why,
            trained=round(self.trained + spent, 1),
            suspended=False,
        )

    def suspend(self, training: Training, now: float) -> Progress:
        """Return the progress of a run whose training job is suspended. Its `trained` time stops."""
        if self.suspended:
            return self
        spent = max(0.0, now - training.created)
        return replace(self, suspended=True, trained=round(self.trained + spent, 1))

    def finish_retirement(self, now: float) -> Progress:
        """Return the progress when the last training job and its pods are gone. The wait for the next one starts."""
        return replace(self, retiring="", retiring_nodes=0, began=now)

    def adopt(self, training: Training) -> Progress:
        """Return the progress of a run with this training job. Use the job's annotation where the Lease has less."""
        missed = max(0, training.restart - self.total_restarts)
        return replace(
            self,
            restarts=self.restarts + missed,
            total_restarts=self.total_restarts + missed,
            training_uid=training.uid,
        )

    def remaining_request(self, request: Request) -> Request:
        """Return the request for the present candidate, with the rest of `activeDeadlineSeconds`."""
        candidate = request.candidate(self.candidate)
        if candidate.active_deadline_seconds is None:
            return candidate
        left = max(1, candidate.active_deadline_seconds - round(self.trained))
        return replace(candidate, active_deadline_seconds=left)

    def describe_restarts(self, request: Request) -> str:
        """Return the number of restarts for a message; "" before the first restart."""
        if not self.total_restarts:
            return ""
        resumed = self.total_restarts - self.restarts
        restart = f"restart {self.restarts} of {request.max_restarts}" if self.restarts else ""
        return ", ".join(part for part in (restart, f"resumed {resumed}x" if resumed else "") if part)


def initial_progress(now: float) -> Progress:
    """Return the progress at the start of a run."""
    return Progress(attempt=1, candidate=0, since=now, began=now)


def is_impossible(failures: tuple[Failure, ...]) -> bool:
    """Return whether none of these candidates can ever have MIN nodes."""
    return all(failure.code == names.EXIT_IMPOSSIBLE for failure in failures)


def dumps(progress: Progress) -> str:
    """Return the progress as one line of JSON."""
    return json.dumps(asdict(progress), separators=(",", ":"), ensure_ascii=False)


def loads(text: str, candidate_count: int) -> Progress:
    """Return the progress that `dumps` wrote for a run with this number of candidates.

    Raises:
        ValueError: The text is something else.
    """
    with suppress(ValueError, KeyError, TypeError):
        values = json.loads(text)
        values["failures"] = tuple(_build(Failure, failure) for failure in values["failures"])
        values["released"] = tuple(_build(Loss, loss) for loss in values["released"])
        values["usage"] = _build(Usage, values["usage"])
        progress: Progress = _build(Progress, values)
        if progress.attempt >= 1 and progress.candidate < candidate_count:
            return progress
    raise ValueError(f"{text[:200]!r} is not the progress of a run with {candidate_count} candidates")


def _build(kind: Any, values: Any) -> Any:
    """Return an object of this dataclass. Raises TypeError for a value of another type than its field's."""
    found = kind(**values)
    for name, hint in get_type_hints(kind).items():
        if not _is_of(hint, getattr(found, name)):
            raise TypeError(f"{name} is {getattr(found, name)!r}")
    return found


def _is_of(kind: Any, value: object) -> bool:
    if get_origin(kind) is UnionType:  # X | None
        return any(_is_of(each, value) for each in get_args(kind))
    if kind in (int, float):
        return type(value) in (int, kind) and 0 <= value <= _MAX_NUMBER  # type: ignore[operator]
    return type(value) is (get_origin(kind) or kind)
