"""kopf's part: it lists and watches, and every event says what is to be looked at. Nothing is decided here.

https://kopf.readthedocs.io/en/stable/events/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kopf

from launcher.controller.controller import STUCK_SECONDS, Controller
from launcher.controller.facts import FRESH_SECONDS
from launcher.core.torchrun import names as n
from launcher.core.torchrun.reading import JsonObject

_CHILDREN = (
    ("batch", "v1", "jobs"),
    ("", "v1", "pods"),
    ("", "v1", "services"),
    ("", "v1", "persistentvolumeclaims"),
)
_DEFINITIONS = ("apiextensions.k8s.io", "v1", "customresourcedefinitions")
# The API server ends a watch after this time; kopf begins it anew where it was.
_WATCH_SECONDS = 300
_CONNECT_SECONDS = 5.0
_LONGEST_PAUSE = 30.0


class _Pauses:
    """Seconds between attempts of a request, for ever.

    With kopf's own, which come to an end, a right that was taken away for two minutes ends the whole controller.
    """

    def __iter__(self) -> Iterator[float]:
        pause = 0.5
        while True:
            yield pause
            pause = min(2.0 * pause, _LONGEST_PAUSE)


def settings() -> kopf.OperatorSettings:
    """The API server sends only what carries a job's label: a cluster has many more pods."""
    made = kopf.OperatorSettings()
    made.posting.enabled = False  # Events are the decisions' to make
    made.watching.server_timeout = _WATCH_SECONDS
    made.watching.connect_timeout = _CONNECT_SECONDS
    made.networking.connect_timeout = _CONNECT_SECONDS
    made.networking.error_backoffs = _Pauses()
    for group, version, plural in _CHILDREN:
        made.watching.label_selectors[group, version, plural] = n.LABEL_JOB
    return made


def registry(controller: Controller) -> kopf.OperatorRegistry:
    """Tells the controller of every change, and kopf's liveness probe of the controller."""
    made = kopf.OperatorRegistry()
    known = controller.known

    def on(group: str, version: str, plural: str, see: Callable[[JsonObject, str | None], None]) -> None:
        @kopf.on.event(group, version, plural, registry=made, id=f"{plural}.{group}")
        async def _seen(event: Any, **_: Any) -> None:
            see(event["object"], event["type"])

    def job(item: JsonObject, kind: str | None) -> None:
        controller.hear(known.job(item, gone=kind == "DELETED", first=kind is None))

    def queue(item: JsonObject, kind: str | None) -> None:
        controller.hear(known.queue(item, gone=kind == "DELETED"))

    def child(item: JsonObject, kind: str | None) -> None:
        controller.hear(known.child(item, first=kind is None))

    def gang(item: JsonObject, kind: str | None) -> None:
        if kind is not None:
            controller.hear(known.gang(item, gone=kind == "DELETED"))

    def kai_queue(item: JsonObject, kind: str | None) -> None:
        controller.hear(known.kai_queue(item, gone=kind == "DELETED"))

    def definition(item: JsonObject, kind: str | None) -> None:
        if kind is not None and (item.get("spec") or {}).get("group") == n.KAI_GROUP:
            controller.hear([(key, FRESH_SECONDS) for key, _ in known.unfinished()])

    on(n.GROUP, n.VERSION, n.QUEUE_PLURAL, queue)
    on(n.GROUP, n.VERSION, n.JOB_PLURAL, job)
    for each in _CHILDREN:
        on(*each, child)
    on(n.KAI_GROUP, n.KAI_QUEUE_VERSION, n.KAI_QUEUE_PLURAL, kai_queue)
    on(n.KAI_GROUP, n.KAI_POD_GROUP_VERSION, n.KAI_POD_GROUP_PLURAL, gang)
    on(*_DEFINITIONS, definition)

    @kopf.on.login(registry=made, errors=kopf.ErrorsMode.TEMPORARY)
    async def _login(**kwargs: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**kwargs)

    @kopf.on.probe(registry=made, id="looks")
    async def _probe(**_: Any) -> str:
        silent = controller.silent_seconds()
        if silent > STUCK_SECONDS:
            raise kopf.PermanentError(f"no look came to an end for {silent:.0f} s")
        return f"a look came to its end {silent:.0f} s ago"

    return made
