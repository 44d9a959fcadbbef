"""Add resources that a killed engine was creating to the state, so that the next command does not create them again.

The engine records a creation before it begins (a pending operation). The account may have the resource, but its id is
not in the state. A second creation would fail because of the name, or leave the first resource behind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainyard.cli.resource_ids import Finder


def identities(
    deployment: Mapping[str, Any],
    account: str,
    region: str,
    released: Callable[[str, str], bool],
) -> Iterator[tuple[str, str]]:
    """Yield (URN, id) of each pending creation that may have created something. A refresh then checks it.

    The account is that of the AWS variables in the environment. `released` is as for `Finder`.
    """
    finder = Finder(account, region, released)
    known = {(each["type"], each.get("id")) for each in deployment.get("resources") or [] if "type" in each}
    for operation in deployment.get("pending_operations") or []:
        if operation["type"] != "creating":
            continue
        resource = operation["resource"]
        kind = resource["type"]
        for found in finder.candidates(kind, resource.get("inputs") or {}):
            if (kind, found) not in known:
                known.add((kind, found))
                yield resource["urn"], found
                break


def with_adopted(exported: Mapping[str, Any], found: Mapping[str, str]) -> dict[str, Any]:
    """Return a state from `pulumi stack export` in which the pending creations of `found` are resources.

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
