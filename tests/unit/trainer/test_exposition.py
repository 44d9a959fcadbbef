"""What a scrape of the trainer answers."""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partialmethod, reduce
from pathlib import Path
from socketserver import TCPServer

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.trainer.records import ALARM, BEGAN, CHECKPOINT, EVALUATION, EVERY, START, STEP
from trainer.metrics.exposition import Exposition, Tally, _Scrape, _Values, after, families
from trainer.metrics.record import Record
from trainyard.k8s import names

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[3]
HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def _closes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sees that it is closed every 0.5 s by default."""
    serve_forever = partialmethod(TCPServer.serve_forever, poll_interval=0.01)
    monkeypatch.setattr("trainer.metrics.exposition._Server.serve_forever", serve_forever)


@pytest.fixture
def exposition() -> Iterator[Exposition]:
    exposition = Exposition("r1", HOST, 0)
    yield exposition
    exposition.close()


def answer(port: int, method: str = "GET", path: str = "/metrics") -> tuple[int, str]:
    with closing(http.client.HTTPConnection(HOST, port, timeout=5)) as connection:
        connection.request(method, path)
        found = connection.getresponse()
        assert "Python" not in (found.headers["Server"] or "")
        return found.status, found.read().decode()


def values(*records: Record) -> dict[str, float]:
    """Each sample of the tally after these records, by its name and its labels beside the run."""
    tally = reduce(after, records, Tally(run="r1"))
    found = {}
    for family in families(tally):
        for sample in family.samples:
            assert sample.labels["run"] == "r1"
            rest = ",".join(value for label, value in sample.labels.items() if label != "run")
            found[sample.name.removeprefix("trainyard_trainer_") + (f" {rest}" if rest else "")] = (
                sample.value
            )
    return found


def test_a_scrape_tells_what_the_records_told(exposition: Exposition) -> None:
    for record in EVERY:
        exposition.write(record)
    status, text = answer(exposition.port)
    assert status == 200
    scraped = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if set(sample.labels) == {"run"}
    }
    assert scraped == {
        "trainyard_trainer_processes": 4,
        "trainyard_trainer_restart": 0,
        "trainyard_trainer_step": 20,
        "trainyard_trainer_position_samples": 1280,
        "trainyard_trainer_loss": 3.5,
        "trainyard_trainer_samples_per_second": 160,
        "trainyard_trainer_tokens_per_second": 163_840,
        "trainyard_trainer_mfu_ratio": 0.4,
        "trainyard_trainer_goodput_ratio": 0.75,
        "trainyard_trainer_data_wait_ratio": 0.25,
        "trainyard_trainer_evaluation_loss": 3.75,
        "trainyard_trainer_evaluation_accuracy_ratio": 0.125,
        "trainyard_trainer_data_wait_seconds_total": 2,
        "trainyard_trainer_checkpoint_stall_seconds_total": 0.5,
        "trainyard_trainer_checkpoint_last_timestamp_seconds": BEGAN,
        "trainyard_trainer_checkpoint_last_step": CHECKPOINT.step,
    }


def test_what_was_not_told_is_absent() -> None:
    assert set(values()) == {
        "step",
        "position_samples",
        "data_wait_seconds_total",
        "checkpoint_stall_seconds_total",
        "checkpoints_total saved",
        "checkpoints_total failed",
        "checkpoints_total skipped",
    }
    found = values(replace(START, unit="samples"), replace(STEP, mfu=None))
    assert {"tokens_per_second", "mfu_ratio"} & set(found) == set()
    assert found["samples_per_second"] == 160


def test_counts_add_up_and_gauges_are_the_last() -> None:
    failed = replace(CHECKPOINT, outcome="failed", time=BEGAN + 60, step=30)
    found = values(
        START,
        STEP,
        CHECKPOINT,
        failed,
        failed,
        ALARM,
        replace(STEP, step=40, position=2560, loss=3.0, data_wait_seconds=1.0, seconds=4.0),
        EVALUATION,
    )
    assert (found["loss"], found["step"], found["position_samples"]) == (3.0, 40, 2560)
    assert found["data_wait_seconds_total"] == 3
    assert found["data_wait_ratio"] == 0.25
    assert [found[f"checkpoints_total {each}"] for each in ("saved", "failed", "skipped")] == [1, 2, 0]
    assert found["checkpoint_last_timestamp_seconds"] == BEGAN, "a failed one is not the last good one"
    assert found["checkpoint_last_step"] == CHECKPOINT.step
    assert found["alarms_total checkpoint"] == 1


def test_the_names_that_a_jobs_progress_is_made_of_are_told() -> None:
    """The controller of torchrun jobs reads them."""
    told = {f"trainyard_trainer_{name}" for name in values(START, STEP, CHECKPOINT)}
    assert set(names.TRAINER_PROGRESS.values()) <= told


def test_a_late_record_of_an_earlier_step_does_not_set_the_step_back() -> None:
    assert values(START, replace(STEP, step=40, position=2560), CHECKPOINT)["step"] == 40


def test_the_run_says_what_it_trains_on_what() -> None:
    assert values(START)["info gpt-124M,NVIDIA H200,bf16"] == 1


def test_the_page_has_each_metric_with_its_kind_and_labels() -> None:
    tally = reduce(after, EVERY, Tally(run="r1"))
    served = {
        sample.name: (family.type, set(sample.labels))
        for family in families(tally)
        for sample in family.samples
    }
    row = re.compile(r"^\| `(trainyard_trainer_\w+)` \| (\w+) \| ([^|]+) \|", re.MULTILINE)
    page = row.findall((ROOT / "docs" / "training-metrics.md").read_text())
    assert {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in page} == served


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/metrics?x", 200), ("GET", "/", 404), ("POST", "/metrics", 501)]
)
def test_nothing_else_is_served(
    exposition: Exposition, capfd: pytest.CaptureFixture[str], method: str, path: str, status: int
) -> None:
    assert answer(exposition.port, method, path)[0] == status
    assert capfd.readouterr() == ("", ""), "the log is for the run"


def test_silent_client_delays_others_until_its_timeout(
    exposition: Exposition, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _Scrape.timeout == 2.0
    monkeypatch.setattr(_Scrape, "timeout", 0.05)
    with socket.create_connection((HOST, exposition.port)) as silent:
        silent.sendall(b"GET /met")
        assert answer(exposition.port)[0] == 200


def test_scrape_while_records_come_reads_one_tally() -> None:
    """Loss and step of one answer are of one record, though each look at the tally finds another."""
    steps = (replace(STEP, step=step, loss=float(step)) for step in range(1, 100))
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Values(lambda: reduce(after, [START, next(steps)], Tally(run="r1"))))
    for _ in range(3):
        text = generate_latest(registry).decode()
        found = dict(re.findall(r"^trainyard_trainer_(step|loss)\{.*\} (\S+)$", text, re.MULTILINE))
        assert found["loss"] == found["step"]


def test_a_scrape_that_fails_is_one_line_and_the_next_is_answered(
    exposition: Exposition, capfd: pytest.CaptureFixture[str]
) -> None:
    exposition.write(START)
    exposition.write(replace(STEP, seconds=0.0))
    with pytest.raises(http.client.RemoteDisconnected):
        answer(exposition.port)
    exposition.write(STEP)
    assert answer(exposition.port)[0] == 200
    assert capfd.readouterr().err == "metrics: a scrape failed: ZeroDivisionError('float division by zero')\n"


def test_closing_twice_frees_the_port() -> None:
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
