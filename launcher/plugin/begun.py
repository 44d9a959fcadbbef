"""How far a worker's pod is: whether its worker has begun and ended, and what kept it from beginning. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from launcher.core.torchrun import names as n
from launcher.core.torchrun.ends import end_of

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class FailedStart:
    """The init container that failed, and so the worker behind it did not begin.

    Or the worker's own that could not be started, and what was `said` of that: its log has nothing of it.
    """

    container: str
    code: int
    said: str = ""

    def __str__(self) -> str:
        if self.said:
            return f"worker did not start: {self.said}, exit code {self.code}"
        return f"worker did not begin: init container {self.container} failed with exit code {self.code}"


def failed_start(pod: JsonObject) -> FailedStart | None:
    """What keeps the pod's worker from beginning, None where it has begun or may yet."""
    end = end_of(pod)
    if end.said and not end.before:
        return FailedStart(n.WORKER_CONTAINER, end.code or 0, f"{end.said} ({end.reason})")
    if has_begun(pod):
        return None
    for each in pod.get("status", {}).get("initContainerStatuses", ()):
        state = each.get("state", {})
        # One that is tried again waits between its tries.
        ended = state.get("terminated") or (
            "waiting" in state and each.get("lastState", {}).get("terminated")
        )
        if ended and ended.get("exitCode"):
            return FailedStart(each["name"], ended["exitCode"])
    return None


def has_begun(pod: JsonObject) -> bool:
    """Whether its worker has a log."""
    return bool({"running", "terminated"} & _worker_state(pod).keys())


def has_ended(pod: JsonObject) -> bool:
    """Whether its log is whole."""
    return "terminated" in _worker_state(pod) or is_over(pod)


def is_over(pod: JsonObject) -> bool:
    """Whether nothing begins in it any more."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _worker_state(pod: JsonObject) -> JsonObject:
    for each in pod.get("status", {}).get("containerStatuses", ()):
        if each.get("name") == n.WORKER_CONTAINER:
            state: JsonObject = each.get("state", {})
            return state
    return {}
