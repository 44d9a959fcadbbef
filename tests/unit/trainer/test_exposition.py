"""What a scrape of the trainer answers."""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.unit.trainer.records import ALARM, BEGAN, CHECKPOINT, EVALUATION, EVERY, START, STEP
from trainer.metrics.exposition import PREFIX, Exposition
from trainer.metrics.record import Record
from trainyard.k8s import names

ROOT = Path(__file__).parents[3]
HOST = "127.0.0.1"


@pytest.fixture
def exposition() -> Iterator[Exposition]:
    exposition = Exposition("r1", HOST, 0)
    yield exposition
    exposition.close()


def scrape(exposition: Exposition, *records: Record) -> list[tuple[str, Sample]]:
    """Write the records. Return kind and sample of all that a scrape answers."""
    for record in records:
        exposition.write(record)
    with closing(http.client.HTTPConnection(HOST, exposition.port, timeout=30)) as connection:
        connection.request("GET", "/metrics")
        found = connection.getresponse()
        assert found.status == 200
        text = found.read().decode()
    return [
        (family.type, sample) for family in text_string_to_metric_families(text) for sample in family.samples
    ]


def values(exposition: Exposition, *records: Record) -> dict[str, float]:
    """Return each value by its name and its labels beside the run."""
    found = {}
    for _, sample in scrape(exposition, *records):
        assert sample.labels["run"] == "r1"
        rest = ",".join(value for label, value in sorted(sample.labels.items()) if label != "run")
        found[sample.name.removeprefix(PREFIX) + (f" {rest}" if rest else "")] = sample.value
    return found


def test_scrape_has_the_values_of_the_records(exposition: Exposition) -> None:
    assert values(exposition, *EVERY) == {
        "info NVIDIA H200,bf16,gpt-124M": 1,
        "processes": 4,
        "restart": 0,
        "step": 20,
        "position_samples": 1280,
        "loss": 3.5,
        "samples_per_second": 160,
        "tokens_per_second": 163_840,
        "mfu_ratio": 0.4,
        "goodput_ratio": 0.75,
        "data_wait_ratio": 0.25,
        "evaluation_loss": 3.75,
        "evaluation_accuracy_ratio": 0.125,
        "data_wait_seconds_total": 2,
        "checkpoint_stall_seconds_total": 0.5,
        "checkpoints_total saved": 1,
        "checkpoints_total failed": 0,
        "checkpoints_total skipped": 0,
        "checkpoint_last_timestamp_seconds": BEGAN,
        "checkpoint_last_step": CHECKPOINT.step,
        "alarms_total checkpoint": 1,
    }


def test_unknown_values_are_absent(exposition: Exposition) -> None:
    assert set(values(exposition)) == {
        "step",
        "position_samples",
        "data_wait_seconds_total",
        "checkpoint_stall_seconds_total",
        "checkpoints_total saved",
        "checkpoints_total failed",
        "checkpoints_total skipped",
    }
    found = values(exposition, replace(START, unit="samples"), replace(STEP, mfu=None))
    assert not {"tokens_per_second", "mfu_ratio"} & set(found)
    assert found["samples_per_second"] == 160


def test_counters_add_up_and_gauges_are_the_last(exposition: Exposition) -> None:
    failed = replace(CHECKPOINT, outcome="failed", time=BEGAN + 60, step=30, name="step-000000030")
    saved = replace(CHECKPOINT, step=25)  # the step at which its save ended
    later = replace(STEP, step=40, position=2560, loss=3.0, data_wait_seconds=1.0, seconds=4.0)
    found = values(exposition, START, STEP, CHECKPOINT, failed, failed, ALARM, later, EVALUATION, saved)
    assert (found["loss"], found["step"], found["position_samples"]) == (3.0, 40, 2560), "not set back"
    assert found["data_wait_seconds_total"] == 3
    assert found["data_wait_ratio"] == 0.25
    assert [found[f"checkpoints_total {each}"] for each in ("saved", "failed", "skipped")] == [2, 2, 0]
    assert found["checkpoint_last_timestamp_seconds"] == BEGAN, "a failed one is not the last good one"
    assert found["checkpoint_last_step"] == CHECKPOINT.step


def test_metrics_of_a_jobs_progress_are_served(exposition: Exposition) -> None:
    """The controller of torchrun jobs reads them."""
    served = {PREFIX + name for name in values(exposition, START, STEP, CHECKPOINT)}
    assert set(names.TRAINER_PROGRESS.values()) <= served


def test_page_has_each_metric_with_its_kind_and_labels(exposition: Exposition) -> None:
    served = {sample.name: (kind, set(sample.labels)) for kind, sample in scrape(exposition, *EVERY)}
    row = re.compile(r"^\| `(trainyard_trainer_\w+)` \| (\w+) \| ([^|]+) \|", re.MULTILINE)
    page = row.findall((ROOT / "docs" / "training-metrics.md").read_text())
    assert {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in page} == served


def test_silent_client_delays_nobody_and_nothing_is_logged(
    exposition: Exposition, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_connection((HOST, exposition.port)) as silent:
        silent.sendall(b"GET /met")
        assert values(exposition)["step"] == 0
    assert capfd.readouterr() == ("", "")


def test_client_that_resets_logs_nothing(exposition: Exposition, capfd: pytest.CaptureFixture[str]) -> None:
    others = set(threading.enumerate())  # servers of other tests
    with socket.create_connection((HOST, exposition.port)) as client:
        client.sendall(b"GET /met")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert values(exposition)["step"] == 0
    until = time.monotonic() + 60
    while any("process_request_thread" in each.name for each in set(threading.enumerate()) - others):
        assert time.monotonic() < until
        time.sleep(0.01)
    assert capfd.readouterr() == ("", "")


def test_close_twice_frees_the_port() -> None:
    exposition = Exposition("r1", HOST, 0)
    exposition.close()
    exposition.close()
    with socket.create_server((HOST, exposition.port)):
        pass


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_metrics_are_served_on_both_families(address: str) -> None:
    exposition = Exposition("r1", "", 0)
    try:
        with closing(http.client.HTTPConnection(address, exposition.port, timeout=10)) as connection:
            connection.request("GET", "/metrics")
            assert connection.getresponse().status == 200
    finally:
        exposition.close()
