"""What the driver refuses, and how it says so: one line, nothing half done."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.home import Home
from tests.integration.local.conftest import deploy, run
from trainyard.cli.engine import ROOT

pytestmark = pytest.mark.local


@pytest.fixture
def other_home(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A home for a cloud that must not come up."""
    environment = {"TRAINYARD_HOME": str(tmp_path / "home")}
    yield environment
    run([sys.executable, "-m", "local", "down"], environment)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_ENDPOINT_URL", "https://ec2.us-west-2.amazonaws.com"),
        ("AWS_ENDPOINT_URL_S3", "http://10.0.0.1:9000"),
        ("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE"),
        ("AWS_PROFILE", "production"),
    ],
)
def test_anything_of_a_real_account_is_refused(other_home: dict[str, str], name: str, value: str) -> None:
    answer = deploy("up", "--stack", "local", environment={**other_home, name: value}, seconds=60)
    assert answer.code != 0
    (line,) = [line for line in answer.output.splitlines() if line]
    assert name in line
    assert not Home(other_home["TRAINYARD_HOME"]).cloud_file.exists()


def test_five_mistakes_are_reported_together_before_a_build(
    other_home: dict[str, str], tmp_path: Path
) -> None:
    text = (ROOT / "Pulumi.local.yaml").read_text()
    for right, wrong in (
        ("instanceType: g5.12xlarge", "instanceType: g5.13xlarge"),
        ("zone: us-west-2b", "zone: eu-central-1a"),
        ("maxNodes: 4", "maxNodes: four"),
        ("minNodes: 2", "minNodes: 9"),
        ("trainyard:training:", "trainyard:trainning: {}\n  trainyard:training:"),
    ):
        assert right in text, f"Pulumi.local.yaml no longer says {right}"
        text = text.replace(right, wrong, 1)
    path = ROOT / "Pulumi.zz-mistakes.yaml"
    path.write_text(text)
    try:
        # Without the tools, which are not built for a file with mistakes.
        environment = {**other_home, "TRAINYARD_CACHE": str(tmp_path / "no-tools")}
        answers = [
            deploy(*words, "--stack", "zz-mistakes", environment=environment, seconds=60)
            for words in (["preview"], ["up", "--cloud", "local"])
        ]
    finally:
        path.unlink()
    for answer in answers:
        assert answer.code != 0
        for key in (
            "trainyard:pools[0].instanceType",
            "trainyard:pools[0].zone",
            "trainyard:pools[0].maxNodes",
            "trainyard:training.minNodes",
            "trainyard:trainning",
        ):
            assert key in answer.output, f"{key} is not named"
        assert "g5.12xlarge" in answer.output, "no help with the type's name"
        assert "Traceback" not in answer.output
        assert "aws:" not in answer.output, "a resource was registered"


def test_a_stack_file_that_is_not_there_is_named() -> None:
    answer = deploy("up", "--stack", "nowhere", "--cloud", "local", seconds=60)
    assert answer.code == 1
    assert "Pulumi.nowhere.yaml does not exist" in answer.output


def test_a_stale_process_record_is_taken_over(other_home: dict[str, str]) -> None:
    home = Home(other_home["TRAINYARD_HOME"])
    start = [sys.executable, "-m", "local", "up"]
    assert run(start, other_home, 60).code == 0
    pid = home.cloud()["pid"]
    os.kill(pid, 9)
    again = run(start, other_home, 60)
    assert again.code == 0, again.output
    assert home.cloud()["pid"] != pid
