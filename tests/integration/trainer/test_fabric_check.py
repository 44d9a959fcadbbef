"""The fabric check under torchrun, over gloo."""

from __future__ import annotations

import json
import re

import pytest

from tests.integration.trainer.conftest import Operator, Start

pytestmark = pytest.mark.trainer

MODULE = ("-m", "trainer.fabric_check")


def test_two_nodes_are_measured_and_lack_efa(start: Start, operator: Operator) -> None:
    required = json.dumps({"instanceType": "p4d.24xlarge", "gpus": 0, "efa": 4, "gigabits": 400})
    nodes = []
    for rank, environ in enumerate(operator(2)):
        own = {"TRAINYARD_FABRIC_CHECK": required, "TRAINYARD_NODE": f"node-{rank}"}
        nodes.append(start.fork("--max-bytes", "4096", entry=MODULE, **environ, **own))
    ends = [node.end() for node in nodes]
    output = ends[0].output
    assert [end.code for end in ends] == [1, 1], output
    assert "fabric: 2 nodes x 1 processes on p4d.24xlarge, gloo" in output
    sizes = re.findall(r"^ +(\d+ (?:B|KiB)) +[\d.]+ [mu]?s +[\d.]+ +[\d.]+$", output, re.MULTILINE)
    assert sizes == ["8 B", "16 B", "32 B", "64 B", "128 B", "256 B", "512 B", "1 KiB", "2 KiB", "4 KiB"]
    assert "slowest: rank 0 (node-0) and rank 1 (node-1)" in output
    assert "transport: gloo between nodes" in output
    assert "of 50 GB/s (400 Gbit/s)" in output
    assert "p4d.24xlarge has 4 interfaces, but the processes use gloo." in output


def test_one_node_without_requirements_is_fit(start: Start) -> None:
    end = start.fork("--max-bytes", "64", entry=MODULE, TRAINYARD_PROCESSES_PER_NODE="2").end()
    assert end.code == 0, end.output
    assert re.search(r"^best: [\d.]+ GB/s of bus bandwidth at \d+ B$", end.output, re.MULTILINE)
    assert "transport: gloo within a node" in end.output
