"""The launcher's command line as its Job runs it, in a process of its own without a cluster."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.core import contract as c
from tests.unit.launcher.conftest import DOCUMENT
from tests.unit.launcher.program import ROOT

pytestmark = pytest.mark.unit


def ran(
    directory: Path, document: dict[str, Any], *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """With a kubeconfig that is not there: who asks for a cluster ends with another code."""
    return subprocess.run(
        [sys.executable, "-m", "launcher.capacity", *arguments],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "KUBECONFIG": str(directory / "none"),
            "TRAINYARD_REQUEST": json.dumps(document),
            **environment,
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_wrong_request_ends_with_its_code_and_a_line_for_each_mistake_before_any_cluster_is_asked(
    tmp_path: Path,
) -> None:
    document = copy.deepcopy(DOCUMENT)
    document["worker"]["image"], document["holdSeconds"] = "trainer", "1h30m"
    ended = ran(tmp_path, document, MIN_NODES="5", MAX_NODES="1.5")
    assert (ended.returncode, ended.stdout) == (c.EXIT_BAD_REQUEST, "")
    assert sorted(line.partition(";")[0] for line in ended.stderr.splitlines()) == [
        "launcher: MAX_NODES is '1.5'",
        "launcher: MIN_NODES is 5 and MAX_NODES is 4",
        'launcher: TRAINYARD_REQUEST.holdSeconds is "1h30m"',
        'launcher: TRAINYARD_REQUEST.worker.image is "trainer"',
    ]
    assert ran(tmp_path, DOCUMENT).returncode == c.EXIT_API_ERROR


def test_a_dry_run_needs_no_cluster_and_has_the_nodes_of_the_environment(tmp_path: Path) -> None:
    ended = ran(tmp_path, DOCUMENT, "--dry-run", MIN_NODES="1", MAX_NODES="3")
    assert (ended.returncode, ended.stderr) == (c.EXIT_SUCCEEDED, "")
    first, *objects = yaml.safe_load_all(ended.stdout)
    assert (first["request"]["min_nodes"], first["request"]["max_nodes"]) == (1, 3)
    assert [item["kind"] for item in objects] == ["Pod"] * 3 + ["PyTorchJob"]


def test_an_option_that_is_none_is_a_wrong_request_too(tmp_path: Path) -> None:
    assert ran(tmp_path, DOCUMENT, "--wet-run").returncode == c.EXIT_BAD_REQUEST
