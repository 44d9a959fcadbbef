"""A cluster for torchrun jobs without machines: Kubernetes' own controllers, and a stand-in for the kubelet.

Pods are made of Jobs, and what has lost its owner is removed, by kube-controller-manager; a pod is bound, and its phase
written, as a kubelet does it. Nothing runs in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.integration.local import kai
from tests.integration.local.own_api_server import ApiServer, api_server
from tests.integration.local.torchrun_controller import Team, until
from tests.torchrun_manifests import manifest
from trainyard.operator import names as n

MACHINE = "machine"
JOB = "vit"
# Its claims are shared by several nodes (trainyard/operator/resources.py).
STORAGE_CLASS = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "fsx"},
    "provisioner": "fsx.csi.aws.com",
}
# A queue with claims of that class; those of checkpoints outlive their job.
VOLUMES = {
    "storage.workspace": {"enabled": True, "size": "1Gi", "storageClass": "fsx"},
    "storage.checkpoints": {"enabled": True, "size": "1Gi", "storageClass": "fsx", "retain": True},
}
INDEX = "batch.kubernetes.io/job-completion-index"
INSTALL = (
    "crd/",
    "config/deployment.yaml",
    "config/rbac/role.yaml",
    "config/admission.yaml",
    "config/network.yaml",
)


@contextmanager
def cluster(*, with_kai: bool = False) -> Iterator[ApiServer]:
    """One that runs meanwhile, with the torchrun kinds and the rights of their controller; KAI's kinds if wanted."""
    with api_server() as server:
        for each in INSTALL:
            applied = server.kubectl("apply", "-f", each)
            assert applied.returncode == 0, applied.stderr
        kinds = [f"crd/{each}.{n.GROUP}" for each in (n.QUEUE_PLURAL, n.JOB_PLURAL)]
        server.established(*kinds)
        machine = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": MACHINE}}
        for path, body in (
            ("/apis/storage.k8s.io/v1/storageclasses", STORAGE_CLASS),
            ("/api/v1/nodes", machine),
        ):
            answer = server.request("POST", path, body)
            assert answer.status == 201, answer.message
        if with_kai:
            kai.install(server)
        server.start_controllers()
        yield server


class Machine:
    """What becomes of the pods of a namespace; `place` names the machine of a pod, "" for the one that takes all."""

    def __init__(self, team: Team, place: Callable[[dict[str, Any]], str] = lambda pod: "") -> None:
        self._team = team
        self._place = place

    def pods(self) -> list[dict[str, Any]]:
        """All of them."""
        answer = self._team.server.request("GET", self._team.core("pods"))
        assert answer.status == 200, answer.message
        return list(answer.body["items"])

    def keep(self) -> list[dict[str, Any]]:
        """A new pod is bound and runs, one that is being deleted ends at once; returns all as they were before."""
        pods = self.pods()
        for each in pods:
            self._keep(each)
        return pods

    def end(self, pod: dict[str, Any], *, code: int) -> None:
        """The pod's worker ends with this code."""
        self._write(pod, "Succeeded" if code == 0 else "Failed", code)

    def _keep(self, pod: dict[str, Any]) -> None:
        path = self._team.core("pods", pod["metadata"]["name"])
        if "deletionTimestamp" in pod["metadata"]:
            self._team.server.request("DELETE", f"{path}?gracePeriodSeconds=0")
        elif not pod["spec"].get("nodeName"):
            target = {"apiVersion": "v1", "kind": "Node", "name": self._place(pod) or MACHINE}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}}
            self._team.server.request("POST", f"{path}/binding", {**binding, "target": target})
        elif pod["status"]["phase"] == "Pending":
            self._write(pod, "Running", None)

    def _write(self, pod: dict[str, Any], phase: str, code: int | None) -> None:
        """A pod that has just gone is none."""
        ready = "True" if phase == "Running" else "False"
        status: dict[str, Any] = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
        if code is None and pod["metadata"]["name"] == n.sync_pod(pod["metadata"]["labels"][n.LABEL_JOB]):
            # Somebody has sent the workspace.
            there = {"name": n.SYNC_CONTAINER, "image": "", "imageID": "", "ready": True, "restartCount": 0}
            status["containerStatuses"] = [{**there, "state": {"running": {}}}]
        if code is not None:
            worker = {
                "name": n.WORKER_CONTAINER,
                "image": "",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
            }
            status["containerStatuses"] = [{**worker, "state": {"terminated": {"exitCode": code}}}]
        path = f"{self._team.core('pods', pod['metadata']['name'])}/status"
        kind = "application/strategic-merge-patch+json"
        answer = self._team.server.request("PATCH", path, {"status": status}, content=kind)
        assert answer.status in (200, 404, 409), answer.message


def submit(team: Team, name: str = JOB) -> None:
    team.make(manifest(n.JOB_KIND, name, {"maxRestarts": 1}))


def comes_to(
    team: Team, machine: Machine, phase: str, *, attempt: int = 0, name: str = JOB, seconds: float = 40.0
) -> None:
    """Until the job says so, with a kubelet meanwhile."""

    def there() -> bool:
        machine.keep()
        status = team.status(name)
        return (status.get("phase"), status.get("attempt")) == (phase, attempt)

    until(there, f"{name} is {phase} in attempt {attempt}", seconds)


def ends(team: Team, machine: Machine, *, attempt: int) -> None:
    """Its workers end well, and the job says so."""
    for each in machine.pods():
        machine.end(each, code=0)
    comes_to(team, machine, n.PHASE_SUCCEEDED, attempt=attempt)


def live(team: Team) -> dict[str, str]:
    """The objects of the job, by kind and name, with the uid. For a Job also whether it is suspended."""
    found = {}
    for path in (team.batch(), team.core("pods"), team.core("services"), team.core("persistentvolumeclaims")):
        for each in team.server.request("GET", path).body["items"]:
            stopped = "suspended" if (each.get("spec") or {}).get("suspend") else ""
            found[f"{path} {each['metadata']['name']} {stopped}"] = each["metadata"]["uid"]
    return found
