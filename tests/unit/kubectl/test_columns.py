"""The columns of `list -o wide` are those of `kubectl get torchrunjobs -o wide`."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from trainyard.kubectl import output
from trainyard.operator.api.crd import torchrun_job

pytestmark = pytest.mark.unit
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_they_are_those_of_the_definition() -> None:
    (version,) = torchrun_job()["spec"]["versions"]
    columns = [each["name"] for each in version["additionalPrinterColumns"]]
    header = output.jobs([], NOW, wide=True).split()
    assert [each.upper() for each in header] == ["NAME", *(each.upper() for each in columns)]


def test_the_last_checkpoint_is_between_throughput_and_reason() -> None:
    item = {
        "metadata": {"name": "vit"},
        "spec": {"jobQueue": "h100", "numGPUs": 8, "command": "true"},
        "status": {"reason": "Running", "progress": {"throughput": 1000.0, "checkpointStep": 40}},
    }
    assert output.jobs([item], NOW, wide=True).splitlines()[1].split()[-3:] == ["1000", "40", "Running"]
    item["status"] = {"reason": "Starting"}
    assert output.jobs([item], NOW, wide=True).splitlines()[1].split()[-3:] == ["-", "-", "Starting"]
