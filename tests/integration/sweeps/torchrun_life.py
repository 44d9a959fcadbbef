"""One life of torchrun jobs: what their team does, and how their workers end.

The team acts when the jobs say that they are there, so that a life in which the controller is killed goes the way of
one in which it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.integration.local.torchrun_controller import Team
from tests.integration.local.torchrun_machine import INDEX, VOLUMES, Machine
from tests.integration.local.torchrun_pool import Pool
from tests.torchrun_manifests import manifest
from trainyard.operator import names as n

# A worker of the first fails once; the second, whose nodes have claims of their own and so a Job each, is suspended and
# resumed, and goes with its time; the third is deleted; the fourth is an elastic gang of KAI Scheduler with a
# workspace, which goes with its time and takes its queue along; the fifth holds machines of a pool before it begins,
# and goes with its time.
FAILS, PAUSED, DELETED, GANG, HOLDS = "fails", "paused", "deleted", "gang", "holds"
APART, GANGS, POOLED = "apart", "gangs", "pooled"
JOBS: Mapping[str, dict[str, Any]] = {
    FAILS: {"maxRestarts": 1},
    PAUSED: {"jobQueue": APART, "ttlSecondsAfterFinished": 1},
    DELETED: {},
    GANG: {
        "jobQueue": GANGS,
        "elastic": {"minNodes": 1, "maxNodes": 2},
        "workspace": {"digest": f"sha256:{'1' * 64}", "sizeBytes": 3},
        "ttlSecondsAfterFinished": 1,
    },
    HOLDS: {"jobQueue": POOLED, "ttlSecondsAfterFinished": 1},
}


class Life:
    """The queue and the jobs in their team's namespace; `step` does what others than the controller do."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self._pool = Pool(team)
        self._machine = Machine(team, self._pool.place)
        self._suspended = False
        team.make(manifest(n.QUEUE_KIND, "research", VOLUMES))
        team.make(manifest(n.QUEUE_KIND, APART, {**VOLUMES, "storage.workspace.accessMode": "ReadWriteOnce"}))
        by_kai = {"scheduling.scheduler": n.KAI_SCHEDULER, "kaiQueue": f"{team.name}-gpus"}
        team.make(manifest(n.QUEUE_KIND, GANGS, by_kai))
        team.make(manifest(n.QUEUE_KIND, POOLED, {"scheduling.pool": self._pool.name}))
        for name, changes in JOBS.items():
            team.make(manifest(n.JOB_KIND, name, changes))

    def step(self) -> bool:
        """Whether all is over: one job has succeeded; the others, their queue and what was made for them are gone."""
        pods = self._machine.keep()
        jobs = {each["metadata"]["name"]: each for each in self._items(self.team.path(n.JOB_KIND))}
        for name, job in jobs.items():
            if "deletionTimestamp" not in job["metadata"]:
                self._act(name, (job.get("status") or {}).get("phase"), pods)
        queues = {each["metadata"]["name"]: each for each in self._items(self.team.path(n.QUEUE_KIND))}
        if GANG not in jobs and "deletionTimestamp" not in queues.get(GANGS, {"metadata": {}})["metadata"]:
            self.team.server.request("DELETE", self.team.path(n.QUEUE_KIND, GANGS))
        services, batch = self._items(self.team.core("services")), self._items(self.team.batch())
        mine = all(each["metadata"]["labels"][n.LABEL_JOB] == FAILS for each in (*services, *batch, *pods))
        ended = (jobs.get(FAILS, {}).get("status") or {}).get("phase") == n.PHASE_SUCCEEDED
        return mine and ended and set(jobs) == {FAILS} and GANGS not in queues

    def close(self) -> None:
        """What belongs to no namespace is gone."""
        self._pool.close()

    def _act(self, name: str, phase: str | None, pods: list[dict[str, Any]]) -> None:
        path = self.team.path(n.JOB_KIND, name)
        if name == PAUSED and phase == n.PHASE_RUNNING and not self._suspended:
            self.team.merge(path, {"spec": {"suspend": True}})
            self._suspended = True
        elif name == PAUSED and phase == n.PHASE_SUSPENDED:
            self.team.merge(path, {"spec": {"suspend": False}})
        elif name == DELETED and phase == n.PHASE_RUNNING:
            self.team.delete(path)
        elif phase == n.PHASE_RUNNING:
            self._end(name, pods)

    def _end(self, name: str, pods: list[dict[str, Any]]) -> None:
        """The workers of an attempt end: badly that of node 0 in the first attempt of the one that fails."""
        for each in pods:
            labels = each["metadata"]["labels"]
            if labels[n.LABEL_JOB] != name or INDEX not in labels or each["status"]["phase"] != "Running":
                continue
            first = labels[n.LABEL_ATTEMPT] == "0"
            if not first or name in (GANG, HOLDS):
                self._machine.end(each, code=0)
            elif name == FAILS and labels[INDEX] == "0":  # the other one's first attempt is being suspended
                self._machine.end(each, code=1)

    def _items(self, path: str) -> list[dict[str, Any]]:
        answer = self.team.server.request("GET", path)
        assert answer.status == 200, answer.message
        return list(answer.body["items"])
