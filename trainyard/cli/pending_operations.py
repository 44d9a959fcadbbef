"""Ids of what a killed engine was creating, so that the next run takes it over and does not make it twice.

The engine notes a creation before it begins (a pending operation). What has been made by then is in the account, but
its id is not in the state; a second creation would fail on the name, or leave the first behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from trainyard.cli.resource_ids import Finder


def pending_creations(deployment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Resources of the state's pending creations."""
    operations: Sequence[Mapping[str, Any]] = deployment.get("pending_operations") or []
    return [each["resource"] for each in operations if each["type"] == "creating"]


def identities(
    deployment: Mapping[str, Any],
    account: str,
    region: str,
    released: Callable[[str, str], bool] = lambda _namespace, _name: False,
) -> Iterator[tuple[str, str]]:
    """(URN, id) of every pending creation that may have left something in the account; a refresh then looks.

    The account is the one that the AWS variables of the environment lead to; `released` as for `Finder`.
    """
    finder = Finder(account, region, released)
    known = {(each["type"], each.get("id")) for each in deployment.get("resources") or [] if "type" in each}
    for resource in pending_creations(deployment):
        kind = resource["type"]
        for found in finder.candidates(kind, resource.get("inputs") or {}):
            if (kind, found) not in known:
                known.add((kind, found))
                yield resource["urn"], found
                break


def with_adopted(exported: Mapping[str, Any], found: Mapping[str, str]) -> dict[str, Any]:
    """A state as `pulumi stack export` writes it, in which the pending creations of `found` are resources.

    They come last, after everything that they depend on. A refresh then reads their outputs.
    """
    deployment = dict(exported["deployment"])
    operations = deployment.get("pending_operations") or []
    made = [
        {
            **each["resource"],
            "id": found[each["resource"]["urn"]],
            "outputs": each["resource"].get("inputs") or {},
        }
        for each in operations
        if each["type"] == "creating" and each["resource"]["urn"] in found
    ]
    deployment["resources"] = [*(deployment.get("resources") or []), *made]
    deployment["pending_operations"] = [each for each in operations if each["resource"]["urn"] not in found]
    return {**exported, "deployment": deployment}
