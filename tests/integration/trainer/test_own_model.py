"""The example of a user's own model, trained and resumed at another world size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.trainer.conftest import Start

pytestmark = pytest.mark.trainer

OPTIONS = ("--workload", "examples.trainer.spirals:workload", "--device", "cpu", "--learning-rate", "0.01")


def test_own_model_trains_and_resumes_with_more_processes(start: Start, tmp_path: Path) -> None:
    options = (*OPTIONS, "--checkpoint-uri", str(tmp_path), "--evaluate-every", "500", "--steps")
    first = start.gang(*options, "100", processes=1).end()
    assert first.code == 0, first.output
    second = start.gang(*options, "600", "--parallel", "fsdp", processes=2).end()
    assert second.code == 0, second.output
    assert "checkpoint=loaded step=100 " in second.output, second.output
    accuracy = re.search(r"result=succeeded test_accuracy=([\d.]+) steps=600", second.output)
    assert accuracy, second.output
    assert float(accuracy[1]) > 0.95
