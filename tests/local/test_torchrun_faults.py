"""The controller of torchrun jobs while the API answers wrongly, late or not at all.

Its process asks a real API server through a proxy, as its own service account; Kubernetes' own controllers make the
pods. The rows are docs/faults.md's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from launcher.core.torchrun import names as n
from tests.faults.proxy import Call, Fault, Proxy
from tests.local.kai import kai_kinds
from tests.local.own_api_server import ApiServer
from tests.local.torchrun_controller import Running, Team, controller, until
from tests.local.torchrun_machine import (
    INDEX,
    JOB,
    VOLUMES,
    Machine,
    cluster,
    comes_to,
    ends,
    live,
    submit,
)
from tests.torchrun_manifests import manifest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

NUMBERS = count(1)
# A watch by which nothing comes is begun anew by kopf after 70 s (its inactivity_timeout).
SILENT_SECONDS = 100.0
# In which a controller that does what it should not would do it.
WRONG_SECONDS = 5.0


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with cluster() as running:
        yield running


@pytest.fixture
def proxy(server: ApiServer) -> Iterator[Proxy]:
    with Proxy(server.url, authority=server.authority) as running:
        yield running


@pytest.fixture
def working(server: ApiServer, proxy: Proxy, tmp_path: Path) -> Iterator[Running]:
    with controller(server, tmp_path, through=proxy.url, pod="pod") as running:
        yield running


@pytest.fixture
def team(server: ApiServer) -> Team:
    made = Team(server, f"team-{next(NUMBERS)}")
    made.make(manifest(n.QUEUE_KIND, "research", VOLUMES))
    return made


@pytest.fixture
def machine(team: Team) -> Machine:
    return Machine(team)


class Past:
    """What the API server answered to reads of one team's objects, some time ago."""

    def __init__(self, team: Team) -> None:
        self._answers: dict[tuple[str, str], Any] = {}
        for kind, name in ((n.JOB_KIND, JOB), (n.QUEUE_KIND, "research")):
            path = team.path(kind, name)
            self._answers[path, ""] = team.server.request("GET", path).body
        selector = f"{n.LABEL_JOB}={JOB}"
        for path in (
            team.batch(),
            team.core("pods"),
            team.core("services"),
            team.core("persistentvolumeclaims"),
        ):
            asked = f"{path}?{urlencode({'labelSelector': selector})}"
            self._answers[path, selector] = team.server.request("GET", asked).body

    def fault(self) -> Fault:
        """Answers reads as then, from now on."""
        return Fault(on=self._has, moment="before", then=self._answer, times=1_000_000)

    def _has(self, call: Call) -> bool:
        return call.is_fresh and (call.path, call.query.get("labelSelector", "")) in self._answers

    def _answer(self, call: Call) -> object:
        return self._answers[call.path, call.query.get("labelSelector", "")]


@pytest.mark.parametrize("then", ["nothing was made", "the attempt before ran"])
def test_c2_a_look_at_what_was_takes_nothing_away_and_starts_nothing(
    team: Team, machine: Machine, proxy: Proxy, working: Running, then: str
) -> None:
    job = manifest(n.JOB_KIND, JOB, {"maxRestarts": 1, "suspend": True})
    team.make(job)
    team.reaches(JOB, n.PHASE_SUSPENDED)
    past = Past(team)
    team.merge(team.path(n.JOB_KIND, JOB), {"spec": {"suspend": False}})
    comes_to(team, machine, n.PHASE_RUNNING)
    if then == "the attempt before ran":
        past = Past(team)
    first = next(each for each in machine.pods() if each["metadata"]["labels"][INDEX] == "0")
    machine.end(first, code=1)
    comes_to(team, machine, n.PHASE_RUNNING, attempt=1)
    before = live(team)
    proxy.plan(past.fault())
    calls_before = len(proxy.calls)
    team.merge(team.path(n.JOB_KIND, JOB), {"metadata": {"annotations": {"seen": "again"}}})
    time.sleep(WRONG_SECONDS)
    meanwhile = live(team)
    assert before.items() <= meanwhile.items(), "something that lived is gone"
    begun = [each for each in meanwhile.keys() - before.keys() if not each.endswith(" suspended")]
    assert not begun, "an attempt that is over was begun anew"
    path = team.path(n.JOB_KIND, JOB)
    asked = [call for call in proxy.calls[calls_before:] if call.is_fresh and call.path == path]
    assert asked, "it did not look"
    proxy.plan()
    ends(team, machine, attempt=1)
    assert team.status(JOB)["restarts"] == 1
    assert working.process.poll() is None


def test_c4_who_suspends_the_job_of_an_attempt_is_told_and_not_fought_with(
    team: Team, machine: Machine, proxy: Proxy, working: Running
) -> None:
    submit(team)
    comes_to(team, machine, n.PHASE_RUNNING)
    batch = team.batch(f"{JOB}-0")
    uid, before = team.get(batch)["metadata"]["uid"], len(proxy.calls)
    began = time.monotonic()
    team.merge(batch, {"spec": {"suspend": True}})

    def stopped() -> bool:
        machine.keep()
        return not machine.pods() and team.condition(JOB, n.SUSPENDED)["status"] == "True"

    until(stopped, "its workers go, and it says so")
    assert team.condition(JOB, n.SUSPENDED)["reason"] == n.REASON_SUSPENDED_BY_ANOTHER
    until(lambda: not team.get(batch)["spec"]["suspend"], "it is let go", 45.0)
    assert time.monotonic() - began > 25.0
    tries = [call for call in proxy.calls[before:] if call.method == "PATCH" and call.path == batch]
    assert len(tries) == 1
    until(lambda: len(machine.keep()) == 2, "the workers are made anew")
    comes_to(team, machine, n.PHASE_RUNNING)
    ends(team, machine, attempt=0)
    assert (team.get(batch)["metadata"]["uid"], team.status(JOB)["restarts"]) == (uid, 0)
    assert working.process.poll() is None


@pytest.mark.parametrize(("then", "retry_after"), [(429, 3), (500, 0), ("drop", 0)])
def test_c5_what_the_api_refuses_for_now_is_asked_again_not_sooner_than_it_says(
    team: Team, machine: Machine, proxy: Proxy, working: Running, then: Any, retry_after: int
) -> None:
    del working
    jobs = team.batch()
    fault = Fault(
        on=lambda call: call.method == "POST" and call.path == jobs,
        moment="before",
        then=then,
        retry_after=retry_after,
        times=2,
    )
    proxy.plan(fault)
    submit(team)
    comes_to(team, machine, n.PHASE_RUNNING)
    assert fault.times == 0
    tries = [call.at for call in proxy.calls if call.method == "POST" and call.path == jobs]
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert len(tries) == 3, pauses
    assert min(pauses) >= max(retry_after, 0.1), pauses
    ends(team, machine, attempt=0)
    assert team.status(JOB)["restarts"] == 0


def test_c5_an_api_that_refuses_all_the_time_is_not_asked_without_end(
    team: Team, proxy: Proxy, working: Running
) -> None:
    jobs = team.batch()
    proxy.plan(
        Fault(on=lambda call: call.path == jobs and call.write > 0, moment="before", then=500, times=10**6)
    )
    submit(team)
    until(lambda: any(call.path == jobs and call.write for call in proxy.calls), "it asks")
    began, before = time.monotonic(), len(proxy.calls)
    time.sleep(15.0)
    rate = (len(proxy.calls) - before) / (time.monotonic() - began)
    assert rate < 10.0, f"{rate:.0f} requests a second"
    assert working.process.poll() is None
    proxy.plan()
    until(lambda: team.get(team.batch(f"{JOB}-0")), "it goes on", 60.0)


def test_c6_watches_that_fall_silent_are_begun_anew(team: Team, proxy: Proxy, working: Running) -> None:
    submit(team, "heard")
    until(lambda: team.get(team.batch("heard-0")), "it hears of a job")
    proxy.silence()
    began = time.monotonic()
    submit(team)
    time.sleep(WRONG_SECONDS)
    assert not team.status(JOB), "the watch is not silent"
    assert working.healthy()["looks"]
    until(lambda: team.get(team.batch(f"{JOB}-0")), "it hears of the job", SILENT_SECONDS)
    print(f"heard after {time.monotonic() - began:.0f} s")


def test_c8_what_is_deleted_while_it_is_down_leaves_nothing(
    server: ApiServer, team: Team, machine: Machine, tmp_path: Path
) -> None:
    with kai_kinds(server):
        named = manifest(n.QUEUE_KIND, "named", {"kaiQueue": f"{team.name}-gpus"})
        theirs = f"/apis/{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}/{n.KAI_QUEUE_PLURAL}/{team.name}-gpus"
        with controller(server, tmp_path / "first", pod="pod") as first:
            team.make(named)
            until(lambda: team.get(theirs), "KAI's queue is made")
            submit(team)
            comes_to(team, machine, n.PHASE_RUNNING)
            kept = team.get(team.core("persistentvolumeclaims", n.checkpoints_claim(JOB)))
            first.kill()
        team.delete(team.path(n.QUEUE_KIND, "named"))
        team.delete(team.path(n.JOB_KIND, JOB))
        assert team.get(team.path(n.QUEUE_KIND, "named")), "its finalizer holds it"
        with controller(server, tmp_path / "second", pod="pod"):
            until(lambda: not team.get(theirs), "KAI's queue is gone")
            until(lambda: not team.get(team.path(n.QUEUE_KIND, "named")), "the queue is let go")

            def alone() -> bool:
                machine.keep()
                return len(live(team)) == 1

            # Kubernetes looks for new kinds every 30 s, before it removes anything.
            until(alone, "what was made for the job is gone", 60.0)
        left = team.get(team.core("persistentvolumeclaims", n.checkpoints_claim(JOB)))
        assert left["metadata"]["uid"] == kept["metadata"]["uid"]
