"""Read the progress of a job from a real metrics server, and from servers that misbehave."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.unit.launcher.api_server import until
from tests.unit.operator.made import CLUSTER
from trainyard.k8s import names
from trainyard.operator import names as n
from trainyard.operator import progress
from trainyard.operator.context import ReconcileContext, build_context
from trainyard.operator.plan import PROGRESS_SECONDS
from trainyard.operator.progress import (
    UNREADABLE,
    ProgressPoller,
    find_first_worker,
    parse_metrics,
    read_progress,
)

NAMES = names.TRAINER_PROGRESS


def pod(
    port: int | str = 9465, name: str = "vit-1", *, index: str = "0", **annotations: str
) -> dict[str, Any]:
    said = {n.ANNOTATION_SCRAPE: "true", "prometheus.io/port": str(port), **annotations}
    meta = {
        "name": f"{name}-{index}-abcde",
        "uid": f"{name}-{index}",
        "labels": {n.LABEL_ATTEMPT: name.rpartition("-")[2], n.LABEL_INDEX: index},
        "ownerReferences": [{"kind": "Job", "name": name, "uid": name}],
        "annotations": said,
    }
    return {"kind": "Pod", "metadata": meta, "spec": {}, "status": {"phase": "Running", "podIP": "127.0.0.1"}}


def context(*pods: dict[str, Any], phase: str = n.PHASE_RUNNING, attempt: int = 1) -> ReconcileContext:
    """Return the context of a job that has these pods and the Jobs of two attempts."""
    item = {"metadata": {"name": "vit", "uid": "u"}, "status": {"phase": phase, "attempt": attempt}}
    jobs = []
    for name in ("vit-0", "vit-1"):
        meta = {"name": name, "uid": name, "labels": {n.LABEL_ATTEMPT: name[-1]}}
        jobs.append({"kind": "Job", "metadata": {**meta, "ownerReferences": [{"uid": "u"}]}, "spec": {}})
    return build_context(item, None, [*jobs, *pods], CLUSTER, 0.0)


def text(**values: float) -> str:
    return "".join(f'{NAMES[key]}{{run="vit"}} {value}\n' for key, value in values.items())


def test_checkpoint_is_reported_with_step_and_time() -> None:
    reported = parse_metrics(text(step=9, samplesPerSecond=3, checkpointStep=8, checkpointTime=1_800_000_000))
    checkpoint = {"checkpointStep": 8, "checkpointTime": "2027-01-15T08:00:00Z"}
    assert reported == {"step": 9, "throughput": 3.0, "unit": "samples/s", **checkpoint}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, 1e30])
def test_value_that_a_status_cannot_have_is_left_out(value: float) -> None:
    assert parse_metrics(text(step=value, loss=1.0)) is None
    reported = parse_metrics(text(step=1, checkpointStep=value, checkpointTime=value, samplesPerSecond=value))
    assert reported == {"step": 1}


def test_loss_and_throughput_are_reported() -> None:
    assert parse_metrics(text(step=1, loss=-3.5)) == {"step": 1, "loss": -3.5}
    both = parse_metrics(text(step=1, tokensPerSecond=1200.5, samplesPerSecond=8))
    assert both == {"step": 1, "throughput": 1200.5, "unit": "tokens/s"}
    # kubectl's columns show all digits that there are.
    assert parse_metrics(text(step=1, loss=2.156486675143242)) == {"step": 1, "loss": 2.15649}


def test_first_worker_is_the_running_one_of_the_attempt() -> None:
    first = pod()
    others = [pod(name="vit-0"), pod(index="1"), {"kind": "Service", "metadata": {"name": "vit"}}]
    assert find_first_worker(context(*others, first)) is first
    assert find_first_worker(context(*others)) is None
    assert find_first_worker(context(first, phase=n.PHASE_RESTARTING)) is None
    assert find_first_worker(context(first, attempt=2)) is None
    assert find_first_worker(context({**first, "status": {"phase": "Succeeded"}})) is None
    assert find_first_worker(context(pod(**{n.ANNOTATION_SCRAPE: "false"}))) is None


@contextmanager
def serving(*pieces: bytes, pause: float = 0.0, closes: bytes | None = None) -> Iterator[int]:
    """Answer one connection with these pieces, and close it only after `closes`."""
    listener = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(4096)
            for piece in pieces:
                connection.sendall(piece)
                if done.wait(pause):
                    return
            if closes is None:
                done.wait(20)
            else:
                connection.sendall(closes)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        done.set()
        listener.close()
        thread.join(5)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"
BODY = text(step=1234, loss=2.5).encode()
LONGER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(BODY) + 100)


@pytest.mark.parametrize(("pieces", "pause", "closes", "reason"), [
    pytest.param([b"HTTP/1.1 500 no\r\n\r\n"], 0.0, b"", "status 500", id="500"),
    pytest.param([b"what?\r\n\r\n"], 0.0, b"", "malformed", id="no HTTP"),
    pytest.param([HEAD, b"\xff\xfe"], 0.0, b"", "malformed", id="no text"),
    pytest.param([HEAD], 0.0, None, "longer than 0.2 s", id="silence"),
    pytest.param([HEAD, *([b"#" * 65536] * 40)], 0.0, None, "larger than", id="without end"),
    pytest.param([HEAD, *([b"#"] * 200)], 0.05, None, "longer than", id="drop by drop"),
    pytest.param([LONGER, BODY], 0.0, None, "longer than", id="unfinished"),
    pytest.param([LONGER, BODY], 0.0, b"", "malformed", id="broken off"),
])  # fmt: skip
def test_answer_of_a_server_that_misbehaves_is_unreadable(
    monkeypatch: pytest.MonkeyPatch, pieces: list[bytes], pause: float, closes: bytes | None, reason: str
) -> None:
    monkeypatch.setattr(progress, "_TIMEOUT_SECONDS", 0.2)
    with serving(*pieces, pause=pause, closes=closes) as port:
        began = time.monotonic()
        assert reason in unreadable(read_progress(pod(port)))
        assert time.monotonic() - began < 9


def test_progress_of_a_closed_port_is_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert read_progress(pod(port)) is None
    assert read_progress({**pod(9465), "spec": {"hostNetwork": True}}) is None


def unreadable(reported: dict[str, Any] | None) -> str:
    assert reported is not None
    assert list(reported) == [UNREADABLE]
    return str(reported[UNREADABLE])


@pytest.mark.parametrize(("port", "path", "reason"), [
    *((port, "/metrics", "prometheus.io/port") for port in
      ("9" * 5000, "0", "70000", "x", "-1", "²", " 9465", "9465\r\n")),
    *(("9465", path, "prometheus.io/path") for path in
      ("metrics", "/a b", "/a\r\nX: y", "/" + "a" * 5000, "/é")),
])  # fmt: skip
def test_untrusted_annotation_of_a_worker_is_unreadable(port: str, path: str, reason: str) -> None:
    assert reason in unreadable(read_progress(pod(port, **{"prometheus.io/path": path})))


@pytest.mark.parametrize("address", ["169.254.169.254", "fe80::1", "224.0.0.1", "a.example.com"])
def test_address_that_no_pod_has_is_unreadable(address: str) -> None:
    worker = {**pod(), "status": {"phase": "Running", "podIP": address}}
    assert address in unreadable(read_progress(worker))


@pytest.mark.parametrize("worker", [pod(10255), pod(**{"prometheus.io/path": "/stats"})])
def test_another_port_of_the_nodes_network_is_unreadable(worker: dict[str, Any]) -> None:
    assert "node's network" in unreadable(read_progress({**worker, "spec": {"hostNetwork": True}}))


ONE = NAMES["step"]


@pytest.mark.parametrize("answer", [
    f"{ONE}{{", f'{ONE}{{a="b" 1', f'{ONE}{{="b"}} 1', f'{ONE}{{"a": 1}} 1', f"{ONE} 0x10", f"{ONE}",
    f"{ONE} {'9' * 5000}", f"{ONE} 1 {'9' * 5000}", f"{ONE} 1\n" * 5000, f"{ONE}{{{'a' * 100_000}",
    "{" * 100_000, "\x00" * 1000, f"{ONE}{{a=\"{'{' * 900}",
])  # fmt: skip
def test_malformed_answer_of_a_worker_is_data_or_unreadable(answer: str) -> None:
    with serving(HEAD, closes=answer.encode()) as port:
        began = time.monotonic()
        reported = read_progress(pod(port))
        assert time.monotonic() - began < 9
    assert reported is None or list(reported) == [UNREADABLE] or reported == {"step": 1}


class Workers:
    """Workers that answer at once, or after `free` if their uid starts with "slow"."""

    def __init__(self) -> None:
        self.now = 0.0
        self.asked: list[str] = []
        self.free = threading.Event()
        self.asking = ProgressPoller(lambda: self.now, self.answer)

    def answer(self, worker: dict[str, Any]) -> dict[str, Any]:
        uid = worker["metadata"]["uid"]
        self.asked.append(uid)
        if uid.startswith("slow"):
            self.free.wait(20)
        return {"step": len(self.asked), "of": uid}


@pytest.fixture
def workers() -> Iterator[Workers]:
    made = Workers()
    yield made
    made.free.set()
    made.asking.close()


def worker(uid: str) -> dict[str, Any]:
    return {"metadata": {"name": "vit-0-0-abcde", "uid": uid}}


def test_poll_returns_each_answer_once(workers: Workers) -> None:
    assert workers.asking.poll("vit", worker("a")) == {"step": 1, "of": "a"}
    assert workers.asking.poll("vit", worker("a")) is None
    workers.now += PROGRESS_SECONDS
    assert workers.asking.poll("vit", worker("a")) == {"step": 2, "of": "a"}
    workers.asking.forget("vit")
    assert workers.asking.poll("vit", worker("b")) == {"step": 3, "of": "b"}


def test_poll_of_a_slow_worker_returns_its_answer_later(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    monkeypatch.setattr(progress, "_WAIT_SECONDS", 0.01)
    for number in range(3):
        assert workers.asking.poll(f"job {number}", worker(f"slow {number}")) is None
    assert time.monotonic() - began < 9
    until(lambda: len(workers.asked) == 3)
    monkeypatch.setattr(progress, "_WAIT_SECONDS", 10.0)
    assert workers.asking.poll("vit", worker("quick")) == {"step": 4, "of": "quick"}
    workers.free.set()
    found = workers.asking.poll("job 0", worker("slow 0"))
    assert found is not None
    assert found["of"] == "slow 0"
    assert workers.asked.count("slow 0") == 1, "asked again while it had not answered"


def test_poll_after_a_restart_drops_the_earlier_answer(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_WAIT_SECONDS", 0.01)
    assert workers.asking.poll("vit", worker("slow")) is None
    until(lambda: workers.asked == ["slow"])
    monkeypatch.setattr(progress, "_WAIT_SECONDS", 10.0)
    workers.free.set()
    workers.now += PROGRESS_SECONDS
    assert workers.asking.poll("vit", worker("next")) == {"step": 2, "of": "next"}
