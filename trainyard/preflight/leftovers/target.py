"""What to look for, out of a stack's settings."""

from __future__ import annotations

from typing import Final

from components.documents.tags import stack_tags
from infra.model import Settings
from infra.settings import PROJECT
from trainyard.preflight.leftovers.found import Target

# As `components.encryption` names its keys; the first two protect what `protectData` keeps.
KEYS: Final = ("secrets", "data", "logs")
KEPT_KEYS: Final = ("secrets", "data")


def target_of(settings: Settings) -> Target:
    """The stack's tags and names; the cluster only where the stack makes it."""
    cluster = settings.cluster
    return Target(
        stack=settings.stack,
        region=settings.region,
        tags=stack_tags(PROJECT, settings.stack),
        cluster=cluster.name if cluster.existing is None else None,
        protect=settings.protect_data,
        kept_keys=tuple(f"{cluster.prefix}-{name}" for name in KEPT_KEYS),
        key_aliases=tuple(f"alias/{cluster.prefix}-{name}" for name in KEYS),
    )
