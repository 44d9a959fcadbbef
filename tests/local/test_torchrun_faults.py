"""The controller of torchrun jobs while the API answers wrongly, late or not at all, and while others write, too.

Its process asks a real API server through a proxy, as its own service account; Kubernetes' own controllers make the
pods. The rows are docs/faults.md's.
"""

from __future__ import annotations

import threading
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
from tests.local.torchrun_machine import INDEX, VOLUMES, Machine, cluster
from tests.torchrun_manifests import manifest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

NUMBERS = count(1)
JOB = "vit"
# A watch by which nothing comes is begun anew by kopf after 70 s (its inactivity_timeout).
SILENT_SECONDS = 100.0
# In which a controller that does what it should not would do it.
WRONG_SECONDS = 5.0
WRITES = 50


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


def submit(team: Team, name: str = JOB) -> None:
    team.make(manifest(n.JOB_KIND, name, {"maxRestarts": 1}))


def comes_to(team: Team, machine: Machine, phase: str, *, attempt: int = 0, name: str = JOB) -> None:
    """Until the job says so, with a kubelet meanwhile."""

    def there() -> bool:
        machine.keep()
        status = team.status(name)
        return (status.get("phase"), status.get("attempt")) == (phase, attempt)

    until(there, f"{name} is {phase} in attempt {attempt}", 40.0)


def ends(team: Team, machine: Machine, *, attempt: int) -> None:
    """Its workers end well, and the job says so."""
    for each in machine.pods():
        machine.end(each, code=0)
    comes_to(team, machine, n.PHASE_SUCCEEDED, attempt=attempt)


def live(team: Team) -> dict[str, str]:
    """What there is of the job, by kind and name, with its uid; a Job's whether it may run."""
    found = {}
    for path in (team.batch(), team.core("pods"), team.core("services"), team.core("persistentvolumeclaims")):
        for each in team.server.request("GET", path).body["items"]:
            stopped = "suspended" if (each.get("spec") or {}).get("suspend") else ""
            found[f"{path} {each['metadata']['name']} {stopped}"] = each["metadata"]["uid"]
    return found


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


def test_c4_nobodys_fields_are_lost_while_many_write(team: Team, machine: Machine, working: Running) -> None:
    del working
    submit(team)
    path = team.path(n.JOB_KIND, JOB)
    over = threading.Event()
    written = 0

    def write() -> None:
        nonlocal written
        while not over.is_set():
            meta = {
                "annotations": {"example.com/count": str(written + 1)},
                "labels": {"example.com/team": "vision"},
            }
            # A status is put over the spec that was read: to change that without a pause would let nobody put one.
            spec = {"spec": {"activeDeadlineSeconds": 3600 + written}} if written % 20 == 0 else {}
            team.merge(path, {"metadata": meta, **spec})
            written += 1
            time.sleep(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        comes_to(team, machine, n.PHASE_RUNNING)
        until(lambda: written > WRITES, "others have written often")
    finally:
        over.set()
        writer.join()
    item = team.get(path)
    until(
        lambda: team.status(JOB)["observedGeneration"] == item["metadata"]["generation"], "it sees the last"
    )
    assert item["metadata"]["annotations"]["example.com/count"] == str(written)
    assert item["metadata"]["labels"]["example.com/team"] == "vision"
    assert item["spec"]["activeDeadlineSeconds"] == 3600 + (written - 1) // 20 * 20
    ends(team, machine, attempt=0)
    assert team.status(JOB)["restarts"] == 0


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


@pytest.mark.parametrize("phase", [n.PHASE_PENDING, n.PHASE_PROVISIONING, n.PHASE_RUNNING])
def test_c10_suspended_and_resumed_in_haste_it_keeps_its_claims_and_comes_to_its_end(
    team: Team, machine: Machine, working: Running, phase: str
) -> None:
    submit(team)
    path = team.path(n.JOB_KIND, JOB)
    if phase == n.PHASE_PROVISIONING:
        team.reaches(JOB, phase)
    elif phase == n.PHASE_RUNNING:
        comes_to(team, machine, phase)
    for number in range(21):
        team.merge(path, {"spec": {"suspend": number % 2 == 0}})
        machine.keep()
        time.sleep(0.05 * (number % 3))

    def still() -> bool:
        machine.keep()
        return not machine.pods() and team.status(JOB).get("phase") == n.PHASE_SUSPENDED

    until(still, "it is suspended, and nothing of it runs", 40.0)
    claims = {name: uid for name, uid in live(team).items() if "persistentvolumeclaims" in name}
    team.merge(path, {"spec": {"suspend": False}})

    def runs() -> bool:
        machine.keep()
        return team.status(JOB).get("phase") == n.PHASE_RUNNING

    until(runs, "it runs again", 40.0)
    now = live(team)
    assert claims.items() <= now.items(), "its claims are others"
    assert phase != n.PHASE_RUNNING or len(claims) == 2
    attempts = {each["metadata"]["labels"][n.LABEL_ATTEMPT] for each in machine.pods()}
    assert attempts == {str(team.status(JOB)["attempt"])}
    ends(team, machine, attempt=team.status(JOB)["attempt"])
    assert team.status(JOB)["restarts"] == 0
    # Its time to live begins when it ends, and may be changed until then.
    team.merge(path, {"spec": {"ttlSecondsAfterFinished": 1}})
    until(lambda: not team.get(path), "it goes with its time")
    assert working.process.poll() is None


def test_pods_that_a_quota_refuses_are_told_on_the_job(
    team: Team, machine: Machine, working: Running
) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "few"},
        "spec": {"hard": {"pods": "1"}},
    }
    assert team.server.request("POST", team.core("resourcequotas"), quota).status == 201
    # Who counts what is used is not here.
    used = {"status": {"hard": {"pods": "1"}, "used": {"pods": "0"}}}
    team.merge(f"{team.core('resourcequotas', 'few')}/status", used)
    submit(team)

    def told() -> bool:
        machine.keep()
        return "1 has no pod; why, Events say: kubectl describe job vit-0" in team.status(JOB).get(
            "message", ""
        )

    until(told, "it says where to look", 40.0)
    events = team.server.request("GET", team.core("events")).body["items"]
    assert any("exceeded quota: few" in each["message"] for each in events)
    team.delete(team.core("resourcequotas", "few"))
    comes_to(team, machine, n.PHASE_RUNNING)
    assert working.process.poll() is None


@pytest.mark.parametrize("of_each_node", [False, True])
def test_an_elastic_job_that_has_succeeded_is_not_stopped_and_not_begun_again(
    team: Team, machine: Machine, working: Running, of_each_node: bool
) -> None:
    """Its other workers' machines do not answer: its Job removes them, and is not complete for a long time."""
    own = {"storage.workspace": {"enabled": True, "size": "1Gi"}}
    team.make(manifest(n.QUEUE_KIND, "grown", own if of_each_node else VOLUMES))
    elastic = {"jobQueue": "grown", "numGPUs": 32, "elastic": {"minNodes": 2, "maxNodes": 4}}
    team.make(manifest(n.JOB_KIND, JOB, elastic))

    def all_run() -> bool:
        machine.keep()
        return (team.status(JOB).get("workers") or {}).get("ready") == 4

    until(all_run, "all workers run", 40.0)
    workers = sorted(machine.pods(), key=lambda each: str(each["metadata"]["name"]))
    for each in workers[:2]:
        machine.end(each, code=0)
    if of_each_node:  # where Kubernetes does not remove the others; those that run are waited for
        for each in workers[2:]:
            team.delete(team.core("pods", each["metadata"]["name"]))

    def succeeded() -> bool:
        items = team.server.request("GET", team.batch()).body["items"]
        told = [each["type"] for item in items for each in item["status"].get("conditions") or []]
        return told.count("SuccessCriteriaMet") == (2 if of_each_node else 1)

    until(succeeded, "Kubernetes says that it has succeeded", 20.0)
    for asked in (True, False):
        team.merge(team.path(n.JOB_KIND, JOB), {"spec": {"suspend": asked}})
        until(lambda: team.status(JOB).get("phase") == n.PHASE_SUCCEEDED, "so does the job", 20.0)
    generation = team.get(team.path(n.JOB_KIND, JOB))["metadata"]["generation"]
    until(lambda: team.status(JOB).get("observedGeneration") == generation, "it has seen both edits")
    assert team.status(JOB)["attempt"] == 0
    assert not team.get(team.batch("vit-1"))
    assert working.process.poll() is None
