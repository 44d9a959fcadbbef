"""That kinds which are defined come to be watched. kopf looks once when a definition changes, perhaps too soon.

The API server serves a kind some moments after it called the definition Established, by another of its controllers
(`DiscoveryController` of k8s.io/apiextensions-apiserver). What kopf did not find then it would never watch, nor what
was defined between its first look and its list of definitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from typing import NamedTuple

import kopf

# Of kopf's own, in the release that launcher/requirements.txt pins: it has no other way to ask for another look.
from kopf._cogs.structs.references import Insights
from kopf._core.reactor.observation import process_discovered_resource_event

from trainyard.operator.api.fields import JsonObject

# Before each look, in seconds.
PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)

log = logging.getLogger(__name__)


class Kind(NamedTuple):
    """`group` is "" for the core's."""

    group: str
    version: str
    plural: str


class Kinds:
    """Which kinds there are, as kopf found them, and those of `wanted` that are defined."""

    def __init__(
        self,
        settings: kopf.OperatorSettings,
        wanted: Collection[Kind] = (),
        pauses: Collection[float] = PAUSES,
    ) -> None:
        self.settings = settings
        self.insights = Insights()
        self._wanted = frozenset(wanted)
        self._pauses = pauses
        self._defined: set[Kind] = set()
        self._looks = asyncio.Lock()

    def forget(self, definition: JsonObject) -> None:
        """This CustomResourceDefinition is gone."""
        self._defined = {each for each in self._defined if not _is_of(each, definition)}

    async def see(self, definition: JsonObject, registry: kopf.OperatorRegistry) -> None:
        """Until all that is wanted and defined is watched, and still is a pause later. In a handler of kopf's.

        A look puts what it found in place of all that was known of a group, and one that began earlier, or whose API
        server is behind the others, finds less than another one before.
        """
        self.forget(definition)
        self._defined |= served(definition) & self._wanted
        seen = not any(_is_of(each, definition) for each in self._defined)
        for pause in self._pauses:
            if seen:
                return
            await asyncio.sleep(pause)
            async with self._looks:
                missing = self._missing()
                seen = not missing
                for group in sorted({each.group for each in missing}):
                    await process_discovered_resource_event(
                        raw_event={"type": "MODIFIED", "object": {"spec": {"group": group}}},
                        settings=self.settings,
                        registry=registry,
                        insights=self.insights,
                    )
        for each in self._missing():
            log.error(
                "%s.%s %s is defined, and not served by the API server", each.plural, each.group, each.version
            )

    def _missing(self) -> set[Kind]:
        watched = {Kind(each.group, each.version, each.plural) for each in self.insights.watched_resources}
        return self._defined - watched


def _is_of(kind: Kind, definition: JsonObject) -> bool:
    spec = definition["spec"]
    return (kind.group, kind.plural) == (spec["group"], spec["names"]["plural"])


def served(definition: JsonObject) -> set[Kind]:
    """What a CustomResourceDefinition says that the API server serves or is about to; nothing before it is Established.

    https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
    """
    spec = definition["spec"]
    conditions = (definition.get("status") or {}).get("conditions") or ()
    if not any(each["type"] == "Established" and each["status"] == "True" for each in conditions):
        return set()
    plural = spec["names"]["plural"]
    return {Kind(spec["group"], each["name"], plural) for each in spec["versions"] if each["served"]}
