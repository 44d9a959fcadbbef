"""The controller beside what comes after it: its kinds, KAI Scheduler's, and rights that it has again.

As in test_torchrun_others.py Kubernetes' own controllers make the pods, and nothing runs in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.integration.local import kai
from tests.integration.local.own_api_server import ApiServer, api_server
from tests.integration.local.torchrun_controller import Team, controller, taken_away, until, without_right
from tests.integration.local.torchrun_machine import INDEX, Machine, cluster, comes_to
from tests.torchrun_manifests import manifest
from trainyard.operator import names as n

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

NUMBERS = count(1)
# The watches of kinds that have just come may not stand yet; what is not heard is looked for every 30 s.
UNHEARD = 45.0
GANG = {"scheduling.scheduler": n.KAI_SCHEDULER}


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with cluster() as running:
        yield running


@pytest.fixture
def team(server: ApiServer) -> Team:
    return Team(server, f"late-{next(NUMBERS)}")


def is_resumed(team: Team, name: str) -> bool:
    """Whether the attempt's Job is there and may run."""
    spec = team.get(team.batch(name)).get("spec") or {"suspend": True}
    return not spec.get("suspend")


def applied(server: ApiServer, *files: str) -> None:
    for each in files:
        done = server.kubectl("apply", "-f", each)
        assert done.returncode == 0, done.stderr


def test_it_begins_before_its_kinds_are_there_and_works_once_they_are(tmp_path: Path) -> None:
    """Files of an installation are applied in any order, and a new API server has not read them all."""
    with api_server() as bare:
        applied(bare, "config/deployment.yaml", "config/rbac/role.yaml")
        with controller(bare, tmp_path) as running:
            assert running.healthy()["reconciles"]
            applied(bare, "crd/")
            kinds = [f"crd/{each}.{n.GROUP}" for each in (n.QUEUE_PLURAL, n.JOB_PLURAL)]
            bare.established(*kinds)
            team = Team(bare, "team")
            team.make(manifest(n.JOB_KIND, "vit"))
            until(
                lambda: team.status("vit").get("reason") == n.REASON_QUEUE_NOT_FOUND, "it hears of jobs", 60.0
            )
            team.make(manifest(n.QUEUE_KIND, "research"))
            until(lambda: is_resumed(team, "vit-0"), "it hears of queues", 60.0)
            ready = until(lambda: team.condition("research", n.READY, n.QUEUE_KIND), "the queue is judged")
            assert ready["status"] == "True", ready
            # And of what is made for them.
            team.delete(team.core("services", "vit"))
            until(lambda: team.get(team.core("services", "vit")), "the Service is created again")
            assert running.process.poll() is None


def test_kais_kinds_that_come_later_are_heard_of_and_what_is_in_them(
    server: ApiServer, team: Team, tmp_path: Path
) -> None:
    ours = f"{kai.QUEUES}/{team.name}-gpus"
    gang = f"{kai.gangs(team.name)}/vit-0"
    with ExitStack() as kinds, controller(server, tmp_path) as running:
        team.make(manifest(n.QUEUE_KIND, "research", {**GANG, "kaiQueue": f"{team.name}-gpus"}))
        team.make(manifest(n.JOB_KIND, "vit"))
        until(
            lambda: team.status("vit").get("reason") == n.REASON_SCHEDULER_NOT_INSTALLED,
            "the job waits for it",
        )
        ready = until(lambda: team.condition("research", n.READY, n.QUEUE_KIND), "the queue is judged")
        assert (ready["status"], ready["reason"]) == ("False", n.REASON_SCHEDULER_NOT_INSTALLED)
        assert not team.get(team.batch("vit-0"))
        kinds.enter_context(kai.kai_kinds(server))
        # What is known of the cluster is up to half a minute old, and then a minute until the next look.
        until(lambda: team.get(ours), "the queue of KAI is made", 100.0)
        until(lambda: is_resumed(team, "vit-0"), "the job begins", 100.0)
        assert team.get(gang)["spec"] == {"minMember": 2, "queue": f"{team.name}-gpus"}
        machine = Machine(team)
        comes_to(team, machine, n.PHASE_RUNNING, name="vit")
        machine.end(next(each for each in machine.pods() if INDEX in each["metadata"]["labels"]), code=0)
        until(lambda: team.get(gang)["spec"]["minMember"] == 1, "one worker is enough once one has succeeded")
        assert team.get(gang)["spec"]["queue"] == f"{team.name}-gpus"
        until(
            lambda: team.condition("research", n.READY, n.QUEUE_KIND)["status"] == "True",
            "the queue is ready",
        )
        before = team.get(ours)["metadata"]["uid"]
        team.delete(ours)
        until(
            lambda: team.get(ours).get("metadata", {}).get("uid", before) != before,
            "the deleted queue of KAI is created again",
            UNHEARD,
        )
        team.delete(team.path(n.JOB_KIND, "vit"))
        until(lambda: not team.get(team.path(n.JOB_KIND, "vit")), "the job is gone")
        team.delete(team.path(n.QUEUE_KIND, "research"))
        assert team.get(ours), "a gang is in it still"
        # Kubernetes looks for new kinds every 30 s, before it removes anything of them.
        team.server.request("DELETE", gang)
        until(lambda: not team.get(ours), "KAI's queue goes after the last gang", UNHEARD)
        until(lambda: not team.get(team.path(n.QUEUE_KIND, "research")), "the queue is deleted", UNHEARD)
        assert running.process.poll() is None


def test_c11_a_job_that_runs_outlives_rights_that_go_and_come_back(
    server: ApiServer, team: Team, tmp_path: Path
) -> None:
    machine = Machine(team)

    def comes_to(phase: str, **fields: Any) -> None:
        def there() -> bool:
            machine.keep()
            status = team.status("vit")
            return status.get("phase") == phase and {key: status.get(key) for key in fields} == fields

        until(there, f"it is {phase}: {fields}", 100.0)

    def disturb(value: str) -> None:
        team.merge(team.path(n.JOB_KIND, "vit"), {"metadata": {"annotations": {"seen": value}}})

    with controller(server, tmp_path, pod="pod") as running:
        team.make(manifest(n.QUEUE_KIND, "research"))
        team.make(manifest(n.JOB_KIND, "vit"))
        comes_to(n.PHASE_RUNNING, attempt=0)
        job = team.get(team.batch("vit-0"))["metadata"]["uid"]
        give = taken_away(server)
        try:
            disturb("without any right")
            until(lambda: "403" in running.said(), "it is refused", 30.0)
        finally:
            give()
        with without_right(server, "pods", "list"):
            disturb("without one right")
            until(lambda: team.status("vit").get("reason") == n.REASON_REFUSED, "it says so", 100.0)
            status, accepted = team.status("vit"), team.condition("vit", n.ACCEPTED)
            assert (status["phase"], status["attempt"], status["restarts"]) == (n.PHASE_RUNNING, 0, 0)
            assert accepted["status"] == "False"
            assert 'cannot list resource "pods"' in accepted["message"]
            # What was on its way is not taken for lost: nothing can be seen of it.
            assert len(machine.keep()) == 2
        comes_to(n.PHASE_RUNNING, attempt=0, restarts=0, reason=n.REASON_RUNNING)
        assert team.condition("vit", n.ACCEPTED)["status"] == "True"
        assert team.get(team.batch("vit-0"))["metadata"]["uid"] == job
        with without_right(server, "pods", "list"):
            first = next(each for each in machine.pods() if each["metadata"]["labels"][INDEX] == "0")
            machine.end(first, code=1)
            until(lambda: team.status("vit").get("reason") == n.REASON_REFUSED, "it says so", 100.0)
        comes_to(n.PHASE_RUNNING, attempt=1, restarts=1, reason=n.REASON_RUNNING)
        for each in machine.pods():
            machine.end(each, code=0)
        comes_to(n.PHASE_SUCCEEDED, attempt=1, restarts=1)
        assert running.process.poll() is None


def test_c13_workers_that_are_drained_and_end_well_have_not_trained(
    server: ApiServer, team: Team, tmp_path: Path
) -> None:
    """As scripts do that save before they go: Kubernetes counts them, and calls their Job complete."""
    machine = Machine(team)

    def runs(attempt: int) -> bool:
        machine.keep()
        status = team.status("vit")
        return (status.get("phase"), status.get("attempt")) == (n.PHASE_RUNNING, attempt)

    with controller(server, tmp_path, pod="pod"):
        team.make(manifest(n.QUEUE_KIND, "research"))
        team.make(manifest(n.JOB_KIND, "vit", {"maxRestarts": 1}))
        until(lambda: runs(0), "it runs", 40.0)
        for each in machine.pods():
            team.delete(team.core("pods", each["metadata"]["name"]))
        for each in machine.pods():
            machine.end(each, code=0)
        # The kubelet takes them away a moment later.
        until(lambda: team.status("vit").get("attempt") == 1, "they are counted as lost")
        until(lambda: runs(1), "it runs again", 40.0)
        assert team.status("vit")["restarts"] == 1
