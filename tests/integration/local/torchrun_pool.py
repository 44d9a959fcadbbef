"""A Karpenter pool without Karpenter: machines come when placeholders ask for them, and workers take their places.

Its kinds are Karpenter's own definitions.
"""

from __future__ import annotations

from typing import Any

from local.tools.registry import module_directory
from tests.integration.local.own_api_server import ApiServer
from tests.integration.local.torchrun_controller import Team
from tests.integration.local.torchrun_machine import INDEX
from trainyard.k8s import names
from trainyard.operator.children import GPU_RESOURCE

KARPENTER = "/apis/karpenter.sh/v1"
NODES = "/api/v1/nodes"
GPUS = 8
MOST_NODES = 4
_KINDS = ("nodepools", "nodeclaims")
_PRIORITY_CLASS = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": names.PLACEHOLDER_PRIORITY_CLASS},
    "value": -10,
}
_MACHINE = {
    "conditions": [{"type": "Ready", "status": "True"}],
    "allocatable": {"cpu": "96", "memory": "1Ti", "pods": "110", GPU_RESOURCE: str(GPUS)},
}


def install(server: ApiServer) -> None:
    """Karpenter's kinds, and the priority class of placeholders."""
    directory = module_directory("karpenter") / "pkg" / "apis" / "crds"
    for each in _KINDS:
        applied = server.kubectl("apply", "-f", str(directory / f"karpenter.sh_{each}.yaml"))
        assert applied.returncode == 0, applied.stderr
    names = [f"crd/{each}.karpenter.sh" for each in _KINDS]
    server.established(*names)
    _make(server, "/apis/scheduling.k8s.io/v1/priorityclasses", _PRIORITY_CLASS)


class Pool:
    """The pool of a team, which has the team's name."""

    def __init__(self, team: Team) -> None:
        self._team = team
        self.name = team.name
        reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": self.name}
        offers = [{"key": names.LABEL_CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]}]
        spec = {
            "limits": {GPU_RESOURCE: str(GPUS * MOST_NODES)},
            "template": {"spec": {"nodeClassRef": reference, "requirements": offers}},
        }
        pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": self.name}}
        _make(team.server, f"{KARPENTER}/nodepools", {**pool, "spec": spec})

    def place(self, pod: dict[str, Any]) -> str:
        """The machine of a pod of this pool, "" for any other: one for each placeholder, and then for its worker."""
        labels, name = pod["metadata"]["labels"], pod["metadata"]["name"]
        if (pod["spec"].get("nodeSelector") or {}).get(names.LABEL_NODEPOOL) != self.name:
            return ""
        if labels.get(names.LABEL_ROLE) == names.ROLE_PLACEHOLDER:
            return self._bought(name.rpartition("-")[2])
        index = labels[INDEX]
        self._displace(index)
        return self._bought(index)

    def close(self) -> None:
        """The pool and its machines are gone."""
        self._team.server.request("DELETE", f"{KARPENTER}/nodepools/{self.name}")
        for index in range(MOST_NODES):
            self._team.server.request("DELETE", f"{NODES}/{self.name}-{index}")

    def _bought(self, index: str) -> str:
        name, server = f"{self.name}-{index}", self._team.server
        labels = {names.LABEL_NODEPOOL: self.name, names.LABEL_INITIALIZED: "true"}
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
        if server.request("GET", f"{NODES}/{name}").status == 404:
            _make(server, NODES, node)
            # Kubernetes' node controller, which is not here, takes the taint away that a new machine has.
            for path, body in (("/status", {"status": _MACHINE}), ("", {"spec": {"taints": None}})):
                merge = "application/merge-patch+json"
                answer = server.request("PATCH", f"{NODES}/{name}{path}", body, content=merge)
                assert answer.status == 200, answer.message
        return name

    def _displace(self, index: str) -> None:
        """What the scheduler does with a pod of less priority."""
        for pod in self._team.server.request("GET", self._team.core("pods")).body["items"]:
            meta = pod["metadata"]
            if (
                meta["labels"].get(names.LABEL_ROLE) == names.ROLE_PLACEHOLDER
                and pod["spec"].get("nodeName") == f"{self.name}-{index}"
            ):
                path = f"{self._team.core('pods', meta['name'])}?gracePeriodSeconds=0"
                self._team.server.request("DELETE", path)


def _make(server: ApiServer, path: str, body: dict[str, Any]) -> None:
    answer = server.request("POST", path, body)
    assert answer.status == 201, answer.message
