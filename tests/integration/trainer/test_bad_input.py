"""Invalid input under torchrun: one error line, no stack trace of the trainer, and no partial files."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

import pytest

from tests.integration.trainer.conftest import ROOT, Start
from trainer.checkpoint.owner import Owner, newest_generation
from trainer.contract import Exit
from trainer.stores import Directory

pytestmark = pytest.mark.trainer

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "trainer.train")
# The start of the agent's stack trace, which torchrun prints for every failed run: docs/trainer.md.
AGENT = "Traceback (most recent call last):"


def assert_refused(start: Start, line: str, code: Exit, *words: str, **environ: str) -> None:
    """Run these arguments under torchrun: one error line, and the exit code in torchrun's report."""
    ended = start.fork("--device", "cpu", "--steps", "3", *words, entry=TORCHRUN, **environ).end()
    lines = ended.output.partition(AGENT)[0].splitlines()
    errors = [each for each in lines if each.startswith("error: ")]
    assert len(errors) == 1, ended.output
    assert re.fullmatch(line, errors[0].removeprefix("error: ")), errors[0]
    # The only stack trace is torchrun's: its last line has the first process's exit code.
    assert ended.code == 1
    assert ended.output.count("Traceback") == 1
    assert "ChildFailedError" in ended.output
    assert re.search(rf"exitcode *: {int(code)} ", ended.output), ended.output
    assert not any(each.startswith("step=") for each in lines)


def test_unwritable_checkpoint_place_is_reported_once(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    place = tmp_path / "file" / "checkpoints"
    line = rf"checkpoint_uri: cannot \w+ {re.escape(str(place))}/run\S*: Not a directory"
    assert_refused(start, line, Exit.CONFIGURATION, "--checkpoint-uri", str(place))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_second_run_in_one_place_is_refused_with_its_owner(start: Start, tmp_path: Path) -> None:
    store = Directory(tmp_path / "run")
    first = Owner(store, uuid.uuid4().hex, "first", log_line=lambda _line: None)
    first.claim()
    first.start()
    line = (
        rf"checkpoints: {re.escape(str(tmp_path))}/run\S* belongs to run first \(process \d+ on .*\), which is alive. "
        r"End that run, or use another place for this run"
    )
    try:
        assert_refused(start, line, Exit.CONFIGURATION, "--checkpoint-uri", str(tmp_path))
        assert newest_generation(store) == first.generation
        assert list(store.list("step-")) == []
    finally:
        first.release()


def test_missing_data_are_reported_once(start: Start) -> None:
    line = "data: /no/such/place is not a directory.*"
    assert_refused(start, line, Exit.DATA, "--data", "/no/such/place")


def test_error_of_a_late_first_process_is_reported_once(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\n"
        "from trainer.config import Config\n"
        "read = Config.read\n"
        "def late(*words):\n"
        "    if os.environ.get('LOCAL_RANK') == '0': time.sleep(2)\n"
        "    return read(*words)\n"
        "Config.read = late\n"
    )
    line = r"model: 'resnet' is not one of .*gpt-tiny.*"
    paths = f"{tmp_path}{os.pathsep}{ROOT}"
    assert_refused(start, line, Exit.CONFIGURATION, "--model", "resnet", PYTHONPATH=paths)
