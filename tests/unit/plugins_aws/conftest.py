"""The provider on an empty account of the emulator."""

from __future__ import annotations

import pytest

from tests.unit.emulator import Cloud as Emulator
from tests.unit.plugins_aws.stack import Stack


@pytest.fixture(scope="module")
def made() -> Stack:
    """One for all tests: clients are slow to make."""
    return Stack()


@pytest.fixture
def stack(deployer: Emulator, made: Stack) -> Stack:
    return made
