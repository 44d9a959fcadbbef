"""The trainer's constants are those of contract.yaml, which launcher and program are held to as well."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer import contract
from trainer.config import Config

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[3]
SHARED: dict[str, Any] = yaml.safe_load((ROOT / "contract.yaml").read_text())


def test_exit_codes_are_the_shared_ones() -> None:
    expected = SHARED["exitCodes"]["trainer"]
    ours = {code.name.lower().replace("_", ""): int(code) for code in contract.Exit}
    assert ours == {name.lower(): code for name, code in expected.items()}


def test_the_checks_exit_codes_are_the_shared_ones() -> None:
    assert {code.name.lower(): int(code) for code in contract.CheckExit} == SHARED["exitCodes"]["nodeCheck"]


def test_environment_names_are_the_shared_ones() -> None:
    launcher = SHARED["environment"]["workerFromLauncher"]
    program = SHARED["environment"]["workerFromProgram"]
    assert launcher == {
        "expectedNodes": contract.EXPECTED_NODES,
        "processesPerNode": contract.PROCESSES_PER_NODE,
        "runId": contract.RUN_ID,
        "restart": contract.RESTART,
    }
    assert program == {
        "device": contract.DEVICE,
        "modelUri": contract.MODEL_URI,
        "checkpointUri": contract.CHECKPOINT_URI,
        "data": contract.DATA,
        "metricsPort": contract.METRICS_PORT,
        "region": contract.REGION,
    }
    assert SHARED["environment"]["trainerImage"] == {"revision": contract.REVISION}
    assert SHARED["environment"]["nodeCheck"] == {"expected": contract.NODE_CHECK, "node": contract.NODE}
    assert SHARED["names"]["runIdMaxLength"] == contract.RUN_ID_MAX_LENGTH


def test_options_are_the_shared_ones() -> None:
    assert [f"--{each.name.replace('_', '-')}" for each in fields(Config)] == SHARED["trainerOptions"]


@pytest.mark.parametrize("image", ["trainer", "launcher"])
def test_images_run_as_the_shared_user_from_a_pinned_base_with_checked_packages(image: str) -> None:
    text = (ROOT / image / "Dockerfile").read_text()
    user = SHARED["podUser"]
    assert f"\nUSER {user}:{user}\n" in text
    assert "ARG PYTHON_IMAGE=python:3.11.15-slim-bookworm@sha256:" in text
    assert "--require-hashes" in text
    assert ":latest" not in text
    lock = (ROOT / image / "requirements.lock").read_text()
    for pin in (ROOT / image / "requirements.txt").read_text().split():
        assert f"{pin} \\\n    --hash=sha256:" in lock, f"{image}/requirements.lock does not hold {pin}"
    everything = (ROOT / "requirements.lock").read_text()
    for line in lock.splitlines():
        if "==" in line:
            assert line.split()[0] in everything, f"{line}: the tests run with another version"
