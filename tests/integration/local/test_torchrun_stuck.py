"""The controller while it hears nothing, comes to no end of its looks, or stands still, and what liveness says then.

As in test_torchrun_faults.py; the rows are docs/faults.md's.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from urllib.error import HTTPError

import pytest

from tests.faults.proxy import Call, Fault, Proxy
from tests.integration.local import hasty_controller
from tests.integration.local.own_api_server import ApiServer
from tests.integration.local.torchrun_controller import Running, Team, controller, until
from tests.integration.local.torchrun_machine import JOB, cluster, submit
from tests.torchrun_manifests import manifest
from trainyard.operator import names as n
from trainyard.operator.controller import WORKERS

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

NUMBERS = count(1)
# A silent watch is replaced after 70 s (trainyard/operator/controller.py).
SILENT_SECONDS = 100.0
# In which a controller that does what it should not would do it.
WRONG_SECONDS = 5.0
# A Lease of one that does not renew it runs out in 15 s.
TAKEN_SECONDS = 30.0


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with cluster() as running:
        yield running


@pytest.fixture
def proxy(server: ApiServer) -> Iterator[Proxy]:
    with Proxy(server.url, authority=server.authority) as running:
        yield running


@pytest.fixture
def team(server: ApiServer) -> Team:
    made = Team(server, f"stuck-{next(NUMBERS)}")
    made.make(manifest(n.QUEUE_KIND, "research"))
    return made


def has_started(team: Team, name: str) -> bool:
    return bool(team.get(team.batch(f"{name}-0")))


def test_c6_silent_watches_are_replaced(server: ApiServer, team: Team, proxy: Proxy, tmp_path: Path) -> None:
    with controller(server, tmp_path, through=proxy.url, pod="pod") as running:
        submit(team, "heard")
        until(lambda: has_started(team, "heard"), "it hears of a job")
        proxy.silence()
        began = time.monotonic()
        submit(team)
        time.sleep(WRONG_SECONDS)
        assert not team.status(JOB), "the watch is not silent"
        assert running.healthy()["reconciles"]
        until(lambda: has_started(team, JOB), "it hears of the job", SILENT_SECONDS)
        print(f"heard after {time.monotonic() - began:.0f} s")


def is_refused(running: Running) -> bool:
    """Whether liveness is answered with an error, so that the kubelet restarts the container."""
    try:
        running.healthy()
    except HTTPError as error:
        return error.code == 500
    return False


def test_c6_liveness_fails_when_no_look_comes_to_an_end_and_the_next_controller_goes_on(
    server: ApiServer, team: Team, proxy: Proxy, tmp_path: Path
) -> None:
    """Answers come byte by byte for ever; no request is given up. The process, its watches and its Lease are well."""
    jobs = team.path(n.JOB_KIND)
    hung: list[Call] = []
    proxy.plan(
        Fault(
            on=lambda call: call.method == "GET" and call.path.startswith(f"{jobs}/"),
            moment="before",
            does=hung.append,
            then="trickle",
            times=WORKERS,
        )
    )
    program = hasty_controller.__name__
    with controller(server, tmp_path / "first", through=proxy.url, pod="pod", program=program) as first:
        for number in range(WORKERS - 1):
            submit(team, f"hung-{number}")
        until(lambda: len(hung) == WORKERS - 1, "all looks but one hang")
        time.sleep(hasty_controller.STUCK_SECONDS)
        assert "the last reconcile ended" in first.healthy()["reconciles"], "one that ends is enough"
        submit(team, f"hung-{WORKERS - 1}")
        until(lambda: is_refused(first), "liveness fails", 30.0)
        assert len(hung) == WORKERS
        assert first.process.poll() is None
        assert not any(has_started(team, f"hung-{number}") for number in range(WORKERS))
        first.kill()
    with controller(server, tmp_path / "second", through=proxy.url, pod="pod") as second:
        until(lambda: all(has_started(team, f"hung-{number}") for number in range(WORKERS)), "all jobs begin")
        assert not is_refused(second)


def test_c6_one_that_stands_still_answers_no_probe_and_does_nothing_when_it_goes_on_beside_another(
    server: ApiServer, team: Team, proxy: Proxy, tmp_path: Path
) -> None:
    """As where its node has no processor for it: what was allowed before it stood is not allowed any more."""
    with (
        controller(server, tmp_path / "a", through=proxy.url) as first,
        controller(server, tmp_path / "b", wait=False) as second,
    ):
        until(lambda: "waits" in second.said(), "the second one says that it waits")
        assert first.healthy()["reconciles"]
        first.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(TimeoutError):
                first.healthy()
            until(lambda: second.working, "the second one works", TAKEN_SECONDS)
            submit(team)
            until(lambda: has_started(team, JOB), "and does the pending work")
            before = len(proxy.writes)
        finally:
            first.process.send_signal(signal.SIGCONT)
        submit(team, "next")
        until(lambda: "waits" in first.said(), "the first one says that it waits")
        until(lambda: has_started(team, "next"), "the second one goes on")
        time.sleep(WRONG_SECONDS)
        leases = f"/namespaces/{n.CONTROLLER_NAMESPACE}/leases/"
        assert [str(call) for call in proxy.writes[before:] if leases not in call.path] == []
        assert first.healthy()["reconciles"]
