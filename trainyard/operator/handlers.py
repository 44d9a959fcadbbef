"""kopf's part: it lists and watches, and every event says what is to be looked at. Nothing is decided here.

https://kopf.readthedocs.io/en/stable/events/
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import kopf

from trainyard.operator import names as n
from trainyard.operator.api.fields import JsonObject
from trainyard.operator.cluster_reader import CLUSTER_SECONDS
from trainyard.operator.controller import STUCK_SECONDS, Controller
from trainyard.operator.kinds import Kind, Kinds

_CHILDREN = (
    Kind("batch", "v1", "jobs"),
    Kind("", "v1", "pods"),
    Kind("", "v1", "services"),
    Kind("", "v1", "persistentvolumeclaims"),
)
_QUEUES = Kind(n.GROUP, n.VERSION, n.QUEUE_PLURAL)
_JOBS = Kind(n.GROUP, n.VERSION, n.JOB_PLURAL)
_KAI_QUEUES = Kind(n.KAI_GROUP, n.KAI_QUEUE_VERSION, n.KAI_QUEUE_PLURAL)
_GANGS = Kind(n.KAI_GROUP, n.KAI_POD_GROUP_VERSION, n.KAI_POD_GROUP_PLURAL)
DEFINED = (_QUEUES, _JOBS, _KAI_QUEUES, _GANGS)
_DEFINITIONS = Kind("apiextensions.k8s.io", "v1", "customresourcedefinitions")
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
    for each in _CHILDREN:
        made.watching.label_selectors[each.group, each.version, each.plural] = n.LABEL_JOB
    return made


def registry(controller: Controller, kinds: Kinds) -> kopf.OperatorRegistry:
    """Tells the controller of every change, and kopf's liveness probe of the controller."""
    made = kopf.OperatorRegistry()
    known = controller.known

    def on(kind: Kind, see: Callable[[JsonObject, str | None], None]) -> None:
        @kopf.on.event(*kind, registry=made, id=f"{kind.plural}.{kind.group}")
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

    on(_QUEUES, queue)
    on(_JOBS, job)
    for each in _CHILDREN:
        on(each, child)
    on(_KAI_QUEUES, kai_queue)
    on(_GANGS, gang)

    @kopf.on.event(*_DEFINITIONS, registry=made, id="definitions")
    async def _defined(event: Any, **_: Any) -> None:
        definition, kind = event["object"], event["type"]
        if kind is not None and definition["spec"]["group"] == n.KAI_GROUP:
            controller.hear([(key, CLUSTER_SECONDS) for key, _ in known.unfinished()])
        if kind == "DELETED":
            kinds.forget(definition)
        else:
            await kinds.see(definition, made)

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
