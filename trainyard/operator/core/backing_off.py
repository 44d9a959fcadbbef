"""How long an attempt is waited with after one that failed. Pure.

What fails at once, on a sick machine or while a registry is out of reach, would use up its restarts within seconds.
https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-backoff-failure-policy has the same pause, and its
longest one, but begins with it: here the first restart comes at once, as it is mostly a machine that was lost.
"""

from __future__ import annotations

from typing import Final

from trainyard.operator.core import names as n
from trainyard.operator.core.look import Look
from trainyard.operator.core.observe import AttemptJob
from trainyard.operator.core.record import moment

FIRST_SECONDS: Final = 10.0
LONGEST_SECONDS: Final = 360.0


def pause(look: Look) -> tuple[str, float]:
    """What there is to say of a pause, and how long it takes still, in seconds; nothing and 0 where there is none."""
    last = look.record.raw.get("lastRestart")
    if look.record.phase != n.PHASE_RESTARTING or not isinstance(last, dict):
        return "", 0.0
    at = moment(last.get("time"))
    if at is None:
        return "", 0.0
    seconds = _seconds(look.record.restarts)
    left = min(seconds, at + seconds - look.now)
    return f"{last.get('message')}, {seconds:.0f} s after {last['time']}", left


def kept(look: Look, jobs: list[AttemptJob]) -> list[AttemptJob]:
    """Of these those that failed, while there is a pause: their pods hold nothing any more, and have the logs.

    What still runs in such a Job the Job controller ends.
    """
    if pause(look)[1] <= 0:
        return []
    failing = {each.job for each in look.seen.workers if each.failed}
    return [each for each in jobs if each.failed or each.uid in failing]


def _seconds(restarts: int) -> float:
    if restarts < 2:
        return 0.0
    return min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(restarts - 2, 10))
