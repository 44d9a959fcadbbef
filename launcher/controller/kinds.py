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

from launcher.core.torchrun.reading import JsonObject

# Before each look, in seconds.
PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0)

log = logging.getLogger(__name__)


class Kind(NamedTuple):
    """`group` is "" for the core's."""

    group: str
    version: str
    plural: str


class Kinds:
    """Which kinds there are, as kopf found them, and the kinds that are to be watched where they are there."""

    def __init__(self, settings: kopf.OperatorSettings, pauses: Collection[float] = PAUSES) -> None:
        self.settings = settings
        self.insights = Insights()
        self._pauses = pauses

    async def see(
        self, definition: JsonObject, wanted: Collection[Kind], registry: kopf.OperatorRegistry
    ) -> None:
        """Until that of this CustomResourceDefinition which is wanted is watched. Called in a handler of kopf's."""
        missing = served(definition) & set(wanted)
        for pause in self._pauses:
            if not missing:
                return
            await asyncio.sleep(pause)
            missing -= self._watched()
            if missing:
                await process_discovered_resource_event(
                    raw_event={"type": "MODIFIED", "object": definition},  # type: ignore[typeddict-item]
                    settings=self.settings,
                    registry=registry,
                    insights=self.insights,
                )
                missing -= self._watched()
        for each in missing:
            log.error(
                "%s.%s %s is defined, but the API server does not serve it",
                each.plural,
                each.group,
                each.version,
            )

    def _watched(self) -> set[Kind]:
        return {Kind(each.group, each.version, each.plural) for each in self.insights.watched_resources}


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
