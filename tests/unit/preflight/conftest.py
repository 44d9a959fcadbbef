"""Fixtures of the tests of the preflight."""

from __future__ import annotations

import pytest

from tests.unit.emulator import Cloud
from tests.unit.preflight.accounts import ExistingVpc


@pytest.fixture
def existing(cloud: Cloud) -> ExistingVpc:
    """Return a VPC in the emulator that has everything for a stack."""
    return ExistingVpc(cloud)
