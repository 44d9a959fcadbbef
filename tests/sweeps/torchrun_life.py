"""One life of torchrun jobs on a real API server: what their team does, and what a machine would do of their pods.

Kubernetes' own controllers make pods of Jobs and remove what has lost its owner. There are no machines: a pod is bound,
and its phase written, as a kubelet does it. The team acts when the jobs say that they are there, so that a life in
which the controller is killed goes the way of one in which it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from launcher.core.torchrun import names as n
from tests.local.torchrun_controller import Team
from tests.sweeps.history import INDEX
from tests.torchrun_manifests import manifest

MACHINE = "machine"
# Its claims are shared by several nodes (launcher/core/torchrun/storage.py).
STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "fsx"},
    "provisioner": "fsx.csi.aws.com",
}
QUEUE = {
    "storage.workspace": {"enabled": True, "size": "1Gi", "storageClass": "fsx"},
    "storage.checkpoints": {"enabled": True, "size": "1Gi", "storageClass": "fsx", "retain": True},
}
# A worker of the first fails once; the second is suspended and resumed, and goes with its time; the third is deleted.
FAILS, PAUSED, DELETED = "fails", "paused", "deleted"
JOBS: Mapping[str, dict[str, Any]] = {
    FAILS: {"maxRestarts": 1},
    PAUSED: {"ttlSecondsAfterFinished": 1},
    DELETED: {},
}


class Life:
    """The queue and the jobs in their team's namespace; `step` does what others than the controller do."""

    def __init__(self, team: Team) -> None:
        self.team = team
        self._suspended = False
        team.make(manifest(n.QUEUE_KIND, "research", QUEUE))
        for name, changes in JOBS.items():
            team.make(manifest(n.JOB_KIND, name, changes))

    def step(self) -> bool:
        """Whether all is over: one job has succeeded, the others and what was made for them are gone."""
        pods = self._items(self.team.core("pods"))
        for each in pods:
            self._keep(each)
        jobs = {each["metadata"]["name"]: each for each in self._items(self.team.path(n.JOB_KIND))}
        for name, job in jobs.items():
            if "deletionTimestamp" not in job["metadata"]:
                self._act(name, (job.get("status") or {}).get("phase"), pods)
        others = [
            *self._items(self.team.core("services")),
            *self._items(self.team.batch()),
            *pods,
        ]
        mine = all(each["metadata"]["labels"][n.LABEL_JOB] == FAILS for each in others)
        ended = (jobs.get(FAILS, {}).get("status") or {}).get("phase") == n.PHASE_SUCCEEDED
        return mine and ended and set(jobs) == {FAILS}

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
            if labels[n.LABEL_JOB] != name or each["status"]["phase"] != "Running":
                continue
            if name == PAUSED and labels[n.LABEL_ATTEMPT] == "0":
                continue  # it is being suspended
            if name == FAILS and labels[n.LABEL_ATTEMPT] == "0":
                if labels[INDEX] == "0":
                    self._write(each, "Failed", 1)
            else:
                self._write(each, "Succeeded", 0)

    def _keep(self, pod: dict[str, Any]) -> None:
        """As the kubelet of a machine: a new pod is bound and runs, one that is being deleted ends at once."""
        path = self.team.core("pods", pod["metadata"]["name"])
        if "deletionTimestamp" in pod["metadata"]:
            self.team.server.request("DELETE", f"{path}?gracePeriodSeconds=0")
            return
        if not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": MACHINE}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}}
            self.team.server.request("POST", f"{path}/binding", {**binding, "target": target})
        elif pod["status"]["phase"] == "Pending":
            self._write(pod, "Running", None)

    def _write(self, pod: dict[str, Any], phase: str, code: int | None) -> None:
        """A pod that has just gone is none."""
        ready = "True" if phase == "Running" else "False"
        status: dict[str, Any] = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
        if code is not None:
            status["containerStatuses"] = [
                {
                    "name": n.WORKER_CONTAINER,
                    "image": "",
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": {"exitCode": code}},
                }
            ]
        path = f"{self.team.core('pods', pod['metadata']['name'])}/status"
        answer = self.team.server.request(
            "PATCH", path, {"status": status}, content="application/strategic-merge-patch+json"
        )
        assert answer.status in (200, 404, 409), answer.message

    def _items(self, path: str) -> list[dict[str, Any]]:
        answer = self.team.server.request("GET", path)
        assert answer.status == 200, answer.message
        return list(answer.body["items"])
