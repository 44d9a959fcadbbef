"""Remote components of a plugin, with Pulumi's own SDK. The import of this module imports the whole SDK."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi.provider import ConstructResult
from pulumi.provider import Provider as SdkProvider
from pulumi.provider.server import ProviderServicer

from local.plugins.provider import Provider


class _Adapter(SdkProvider):
    """A provider of Pulumi's SDK that delegates `construct` to this package's provider."""

    def __init__(self, provider: Provider) -> None:
        super().__init__(provider.version, None)
        self._provider = provider

    def construct(
        self,
        name: str,
        resource_type: str,
        inputs: Mapping[str, Any],
        options: pulumi.ResourceOptions | None = None,
    ) -> ConstructResult:
        result: ConstructResult = self._provider.construct(name, resource_type, inputs, options)
        return result


def servicer(provider: Provider, engine_address: str) -> ProviderServicer:
    """Return the SDK's service, of which only `Construct` is used."""
    return ProviderServicer(_Adapter(provider), [], engine_address)
