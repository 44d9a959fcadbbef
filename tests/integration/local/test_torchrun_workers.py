"""Whose log `kubectl torchrun logs` shows, and until when: by the pods that Kubernetes' own controllers make."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.integration.local.own_api_server import ApiServer
from tests.integration.local.torchrun_controller import Team, controller, until
from tests.integration.local.torchrun_machine import VOLUMES, Machine, cluster
from tests.torchrun_manifests import manifest
from trainyard.k8s import kubeconfig
from trainyard.kubectl.cluster import RETRY, Cluster
from trainyard.kubectl.logs import JobReader, newest_pods
from trainyard.operator import names as n

pytestmark = pytest.mark.local

NUMBERS = count(1)
JOB = "vit"
# Each node mounts a volume of its own, and so has a Job of its own.
OWN = {"storage.workspace": {"enabled": True, "size": "1Gi"}}


@pytest.fixture(scope="module")
def working(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with cluster() as server, controller(server, tmp_path_factory.mktemp("controller")):
        yield server


@pytest.fixture
def team(working: ApiServer) -> Team:
    return Team(working, f"workers-{next(NUMBERS)}")


def begins(team: Team, machine: Machine, nodes: int, **changes: object) -> None:
    """A job is submitted, and all of its workers run."""
    team.make(manifest(n.JOB_KIND, JOB, {"jobQueue": "research", "numGPUs": 8 * nodes, **changes}))

    def all_run() -> bool:
        machine.keep()
        return (team.status(JOB).get("workers") or {}).get("ready") == nodes

    until(all_run, "all workers run", 40.0)


def person(team: Team) -> Cluster:
    rest, _ = kubeconfig.connect(str(team.server.kubeconfig), None, RETRY)
    return Cluster(rest, team.name)


def seen(team: Team, rank: int) -> dict[str, Any] | None:
    found = person(team)
    return newest_pods(found.workers(found.job(JOB))).get(rank)


@pytest.mark.parametrize("volumes", [OWN, VOLUMES], ids=["a Job for each node", "one Job"])
def test_the_worker_of_each_node_is_found(team: Team, volumes: dict[str, Any]) -> None:
    team.make(manifest(n.QUEUE_KIND, "research", volumes))
    begins(team, Machine(team), nodes=2)
    jobs = team.server.request("GET", team.batch()).body["items"]
    assert len(jobs) == (2 if volumes is OWN else 1)
    for rank in (0, 1):
        pod = seen(team, rank)
        assert pod is not None
        (container,) = pod["spec"]["containers"]
        variable = next(each for each in container["env"] if each["name"] == n.ENV_NODE_RANK)
        index = pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"]
        assert variable.get("value", index) == str(rank)
    assert seen(team, 2) is None


def test_a_pod_of_an_earlier_job_of_the_name_is_not_the_jobs(team: Team) -> None:
    team.make(manifest(n.QUEUE_KIND, "research", VOLUMES))
    machine = Machine(team)
    begins(team, machine, nodes=1)
    old = seen(team, 0)
    assert old is not None
    team.delete(team.path(n.JOB_KIND, JOB))
    path = team.core("pods", old["metadata"]["name"])
    until(lambda: team.get(path)["metadata"].get("deletionTimestamp"), "its pod is being deleted")
    team.make(manifest(n.JOB_KIND, JOB, {"jobQueue": "research", "numGPUs": 8}))
    team.reaches(JOB, n.PHASE_PENDING)
    assert team.get(path)
    assert seen(team, 0) is None

    def find_new_attempt() -> dict[str, Any] | None:
        machine.keep()
        return seen(team, 0)

    assert until(find_new_attempt, "its own begins", 40.0)["metadata"]["uid"] != old["metadata"]["uid"]


@pytest.mark.parametrize(("code", "phase"), [(0, n.PHASE_SUCCEEDED), (7, n.PHASE_FAILED)])
def test_how_a_job_ended_is_known_that_is_removed_at_once(team: Team, code: int, phase: str) -> None:
    team.make(manifest(n.QUEUE_KIND, "research", VOLUMES))
    machine = Machine(team)
    begins(team, machine, nodes=1, ttlSecondsAfterFinished=0, restartPolicy="Never")
    follower = person(team)
    last = JobReader(follower, follower.job(JOB))
    with last.watching():
        assert last.read()["status"]["phase"] == n.PHASE_RUNNING
        (pod,) = machine.pods()
        machine.end(pod, code=code)
        until(lambda: not team.get(team.path(n.JOB_KIND, JOB)), "the job is gone", 40.0)
        assert last.read()["status"]["phase"] == phase
