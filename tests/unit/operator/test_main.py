"""On which addresses the controller serves."""

from __future__ import annotations

import pytest

from trainyard.operator.__main__ import wildcard_address

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("api", "address"),
    [("10.100.0.1", "0.0.0.0"), ("fd30:1::1", "::"), ("", "0.0.0.0")],  # noqa: S104
)
def test_controller_serves_on_every_address_of_its_cluster(api: str, address: str) -> None:
    assert wildcard_address({"KUBERNETES_SERVICE_HOST": api} if api else {}) == address
