"""The controller of torchrun jobs while people, other programs and Kubernetes change what a job is made of.

Kubernetes' own controllers make the pods. The rows are docs/faults.md's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.integration.local.own_api_server import ApiServer
from tests.integration.local.torchrun_controller import Running, Team, controller, until
from tests.integration.local.torchrun_machine import (
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
WRITES = 50
CHECKED, MINE = "example.com/Checked", "checked"


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with cluster() as running:
        yield running


@pytest.fixture
def working(server: ApiServer, tmp_path: Path) -> Iterator[Running]:
    with controller(server, tmp_path, pod="pod") as running:
        yield running


@pytest.fixture
def team(server: ApiServer) -> Team:
    made = Team(server, f"others-{next(NUMBERS)}")
    made.make(manifest(n.QUEUE_KIND, "research", VOLUMES))
    return made


@pytest.fixture
def machine(team: Team) -> Machine:
    return Machine(team)


def check(team: Team, message: str) -> None:
    """Write a condition as another program does that shares the status, and overwrite the reported one."""
    path = f"{team.path(n.JOB_KIND, JOB)}/status"
    condition = {
        "type": CHECKED,
        "status": "True",
        "reason": "Checked",
        "message": message,
        "lastTransitionTime": "2026-11-23T00:00:00Z",
    }
    applied = {
        "apiVersion": n.API_VERSION,
        "kind": n.JOB_KIND,
        "metadata": {"name": JOB},
        "status": {"conditions": [condition], "message": MINE},
    }
    answer = team.server.request(
        "PATCH", f"{path}?fieldManager=checker&force=true", applied, content="application/apply-patch+yaml"
    )
    assert answer.status == 200, answer.message


@pytest.mark.local
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
            # A status is put over the spec and the status that were read: to change these without a pause would let
            # nobody put one.
            spec = {"spec": {"activeDeadlineSeconds": 3600 + written}} if written % 20 == 0 else {}
            team.merge(path, {"metadata": meta, **spec})
            if written % 20 == 10:
                check(team, str(written))
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
    checked = team.condition(JOB, CHECKED)
    assert (checked["status"], checked["message"]) == ("True", str((written - 11) // 20 * 20 + 10))
    assert team.condition(JOB, n.QUEUE_FOUND)["status"] == "True"
    until(lambda: team.status(JOB)["message"] != MINE, "it says again what it has to say")
    ends(team, machine, attempt=0)
    assert team.status(JOB)["restarts"] == 0
    assert team.condition(JOB, CHECKED) == checked


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


def test_quota_refusal_of_pods_is_reported_on_the_job(team: Team, machine: Machine, working: Running) -> None:
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

    def is_reported() -> bool:
        machine.keep()
        reported = f"1 has no pod; the Events have the cause: kubectl describe job vit-0 -n {team.name}"
        return reported in team.status(JOB).get("message", "")

    until(is_reported, "it says where to look", 40.0)
    events = team.server.request("GET", team.core("events")).body["items"]
    assert any("exceeded quota: few" in each["message"] for each in events)
    team.delete(team.core("resourcequotas", "few"))
    comes_to(team, machine, n.PHASE_RUNNING)
    assert working.process.poll() is None


def test_a_priority_class_that_is_not_there_is_named_by_queue_and_job(
    team: Team, machine: Machine, working: Running
) -> None:
    name = f"{team.name}-high"
    said = f"no PriorityClass with name {name} was found"
    priority = {"spec": {"scheduling": {"priorityClassName": name}}}
    team.merge(team.path(n.QUEUE_KIND, "research"), priority)

    def ready() -> dict[str, str]:
        return team.condition("research", n.READY, n.QUEUE_KIND)

    until(lambda: said in ready().get("message", ""), "its queue names the class")
    assert (ready()["status"], ready()["reason"]) == ("False", n.REASON_REFUSED)
    submit(team)
    until(lambda: said in team.status(JOB).get("message", ""), "it names the class", 40.0)
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    made = {**kind, "metadata": {"name": name}, "value": 1000}
    assert team.server.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", made).status == 201
    comes_to(team, machine, n.PHASE_RUNNING)
    assert team.status(JOB)["message"] == "2 of 2 workers are ready"
    assert working.process.poll() is None


@pytest.mark.parametrize("of_each_node", [False, True])
def test_elastic_job_that_succeeded_is_not_stopped_or_restarted(
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
        types = [each["type"] for item in items for each in item["status"].get("conditions") or []]
        return types.count("SuccessCriteriaMet") == (2 if of_each_node else 1)

    until(succeeded, "Kubernetes says that it has succeeded", 20.0)
    for asked in (True, False):
        team.merge(team.path(n.JOB_KIND, JOB), {"spec": {"suspend": asked}})
        until(lambda: team.status(JOB).get("phase") == n.PHASE_SUCCEEDED, "so does the job", 20.0)
    generation = team.get(team.path(n.JOB_KIND, JOB))["metadata"]["generation"]
    until(lambda: team.status(JOB).get("observedGeneration") == generation, "it has seen both edits")
    assert team.status(JOB)["attempt"] == 0
    assert not team.get(team.batch("vit-1"))
    assert working.process.poll() is None


def test_a_job_beyond_its_deadline_has_failed_and_nothing_of_it_runs(
    team: Team, machine: Machine, working: Running
) -> None:
    team.make(manifest(n.JOB_KIND, JOB, {"activeDeadlineSeconds": 10, "ttlSecondsAfterFinished": 3600}))
    comes_to(team, machine, n.PHASE_RUNNING)
    began = time.monotonic()

    def over() -> bool:
        machine.keep()
        return team.status(JOB).get("phase") == n.PHASE_FAILED

    until(over, "it has failed", 20.0)
    assert time.monotonic() - began < 15.0
    status = team.status(JOB)
    assert (status["reason"], status["attempt"]) == (n.REASON_DEADLINE_EXCEEDED, 0)
    until(lambda: not machine.keep(), "its workers are gone")
    team.merge(team.path(n.JOB_KIND, JOB), {"spec": {"activeDeadlineSeconds": 7200}})
    generation = team.get(team.path(n.JOB_KIND, JOB))["metadata"]["generation"]
    time.sleep(2.0)
    assert (team.status(JOB)["phase"], generation) == (n.PHASE_FAILED, 2)
    assert not machine.pods()
    assert working.process.poll() is None
