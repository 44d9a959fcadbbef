"""The launcher's command line without a cluster: exit codes, messages, and a dry run as a process."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launcher.__main__ import main
from tests.unit.launcher.conftest import DOCUMENT
from tests.unit.launcher.program import ROOT
from trainyard.k8s import names


def test_main_with_a_wrong_request_reports_each_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    document = copy.deepcopy(DOCUMENT)
    document["worker"]["image"], document["holdSeconds"] = 1, "1h30m"
    environment = {"TRAINYARD_REQUEST": json.dumps(document), "MIN_NODES": "5", "MAX_NODES": "1.5"}
    assert main([], environment) == names.EXIT_BAD_REQUEST
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sorted(line.partition(";")[0] for line in printed.err.splitlines()) == [
        "launcher: MAX_NODES is '1.5'",
        'launcher: TRAINYARD_REQUEST.holdSeconds is "1h30m"',
        "launcher: TRAINYARD_REQUEST.worker.image is 1",
    ]


def test_main_without_a_cluster_is_an_api_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert main([], {"TRAINYARD_REQUEST": json.dumps(DOCUMENT)}) == names.EXIT_API_ERROR


def test_dry_run_as_a_process_prints_all_objects(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "launcher", "--dry-run"],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "KUBECONFIG": str(tmp_path / "none"),
            "TRAINYARD_REQUEST": json.dumps(DOCUMENT),
            "MIN_NODES": "1",
            "MAX_NODES": "3",
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (names.EXIT_SUCCEEDED, "")
    first, *objects = yaml.safe_load_all(ended.stdout)
    assert (first["request"]["min_nodes"], first["request"]["max_nodes"]) == (1, 3)
    assert [item["kind"] for item in objects] == ["Pod"] * 3 + ["PyTorchJob"]
