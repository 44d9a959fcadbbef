"""The small API server with a Karpenter pool behind it: machines come and go, a scheduler places what asks for them."""

from __future__ import annotations

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
    """`limit` is how many machines the pool may have, `left` how many more EC2 gives; `others` are pods of others.

    Lists that are not read again do not have the `unheard` of them yet.

    A machine is usable `starts` looks of Karpenter after it was bought.
    """

    places = False

    def __init__(self, limit: int | None = 4) -> None:
        super().__init__()
        self.nodes: dict[str, JsonObject] = {}
        self.claims: dict[str, JsonObject] = {}
        self.others: dict[str, JsonObject] = {}
        self.unheard: set[str] = set()
        self.warnings: list[JsonObject] = []
        self.limit, self.left, self.starts = limit, 1000, 1
        self.offers = dict(OFFERS)
        self.taints: list[JsonObject] = [{"key": GPU, "effect": "NoSchedule"}]
        self.exists = True
        self.annotations: JsonObject = {}
        self.limits: JsonObject = {}
        self.reservations: list[JsonObject] = []
        self.bought = 0
        self.most_held = 0
        self.log: list[str] = []

    # --- what the controller reads

    def observation(self, *, fresh: bool = True) -> Observation:
        """The pool as a list of each kind shows it."""
        pods = [each for (kind, _), each in self.objects.items() if kind == "Pod"]
        others = [each for name, each in self.others.items() if fresh or name not in self.unheard]
        return Observation(
            now=self.now,
            fresh=fresh,
            nodes=tuple(observe.node(each) for each in self.nodes.values()),
            claims=tuple(observe.claim(each, self.now) for each in self.claims.values()),
            pool=self._pool() if self.exists else None,
            pods=tuple(observe.pod(each) for each in (*pods, *others)),
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
        return {
            "metadata": {"name": POOL, "annotations": self.annotations},
            "spec": {"template": template, **limits},
        }

    def put_status(self, item: JsonObject, status: JsonObject) -> bool:
        """Notes those that were taken."""
        taken = super().put_status(item, status)
        self.log += ["put"] if taken else []
        return taken

    def delete(
        self, kind: str, name: str, uid: str = "", version: str = "", *, foreground: bool = False
    ) -> None:
        if kind == "NodeClaim":
            self.lose(self.claims[name]["status"].get("nodeName", ""), name) if name in self.claims else None
        else:
            super().delete(kind, name, uid, version, foreground=foreground)

    # --- what Karpenter, EC2, kubelets and people do

    def add(self, name: str, **changes: Any) -> JsonObject:
        """A machine that is ready, but for the changes."""
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
        """The machine is gone, with all that was on it."""
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
        """A pod of somebody else comes to this machine, if there is room."""
        if self.free(self.nodes[name]):
            spec = {"nodeName": name, "containers": [{"resources": {"requests": {GPU: "8"}}}]}
            meta = {"name": f"other-{name}", "namespace": "default", "uid": f"other-{name}"}
            self.others[meta["name"]] = {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}

    def pods_on(self, name: str) -> list[JsonObject]:
        return [
            each
            for (kind, _), each in self.objects.items()
            if kind == "Pod" and each["spec"].get("nodeName") == name and _phase(each) not in OVER
        ]

    def usable(self, node: JsonObject) -> bool:
        """Whether a worker could be there if nothing else were."""
        taints = {each["key"] for each in node["spec"]["taints"]}
        return (
            node["status"]["conditions"][0]["status"] == "True"
            and not node["spec"]["unschedulable"]
            and taints <= {GPU}
            and node["metadata"]["labels"].get(names.LABEL_INITIALIZED) == "true"
            and node["status"]["allocatable"].get(GPU) == "8"
        )

    def free(self, node: JsonObject) -> bool:
        name = node["metadata"]["name"]
        busy = any(each["spec"]["nodeName"] == name for each in self.others.values())
        return self.usable(node) and not busy and not self.pods_on(name)

    def turn(self) -> None:
        """The scheduler, then Karpenter, then machines come on."""
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
        """Karpenter asks EC2 for a machine."""
        if self.limit is not None and len(self.claims) >= self.limit:
            return
        self.bought += 1
        name = f"{POOL}-{self.bought:05d}"
        if self.left <= 0:
            self.warn(
                "NodeClaim", name, "InsufficientInstanceCapacity: no capacity", "InsufficientCapacityError"
            )
            return
        self.left -= 1
        meta = {"name": name, "uid": name, "creationTimestamp": stamp(self.now)}
        required = {"key": mark("team", f"{n.RUN_PREFIX}vit"), "operator": "DoesNotExist"}
        spec = {"requirements": [required]}
        self.claims[name] = {"metadata": meta, "spec": spec, "status": {}, "left": self.starts}

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
            for (kind, _), each in self.objects.items()
            if kind == "Pod"
            and not each["spec"].get("nodeName")
            and not each["metadata"]["name"].endswith("-sync-0")
            and "deletionTimestamp" not in each["metadata"]
        ]

    def schedule(self) -> None:
        """Gives nodes to pods, workers first; a worker takes the place of a placeholder where nothing else is free."""
        self.settle()
        for pod in sorted(self.pods_without_node(), key=lambda each: _role(each) == names.ROLE_PLACEHOLDER):
            nodes = list(self.nodes.values())
            place = next((each for each in nodes if self.free(each)), None)
            if place is None and _role(pod) != names.ROLE_PLACEHOLDER:
                place = next((each for each in nodes if self._gives_way(each)), None)
                if place is not None:
                    for each in self.pods_on(place["metadata"]["name"]):
                        self.delete("Pod", each["metadata"]["name"])
                    self.settle()
            if place is not None and ("Pod", pod["metadata"]["name"]) in self.objects:
                pod["spec"]["nodeName"] = place["metadata"]["name"]
                pod.setdefault("status", {})["phase"] = "Pending"
                self.touch(pod)
        held = [each for each in self.objects.values() if _role(each) == names.ROLE_PLACEHOLDER]
        self.most_held = max(self.most_held, len(held))

    def _gives_way(self, node: JsonObject) -> bool:
        name = node["metadata"]["name"]
        here = self.pods_on(name)
        busy = any(each["spec"]["nodeName"] == name for each in self.others.values())
        lower = [_role(each) == names.ROLE_PLACEHOLDER and not each["metadata"].get("stuck") for each in here]
        return self.usable(node) and not busy and all(lower)

    def nodes_of_placeholders(self) -> int:
        """How many usable nodes the job's placeholders have: what an attempt may begin with."""
        held = {
            each["spec"]["nodeName"]
            for each in self.objects.values()
            if _role(each) == names.ROLE_PLACEHOLDER
            and each["spec"].get("nodeName")
            and "deletionTimestamp" not in each["metadata"]
        }
        return sum(self.usable(self.nodes[name]) for name in held if name in self.nodes)

    def placeholders(self) -> list[str]:
        return sorted(
            each["metadata"]["name"]
            for each in self.objects.values()
            if _role(each) == names.ROLE_PLACEHOLDER and "deletionTimestamp" not in each["metadata"]
        )

    def workers(self) -> list[JsonObject]:
        return [
            each
            for (kind, _), each in self.objects.items()
            if kind == "Pod" and n.LABEL_ATTEMPT in each["metadata"]["labels"] and _phase(each) not in OVER
        ]


def _role(item: JsonObject) -> str:
    return str((item["metadata"].get("labels") or {}).get(names.LABEL_ROLE, ""))


def _phase(pod: JsonObject) -> str:
    return str(pod.get("status", {}).get("phase", "Pending"))


def _initialized(claim: JsonObject) -> bool:
    return bool(claim["status"])
