"""How a worker's pod ended: by its own container, or by one before it, in which case its own never began. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from launcher.core.torchrun import names as n
from launcher.core.torchrun.child_exit import exit_code
from launcher.core.torchrun.reading import JsonObject
from launcher.core.torchrun.record import moment

_LINE: Final = 300


@dataclass(frozen=True, kw_only=True)
class End:
    """`code` and `at`, seconds since the epoch, are None while it runs.

    `before` is the name of the init container that failed, "" where the worker's own began, and `said` its last line.
    """

    code: int | None
    at: float | None
    reason: str
    before: str = ""
    said: str = ""


def end_of(item: JsonObject) -> End:
    """The end of this pod."""
    status = item.get("status") or {}
    own: JsonObject = next(
        (each for each in status.get("containerStatuses") or [] if each.get("name") == n.WORKER_CONTAINER), {}
    )
    ended, failed = _terminated(own), {}
    if not ended:
        failed = _failed_before(item)
        ended = _terminated(failed)
    code = ended.get("exitCode")
    return End(
        code=code if failed else exit_code(code, str(ended.get("message") or "")),
        at=moment(ended.get("finishedAt")),
        reason=str(ended.get("reason") or status.get("reason") or ""),
        before=str(failed.get("name") or ""),
        said=_last_line(ended.get("message")) if failed else "",
    )


def _failed_before(item: JsonObject) -> JsonObject:
    """The init container that failed first; sidecars among them are ended with the pod, and none of them fails it."""
    sidecars = {
        each.get("name")
        for each in (item.get("spec") or {}).get("initContainers") or []
        if each.get("restartPolicy") == "Always"
    }
    for each in (item.get("status") or {}).get("initContainerStatuses") or []:
        if each.get("name") not in sidecars and _terminated(each).get("exitCode"):
            return dict(each)
    return {}


def _terminated(container: JsonObject) -> JsonObject:
    return (container.get("state") or {}).get("terminated") or {}


def _last_line(text: Any) -> str:
    """Of what the kubelet kept of the log, which may be 2048 bytes."""
    lines = [" ".join(each.split()) for each in str(text or "").splitlines() if each.strip()]
    return lines[-1][:_LINE] if lines else ""
