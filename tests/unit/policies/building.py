"""Resources for the cases of rules."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.policies.model import Resource

Case = Resource | tuple[Resource, ...]


@dataclass(frozen=True, kw_only=True)
class Cases:
    """What a rule must reject, and what it must accept. The first resource of a case is judged, in a stack of all."""

    rejects: Sequence[Case]
    accepts: Sequence[Case]


def urn(type_: str, name: str) -> str:
    return f"urn:pulumi:test::trainyard::{type_}::{name}"


def made(
    type_: str, name: str = "it", /, *, of: dict[str, Resource] | None = None, **properties: Any
) -> Resource:
    """A resource with properties; `of` names, per property, the resource that its value comes from."""
    return Resource(
        type=type_,
        name=name,
        urn=urn(type_, name),
        properties=properties,
        references={key: frozenset({source.urn}) for key, source in (of or {}).items()},
    )


def document(*statements: dict[str, Any]) -> str:
    """A policy document; what does not say its effect allows."""
    return json.dumps(
        {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **each} for each in statements]}
    )


def stack_of(case: Case) -> tuple[Resource, list[Resource]]:
    """The resource that is judged, and all of its stack."""
    return (case, [case]) if isinstance(case, Resource) else (case[0], list(case))
