"""The result of a check, and values that several checks derive from the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from components.documents.tags import stack_tags
from components.documents.vpc import private_endpoints
from infra.settings import PROJECT, Settings
from trainyard.preflight.aws import Aws

MISSING: Final = "missing"
WARNING: Final = "warning"
SKIPPED: Final = "skipped"


@dataclass(frozen=True)
class Finding:
    """One line for the user.

    Attributes:
        key: The key in the stack file, such as `trainyard:pools[0].maxNodes`.
        message: What is wrong and what it must be.
        kind: `missing`; `warning` if correct settings may still cause a delay or a failure; `skipped` if AWS has no
            answer for this account.
    """

    key: str
    message: str
    kind: str = MISSING

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


@dataclass(frozen=True)
class Check:
    """A check: its name in the output, and the function that makes it."""

    name: str
    run: Callable[[Settings, Aws], list[Finding]]


def own_tags(settings: Settings) -> dict[str, str]:
    """Return the tags of all resources that the stack creates."""
    return stack_tags(PROJECT, settings.stack)


def pool_key(index: int, setting: str) -> str:
    """Return the key of a pool's setting."""
    return f"{PROJECT}:pools[{index}].{setting}"


def new_endpoints(settings: Settings) -> tuple[str, ...]:
    """Return the services for which the stack creates an interface endpoint (as `infra.foundation` does)."""
    network = settings.network
    if network.private and network.existing is None:
        return _needed_endpoints(settings)
    return network.interface_endpoints


def required_endpoints(settings: Settings) -> tuple[str, ...]:
    """Return the other services that need an endpoint in an existing VPC without internet access."""
    network = settings.network
    if not network.private or network.existing is None:
        return ()
    return ("s3", *(name for name in _needed_endpoints(settings) if name not in network.interface_endpoints))


def _needed_endpoints(settings: Settings) -> tuple[str, ...]:
    return private_endpoints(
        file_system=settings.storage.lustre is not None,
        more=settings.network.interface_endpoints,
    )
