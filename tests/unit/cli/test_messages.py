"""What a person reads when a command can't go on."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from trainyard.cli.dispatch import message


def test_a_full_disk_is_named_by_its_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path))
    line = message(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert f"the disk of {tmp_path} is full" in line
    assert "\n" not in line


def test_another_failed_file_is_named_with_the_reason() -> None:
    assert message(PermissionError(errno.EACCES, "Permission denied", "/x/y")) == "Permission denied (/x/y)"
