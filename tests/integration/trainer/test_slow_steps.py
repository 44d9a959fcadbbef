"""Steps that are longer than the time to stop: the processes agree to stop between two micro-batches."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from tests.integration.trainer.conftest import Start
from tests.integration.trainer.trained import RunSeries, read_until, stopped_at
from trainer.contract import Exit

pytestmark = pytest.mark.trainer

# Each process has 32 micro-batches of one sample. From the second step on each blocks for 0.4 s in one C call: 13 s a
# step.
WORDS = ("--batch-size", "64", "--micro-batch-size", "1", "--steps", "3", "--log-every", "1")
SLOWED = """
import os
import time
from trainer import trainer
from trainer.process import log_line
accumulating = trainer.accumulating
passes = 0
def slowed(model, last):
    global passes
    passes += 1
    if passes > 32:
        time.sleep(float(os.environ["SLOW_SECONDS"]))
    if passes == 32 + 3:
        log_line(f"rank {os.environ['RANK']} is in its second step")
    return accumulating(model, last)
trainer.accumulating = slowed
"""
MAX_SECONDS = 10.0


def test_stop_in_a_slow_step_ends_soon_with_the_step_before(start: Start, tmp_path: Path) -> None:
    runs = RunSeries(start, tmp_path, *WORDS, patch=SLOWED)
    node = runs.start_torchrun(SLOW_SECONDS="0.4")
    read_until(node, "rank 0 is in its second step")
    start_time = time.monotonic()
    node.process.send_signal(signal.SIGTERM)
    ended = node.end()
    seconds = time.monotonic() - start_time
    assert ended.code == Exit.STOPPED, ended.output
    assert seconds <= MAX_SECONDS
    assert stopped_at(ended, "SIGTERM") == 1, "the partial step is dropped"
    assert "without another checkpoint" not in ended.output
    resumed = runs.end(processes=1, SLOW_SECONDS="0")
    assert re.search(r"^checkpoint=loaded step=1 position=64 ", resumed.output, re.M), resumed.output
    assert "steps=3" in resumed.output
