"""What is wrong with a run is one clear line under torchrun itself: no stack of ours, and nothing half written."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.integration.trainer.checkpoints import saver, trained
from tests.integration.trainer.conftest import ROOT, Ended, Start, StartNode
from tests.integration.trainer.s3_proxy import KEYS, Fault, S3Proxy, emulated
from trainer.checkpoint import state
from trainer.checkpoint.owner import Owner, newest_generation
from trainer.contract import Exit
from trainer.stores import Directory

pytestmark = pytest.mark.trainer

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "trainer.train")
# torchrun's own words for every training that fails, in the agent's process: docs/trainer.md.
AGENT = "Traceback (most recent call last):"


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    with emulated("bad-input") as client:
        yield client


@dataclass
class Given:
    """The words and variables of a bad run, and the one line that is right for it."""

    words: tuple[str, ...]
    code: Exit
    line: str
    environ: dict[str, str] = field(default_factory=dict)


def refused(start: StartNode, given: Given) -> Ended:
    """Run it under torchrun, and check all that every bad input has in common."""
    words = ("--device", "cpu", "--steps", "3", *given.words)
    ended = start(*words, entry=TORCHRUN, **given.environ).end()
    own = ended.output.partition(AGENT)[0].splitlines()
    errors = [line for line in own if line.startswith("error: ")]
    assert len(errors) == 1, ended.output
    assert re.fullmatch(given.line, errors[0].removeprefix("error: ")), errors[0]
    # Of stacks there is torchrun's own: its last line names the first process's code.
    assert ended.code == 1
    assert ended.output.count("Traceback") == 1
    assert "ChildFailedError" in ended.output
    assert re.search(rf"exitcode *: {int(given.code)} ", ended.output), ended.output
    assert not any(line.startswith("step=") for line in own)
    return ended


def test_unwritable_checkpoint_place_is_reported_once(start: Start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    place = tmp_path / "file" / "checkpoints"
    line = rf"checkpoint_uri: cannot \w+ {re.escape(str(place))}/run\S*: Not a directory"
    refused(start.fork, Given(("--checkpoint-uri", str(place)), Exit.SAVE, line))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_bucket_that_refuses_is_reported_once_and_stays_empty(s3: Any, start: Start) -> None:
    with S3Proxy(s3.meta.endpoint_url) as proxy:
        proxy.faults.append(Fault("(PUT|POST) ", times=10_000, status=403, code="AccessDenied"))
        environ = {**KEYS, "AWS_ENDPOINT_URL": proxy.url}
        line = r"checkpoint_uri: cannot save s3://bad-input/c/run/\S*: .*AccessDenied.*"
        refused(start.fork, Given(("--checkpoint-uri", "s3://bad-input/c"), Exit.SAVE, line, environ))
        assert proxy.count("(PUT|POST) "), "the fault was met"
    assert "Contents" not in s3.list_objects_v2(Bucket="bad-input")
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="bad-input")


def test_checkpoint_of_another_model_is_reported_and_stays(
    start: Start, group: dist.ProcessGroup, tmp_path: Path
) -> None:
    store = Directory(tmp_path / "run")
    model, optimizer = trained(1)
    own = saver(store, group, log_line=lambda _line: None)
    own.save(state.gather(model, optimizer), 1, 16)
    assert own.finish()
    own.close()
    before = store.list("step-")
    line = (
        rf"checkpoint {re.escape(str(tmp_path))}/run/step-000000001 is of another model: model\.\S+: "
        r"the checkpoint has .*, the model .*"
    )
    refused(start.fork, Given(("--checkpoint-uri", str(tmp_path)), Exit.CONFIGURATION, line))
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
        refused(start.fork, Given(("--checkpoint-uri", str(tmp_path)), Exit.CONFIGURATION, line))
        assert newest_generation(store) == first.generation
        assert list(store.list("step-")) == []
    finally:
        first.release()


def test_missing_data_are_reported_once(start: Start) -> None:
    line = "data: /no/such/place is not a directory.*"
    refused(start.fork, Given(("--data", "/no/such/place"), Exit.DATA, line))


def test_error_of_a_late_first_process_is_reported_once(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\nif os.environ.get('LOCAL_RANK') == '0': time.sleep(2)\n"
    )
    given = Given(
        ("--model", "resnet"),
        Exit.CONFIGURATION,
        r"model: 'resnet' is none of .*gpt-tiny.*",
        {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )
    refused(start.fork, given)


def test_unexpected_world_is_shown_and_refused(start: Start) -> None:
    promised = ("--expected-nodes", "4", "--processes-per-node", "2")
    told = "expected 4 nodes x 2 processes, found 1 nodes x 2 processes, 2 in all"
    line = f"the world is not as expected: {told}"
    ended = refused(start.fork, Given(promised, Exit.WORLD_SIZE, line))
    lines = ended.output.splitlines()
    place = lines.index(f"world: {told}")
    assert lines[place + 1].split() == [
        "node",
        "host",
        "devices",
        "python",
        "torch",
        "cuda",
        "nccl",
        "driver",
    ]
    assert " 2 x CPU " in lines[place + 2]
    assert lines.index(f"error: {line}") > place + 2
    assert lines.count(f"error: {line}") == 1


def test_batch_smaller_than_the_processes_is_refused(start: Start) -> None:
    line = (
        "batch_size: 1 is less than the 2 processes; it must be at least one sample per process. "
        "Use a larger batch or fewer processes"
    )
    refused(start.fork, Given(("--batch-size", "1"), Exit.CONFIGURATION, line))
