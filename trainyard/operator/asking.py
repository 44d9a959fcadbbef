"""Asks the first workers of jobs how far they are, beside the looks: one that answers slowly holds up none."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from trainyard.operator import progress
from trainyard.operator.core.reading import JsonObject
from trainyard.operator.core.running import PROGRESS_SECONDS

# A worker that does not answer blocks one thread for four seconds in each minute.
_THREADS = 8
# The interval after an answer that can't be read.
_UNREADABLE_SECONDS = 60.0
# Answers come in milliseconds; one that takes longer is told by the next look.
_WAIT_SECONDS = 0.25

Ask = Callable[[JsonObject], JsonObject | None]


class Asking:
    """Several threads may use it, each for another job. `now` is seconds since the epoch."""

    def __init__(self, now: Callable[[], float], ask: Ask = progress.ask) -> None:
        self._now = now
        self._ask = ask
        self._asked: dict[str, float] = {}
        self._answers: dict[str, tuple[str, Future[JsonObject | None]]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="progress")

    def told(self, job: str, worker: JsonObject) -> JsonObject | None:
        """What this worker of the job at this path tells anew; it is not asked more often than that is due."""
        uid = str(worker["metadata"].get("uid"))
        whose, answer = self._answers.get(job, ("", None))
        if answer is None or whose != uid:
            if self._now() - self._asked.get(job, float("-inf")) < PROGRESS_SECONDS - 1.0:
                return None
            self._asked[job] = self._now()
            answer = self._threads.submit(self._ask, worker)
            self._answers[job] = uid, answer
        try:
            found = answer.result(_WAIT_SECONDS)
        except TimeoutError:
            return None
        del self._answers[job]
        if found is not None and progress.UNREADABLE in found:
            self._asked[job] = self._now() + _UNREADABLE_SECONDS - PROGRESS_SECONDS
        return found

    def forget(self, job: str) -> None:
        """The job is gone."""
        self._asked.pop(job, None)
        self._answers.pop(job, None)

    def close(self) -> None:
        """Nobody is asked any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
