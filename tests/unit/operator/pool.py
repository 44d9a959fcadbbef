"""A small API server with a Karpenter pool: nodes are launched and lost, and a scheduler places the pods."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from launcher import observe
from launcher.manifests import mark, stamp
from launcher.observe import Observation
from tests.unit.operator.api import Api, JsonObject
from trainyard.k8s import names
from trainyard.operator import names as n

POOL = "p5"
GPU = "nvidia.com/gpu"
MACHINE = {"cpu": "97", "memory": "1Ti", GPU: "8"}
OFFERS = {
    names.LABEL_INSTANCE_TYPE: "p5.48xlarge",
    names.LABEL_ZONE: "us-west-2b",
    names.LABEL_CAPACITY_TYPE: "on-demand",
}
OVER = ("Succeeded", "Failed")


class PoolApi(Api):
    """A Karpenter pool, its nodes and their pods.

    Attributes:
        others: The pods of other workloads.
        unheard: The names of those that cached lists do not have yet.
        limit: The maximum number of nodes of the pool.
        left: The number of instances that EC2 can still launch.
        bought: The number of NodeClaims that Karpenter has created.
        most_held: The highest number of placeholders at one time.
        log: Each accepted write of a status.
    """

    places = False

    def __init__(self, limit: int | None = 4) -> None:
        super().__init__()
        self.nodes: dict[str, JsonObject] = {}
        self.claims: dict[str, JsonObject] = {}
        self.others: dict[str, JsonObject] = {}
        self.unheard: set[str] = set()
        self.warnings: list[JsonObject] = []
        self.limit, self.left = limit, 1000
        self.offers = dict(OFFERS)
        self.taints: list[JsonObject] = [{"key": GPU, "effect": "NoSchedule"}]
        self.exists = True
        self.annotations: JsonObject = {}
        self.limits: JsonObject = {}
        self.reservations: list[JsonObject] = []
        self.bought = 0
        self.most_held = 0
        self.log: list[str] = []

    def observation(self, *, fresh: bool = True) -> Observation:
        """Return the pool as the controller reads it."""
        others = [each for name, each in self.others.items() if fresh or name not in self.unheard]
        return Observation(
            now=self.now,
            fresh=fresh,
            nodes=tuple(observe.node(each) for each in self.nodes.values()),
            claims=tuple(observe.claim(each) for each in self.claims.values()),
            pool=self._pool() if self.exists else None,
            pods=tuple(observe.pod(each) for each in (*self.of_kind("Pod"), *others)),
            warnings=tuple(observe.warning_event(each) for each in self.warnings),
        )

    def _pool(self) -> observe.NodePool:
        conditions = [{"type": "CapacityReservationsReady", "status": "True"}]
        status = {"capacityReservations": self.reservations, "conditions": conditions}
        named = observe.reserved_class(self.pool())
        return observe.node_pool(self.pool(), {"status": status} if named else None)

    def pool(self) -> JsonObject:
        limits = {} if self.limit is None else {"limits": self.limits or {GPU: str(8 * self.limit)}}
        requirements = [
            {"key": key, "operator": "In", "values": value.split(",")} for key, value in self.offers.items()
        ]
        named = {"group": observe.NODE_CLASS_GROUP, "kind": "EC2NodeClass", "name": POOL}
        template = {"spec": {"requirements": requirements, "taints": self.taints, "nodeClassRef": named}}
        meta = {"name": POOL, "annotations": self.annotations}
        return {"metadata": meta, "spec": {"template": template, **limits}}

    def put_status(self, item: JsonObject, status: JsonObject) -> bool:
        is_written = super().put_status(item, status)
        self.log += ["put"] if is_written else []
        return is_written

    def delete(
        self, kind: str, name: str, uid: str = "", version: str = "", *, foreground: bool = False
    ) -> None:
        if kind == "NodeClaim":
            self.lose(self.claims[name]["status"].get("nodeName", ""), name) if name in self.claims else None
        else:
            super().delete(kind, name, uid, version, foreground=foreground)

    def add(self, name: str, **changes: Any) -> JsonObject:
        """Add a node that is ready, except for the changes of these fields."""
        labels = {
            names.LABEL_NODEPOOL: POOL,
            names.LABEL_INITIALIZED: "true",
            **{key: value.partition(",")[0] for key, value in self.offers.items()},
        }
        item: JsonObject = {
            "metadata": {"name": name, "labels": labels},
            "spec": {"taints": deepcopy(self.taints), "unschedulable": False},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "allocatable": dict(MACHINE),
            },
        }
        for path, value in changes.items():
            *above, last = path.split("__")
            place = item
            for each in above:
                place = place[each]
            place[last] = value
        self.nodes[name] = item
        return item

    def ready(self, name: str, so: bool) -> None:
        self.nodes[name]["status"]["conditions"] = [{"type": "Ready", "status": "True" if so else "False"}]

    def lose(self, name: str, claim: str = "") -> None:
        """Delete a node, its NodeClaim and its pods."""
        self.nodes.pop(name, None)
        for key in [
            key for key, each in self.claims.items() if key == claim or each["status"].get("nodeName") == name
        ]:
            del self.claims[key]
        for each in [each for each in self.others.values() if each["spec"]["nodeName"] == name]:
            del self.others[each["metadata"]["name"]]
        for pod in self.pods_on(name):
            self.delete("Pod", pod["metadata"]["name"])
        self.settle()

    def occupy(self, name: str) -> None:
        """Place a pod of another workload on this node, if it is free."""
        if self.free(self.nodes[name]):
            spec = {"nodeName": name, "containers": [{"resources": {"requests": {GPU: "8"}}}]}
            meta = {"name": f"other-{name}", "namespace": "default", "uid": f"other-{name}"}
            self.others[meta["name"]] = {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}

    def pods_on(self, name: str) -> list[JsonObject]:
        pods = self.of_kind("Pod")
        return [each for each in pods if each["spec"].get("nodeName") == name and _phase(each) not in OVER]

    def usable(self, node: JsonObject) -> bool:
        """Return whether an empty node like this one can run a worker."""
        return (
            node["status"]["conditions"][0]["status"] == "True"
            and not node["spec"]["unschedulable"]
            and {each["key"] for each in node["spec"]["taints"]} <= {GPU}
            and node["metadata"]["labels"].get(names.LABEL_INITIALIZED) == "true"
            and node["status"]["allocatable"].get(GPU) == "8"
        )

    def free(self, node: JsonObject, pods: Iterable[JsonObject] | None = None) -> bool:
        """Return whether a worker fits on a node, without these pods of the job."""
        name = node["metadata"]["name"]
        busy = any(each["spec"]["nodeName"] == name for each in self.others.values())
        return self.usable(node) and not busy and not (self.pods_on(name) if pods is None else pods)

    def turn(self) -> None:
        """Place pods, create NodeClaims for the others, and let the nodes of earlier NodeClaims start."""
        self.schedule()
        waiting = self.pods_without_node()
        coming = [each for each in self.claims.values() if not _initialized(each)]
        for _ in range(len(waiting) - len(coming)):
            self.buy()
        for name, claim in list(self.claims.items()):
            claim["left"] -= 1
            if claim["left"] < 0 and not _initialized(claim):
                self.add(f"node-{name}")
                claim["status"] = {
                    "nodeName": f"node-{name}",
                    "conditions": [{"type": kind, "status": "True"} for kind in ("Launched", "Initialized")],
                }
        self.schedule()

    def buy(self) -> None:
        """Create a NodeClaim, or an Event if EC2 has no capacity."""
        if self.limit is not None and len(self.claims) >= self.limit:
            return
        self.bought += 1
        name = f"{POOL}-{self.bought:05d}"
        if self.left <= 0:
            message = "InsufficientInstanceCapacity: no capacity"
            self.warn("NodeClaim", name, message, "InsufficientCapacityError")
            return
        self.left -= 1
        meta = {"name": name, "uid": name, "creationTimestamp": stamp(self.now)}
        required = {"key": mark("team", f"{n.RUN_PREFIX}vit"), "operator": "DoesNotExist"}
        spec = {"requirements": [required]}
        self.claims[name] = {"metadata": meta, "spec": spec, "status": {}, "left": 1}

    def warn(self, kind: str, name: str, message: str, reason: str = "FailedScheduling") -> None:
        self.warnings.append({
            "metadata": {"name": f"w{len(self.warnings)}", "uid": f"w{len(self.warnings)}"},
            "involvedObject": {"kind": kind, "name": name},
            "reason": reason,
            "message": message,
            "lastTimestamp": stamp(self.now),
        })  # fmt: skip

    def pods_without_node(self) -> list[JsonObject]:
        return [
            each
            for each in self.of_kind("Pod")
            if not each["spec"].get("nodeName")
            and not each["metadata"]["name"].endswith("-sync-0")
            and "deletionTimestamp" not in each["metadata"]
        ]

    def schedule(self) -> None:
        """Place the pods, workers first. A worker preempts a placeholder if no other node is free."""
        self.settle()
        for pod in sorted(self.pods_without_node(), key=lambda each: _is_placeholder(each)):
            nodes = list(self.nodes.values())
            place = next((each for each in nodes if self.free(each)), None)
            if place is None and not _is_placeholder(pod):
                place = next((each for each in nodes if self._gives_way(each)), None)
                if place is not None:
                    for each in self.pods_on(place["metadata"]["name"]):
                        self.delete("Pod", each["metadata"]["name"])
                    self.settle()
            if place is not None and ("Pod", pod["metadata"]["name"]) in self.objects:
                pod["spec"]["nodeName"] = place["metadata"]["name"]
                pod.setdefault("status", {})["phase"] = "Pending"
                self.touch(pod)
        held = [each for each in self.objects.values() if _is_placeholder(each)]
        self.most_held = max(self.most_held, len(held))

    def _gives_way(self, node: JsonObject) -> bool:
        pods = self.pods_on(node["metadata"]["name"])
        return self.free(
            node, [each for each in pods if not _is_placeholder(each) or each["metadata"].get("stuck")]
        )

    def nodes_of_placeholders(self) -> int:
        """Return the number of usable nodes with a placeholder: those with which an attempt may start."""
        held = {self.objects["Pod", name]["spec"].get("nodeName") for name in self.placeholders()}
        return sum(self.usable(self.nodes[name]) for name in held if name in self.nodes)

    def placeholders(self) -> list[str]:
        return sorted(
            each["metadata"]["name"]
            for each in self.objects.values()
            if _is_placeholder(each) and "deletionTimestamp" not in each["metadata"]
        )

    def workers(self) -> list[JsonObject]:
        pods = (each for each in self.of_kind("Pod") if n.LABEL_ATTEMPT in each["metadata"]["labels"])
        return [each for each in pods if _phase(each) not in OVER]


def _is_placeholder(item: JsonObject) -> bool:
    return (item["metadata"].get("labels") or {}).get(names.LABEL_ROLE) == names.ROLE_PLACEHOLDER


def _phase(pod: JsonObject) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _initialized(claim: JsonObject) -> bool:
    return bool(claim["status"])
