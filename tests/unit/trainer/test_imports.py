"""What a module must not import: torch takes seconds, which an error in the settings must not wait for."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("modules", "forbidden"),
    [
        ("trainer.entrypoint", {"torch", "boto3", "numpy"}),
        ("trainer.workloads", {"torch", "numpy"}),
        ("trainer.node_check", {"torch"}),
        (
            "trainer.plot, trainer.metrics.hub, trainer.metrics.throughput",
            {"torch", "tensorboardX", "matplotlib"},
        ),
    ],
)
def test_import_does_not_load_slow_packages(modules: str, forbidden: set[str]) -> None:
    code = f"import sys, {modules}\nsys.exit(' '.join({forbidden!r} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
