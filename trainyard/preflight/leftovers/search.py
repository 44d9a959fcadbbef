"""Search the account for every kind of leftovers. A missing permission or an error stops only its own kind.

EC2 is searched by its own filters for tags: one call per kind returns state and name, without resources that are gone.
Most other kinds are found by the Resource Groups Tagging API. It shows deleted resources for a while, so the service
confirms each. The API does not list IAM roles and Auto Scaling groups
(https://docs.aws.amazon.com/resourcegroupstagging/latest/APIReference/supported-services.html), nor KMS aliases, which
have no tags. IAM is global, so the API of the stack's region has none of its resources. The emulator's has no ECR.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Final

from infra.settings import Settings
from trainyard.preflight.aws import Attempts, Aws
from trainyard.preflight.leftovers import ec2, services
from trainyard.preflight.leftovers.leftover import Leftover, Reader
from trainyard.preflight.resource_names import key_aliases

READERS: Final[dict[str, Reader]] = {
    "EC2 instance": ec2.find_instances,
    **{kind.name: partial(ec2.find, kind=kind) for kind in ec2.KINDS},
    "network interface of the cluster": ec2.find_cluster_interfaces,
    "GuardDuty's endpoint and group": ec2.find_guard_duty,
    **services.READERS,
}
# Kinds that `protectData: true` keeps.
DATA_KINDS: Final = ("S3 bucket", "FSx file system", "ECR repository", "data repository association")
# The logs' key, the last one, does not protect data.
PROTECTING_KEYS: Final = 2


@dataclass(kw_only=True)
class Search(Attempts):
    """The remaining resources, and the kinds that could not be searched."""

    found: list[Leftover] = field(default_factory=list)

    def sorted(self, settings: Settings) -> tuple[list[Leftover], list[Leftover]]:
        """Return the leftovers, and what `protectData` keeps: data, its keys, and the network of a file system."""
        unique = list(dict.fromkeys(self.found))
        if not settings.protect_data:
            return unique, []
        needed = {identity for each in unique if each.kind in DATA_KINDS for identity in each.needs}
        aliases = key_aliases(settings)[:PROTECTING_KEYS]
        keys = {*aliases, *(alias.removeprefix("alias/") for alias in aliases)}
        kept = [
            each
            for each in unique
            if each.kind in DATA_KINDS
            or each.identity in needed
            or (each.kind in ("KMS key", "KMS alias") and {each.note, each.identity} & keys)
        ]
        return [each for each in unique if each not in kept], kept

    def lines(self, settings: Settings) -> list[str]:
        """Return the output: a line per resource and per kind that could not be searched, and a summary."""
        left, kept = self.sorted(settings)
        result = [f"left: {each}" for each in left]
        result += [f"kept: {each}, by protectData" for each in kept]
        result += self.unanswered()
        summary = f"{len(left)} thing{'s are' if len(left) > 1 else ' is'} left"
        if not left:
            partly = " of what could be checked" if self.denied or self.failed else ""
            summary = f"nothing is left{partly}"
        return [*result, f"verify-clean of stack {settings.stack}: {summary}"]


def search(settings: Settings, aws: Aws) -> Search:
    """Search for every kind.

    Raises:
        botocore.exceptions.BotoCoreError: There are no credentials.
        botocore.exceptions.ClientError: The credentials are invalid or expired.
    """
    result = Search()
    for name, reader in READERS.items():
        result.found += result.attempt(name, partial(reader, settings, aws)) or []
    return result
