"""All rules, by area."""

from __future__ import annotations

from typing import Final

from trainyard.policies import known_types
from trainyard.policies.model import Rule

ALL: Final[tuple[Rule, ...]] = tuple(
    rule for area in (*known_types.AREAS, known_types) for rule in area.RULES.all
)
