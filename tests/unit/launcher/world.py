"""A cluster in miniature with Karpenter and a scheduler, driven by a seeded random generator.

It keeps the truth about its machines in flags of its own and shows the launcher Kubernetes objects, so that
a wrong reading of them counts as a wrong count.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from launcher import backends, observe
from launcher.manifests import stamp
from launcher.observe import Observation
from launcher.request import Request
from tests.unit.launcher import kubernetes_objects
from tests.unit.launcher.conftest import made_for
from trainyard.k8s import names

EPOCH = 1_800_000_000.0
TICK = 5.0
# An empty machine that Karpenter may take for one goes after this time.
IDLE_SECONDS = 30.0
TRAINING_SECONDS = 40.0
# Workers that wait for a lost one end with an error after this time.
COLLECTIVE_SECONDS = 60.0
ONE_WAY_TO_PAY = {
    "requirements": [{"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}]
}


@dataclass
class Machine:
    """The truth about one machine. `ready_at` and `gpus_at` are moments; None means never.

    `shared` says that a pod of somebody else is or was there.
    """

    name: str
    pool: str
    created: float
    ready_at: float
    gpus_at: float | None
    gpus: int
    flapping_until: float = 0.0
    cordoned: bool = False
    startup_taint_until: float = 0.0
    foreign: bool = False
    shared: bool = False
    initialized: bool = False
    deleting: bool = False
    empty_since: float | None = None

    def complete(self, now: float) -> bool:
        """Whether it has, or had, all that Karpenter waits for, and shows its devices."""
        return self.initialized and self.gpus_at is not None and now >= self.gpus_at

    def usable(self, now: float) -> bool:
        """Whether a worker would run here now."""
        return (
            self.complete(now)
            and now >= self.flapping_until
            and not self.cordoned
            and not self.foreign
            and not self.deleting
        )


@dataclass
class PoolTruth:
    """What a pool can have, and until when EC2 refuses it."""

    limit: int
    refusing_until: float
    slow_gpus: float
    resource: str
    per_node: int


@dataclass
class World:
    """The cluster of one trace. What must never happen is gathered in `wrongs`.

    Only a training with a `spec`, which a launcher made, has distinct workers: `mishap` is when one of
    them ends by itself, and with which code. What happens to those is drawn by a generator of its own, so that
    everything else happens as to a job that somebody else made. Once no launcher looks any more, it is not
    `watched`: nothing is kept of what a lagging cache shows.
    """

    request: Request
    seed: int
    now: float = EPOCH
    machines: dict[str, Machine] = field(default_factory=dict)
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    warnings: list[observe.WarningEvent] = field(default_factory=list)
    training: dict[str, Any] | None = None
    wrongs: list[str] = field(default_factory=list)
    bought: int = 0
    mishap: tuple[float, int] | None = None
    broken_at: float | None = None
    watched: bool = True

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311
        self.fate = random.Random(f"fate of {self.seed}")  # noqa: S311
        choose = self.random.choice
        self.pools: dict[str, PoolTruth] = {}
        for index in range(self.request.candidate_count):
            pool = self.request.candidate(index).pool
            self.pools[pool.name] = PoolTruth(
                limit=choose([1, 2, 3, 4, 4, 4, 6]),
                refusing_until=self.now + choose([0, 0, 60, 200, 500, 10_000]),
                slow_gpus=choose([0.0, 0.2, 0.6]),
                resource=pool.resource,
                per_node=pool.per_node,
            )
        self.trouble = choose([0.0, 0.02, 0.08])
        self.stale: dict[str, Observation] = {}
        for name in self.pools:
            if self.random.random() < 0.2:  # a machine that was there before, which may never work
                self._buy(name, created=self.now - 5000)

    # -- what it shows

    def show(self, pool: str, fresh: bool) -> Observation:
        """The truth if fresh, else what a lagging cache shows; the training job is always true."""
        seen = None if fresh else self.stale.get(pool)
        seen = seen or self._observation(pool)
        return Observation(**{**vars(seen), "now": self.now, "fresh": fresh, "training": self._training()})

    def _observation(self, pool: str) -> Observation:
        truth = self.pools[pool]
        limits = {truth.resource: str(truth.limit * truth.per_node)}
        here = [machine for machine in self.machines.values() if machine.pool == pool]
        foreign = (
            kubernetes_objects.foreign_pod(machine.name)
            for machine in self.machines.values()
            if machine.foreign
        )
        daemons = (kubernetes_objects.daemon_pod(machine.name) for machine in here)
        return Observation(
            now=self.now,
            fresh=True,
            nodes=tuple(self._node(one) for one in here if self.now >= one.ready_at),
            claims=tuple(observe.claim(self._claim(one)) for one in here),
            pool=observe.node_pool(
                {"metadata": {"name": pool}, "spec": {"limits": limits, "template": {"spec": ONE_WAY_TO_PAY}}}
            ),
            pods=(*(observe.pod(item) for item in self.pods.values()), *foreign, *daemons),
            warnings=tuple(self.warnings),
        )

    def _training(self) -> observe.Training | None:
        backend = backends.of(self.request)
        return None if self.training is None else backend.parse(self.training, self.request.run_id)

    def _node(self, machine: Machine) -> observe.Node:
        gpus = machine.gpus if machine.gpus_at is not None and self.now >= machine.gpus_at else 0
        return kubernetes_objects.node(
            machine.name,
            machine.pool,
            gpus,
            ready=self.now >= machine.flapping_until,
            starting=self.now < machine.startup_taint_until,
            initialized=machine.initialized,
            cordoned=machine.cordoned,
        )

    def _claim(self, machine: Machine) -> dict[str, Any]:
        registered = {"nodeName": machine.name} if self.now >= machine.ready_at else {}
        deleting = {"deletionTimestamp": "now"} if machine.deleting else {}
        initialized = {"type": "Initialized", "status": "True" if machine.initialized else "Unknown"}
        return {
            "metadata": {
                "name": f"claim-{machine.name}",
                "uid": f"uid-{machine.name}",
                "creationTimestamp": stamp(machine.created),
                **deleting,
            },
            "spec": made_for(self.request.run_id, self.request.namespace),
            "status": {
                **registered,
                "providerID": f"aws:///us-west-2b/i-{machine.name}",
                "conditions": [{"type": "Launched", "status": "True"}, initialized],
            },
        }

    # -- what happens by itself

    def advance(self, seconds: float) -> None:
        """Lets time pass: pods leave, machines come and go, the scheduler and Karpenter work."""
        lagging = self.random.random() < 0.3 and self.watched
        self.stale = {name: self._observation(name) for name in self.pools} if lagging else {}
        self.now += seconds
        for name, pod in list(self.pods.items()):
            if "deletionTimestamp" in pod["metadata"]:
                del self.pods[name]
        for machine in list(self.machines.values()):
            if self.random.random() < self.trouble * seconds / TICK:
                self._upset(machine)
        for machine in self.machines.values():
            started = max(machine.ready_at, machine.startup_taint_until, machine.flapping_until)
            if machine.gpus_at is not None and self.now >= max(started, machine.gpus_at):
                machine.initialized = True
        self._schedule()
        for machine in list(self.machines.values()):
            self._disrupt(machine)
        self._train()

    def on(self, node: str) -> list[dict[str, Any]]:
        """The pods of the run on this node."""
        return [pod for pod in self.pods.values() if pod["spec"].get("nodeName") == node]

    def _schedule(self) -> None:
        for pool, truth in self.pools.items():
            waiting = [
                pod
                for pod in self.pods.values()
                if not pod["spec"].get("nodeName")
                and pod["spec"]["nodeSelector"]["karpenter.sh/nodepool"] == pool
            ]
            here = [machine for machine in self.machines.values() if machine.pool == pool]
            for machine in here:
                if waiting and machine.usable(self.now) and not self.on(machine.name):
                    waiting.pop()["spec"]["nodeName"] = machine.name
            coming = sum(
                not machine.initialized and not machine.foreign and not machine.deleting for machine in here
            )
            if len(waiting) <= coming or len(here) >= truth.limit:
                continue
            if self.now >= truth.refusing_until:
                self._buy(pool, created=self.now)
            else:
                self._refuse(pool)

    def _buy(self, pool: str, created: float) -> None:
        self.bought += 1
        truth = self.pools[pool]
        ready = created + self.random.uniform(5, 60)
        late = self.random.random() < truth.slow_gpus
        gpus = (
            self.random.choice([None, ready + 40, ready + 150]) if late else ready + self.random.uniform(0, 5)
        )
        name = f"node-{self.bought}"
        taint_until = ready + self.random.choice([0, 10])
        self.machines[name] = Machine(
            name, pool, created, ready, gpus, truth.per_node, startup_taint_until=taint_until
        )

    def _refuse(self, pool: str) -> None:
        event = {
            "metadata": {},
            "involvedObject": {"kind": "NodeClaim", "name": f"{pool}-x"},
            "reason": "InsufficientCapacityError",
            "message": "InsufficientInstanceCapacity: none",
            "lastTimestamp": stamp(self.now),
        }
        self.warnings = [*self.warnings[-5:], observe.warning_event(event)]

    def _upset(self, machine: Machine) -> None:
        match self.random.choice(["flap", "lose", "cordon", "foreign", "dip"]):
            case "flap":
                machine.flapping_until = self.now + self.random.uniform(1, 20)
            case "lose":
                self.lose(machine)
            case "cordon":
                machine.cordoned = not machine.cordoned
            case "dip":  # the device plugin restarts
                if machine.gpus_at is not None:
                    machine.gpus_at = max(machine.gpus_at, self.now + self.random.uniform(1, 15))
            case _ if not self.on(machine.name):
                machine.foreign = not machine.foreign
                machine.shared = True

    def lose(self, machine: Machine) -> None:
        """The machine is gone, and with it its pods."""
        del self.machines[machine.name]
        lost = {pod["metadata"]["name"] for pod in self.on(machine.name)}
        workers = {name for name in lost if not name.startswith("hold-")}
        again = {}
        if self.training is not None and workers:
            again = self._lose_workers(workers)
        self.pods = {**{name: pod for name, pod in self.pods.items() if name not in lost}, **again}

    def _lose_workers(self, names: set[str]) -> dict[str, dict[str, Any]]:
        """What a loss looks like: the job fails at once, or nothing is said, or a new pod of the name pends."""
        assert self.training is not None
        self.broken_at = self.now if self.broken_at is None else self.broken_at
        kind = self.fate.choice(["failed", "silent", "replaced"]) if "spec" in self.training else "failed"
        if not self.replaces:
            kind = "silent"
        if kind == "failed":
            self._finish("Failed")
        if kind != "replaced" or self.training["status"] or "deletionTimestamp" in self.training["metadata"]:
            return {}
        again = {}
        for name in names:
            pod = self.pods[name]
            meta = {**pod["metadata"], "uid": f"{pod['metadata']['uid']}-again"}
            spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
            again[name] = {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}
        return again

    def _disrupt(self, machine: Machine) -> None:
        """Karpenter drains a deleted NodeClaim, and removes empty initialized nodes."""
        if machine.deleting:
            if not self.on(machine.name):  # a pod that must not be disrupted holds up the drain
                del self.machines[machine.name]
            return
        idle = machine.initialized and not machine.foreign and not self.on(machine.name)
        machine.empty_since = (machine.empty_since or self.now) if idle else None
        if machine.empty_since is not None and self.now - machine.empty_since >= IDLE_SECONDS:
            del self.machines[machine.name]

    def _train(self) -> None:
        if self.training is not None and "deletionTimestamp" in self.training["metadata"]:
            self._retire()
        if self.training is None or self.training["status"]:
            return
        if self.suspended:
            return
        if self.mishap is not None and self.now >= self.mishap[0]:
            self.fail_one(self.mishap[1])
            return
        if self.broken_at is not None and "spec" in self.training:
            if self.now > self.broken_at + COLLECTIVE_SECONDS:
                self.fail_one(1)
            return
        if self.now > observe.seconds(self.training["metadata"]["creationTimestamp"]) + TRAINING_SECONDS:
            self._finish("Succeeded")

    def workers(self) -> list[dict[str, Any]]:
        """The pods of the training."""
        return [pod for name, pod in self.pods.items() if name.startswith("w-")]

    @property
    def replaces(self) -> bool:
        """Whether the operator replaces a lost pod and fails the job with its first worker, as of a PyTorchJob."""
        return self.request.backend == names.BACKEND_PYTORCHJOB

    @property
    def suspended(self) -> bool:
        """Whether somebody suspends the training."""
        return self.training is not None and bool(self._suspendable().get("suspend"))

    def _suspendable(self) -> dict[str, Any]:
        assert self.training is not None
        spec: dict[str, Any] = self.training.get("spec", {})
        return spec.get("runPolicy", {}) if self.replaces else spec

    def suspend(self) -> None:
        """The operator ends the workers of a job that somebody suspends."""
        self._suspendable()["suspend"] = True
        for pod in self.workers():
            pod["metadata"].setdefault("deletionTimestamp", "now")

    def resume(self, pool: str) -> None:
        """The operator makes as many pods as the job says, wherever there may be machines for them."""
        assert self.training is not None
        self._suspendable()["suspend"] = False
        self.broken_at = self.now
        for index in range(backends.of(self.request).parse(self.training, self.request.run_id).nodes):
            labels = {"training.kubeflow.org/job-name": self.request.training_job}
            meta = {"name": f"w-{index}", "namespace": self.request.namespace, "uid": f"r-{index}"}
            spec = {"nodeSelector": {"karpenter.sh/nodepool": pool}}
            pod = {"metadata": {**meta, "labels": labels}, "spec": spec, "status": {"phase": "Pending"}}
            self.pods[f"w-{index}"] = pod

    def _retire(self) -> None:
        """The garbage collector takes the pods of a job that is deleted in the foreground, then the job."""
        for pod in self.workers():
            pod["metadata"].setdefault("deletionTimestamp", "now")
        if not self.workers() or backends.of(self.request).propagation == "Background":
            self.training, self.mishap, self.broken_at = None, None, None

    def fail_one(self, code: int) -> None:
        """A worker ends with this code; the others hang, and the operator says that the job failed.

        A TrainJob fails when all workers have ended.
        """
        running = [pod for pod in self.workers() if pod["status"]["phase"] == "Running"]
        for pod in running[:1]:
            ended = {"exitCode": code, "reason": "Error", "finishedAt": stamp(self.now)}
            statuses = [{"name": backends.of(self.request).container, "state": {"terminated": ended}}]
            pod["status"] = {"phase": "Failed", "containerStatuses": statuses}
        self.broken_at, self.mishap = self.now, None
        if self.replaces or len(running) <= 1:
            self._finish("Failed")

    def _finish(self, outcome: str) -> None:
        assert self.training is not None
        if not self.training["status"]:
            kind = "Complete" if outcome == "Succeeded" and not self.replaces else outcome
            self.training["status"] = {"conditions": [{"type": kind, "status": "True"}]}
            for name, pod in self.pods.items():
                if not name.startswith("hold-") and outcome == "Succeeded":
                    pod["status"]["phase"] = "Succeeded"
