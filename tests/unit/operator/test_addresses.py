"""On which addresses the controller serves."""

from __future__ import annotations

import pytest

from trainyard.operator.__main__ import format_host, wildcard_address

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("api", "address", "url"),
    [("10.100.0.1", "0.0.0.0", "0.0.0.0"), ("fd30:1::1", "::", "[::]"), ("", "0.0.0.0", "0.0.0.0")],  # noqa: S104
)
def test_controller_serves_on_every_address_of_its_cluster(api: str, address: str, url: str) -> None:
    found = wildcard_address({"KUBERNETES_SERVICE_HOST": api} if api else {})
    assert (found, format_host(found)) == (address, url)
