"""Resources for the fixtures of rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.policies.model import Resource

Case = Resource | tuple[Resource, ...]


@dataclass(frozen=True, kw_only=True)
class Cases:
    """The fixtures that a rule must reject and accept. The first resource of each is checked, in a stack of all."""

    rejects: Sequence[Case]
    accepts: Sequence[Case]


def urn(type_: str, name: str) -> str:
    return f"urn:pulumi:test::trainyard::{type_}::{name}"


def made(
    type_: str, name: str = "it", /, *, of: dict[str, Resource] | None = None, **properties: Any
) -> Resource:
    """Return a resource; `of` has, for each property, the resource that its value comes from."""
    return Resource(
        type=type_,
        name=name,
        urn=urn(type_, name),
        properties=properties,
        references={key: frozenset({source.urn}) for key, source in (of or {}).items()},
    )


def document(*statements: dict[str, Any]) -> str:
    """Return a policy document; Allow is the default effect."""
    return json.dumps(
        {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **each} for each in statements]}
    )


def stack_of(case: Case) -> tuple[Resource, list[Resource]]:
    """Return the resource that is checked, and all of its stack."""
    return (case, [case]) if isinstance(case, Resource) else (case[0], list(case))
