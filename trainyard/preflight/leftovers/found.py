"""What is looked for, and what was found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

# Kinds that `protectData: true` keeps, and the keys and names without which they could not be read.
DATA_KINDS: Final = frozenset(
    {"S3 bucket", "FSx file system", "ECR repository", "data repository association"}
)
KEY_KINDS: Final = frozenset({"KMS key", "KMS alias"})


@dataclass(frozen=True, kw_only=True)
class Target:
    """One stack: its exact tags, and its cluster's name where the cluster is its own (else None).

    A given cluster may have machines, load balancers and logs of others, so that its name proves nothing. `kept_keys`
    are the names of the keys that protect kept data.
    """

    stack: str
    region: str
    tags: dict[str, str]
    cluster: str | None
    protect: bool
    kept_keys: tuple[str, ...] = ()
    key_aliases: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Found:
    """One thing that exists: what kind, its id or name, and what else a person wants to know (its name, its state).

    `holds` are ids of things that cannot go before this one: a file system's VPC with the default group in it, subnets,
    interfaces, their groups and the groups that those let in.
    """

    kind: str
    identity: str
    note: str = field(default="", compare=False)
    holds: frozenset[str] = field(default=frozenset(), compare=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.identity}" + (f" ({self.note})" if self.note else "")


@dataclass(frozen=True, kw_only=True)
class Sorted:
    """What is left although it should be gone, and what is kept because the stack protects its data."""

    left: tuple[Found, ...]
    kept: tuple[Found, ...]


def sort(target: Target, found: list[Found]) -> Sorted:
    """Tell kept data, its keys and what it lies in from leftovers."""
    unique = list(dict.fromkeys(found))
    if not target.protect:
        return Sorted(left=tuple(unique), kept=())
    data = [each for each in unique if each.kind in DATA_KINDS]
    held = frozenset().union(*(each.holds for each in data))
    names = {*target.kept_keys, *(f"alias/{name}" for name in target.kept_keys)}
    kept = [
        each
        for each in unique
        if each in data
        or each.identity in held
        or (each.kind in KEY_KINDS and (each.note in names or each.identity in names))
    ]
    return Sorted(left=tuple(each for each in unique if each not in kept), kept=tuple(kept))
