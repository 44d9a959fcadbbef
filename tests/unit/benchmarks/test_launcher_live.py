"""The measurements of `make bench-launcher` themselves, over HTTP, with an API server in this process."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from launcher.request import Request
from tests.benchmarks import api_process, decisions, waits
from tests.benchmarks.api_process import ApiProcess, HurriedApi
from tests.benchmarks.decisions import TimedGateway
from tests.unit.launcher import cluster
from tests.unit.launcher.api_server import FakeApi

pytestmark = pytest.mark.long

# Launchers that look at the cluster often.
OFTEN = functools.partial(decisions.Launcher, poll_seconds=0.05)


class Here(ApiProcess):
    """Its servers, in this process."""

    def __enter__(self) -> ApiProcess:
        self._servers: dict[int, tuple[FakeApi, contextlib.ExitStack]] = {}
        return self

    def __exit__(self, *_: object) -> None:
        """Every server has ended with its own context."""

    def ask(self, key: int, function: Callable[..., Any] | None, arguments: tuple[Any, ...]) -> Any:
        if function is None:
            return self._servers.pop(key)[1].close()
        return function(self._servers[key][0] if key else self._servers, *arguments)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiProcess]:
    monkeypatch.setattr(decisions, "_QUIET_SECONDS", 0.06)
    with Here() as found:
        yield found


def pid(_api: FakeApi) -> int:
    return os.getpid()


def three(_api: FakeApi) -> int:
    return 3


@pytest.mark.long
def test_api_process_serves_apart_and_passes_errors_on() -> None:
    with ApiProcess() as process, process.server() as one, process.server() as other:
        one.call(cluster.put_node, "a")
        assert one.call(FakeApi.names, cluster.NODES) == ["a"]
        assert other.call(FakeApi.names, cluster.NODES) == []
        assert one.call(pid) == other.call(pid) != os.getpid()
        with pytest.raises(KeyError, match="nowhere"):
            one.call(FakeApi.remove, "/nowhere")
        with pytest.raises(TimeoutError, match=r"names.* did not come in 0 s"):
            other.until(FakeApi.names, cluster.NODES, seconds=0.05)
        assert one.call(api_process.replicas) is None


def test_a_decision_is_timed_from_the_node_that_completes_max(process: ApiProcess) -> None:
    seconds, busy = decisions.at_most(process, 2)
    assert 0.0 < seconds < 10.0
    assert 0.0 < busy <= seconds + 0.5


def test_a_slow_answer_is_part_of_a_decision(process: ApiProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    real = TimedGateway.observe

    def slow(self: TimedGateway, request: Request, *, fresh: bool) -> Any:
        time.sleep(0.2 if fresh and self.busy < 0 else 0.0)  # between the change and the answer
        return real(self, request, fresh=fresh)

    monkeypatch.setattr(TimedGateway, "observe", slow)
    monkeypatch.setattr(decisions, "Launcher", OFTEN)
    seconds, busy = decisions.at_most(process, 2)
    assert seconds > 0.2 + busy / 2


def test_a_hold_window_that_ends_is_timed_from_its_end(
    process: ApiProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that looks often answers soon after the end, and so long before another window would be over."""
    monkeypatch.setattr(decisions, "Launcher", OFTEN)
    assert 0.0 <= decisions.at_hold_end(process, 0.5) < 0.5


def test_a_training_of_another_size_is_no_sample(
    process: ApiProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_process, "replicas", three)
    with pytest.raises(AssertionError, match="a training of 3 nodes was made, of 2 that there were"):
        decisions.at_most(process, 2)


def test_time_passes_faster_on_a_hurried_server() -> None:
    query = {"resourceVersion": "100", "timeoutSeconds": "20", "watch": "true"}
    began = time.monotonic()
    list(HurriedApi(200.0).watch(cluster.NODES, query))
    assert 0.1 <= time.monotonic() - began < 10.0
    assert HurriedApi(50.0).bookmark_seconds == FakeApi().bookmark_seconds / 50


def test_a_wait_counts_what_a_launcher_asks(process: ApiProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "SPEED", 100.0)
    monkeypatch.setattr(waits, "SETTLING", 5.0)
    monkeypatch.setattr(waits, "QUIET", (20.0, 40.0))
    short, long = waits.quiet(process)
    assert 1 <= short["lease"] <= 6
    assert short["lease"] < long["lease"] <= 11
    assert short["other"] == long["other"] == 0


def test_requests_that_come_with_every_round_show(
    process: ApiProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits, "SPEED", 100.0)
    monkeypatch.setattr(waits, "SETTLING", 2.0)
    monkeypatch.setattr(waits, "QUIET", (10.0, 20.0))
    real = waits.Gateway.observe

    def asking(self: TimedGateway, request: Request, *, fresh: bool) -> Any:
        real(self, request, fresh=True)
        return real(self, request, fresh=fresh)

    monkeypatch.setattr(waits.Gateway, "observe", asking)
    short, long = waits.quiet(process)
    assert long["other"] > short["other"] + 8


def test_a_wait_that_ends_is_no_measurement(process: ApiProcess) -> None:
    with (
        pytest.raises(AssertionError, match="did not wait to the end"),
        waits.waiting(process, least=1, present=4) as server,
    ):
        server.until(api_process.replicas)
