"""Elect one active process by a Lease. Entry point: `LeaderElector`.

The rules are those of client-go (k8s.io/client-go v0.35.4, tools/leaderelection/leaderelection.go). The clocks of two
processes are never compared. A Lease is free if it has no holder, or if a candidate saw no change of it for its
duration, by the candidate's own clock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Protocol

from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable, JsonObject
from trainyard.k8s.objects import path_of

# https://kubernetes.io/docs/concepts/architecture/leases/
_VERSION = "coordination.k8s.io/v1"

log = logging.getLogger(__name__)


class Lost(Exception):
    """Another process holds the Lease, or may hold it. This process must not act until it holds it again."""


class Standing(Enum):
    """The state of a Lease for one candidate."""

    FREE = "free"
    OURS = "ours"
    UNSURE = "unsure"
    """Held by another process, which may be dead."""
    TAKEN = "taken"
    """Held by another process, which renewed it while this one watched."""


@dataclass(frozen=True, kw_only=True)
class Holding:
    """The holder's fields of a Lease. `renewed` is the holder's time, of which only a change matters."""

    holder: str
    renewed: str
    transitions: int


@dataclass(frozen=True, kw_only=True)
class Observed:
    """The holding of another process, and since when it is unchanged, in seconds of the candidate's clock."""

    holding: Holding
    since: float


def read_holding(item: Mapping[str, Any]) -> Holding:
    """Return who holds a coordination.k8s.io/v1 Lease."""
    spec = item.get("spec", {})
    return Holding(
        holder=spec.get("holderIdentity") or "",
        renewed=spec.get("renewTime") or "",
        transitions=int(spec.get("leaseTransitions") or 0),
    )


def evaluate(
    found: Holding | None, holder: str, before: Observed | None, now: float
) -> tuple[Standing, Observed | None]:
    """Return the state of the Lease for `holder`, and what to remember until the next read.

    Args:
        found: The holding that was read; None if there is no Lease.
        holder: The candidate.
        before: What the last call returned to remember.
        now: The candidate's clock, in seconds.
    """
    if found is None or not found.holder:
        return Standing.FREE, None
    if found.holder == holder:
        return Standing.OURS, None
    if before is None:
        return Standing.UNSURE, Observed(holding=found, since=now)
    if before.holding != found:
        return Standing.TAKEN, Observed(holding=found, since=now)
    return (Standing.FREE if now - before.since >= names.LEASE_SECONDS else Standing.UNSURE), before


class LeaseStore(Protocol):
    """Reads and writes Leases, as `trainyard.k8s.objects.Objects` does.

    `get` returns None if the Lease does not exist, `create` if it exists, and `put` if it has changed or is gone.
    """

    def get(self, path: str, /) -> JsonObject | None: ...

    def create(self, manifest: JsonObject, /) -> JsonObject | None: ...

    def put(self, item: JsonObject, /) -> JsonObject | None: ...


@dataclass
class LeaderElector:
    """Take, renew and release a Lease for one holder. Every method may raise ApiError and ApiUnavailable.

    `metadata` is that of a new Lease. `clock` counts seconds and is never set back; `wall_clock` is seconds since the
    epoch, for people who read the Lease.
    """

    store: LeaseStore
    metadata: JsonObject
    holder: str
    clock: Callable[[], float]
    wall_clock: Callable[[], float]

    def __post_init__(self) -> None:
        self._item: JsonObject | None = None  # as it was last written, while it is held
        self._observed: Observed | None = None
        self.renewed = float("-inf")
        """When the Lease was last known to be held, by `clock`."""

    @property
    def is_holder(self) -> bool:
        """Whether this process held the Lease at the last request."""
        return self._item is not None

    @property
    def other(self) -> str:
        """The holder that was last seen instead of this one."""
        return self._observed.holding.holder if self._observed else ""

    @property
    def annotations(self) -> Mapping[str, str]:
        """The annotations of the Lease while it is held."""
        return (self._item or {}).get("metadata", {}).get("annotations") or {}

    def take(self) -> Standing:
        """Read the Lease and take it if it is free. Return OURS if this process holds it."""
        asked = self.clock()
        found = self.store.get(path_of(self._new()))
        holding = None if found is None else read_holding(found)
        standing, self._observed = evaluate(holding, self.holder, self._observed, self.clock())
        if standing in (Standing.UNSURE, Standing.TAKEN):
            return standing
        if found is None:
            made = self.store.create(self._new())
        elif standing is Standing.OURS:
            made = self.store.put(_renewed(found, {}, self.wall_clock()))
        else:
            made = self.store.put(self._acquired(found))
        if made is None:  # another process was faster
            return Standing.UNSURE
        self._item, self.renewed = made, asked
        return Standing.OURS

    def renew(self, annotations: Mapping[str, str] | None = None) -> None:
        """Renew the Lease and set these annotations. Raises Lost if another process holds it."""
        if self._item is None:
            raise Lost
        asked = self.clock()
        made = self.store.put(_renewed(self._item, annotations or {}, self.wall_clock()))
        if made is None:
            # Another process has it, or an answer was lost: `take` finds out.
            self._item = None
            raise Lost
        self._item, self.renewed = made, asked

    def is_due(self) -> bool:
        """Whether it is time to renew the Lease."""
        return self.clock() - self.renewed >= names.LEASE_RENEW_SECONDS

    def release(self, annotations: Mapping[str, str] | None = None) -> None:
        """Release the Lease for the next holder, if the API allows it."""
        if self._item is None:
            return
        now = self.wall_clock()
        kept, self._item = _renewed(self._item, annotations or {}, now), None
        # As client-go leaves it with ReleaseOnCancel.
        spec = {"holderIdentity": None, "leaseDurationSeconds": 1, "acquireTime": _microtime(now)}
        try:
            self.store.put({**kept, "spec": {**kept["spec"], **spec}})
        except (ApiError, ApiUnavailable) as error:
            log.warning("Lease %s is not released and expires by itself: %s", self.metadata["name"], error)

    def _new(self) -> JsonObject:
        moment = _microtime(self.wall_clock())
        return {
            "apiVersion": _VERSION,
            "kind": "Lease",
            "metadata": self.metadata,
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": names.LEASE_SECONDS,
                "acquireTime": moment,
                "renewTime": moment,
                "leaseTransitions": 0,
            },
        }

    def _acquired(self, item: JsonObject) -> JsonObject:
        """Return the Lease with a new holder, without annotations of the earlier one."""
        spec = {**self._new()["spec"], "leaseTransitions": read_holding(item).transitions + 1}
        meta, owners = item["metadata"], self.metadata.get("ownerReferences")
        if owners is not None:
            uids = {each.get("uid") for each in meta.get("ownerReferences") or ()}
            same = any(each["uid"] in uids for each in owners)
            kept = (meta.get("annotations") or {}) if same else {}
            meta = {**meta, "annotations": kept, "ownerReferences": owners}
        return {**item, "metadata": meta, "spec": spec}


def _renewed(item: JsonObject, annotations: Mapping[str, str], now: float) -> JsonObject:
    meta = item["metadata"]
    return {
        **item,
        "metadata": {**meta, "annotations": {**(meta.get("annotations") or {}), **annotations}},
        "spec": {**item["spec"], "renewTime": _microtime(now)},
    }


def _microtime(now: float) -> str:
    """Return seconds since the epoch as a metav1.MicroTime."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
