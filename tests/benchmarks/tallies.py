"""Metrics of a trace of the launcher's unit tests: the worlds that were started, and idle nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from launcher.request import Request
from tests.unit.launcher.trace import Trace
from tests.unit.launcher.world import EPOCH, TICK, World

Object = dict[str, Any]
# After the end of a run, until the last machine is up and was empty for long enough (as in Trace).
TAIL_TICKS = 50
_FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True, kw_only=True)
class Start:
    """A run of `nodes` workers that started when `usable` nodes could run one."""

    nodes: int
    usable: int
    least: int
    most: int

    @property
    def wrong(self) -> bool:
        """Whether the world differs from MIN to MAX of the usable nodes."""
        return self.nodes != min(self.usable, self.most) or self.below

    @property
    def below(self) -> bool:
        """Whether it is smaller than MIN, whatever was there."""
        return self.nodes < self.least


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One trace under one way to start a training. `idle` is in node-seconds.

    `reached` says whether MIN machines were usable before the decision, and `trained` whether a training ran to its
    end. `gathered` is how many seconds after the submit all workers ran: infinite for never, None where a world only
    starts with running workers. A restart stops running workers; `by_arrival` counts those for a new node.
    """

    starts: tuple[Start, ...]
    idle: float
    reached: bool
    trained: bool
    gathered: float | None = None
    restarts: int = 0
    by_arrival: int = 0


@dataclass
class TalliedWorld(World):
    """A world that adds up the idle time of its nodes.

    A usable node without a worker is idle. So is each surplus node above `wanted`, also while it boots. `wanted` is
    MAX while a run waits, the number of workers once the job is submitted, and 0 after its end. A node that runs
    other pods is not idle. Nodes from before the run count like new ones. The caller sets `decided`, `wanted` and
    the `members` of an elastic job.
    """

    idle: float = 0.0
    decided: bool = False
    wanted: int = 0
    most_usable: int = 0
    members: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.wanted = self.request.max_nodes

    def advance(self, seconds: float) -> None:
        self.idle += seconds * self.idling()
        super().advance(seconds)
        if not self.decided:
            self.most_usable = max(self.most_usable, len(self.usable(self.request.pool.name)))

    def on(self, node: str) -> list[Object]:
        """As in World, without finished pods: Karpenter takes a machine with only those for an empty one."""
        return [pod for pod in super().on(node) if pod.get("status", {}).get("phase") not in _FINISHED]

    def usable(self, pool: str) -> list[str]:
        """The machines of a pool where a worker would run now."""
        return [name for name, one in self.machines.items() if one.pool == pool and one.usable(self.now)]

    def trained_on(self) -> frozenset[str]:
        """Return the nodes with a worker of the current job."""
        if self.training is None or self.training["status"]:
            return self.members
        workers = (pod for name, pod in self.pods.items() if name.startswith("w-"))
        return frozenset(str(pod["spec"].get("nodeName")) for pod in workers)

    def idling(self) -> int:
        """How many machines idle now."""
        busy = self.trained_on()
        others = [one for one in self.machines.values() if one.name not in busy and not one.foreign]
        usable = sum(one.usable(self.now) for one in others)
        needed = max(0, self.wanted - len(busy) - usable)
        return usable + max(0, len(others) - usable - needed)

    def keep(self, kind: str, number: int) -> None:
        """So many pods of this kind (`hold` or `w`): what is missing is made again, as a controller does."""
        for name in (f"{kind}-{index}" for index in range(number)):
            if name not in self.pods:
                selector = {"karpenter.sh/nodepool": self.request.pool.name}
                self.pods[name] = {
                    "metadata": {"name": name, "namespace": self.request.namespace, "uid": name},
                    "spec": {"nodeSelector": selector},
                    "status": {"phase": "Pending"},
                }

    def remove(self, kind: str) -> None:
        """Deletes the pods of this kind; they are gone when time passes."""
        for name, pod in self.pods.items():
            if name.startswith(f"{kind}-"):
                pod["metadata"]["deletionTimestamp"] = "now"

    def placed(self) -> frozenset[str]:
        """Return the nodes that have a worker."""
        workers = [pod for name, pod in self.pods.items() if name.startswith("w-")]
        return frozenset(pod["spec"]["nodeName"] for pod in workers if pod["spec"].get("nodeName"))

    def start(self, nodes: int, also: Iterable[str] = ()) -> Start:
        """Start a run on `nodes` nodes now; `also` names unusable nodes that count as well."""
        usable = {*self.usable(self.request.pool.name), *also}
        return Start(
            nodes=nodes, usable=len(usable), least=self.request.min_nodes, most=self.request.max_nodes
        )

    def elapsed(self) -> float:
        """Seconds since the trace began."""
        return self.now - EPOCH

    def run_out(self) -> None:
        """Advance past the run: no placeholders, no more faults, and empty nodes are removed."""
        self.decided, self.wanted, self.trouble, self.members = True, 0, 0.0, frozenset()
        self.remove("hold")
        self.remove("w")
        for _ in range(TAIL_TICKS):
            self.advance(TICK)

    def outcome(self, starts: Iterable[Start], *, trained: bool, **more: Any) -> Outcome:
        """What became of this trace; `more` are other fields of Outcome."""
        reached = self.most_usable >= self.request.min_nodes
        return Outcome(starts=tuple(starts), idle=self.idle, reached=reached, trained=trained, **more)


@dataclass
class TalliedTrace(Trace):
    """A trace of the real launcher, as the unit tests run it, on a world that adds up."""

    def __post_init__(self) -> None:
        self.world: TalliedWorld = TalliedWorld(self.request, self.seed)
        self.random = self.world.random
        self.starts: list[Start] = []

    def create_training(self, request: Request, manifest: Object) -> bool:
        before, usable = self.submits, self.world.usable(request.pool.name)
        try:
            return super().create_training(request, manifest)
        finally:  # it may be killed right after
            if self.submits > before:
                replicas = manifest["spec"]["pytorchReplicaSpecs"].values()
                nodes = sum(replica["replicas"] for replica in replicas)
                self.starts.append(
                    Start(nodes=nodes, usable=len(usable), least=request.min_nodes, most=request.max_nodes)
                )
                self.world.decided, self.world.wanted = True, nodes

    def delete_training(self, request: Request, uid: str) -> None:
        super().delete_training(request, uid)
        self.world.wanted = request.max_nodes

    def _judge_end(self) -> None:
        self.world.decided, self.world.wanted = True, 0
        super()._judge_end()

    def outcome(self) -> Outcome:
        """Runs it to its end."""
        self.run()
        training = self.world.training
        done = (
            training is not None and training["status"].get("conditions", [{}])[0].get("type") == "Succeeded"
        )
        return self.world.outcome(self.starts, trained=done, restarts=max(0, len(self.starts) - 1))
