"""How a pod ends after an error: one error line and its exit code."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.integration.trainer.conftest import ROOT, Node, Operator, Start
from tests.integration.trainer.trained import TORCHRUN, read_until
from trainer.contract import Exit

pytestmark = pytest.mark.trainer


def test_world_that_differs_from_the_expected_ends_with_20(start: Start, operator: Operator) -> None:
    ended = start(**operator(1)[0], TRAINYARD_EXPECTED_NODES="4", TRAINYARD_PROCESSES_PER_NODE="1").end()
    assert ended.code == Exit.WORLD_SIZE, ended.output
    message = "expected 4 nodes x 1 processes, found 1 nodes x 1 processes, 1 in all"
    lines = ended.output.splitlines()
    assert f"world: {message}" in lines
    assert f"error: the world is not as expected: {message}" in lines
    assert "Traceback" not in ended.output


def test_cuda_without_a_gpu_ends_with_21_and_never_trains(start: Start) -> None:
    ended = start.fork(TRAINYARD_DEVICE="cuda", CUDA_VISIBLE_DEVICES="").end()
    assert ended.code == Exit.NO_CUDA, ended.output
    assert ended.output.splitlines() == [
        "error: device: cuda is required, and this node has 0 CUDA devices for 1 processes; there must be one per process"  # noqa: E501
    ]


def end_all(nodes: list[Node], code: Exit) -> list[str]:
    """Wait for the end of all nodes with this code and without a stack trace; return their outputs."""
    ended = [node.end() for node in nodes]
    outputs = [each.output for each in ended]
    assert [each.code for each in ended] == [code] * len(nodes), outputs
    assert not any("Traceback" in output for output in outputs)
    return outputs


def test_unreadable_data_on_one_node_end_all_nodes_with_22(
    start: Start, operator: Operator, tmp_path: Path
) -> None:
    sources = ("digits", str(tmp_path / "none"))
    nodes = [
        start.fork(**environ, TRAINYARD_DATA=data) for environ, data in zip(operator(2), sources, strict=True)
    ]
    first, second = end_all(nodes, Exit.DATA)
    assert "error: process 1 failed. See its log" in first
    assert f"error: data: {tmp_path / 'none'} is not a directory" in second


def test_nodes_with_different_settings_end_with_2_and_name_them(start: Start, operator: Operator) -> None:
    words = (("--seed", "3"), ("--seed", "4", "--batch-size", "32", "--notice-file", "/none/of/its/own"))
    nodes = [start.fork(*own, **environ) for environ, own in zip(operator(2), words, strict=True)]
    first, second = end_all(nodes, Exit.CONFIGURATION)
    message = (
        "error: the processes differ in their settings: batch_size: 64 in process 0, 32 in process 1; "
        "seed: 3 in process 0, 4 in process 1; they must be the same in all"
    )
    assert message in first.splitlines()
    assert "the processes differ" not in second, "only one process logs it"
    assert "error: process 0 failed. See its log" in second.splitlines()


def test_nodes_with_different_data_end_with_22(start: Start, operator: Operator, tmp_path: Path) -> None:
    for node, seed in enumerate((b"one book ", b"another book ")):
        (tmp_path / str(node)).mkdir()
        (tmp_path / str(node) / "meta.json").write_text('{"dtype": "uint8", "vocabulary": 256}')
        for name in ("train.bin", "val.bin"):
            (tmp_path / str(node) / name).write_bytes(seed * 60)
    nodes = [
        start.fork("--model", "gpt-tiny", **environ, TRAINYARD_DATA=str(tmp_path / str(node)))
        for node, environ in enumerate(operator(2))
    ]
    first, second = end_all(nodes, Exit.DATA)
    assert "error: the processes differ in their data: sha256: " in first
    assert "train_samples: 8 in process 0, 12 in process 1" in first
    assert "the processes differ" not in second, "only one process logs it"


def test_model_place_that_is_a_file_ends_with_2_before_a_step(
    start: Start, operator: Operator, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    place = {"TRAINYARD_MODEL_URI": str(tmp_path / "file")}
    nodes = [start.fork("--epochs", "1", **environ, **place) for environ in operator(2)]
    first, second = end_all(nodes, Exit.CONFIGURATION)
    message = f"error: model_uri: cannot save {tmp_path}/file/run/model.pt: Not a directory. Use a place that"
    assert sum(line.startswith(message) for line in first.splitlines()) == 1
    assert "error: process 0 failed. See its log" in second.splitlines()
    rest = [line for line in second.splitlines() if not line.startswith("log: can't write the copy ")]
    assert str(tmp_path) not in "\n".join(rest), "only one process logs it"
    assert "model=" not in first + second
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


TAKEN_OVER = """
import os
from pathlib import Path
from trainer.checkpoint.owner import Owner
from trainer.stores import Directory
from trainer.trainer import Trainer
train_step = Trainer._train_step
def taken_over(self, *arguments):
    result = train_step(self, *arguments)
    if self.step == 5 and self.world.rank == 0:
        other = Owner(Directory(Path(os.environ["PLACE"])), "other", "r9")
        assert other._take(2)
    return result
Trainer._train_step = taken_over
"""


@pytest.mark.parametrize("every", [3, 100], ids=["at a save", "at the last save"])
def test_run_whose_place_was_taken_over_ends_all_with_2(start: Start, tmp_path: Path, every: int) -> None:
    """It must not write its model over that of the other run."""
    place = tmp_path / "checkpoints"
    words = ("--device", "cpu", "--steps", "12", "--checkpoint-every", str(every))
    places = ("--checkpoint-uri", str(place), "--model-uri", str(tmp_path / "models"))
    node = start.gang(*words, *places, processes=2, patch=TAKEN_OVER, PLACE=str(place / "run"))
    ended = node.end()
    assert ended.code == Exit.CONFIGURATION, ended.output
    message = f"error: checkpoints: {place}/run was taken over by run r9 (process "
    assert sum(line.startswith(message) for line in ended.output.splitlines()) == 1, ended.output
    for process in (0, 1):
        assert f"gang: process {process} ended with 2" in ended.output
    assert "Traceback" not in ended.output
    assert not (tmp_path / "models").exists()


def test_abort_at_interpreter_exit_leaves_the_run_succeeded(start: Start, tmp_path: Path) -> None:
    """Threads of torch may abort the interpreter at its exit; the test forces an abort."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, os\nif 'LOCAL_RANK' in os.environ: atexit.register(os.abort)\n"
    )
    words = ("--steps", "1", "--device", "cpu")
    entry = (*TORCHRUN, "-m", "trainer.train")
    ended = start.fork(*words, entry=entry, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}").end()
    assert ended.code == Exit.SUCCEEDED, ended.output
    assert "result=succeeded" in ended.output


def test_workers_are_forks_of_the_agent(start: Start, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit\nprint('a new interpreter', flush=True)\natexit.register(print, 'its shutdown')\n"
    )
    words = ("--steps", "1", "--device", "cpu", "--processes-per-node", "2")
    paths = f"{tmp_path}{os.pathsep}{ROOT}"
    ended = start(*words, PYTHONPATH=paths, CUDA_VISIBLE_DEVICES="").end()
    assert ended.code == Exit.SUCCEEDED, ended.output
    assert "rank=1 world_size=2" in ended.output
    assert ended.output.count("a new interpreter") == 1, ended.output
    assert "its shutdown" not in ended.output


def test_stopped_pod_ends_soon_with_24_and_its_step(start: Start) -> None:
    node = start.fork("--epochs", "100000", "--device", "cpu", TRAINYARD_PROCESSES_PER_NODE="1")
    read_until(node, "step=")
    start_time = time.monotonic()
    node.process.send_signal(signal.SIGTERM)
    ended = node.end()  # returns after all processes have closed the output
    assert ended.code == Exit.STOPPED, ended.output
    assert re.search(
        r"^result=stopped reason=SIGTERM steps=\d+ position=\d+ checkpoint=none$", ended.output, re.M
    )
    assert time.monotonic() - start_time < 25
