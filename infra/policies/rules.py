"""All rules, by area."""

from __future__ import annotations

from typing import Final

from infra.policies import (
    cluster,
    identity,
    interruptions,
    karpenter,
    kubernetes,
    network,
    nodes,
    permissions,
    pod_network,
    pods,
    principals,
    readable,
    registry,
    security_groups,
    storage,
)
from infra.policies.model import Rule

AREAS: Final = (
    network,
    security_groups,
    cluster,
    nodes,
    identity,
    permissions,
    principals,
    storage,
    registry,
    interruptions,
    karpenter,
    kubernetes,
    pod_network,
    pods,
    readable,
)
ALL: Final[tuple[Rule, ...]] = tuple(rule for area in AREAS for rule in area.RULES.all)
