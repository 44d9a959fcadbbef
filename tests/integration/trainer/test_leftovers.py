"""A run removes the temporary files of killed runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.trainer.conftest import ROOT, Start
from trainer.scratch import folder

pytestmark = pytest.mark.trainer


def test_run_removes_what_killed_runs_left_and_nothing_else(start: Start, tmp_path: Path) -> None:
    script = (
        "import os, sys; from pathlib import Path; from trainer.scratch import folder;"
        "[(folder(Path(sys.argv[1]), use) / 'part').write_bytes(bytes(1000)) for use in ('restore', 'save')];"
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, check=False)
    assert len(list(tmp_path.iterdir())) == 2
    live = folder(tmp_path, "save")
    ended = start.fork(
        "--steps", "1", "--device", "cpu", TMPDIR=str(tmp_path), TRAINYARD_PROCESSES_PER_NODE="2"
    ).end()
    assert ended.code == 0, ended.output
    message = f"scratch=removed count=2 place={tmp_path} reason=their processes were killed"
    assert ended.output.splitlines().count(message) == 1
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("trainyard-")] == [live.name]
