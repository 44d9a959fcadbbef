"""A run continues on nodes that have drifted from their pool. Karpenter replaces them after its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster_reads import ReadError, read
from tests.world import World, world
from trainyard.cli.engine import ROOT

# A whole `up` with a run of minutes, on a machine that may be busy.
pytestmark = [pytest.mark.lives, pytest.mark.timeout(1800)]

STACK = "zz-drifted"
FILE = ROOT / f"Pulumi.{STACK}.yaml"
NODES = 2
# The least that a pool may be given.
IDLE_SECONDS = 30
# Minutes of training on nodes that Karpenter would otherwise remove or replace within seconds.
EPOCHS = 200
# Karpenter looks for machines to disrupt every ten seconds.
LEAST_SECONDS = 45.0
STARTED_SECONDS, DRIFTED_SECONDS, GONE_SECONDS = 420.0, 120.0, 180.0
JOB = "training.kubeflow.org/job-name=train-r1"


@dataclass(frozen=True)
class Gang:
    """A run's Job, its pods on their nodes with their restarts, and all NodeClaims of Karpenter."""

    job: str
    pods: frozenset[tuple[str, str, str, int]]
    claims: frozenset[str]


class Drifting:
    """A stack whose run is followed by `make up`, and what the test asks of its cluster."""

    def __init__(self, made: World, output: Path) -> None:
        self.made = made
        self.output = output
        with output.open("w") as sink:
            words = ["-m", "trainyard.cli", "up", "--stack", STACK, "--cloud", "local"]
            self.up = subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env={**os.environ, "TRAINYARD_HOME": str(made.home.root)},
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    def kubectl(self, *arguments: str) -> str:
        """kubectl as the administrator; raises CalledProcessError where it fails."""
        home = self.made.home
        words = [str(home.root / "bin" / "kubectl"), "--kubeconfig", str(home.kubeconfig), *arguments]
        return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = read(self.made.home.kubeconfig, *arguments)["items"]
        return found

    def running(self) -> bool:
        """Whether all of the gang's pods run."""
        try:
            pods = self.items("pods", "-n", "training", "-l", JOB)
        except ReadError:
            return False
        return [pod["status"]["phase"] for pod in pods] == ["Running"] * NODES

    def drifted(self) -> bool:
        """Whether each NodeClaim of Karpenter has drifted."""
        return all(
            any(c["type"] == "Drifted" and c["status"] == "True" for c in claim["status"]["conditions"])
            for claim in self.items("nodeclaims")
        )

    def gang(self) -> Gang:
        (job,) = self.items("pytorchjobs", "-n", "training")
        pods = self.items("pods", "-n", "training", "-l", JOB)
        return Gang(
            job=job["metadata"]["uid"],
            pods=frozenset(_identity(pod) for pod in pods),
            claims=frozenset(claim["metadata"]["name"] for claim in self.items("nodeclaims")),
        )

    def wait(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < deadline, (
                f"not within {seconds:.0f} s: {what}\n{self.output.read_text()}"
            )
            time.sleep(1)


def _identity(pod: dict[str, Any]) -> tuple[str, str, str, int]:
    restarts = sum(each["restartCount"] for each in pod["status"].get("containerStatuses", []))
    return pod["metadata"]["name"], pod["metadata"]["uid"], pod["spec"]["nodeName"], restarts


def write_stack() -> None:
    document = yaml.safe_load((ROOT / "Pulumi.local.yaml").read_text())
    config = document["config"]
    config["trainyard:pools"][0]["idleSeconds"] = IDLE_SECONDS
    config["trainyard:training"] |= {"minNodes": NODES, "maxNodes": NODES, "args": ["--epochs", str(EPOCHS)]}
    FILE.write_text(yaml.safe_dump(document))


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Drifting]:
    write_stack()
    try:
        with world(tmp_path / "home", STACK) as made:
            found = Drifting(made, tmp_path / "output")
            try:
                yield found
            finally:
                found.up.terminate()
                found.up.wait(60)
                print(found.output.read_text())
                made.down()
    finally:
        FILE.unlink()


def test_a_run_keeps_its_machines_though_they_have_drifted(stack: Drifting) -> None:
    stack.wait(stack.running, STARTED_SECONDS, f"{NODES} workers run")
    before = stack.gang()
    assert len(before.claims) == NODES
    # As another setting of the pool would: the machines' own tags are no longer those of their class.
    (pool,) = stack.items("ec2nodeclasses")
    change = json.dumps({"spec": {"tags": {"drifted": "yes"}}})
    stack.kubectl("patch", "ec2nodeclass", pool["metadata"]["name"], "--type=merge", "--patch", change)
    stack.wait(stack.drifted, DRIFTED_SECONDS, "all machines have drifted")
    since = time.monotonic()
    while stack.running():
        assert stack.gang() == before
        time.sleep(1)
    lasted = time.monotonic() - since
    assert stack.up.wait(300) == 0, stack.output.read_text()
    print(f"the run went on for {lasted:.0f} s on drifted machines")
    assert lasted >= LEAST_SECONDS, "too short for Karpenter to have had a chance: raise EPOCHS"
    assert stack.gang().job == before.job
    assert stack.gang().pods == before.pods
    assert "run r1 succeeded" in stack.output.read_text()
    stack.wait(lambda: not stack.items("nodeclaims"), GONE_SECONDS, "the drifted machines are given back")
