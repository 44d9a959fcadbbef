"""How a worker's pod ended: by its own container, or by one before it, in which case its own never began. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainyard.operator.core import names as n
from trainyard.operator.core.child_exit import exit_code
from trainyard.operator.core.reading import JsonObject
from trainyard.operator.core.record import moment

_LINE: Final = 300
# Of a container that the runtime could not start: containerd's and dockershim's word, and the kubelet's own.
_UNSTARTED: Final = ("StartError", "ContainerCannotRun", "CreateContainerError")


@dataclass(frozen=True, kw_only=True)
class End:
    """`code` and `at`, seconds since the epoch, are None while it runs.

    `before` is the name of the init container that failed, "" where the worker's own began, and `said` its last line;
    of the worker's own container the runtime's last line, where it could not start that, else "". `of_pod` is what the
    kubelet says of the pod as a whole, such as what it evicted it for. `text` is the whole termination message.
    """

    code: int | None
    at: float | None
    reason: str
    before: str = ""
    said: str = ""
    of_pod: str = ""
    text: str = ""


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
    code = ended.get("exitCode") if isinstance(ended.get("exitCode"), int) else None
    return End(
        code=code if failed else exit_code(code, str(ended.get("message") or "")),
        at=moment(ended.get("finishedAt")),
        reason=str(ended.get("reason") or status.get("reason") or ""),
        before=str(failed.get("name") or ""),
        said=_last_words(ended) if failed or ended.get("reason") in _UNSTARTED else "",
        of_pod=" ".join(str(status.get("message") or "").split())[:_LINE],
        text=str(ended.get("message") or ""),
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


def _last_words(ended: JsonObject) -> str:
    """Of what the kubelet kept of the log, which may be 2048 bytes, the last line; or of the runtime's own words.

    Those are one line, at whose end is what was wrong.
    """
    lines = [" ".join(each.split()) for each in str(ended.get("message") or "").splitlines() if each.strip()]
    last = lines[-1] if lines else ""
    return last[-_LINE:].lstrip() if ended.get("reason") in _UNSTARTED else last[:_LINE]
