"""The account of the emulator, for code with boto3's default session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import boto3
import pytest

if TYPE_CHECKING:
    from tests.unit.emulator import Cloud


@pytest.fixture
def account(deployer: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    from tests.unit.emulator import SESSION  # not for every test: it brings moto

    # The default session keeps the credentials that it found first, which may be another test's.
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", SESSION)
    return deployer
