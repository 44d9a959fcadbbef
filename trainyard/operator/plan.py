"""What a look at a queue or a job comes to: writes in their order, and when to look again. Pure.

Whoever carries it out reads everything anew before each decision, then does

1. each `Removal`, of exactly the object that was seen,
2. each `make`: a creation. Where an object of that name is there already, nothing after it is done; the next decision
   is given that object, too,
3. each `change`: a server-side apply with the uid of what was seen, so that another object of the name is left alone,
4. `finalizers`: all that the queue or job is to have from now on, put over what was read and nothing newer,
5. `status`, by a PUT with the resourceVersion of the queue or job as it was read, or of one whose labels and
   annotations alone have changed since; nothing is told where that fails,
6. each `Event`.

It may stop, or be stopped, after any of them: the next decision comes to the same end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from trainyard.operator.api.fields import JsonObject

# What is known of the cluster may be older than the news that a scheduler is installed, after which nothing is heard.
SCHEDULER_SECONDS: Final = 60.0
# Until what nobody tells of is looked for again: claims, priority classes, webhooks, names that others have.
POLL_SECONDS: Final = 30.0
# The interval at which a queue's status is updated with the limits of its pool.
POOL_SECONDS: Final = 60.0
NORMAL = "Normal"
WARNING = "Warning"


@dataclass(frozen=True, kw_only=True)
class Deletion:
    """Delete exactly this object, and with `version` only as it was read; `foreground`: after all that it owns."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    version: str = ""
    foreground: bool = False


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that people may want to know: `type` Normal or Warning."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True, kw_only=True)
class ReconcilePlan:
    """See above. `finalizers` or `status` None: it is as it should be.

    `again` is seconds from now, None where nothing is due.

    `recount` asks for another decision at once, from lists of the pool that are read from the store itself; there is
    nothing else in it then.
    """

    deletions: tuple[Deletion, ...] = ()
    creations: tuple[JsonObject, ...] = ()
    patches: tuple[JsonObject, ...] = ()
    finalizers: tuple[str, ...] | None = None
    status: JsonObject | None = None
    events: tuple[Event, ...] = ()
    requeue_after: float | None = None
    recount: bool = False


def deletion(item: JsonObject, *, foreground: bool = False, as_read: bool = False) -> Deletion:
    """The removal of an object as the API showed it."""
    meta = item["metadata"]
    return Deletion(
        api_version=item["apiVersion"],
        kind=item["kind"],
        namespace=meta.get("namespace", ""),
        name=meta["name"],
        uid=meta["uid"],
        version=meta["resourceVersion"] if as_read else "",
        foreground=foreground,
    )


def contains(live: object, wanted: object) -> bool:
    """Whether everything that is wanted is so; what else is there is somebody else's."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(
            key in live and contains(live[key], value) for key, value in wanted.items()
        )
    if isinstance(wanted, list):
        return isinstance(live, list) and all(any(contains(one, each) for one in live) for each in wanted)
    return live == wanted
