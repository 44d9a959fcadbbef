"""Invalid input under torchrun: one error line, no stack trace of the trainer, and no partial files."""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.integration.trainer.checkpoints import create_saver, create_trained_model
from tests.integration.trainer.conftest import ROOT, Ended, Start, StartNode
from tests.integration.trainer.s3_proxy import KEYS, Fault, S3Proxy
from trainer.checkpoint import state
from trainer.checkpoint.owner import Owner, newest_generation
from trainer.contract import Exit
from trainer.stores import Directory

pytestmark = pytest.mark.trainer

BUCKET = "bad-input"

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "trainer.train")
# The start of the agent's stack trace, which torchrun prints for every failed run: docs/trainer.md.
AGENT = "Traceback (most recent call last):"


@dataclass
class BadRun:
    """The arguments and variables of an invalid run, and its expected error line."""

    words: tuple[str, ...]
    code: Exit
    line: str
    environ: dict[str, str] = field(default_factory=dict)


def assert_refused(start: StartNode, bad_run: BadRun) -> Ended:
    """Run it under torchrun, and assert what all invalid runs have in common."""
    words = ("--device", "cpu", "--steps", "3", *bad_run.words)
    ended = start(*words, entry=TORCHRUN, **bad_run.environ).end()
    lines = ended.output.partition(AGENT)[0].splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1, ended.output
    assert re.fullmatch(bad_run.line, errors[0].removeprefix("error: ")), errors[0]
    # The only stack trace is torchrun's: its last line has the first process's exit code.
    assert ended.code == 1
    assert ended.output.count("Traceback") == 1
    assert "ChildFailedError" in ended.output
    assert re.search(rf"exitcode *: {int(bad_run.code)} ", ended.output), ended.output
    assert not any(line.startswith("step=") for line in lines)
    return ended


def test_unwritable_checkpoint_place_is_reported_once(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    place = tmp_path / "file" / "checkpoints"
    line = rf"checkpoint_uri: cannot \w+ {re.escape(str(place))}/run\S*: Not a directory"
    assert_refused(start.fork, BadRun(("--checkpoint-uri", str(place)), Exit.CONFIGURATION, line))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_bucket_that_refuses_is_reported_once_and_stays_empty(s3: Any, start: Start) -> None:
    with S3Proxy(s3.meta.endpoint_url) as proxy:
        proxy.faults.append(Fault("(PUT|POST) ", times=10_000, status=403, code="AccessDenied"))
        environ = {**KEYS, "AWS_ENDPOINT_URL": proxy.url}
        line = r"checkpoint_uri: cannot save s3://bad-input/c/run/\S*: .*AccessDenied.*"
        assert_refused(start.fork, BadRun(("--checkpoint-uri", "s3://bad-input/c"), Exit.SAVE, line, environ))
        assert proxy.count("(PUT|POST) "), "the proxy injected the fault"
    assert "Contents" not in s3.list_objects_v2(Bucket="bad-input")
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="bad-input")


def test_checkpoint_of_another_model_is_reported_and_stays(
    start: Start, group: dist.ProcessGroup, tmp_path: Path
) -> None:
    store = Directory(tmp_path / "run")
    model, optimizer = create_trained_model(1)
    saver = create_saver(store, group, log_line=lambda _line: None)
    saver.save(state.gather(model, optimizer), 1, 16)
    assert saver.finish()
    saver.close()
    before = store.list("step-")
    line = (
        rf"checkpoint {re.escape(str(tmp_path))}/run/step-000000001 is of another model: model\.\S+: "
        r"the checkpoint has .*, the model .*"
    )
    assert_refused(start.fork, BadRun(("--checkpoint-uri", str(tmp_path)), Exit.CONFIGURATION, line))
    assert store.list("step-") == before


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
        assert_refused(start.fork, BadRun(("--checkpoint-uri", str(tmp_path)), Exit.CONFIGURATION, line))
        assert newest_generation(store) == first.generation
        assert list(store.list("step-")) == []
    finally:
        first.release()


def test_missing_data_are_reported_once(start: Start) -> None:
    line = "data: /no/such/place is not a directory.*"
    assert_refused(start.fork, BadRun(("--data", "/no/such/place"), Exit.DATA, line))


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
    bad_run = BadRun(
        ("--model", "resnet"),
        Exit.CONFIGURATION,
        r"model: 'resnet' is none of .*gpt-tiny.*",
        {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )
    assert_refused(start.fork, bad_run)
