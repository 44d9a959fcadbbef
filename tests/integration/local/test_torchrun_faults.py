"""The controller of torchrun jobs while the API answers wrongly, late or not at all.

Its process asks a real API server through a proxy, as its own service account; Kubernetes' own controllers make the
pods. The rows are docs/faults.md's.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from local.home import CHECKOUT
from tests.faults.proxy import Call, Fault, Proxy
from tests.integration.local.kai import kai_kinds
from tests.integration.local.own_api_server import ApiServer
from tests.integration.local.torchrun_controller import Running, Team, controller, until
from tests.integration.local.torchrun_machine import (
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
from trainyard.operator import names as n

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

NUMBERS = count(1)
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
    started = [each for each in meanwhile.keys() - before.keys() if not each.endswith(" suspended")]
    assert not started, "a finished attempt was started again"
    path = team.path(n.JOB_KIND, JOB)
    asked = [call for call in proxy.calls[calls_before:] if call.is_fresh and call.path == path]
    assert asked, "it did not look"
    proxy.plan()
    ends(team, machine, attempt=1)
    assert team.status(JOB)["restarts"] == 1
    assert working.process.poll() is None


def test_c4_client_that_suspends_the_job_of_an_attempt_is_named(
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
    until(lambda: not team.get(batch)["spec"]["suspend"], "it is resumed", 45.0)
    assert time.monotonic() - began > 25.0
    tries = [call for call in proxy.calls[before:] if call.method == "PATCH" and call.path == batch]
    assert len(tries) == 1
    until(lambda: len(machine.keep()) == 2, "the workers are created again")
    comes_to(team, machine, n.PHASE_RUNNING)
    ends(team, machine, attempt=0)
    assert (team.get(batch)["metadata"]["uid"], team.status(JOB)["restarts"]) == (uid, 0)
    assert working.process.poll() is None


@pytest.mark.parametrize(
    ("then", "retry_after", "times"),
    [(429, 3, 2), (500, 0, 2), (503, 0, 2), ("drop", 0, 2), ("hold", 0, 1)],
)
def test_c5_what_the_api_refuses_for_now_is_asked_again_not_sooner_than_it_says(
    team: Team, machine: Machine, proxy: Proxy, working: Running, then: Any, retry_after: int, times: int
) -> None:
    """A write, a read, and the status. A blocked request has no answer until its client gives up."""
    asked = (
        ("POST", team.batch()),
        ("GET", team.core("pods")),
        ("PUT", f"{team.path(n.JOB_KIND, JOB)}/status"),
    )
    faults = [
        Fault(
            on=lambda call, one=one: (call.method, call.path) == one,
            moment="before",
            then=then,
            retry_after=retry_after,
            times=times,
        )
        for one in asked
    ]
    proxy.plan(*faults)
    submit(team)
    comes_to(team, machine, n.PHASE_RUNNING, seconds=120.0)
    assert [fault.times for fault in faults] == [0, 0, 0]
    for one in asked:
        tries = [call.at for call in proxy.calls if (call.method, call.path) == one][: times + 1]
        pauses = [later - earlier for earlier, later in pairwise(tries)]
        assert len(tries) == times + 1, one
        assert min(pauses) >= max(retry_after, 0.1), (one, pauses)
    posts = [call for call in proxy.calls if (call.method, call.path) == asked[0]]
    assert len(posts) == times + 1, "what was done is done again"
    ends(team, machine, attempt=0)
    assert team.status(JOB)["restarts"] == 0
    assert working.process.poll() is None


@pytest.mark.parametrize(
    ("then", "retry_after", "at_once"), [(429, 3, 0), (500, 0, 0), (503, 0, 0), ("drop", 0, 2)]
)
def test_c5_refused_watch_is_retried_and_misses_nothing(
    team: Team, proxy: Proxy, working: Running, then: Any, retry_after: int, at_once: int
) -> None:
    """An informer retries with growing pauses, or as late as the API server asks. After an error it lists again."""
    watched = f"/apis/{n.API_VERSION}/{n.JOB_PLURAL}"

    def begins(call: Call) -> bool:
        return call.path == watched and "watch" in call.query

    fault = Fault(on=begins, moment="before", then=then, retry_after=retry_after, times=3)
    submit(team, "heard")
    until(lambda: team.get(team.batch("heard-0")), "it hears of a job")
    proxy.plan(fault)
    before = len(proxy.calls)
    with proxy.away():  # each watch ends
        submit(team)
    until(lambda: fault.times == 0, "it is refused as often as planned")
    until(lambda: team.get(team.batch(f"{JOB}-0")), "it hears of what came")

    def tries() -> list[float]:
        return [call.at for call in proxy.calls[before:] if begins(call)]

    until(lambda: len(tries()) >= 4, "it watches after three refusals")
    pauses = [later - earlier for earlier, later in pairwise(tries())]
    assert len(pauses) == 3, pauses
    assert len([each for each in pauses if each < max(retry_after, 0.05)]) <= at_once, pauses
    assert working.process.poll() is None


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
            kept = team.get(team.core("persistentvolumeclaims", n.claim_name(JOB, "checkpoints")))
            first.kill()
        team.delete(team.path(n.QUEUE_KIND, "named"))
        team.delete(team.path(n.JOB_KIND, JOB))
        assert team.get(team.path(n.QUEUE_KIND, "named")), "its finalizer holds it"
        with controller(server, tmp_path / "second", pod="pod"):
            until(lambda: not team.get(theirs), "KAI's queue is gone")
            until(lambda: not team.get(team.path(n.QUEUE_KIND, "named")), "the queue is deleted")

            def alone() -> bool:
                machine.keep()
                return len(live(team)) == 1

            # Kubernetes looks for new kinds every 30 s, before it removes anything.
            until(alone, "what was made for the job is gone", 60.0)
        left = team.get(team.core("persistentvolumeclaims", n.claim_name(JOB, "checkpoints")))
        assert left["metadata"]["uid"] == kept["metadata"]["uid"]


def test_c8_a_queue_is_let_go_without_a_controller_by_the_command_of_the_page(
    server: ApiServer, team: Team, tmp_path: Path
) -> None:
    page = (CHECKOUT / "docs" / "faults.md").read_text()
    (command,) = re.findall(r"`kubectl (patch torchrunqueue <name> [^`]+)`", page)
    with kai_kinds(server):
        theirs = f"/apis/{n.KAI_GROUP}/{n.KAI_QUEUE_VERSION}/{n.KAI_QUEUE_PLURAL}/{team.name}-gpus"
        with controller(server, tmp_path / "first", pod="pod") as first:
            team.make(manifest(n.QUEUE_KIND, "named", {"kaiQueue": f"{team.name}-gpus"}))
            made = until(lambda: team.get(theirs), "KAI's queue is made")
            first.kill()
        named = team.path(n.QUEUE_KIND, "named")
        team.delete(named)
        assert team.get(named), "its finalizer holds it"
        words = shlex.split(command.replace("<name>", "named"))
        done = server.kubectl(*words, "-n", team.name)
        assert done.returncode == 0, done.stderr
        assert not team.get(named)
        with controller(server, tmp_path / "second", pod="pod"):
            # It has looked at everything once the queue that stayed serves a job.
            submit(team)
            until(lambda: team.get(team.batch(f"{JOB}-0")), "the others go on")
        assert team.get(theirs)["metadata"]["uid"] == made["metadata"]["uid"], "KAI's queue is left"
        assert not team.get(named)
        team.server.request("DELETE", theirs)
