"""Complete runs: two nodes with the operator's variables, and one or two nodes on a laptop."""

from __future__ import annotations

import hashlib
import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.integration.trainer.conftest import Ended, Operator, Start
from tests.integration.trainer.s3_proxy import KEYS
from tests.integration.trainer.trained import are_tensors_equal
from trainer.workloads import load

pytestmark = pytest.mark.trainer

BUCKET = "models"


@dataclass(frozen=True)
class Run:
    nodes: list[Ended]
    model: bytes
    metadata: dict[str, Any]


@pytest.fixture(scope="module")
def run(s3: Any, start: Start, operator: Operator) -> Run:
    """The run of the default job: two nodes with one process each, and the model in S3."""
    expected_world = {
        "TRAINYARD_EXPECTED_NODES": "2",
        "TRAINYARD_PROCESSES_PER_NODE": "1",
        "TRAINYARD_RUN_ID": "r1",
    }
    place = {"TRAINYARD_MODEL_URI": "s3://models/runs", "AWS_ENDPOINT_URL": s3.meta.endpoint_url}
    nodes = [start.fork(**environ, **expected_world, **place, **KEYS) for environ in operator(2)]
    ended = [node.end() for node in nodes]
    assert [node.code for node in ended] == [0, 0], "\n".join(node.output for node in ended)
    objects = [item["Key"] for item in s3.list_objects_v2(Bucket="models")["Contents"]]
    logs = [key for key in objects if key.startswith("runs/r1/logs/0/")]
    for node, key in enumerate(logs):
        log = s3.get_object(Bucket="models", Key=key)["Body"].read().decode()
        assert f"rank={node} world_size=2" in log
        assert log == ended[node].output
    assert len(logs) == 2, "one for each worker"
    assert [key for key in objects if key not in logs] == [
        "runs/latest.json",
        "runs/r1/metadata.json",
        "runs/r1/model.pt",
    ]
    body = {
        name: s3.get_object(Bucket="models", Key=f"runs/r1/{name}") for name in ("model.pt", "metadata.json")
    }
    return Run(ended, body["model.pt"]["Body"].read(), json.loads(body["metadata.json"]["Body"].read()))


def test_run_reaches_95_percent_and_logs_it(run: Run) -> None:
    last = run.nodes[0].output.splitlines()[-1]
    found = re.fullmatch(
        r"result=succeeded test_accuracy=(\d\.\d{4}) steps=(\d+) seconds=\d+\.\d model=s3://models/runs/r1/model\.pt",
        last,
    )
    assert found, last
    assert float(found[1]) >= 0.95
    assert int(found[2]) == run.metadata["steps"]


def test_saved_model_has_the_reported_accuracy(run: Run) -> None:
    """One process evaluates all test images here: the sum over processes was exact."""
    digits = load("digits")
    network = digits.model()
    network.load_state_dict(torch.load(io.BytesIO(run.model), weights_only=True))
    network.eval()
    with torch.no_grad():
        loss, right, images = network(*digits.batch(np.arange(digits.test_samples), "test"))[1].tolist()
    assert right / images == run.metadata["testAccuracy"]
    assert loss / images == pytest.approx(run.metadata["testLoss"])


def test_metadata_describe_the_run(run: Run) -> None:
    expected = {"runId": "r1", "worldSize": 2, "nodes": 2, "processesPerNode": 1, "device": "cpu"}
    assert expected.items() <= run.metadata.items()
    assert run.metadata["model"]["sha256"] == hashlib.sha256(run.model).hexdigest()
    assert run.metadata["data"]["sha256"] == load("digits").digest


def test_every_process_logs_its_rank(run: Run) -> None:
    for rank, node in enumerate(run.nodes):
        line = f"rank={rank} world_size=2 nodes=2 processes_per_node=1 device=cpu backend=gloo"
        assert line in node.output.splitlines()


def test_progress_is_logged_by_the_first_process_only(run: Run) -> None:
    pattern = (
        r"step=\d+ epoch=\d+/\d+ loss=\d+\.\d{4} accuracy=\d\.\d{4} samples_per_second=\d+\.\d "
        r"data_wait=\d\.\d{3} elapsed=\d+\.\ds"
    )
    first, second = (
        [line for line in node.output.splitlines() if line.startswith("step=")] for node in run.nodes
    )
    assert len(first) == run.metadata["steps"] // 20
    assert all(re.fullmatch(pattern, line) for line in first)
    assert second == []


def test_same_seed_on_one_node_or_two_gives_the_same_model(start: Start, tmp_path: Path) -> None:
    """The models are bitwise equal after more than an epoch."""
    for nodes in (1, 2):
        place = ("--model-uri", str(tmp_path / str(nodes)))
        ended = start.gang(
            "--device", "cpu", "--steps", "30", *place, nodes=nodes, processes=2 // nodes
        ).end()
        assert ended.code == 0, ended.output
        assert f"rank=1 world_size=2 nodes={nodes} processes_per_node={2 // nodes} " in ended.output
    one, two = (torch.load(tmp_path / nodes / "run" / "model.pt", weights_only=True) for nodes in ("1", "2"))
    assert are_tensors_equal(one, two)


def test_run_is_evaluated_at_the_interval_and_its_end(start: Start, tmp_path: Path) -> None:
    """An epoch of the digits has more steps than this run."""
    words = ("--steps", "7", "--evaluate-every", "3", "--metrics-directory", str(tmp_path))
    ended = start.gang("--device", "cpu", *words).end()
    assert ended.code == 0, ended.output
    records = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert [each["step"] for each in records if each["kind"] == "evaluation"] == [3, 6, 7]
