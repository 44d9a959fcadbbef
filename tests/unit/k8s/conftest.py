"""Pods whose commands run on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.k8s.exec_api import Pods, serving_pods


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    """Pods whose files are in the directory `pod`."""
    (tmp_path / "pod").mkdir()
    with serving_pods(tmp_path / "pod") as served:
        yield served
