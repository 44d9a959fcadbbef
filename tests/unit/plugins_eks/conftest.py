"""The SDK as the plugin's process has it: the modules of the official AWS SDK are not registered there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local.plugins.eks.resources import accept_references
from tests.unit.pulumi_sdk import no_resource_modules


@pytest.fixture(scope="module", autouse=True)
def _plugin_process() -> Iterator[None]:
    accept_references.cache_clear()
    with no_resource_modules():
        yield
    accept_references.cache_clear()
