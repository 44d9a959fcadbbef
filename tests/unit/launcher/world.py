"""A cluster in miniature with Karpenter and a scheduler, driven by a seeded random generator.

It keeps the truth about its nodes in flags of its own and shows the launcher Kubernetes objects, so that
a wrong reading of them counts as a wrong count.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from launcher.core import machine, manifests, observe
from launcher.core.machine import Action, End, Hold, Memory, Recount, Remove, Start
from launcher.core.manifests import Owner
from launcher.core.observe import Observation
from launcher.core.request import Request

OWNER = Owner(name="launch-r1", uid="owner")
TICK = 4.0
EPOCH = 1_800_000_000.0


@dataclass
class Machine:
    """The truth about one node. `ready_at` and `gpus_at` are moments; None is never."""

    name: str
    ready_at: float
    gpus_at: float | None
    flapping_until: float = 0.0
    cordoned: bool = False
    startup_taint_until: float = 0.0
    foreign: bool = False

    def usable(self, now: float) -> bool:
        """Whether a worker would run here now."""
        return (
            now >= self.ready_at
            and self.gpus_at is not None
            and now >= self.gpus_at
            and now >= self.flapping_until
            and now >= self.startup_taint_until
            and not self.cordoned
            and not self.foreign
        )


@dataclass
class World:
    """One trace. What must never happen is gathered in `wrongs`."""

    request: Request
    seed: int
    now: float = EPOCH
    nodes: dict[str, Machine] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    training: tuple[int, float] | None = None
    submits: int = 0
    wrongs: list[str] = field(default_factory=list)
    bought: int = 0
    code: int | None = None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311
        choose = self.random.choice
        self.limit = choose([2, 3, 4, 4, 4, 6])
        self.refusing_until = self.now + choose([0, 0, 60, 200, 10_000])
        self.slow_gpus = choose([0.0, 0.2, 0.6])
        self.trouble = choose([0.0, 0.02, 0.08])
        self.crashes = choose([0.0, 0.0, 0.05])
        self.lagging = self._observe(fresh=False)

    # -- what the launcher sees

    def observe(self, fresh: bool) -> Observation:
        """The truth if fresh, else what a lagging cache shows."""
        if fresh:
            self._advance(0.5)  # time passes between any two requests
            return self._observe(fresh=True)
        shown = self.lagging if self.random.random() < 0.3 else self._observe(fresh=False)
        return Observation(**{**vars(shown), "now": self.now, "training": self._training()})

    def _observe(self, fresh: bool) -> Observation:
        limits = {"nvidia.com/gpu": str(self.limit * self.request.pool.per_node)}
        foreign = [self._foreign_pod(node.name) for node in self.nodes.values() if node.foreign]
        return Observation(
            now=self.now,
            fresh=fresh,
            nodes=tuple(observe.node(self._node(node)) for node in self.nodes.values()),
            claims=(),
            pool=observe.node_pool({"metadata": {"name": "small"}, "spec": {"limits": limits}}),
            pods=tuple(observe.pod(item) for item in (*self.pods.values(), *foreign)),
            training=self._training(),
        )

    def _training(self) -> observe.Training | None:
        if self.training is None:
            return None
        done = self.now > self.training[1] + 40
        return observe.Training(
            uid="t", ours=True, nodes=self.training[0], outcome="Succeeded" if done else "", message=""
        )

    def _node(self, node: Machine) -> dict[str, Any]:
        ready = node.ready_at <= self.now and self.now >= node.flapping_until
        taints = [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
        if self.now < node.startup_taint_until:
            taints.append({"key": "example.com/starting", "effect": "NoSchedule"})
        gpus = node.gpus_at is not None and self.now >= node.gpus_at
        labels = {"karpenter.sh/nodepool": "small"}
        if ready and gpus:
            labels["karpenter.sh/initialized"] = "true"
        return {
            "metadata": {"name": node.name, "labels": labels},
            "spec": {"taints": taints, **({"unschedulable": True} if node.cordoned else {})},
            "status": {
                "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
                "allocatable": {"cpu": "47", "memory": "180Gi", "nvidia.com/gpu": "4" if gpus else "0"},
            },
        }

    def _foreign_pod(self, node: str) -> dict[str, Any]:
        return {
            "metadata": {"name": f"other-{node}", "namespace": "default", "uid": f"other-{node}"},
            "spec": {"nodeName": node, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
            "status": {"phase": "Running"},
        }

    # -- what happens by itself

    def _advance(self, seconds: float) -> None:
        self.lagging = self._observe(fresh=False)
        self.now += seconds
        for name, pod in list(self.pods.items()):
            if "deletionTimestamp" in pod["metadata"]:
                del self.pods[name]
        for node in list(self.nodes.values()):
            if self.random.random() < self.trouble * seconds / TICK:
                self._upset(node)
        waiting = [pod for pod in self.pods.values() if not pod["spec"].get("nodeName")]
        taken = {pod["spec"].get("nodeName") for pod in self.pods.values()}
        for node in self.nodes.values():
            if waiting and node.usable(self.now) and node.name not in taken:
                waiting.pop()["spec"]["nodeName"] = node.name
        coming = sum(not node.usable(self.now) and not node.foreign for node in self.nodes.values())
        if len(waiting) > coming and len(self.nodes) < self.limit and self.now >= self.refusing_until:
            self._buy()

    def _buy(self) -> None:
        self.bought += 1
        ready = self.now + self.random.uniform(5, 60)
        late = self.random.random() < self.slow_gpus
        gpus = self.random.choice([None, ready + 90]) if late else ready + self.random.uniform(0, 5)
        name = f"node-{self.bought}"
        self.nodes[name] = Machine(name, ready, gpus, startup_taint_until=ready + self.random.choice([0, 10]))

    def _upset(self, node: Machine) -> None:
        match self.random.choice(["flap", "lose", "cordon", "foreign"]):
            case "flap":
                node.flapping_until = self.now + self.random.uniform(1, 20)
            case "lose":
                del self.nodes[node.name]
                self.pods = {n: p for n, p in self.pods.items() if p["spec"].get("nodeName") != node.name}
            case "cordon":
                node.cordoned = not node.cordoned
            case _:
                node.foreign = not node.foreign
                self.pods = {n: p for n, p in self.pods.items() if p["spec"].get("nodeName") != node.name}

    # -- what the launcher does

    def run(self) -> None:
        """Runs a launcher, which may be killed at any round, to its end."""
        memory = Memory()
        for _ in range(400):
            if self.random.random() < self.crashes:
                memory = Memory()
            memory = self._round(memory)
            if self.code is not None:
                return
            self._advance(TICK)
        self.wrongs.append("it never ended")

    def _round(self, memory: Memory) -> Memory:
        fresh = False
        for _ in range(50):
            step = machine.step(self.request, memory, self.observe(fresh))
            memory = step.memory
            for action in step.actions:
                self._do(action)
            if not any(isinstance(action, Recount) for action in step.actions):
                return memory
            fresh = True
        self.wrongs.append("it counted for ever")
        return memory

    def _do(self, action: Action) -> None:
        match action:
            case Hold(index=index, waiting_since=since):
                pod = manifests.placeholder(self.request, index, OWNER, since)
                pod["metadata"]["uid"] = f"{index}@{self.now}"
                self.pods.setdefault(pod["metadata"]["name"], pod)
                if len(self.pods) > min(self.request.max_nodes, self.limit):
                    self.wrongs.append(f"{len(self.pods)} placeholders")
            case Remove(name=name, uid=uid):
                if name in self.pods and self.pods[name]["metadata"]["uid"] == uid:
                    self.pods[name]["metadata"]["deletionTimestamp"] = "now"
            case Start(nodes=nodes):
                self._start(nodes)
            case End(code=code):
                self.code = code
                left = [name for name, pod in self.pods.items() if "deletionTimestamp" not in pod["metadata"]]
                if left:
                    self.wrongs.append(f"{left} left behind")
            case Recount():
                pass

    def _start(self, nodes: int) -> None:
        self.submits += 1
        true = min(sum(node.usable(self.now) for node in self.nodes.values()), self.request.max_nodes)
        if nodes != true:
            self.wrongs.append(f"submitted {nodes} of {true} nodes")
        if not self.request.min_nodes <= nodes <= self.request.max_nodes:
            self.wrongs.append(f"submitted {nodes}, outside MIN and MAX")
        alive = [pod for pod in self.pods.values() if "deletionTimestamp" not in pod["metadata"]]
        if len(alive) > nodes:
            self.wrongs.append(f"{len(alive) - nodes} surplus placeholders at the submit")
        self.training = (nodes, self.now)
