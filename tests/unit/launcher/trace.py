"""One trace: a real launcher on a world, killed between any two of its writes, and judged by the truth."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from launcher import backends, progress
from launcher.loop import Launcher
from launcher.manifests import Owner, stamp
from launcher.observe import Observation
from launcher.request import Request
from tests.unit.launcher.cluster import stored_progress
from tests.unit.launcher.world import EPOCH, TICK, World
from trainyard.k8s import names

Object = dict[str, Any]
LONGEST = 6000.0
_FINISHED = ("Succeeded", "Failed")
# How a worker may end by itself: an error, no memory, a signal; and wrong settings; a restart does not help.
MISHAPS = (1, 137, 143, 2)
# A dead launcher's Lease runs out, and perhaps that of the one after it.
OUTLIVED_TICKS = 20


# Read with every tick, and seldom written.
_read = lru_cache(maxsize=64)(progress.loads)


class Killed(BaseException):
    """The launcher's process is gone, without a word."""


class NeverEnds(BaseException):
    """The run took longer than every wait of the request together."""


class Ticks(threading.Event):
    """Time passes while the launcher waits."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def wait(self, timeout: float | None = None) -> bool:
        self.trace.tick()
        return False


@dataclass
class Trace:
    """A run of `request` on the world of this seed, as the gateway that its launchers talk to."""

    request: Request
    seed: int
    crashes: float = 0.0
    lease_: Object | None = None
    versions: int = 0
    submits: int = 0
    kills: int = 0
    code: int | None = None
    released: int = 0
    outlived: int = 0
    # How often jobs that may restart fail by themselves; 0 is never.
    mishaps: float = 1.0
    # Dies when it comes to this point: between any two writes, and any two waits.
    dies_at: int | None = None
    points: int = 0
    # Of the last TrainingRuntime.
    runtime_nodes: int = 0
    sizes: list[int] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = World(self.request, self.seed)
        self.random = self.world.random

    @property
    def progress(self) -> progress.Progress | None:
        """What the Lease says of how far the run is."""
        text = stored_progress(self.lease_) if self.lease_ is not None else ""
        return _read(text, self.request.candidate_count) if text else None

    def wrong(self, what: str) -> None:
        self.world.wrongs.append(f"{what} at {self.world.now - EPOCH:.0f} s")

    def run(self) -> None:
        """Launchers, one after another as the Job starts them, until one ends the run."""
        while self.code is None:
            launcher = Launcher(
                self.request,
                "launch-r1",
                self,
                stopping=Ticks(self),
                log_line=self.said.append,
                wall_clock=lambda: self.world.now,
                clock=lambda: self.world.now - EPOCH,
                holder=f"pod-{self.kills}",
                draw=self.random.random,
            )
            try:
                self.code = launcher.run()
            except Killed:
                self.kills += 1
                self.world.advance(self.random.uniform(1, 12))
            except NeverEnds:
                self.wrong("it never ended")
                return
        self._judge_end()

    def tick(self) -> None:
        self._maybe_die()
        self.world.advance(TICK)
        self._judge_placeholders()
        if self.world.now - EPOCH > LONGEST:
            raise NeverEnds

    def _judge_placeholders(self) -> None:
        """Those of an earlier wait are gone soon, even if their launcher was killed over them."""
        noted = self.progress
        label = noted.label if noted is not None else ""
        old = [
            pod
            for pod in self.world.pods.values()
            if pod["metadata"]["labels"].get(names.LABEL_ATTEMPT, label) != label
        ]
        self.outlived = self.outlived + 1 if old and self.world.training is None else 0
        if self.outlived == OUTLIVED_TICKS:
            self.wrong(f"placeholders of another wait than {label}")

    def _maybe_die(self) -> None:
        self.points += 1
        if self.points == self.dies_at or (self.crashes and self.random.random() < self.crashes):
            raise Killed

    def _judge_end(self) -> None:
        left = [
            name
            for name, pod in self.world.pods.items()
            if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] not in _FINISHED
        ]
        if left:
            self.wrong(f"{left} left behind")
        if self.code == names.EXIT_BELOW_MINIMUM:
            pool = self.request.candidate(self.request.candidate_count - 1).pool.name
            machines = [one for one in self.world.machines.values() if one.pool == pool]
            usable = sum(one.usable(self.world.now) for one in machines)
            if usable >= self.request.min_nodes:
                self.wrong(f"gave up with {usable} usable nodes")
        if self.lease_ is None or self.lease_["spec"]["holderIdentity"]:
            self.wrong("the Lease is still held")
        self.world.trouble = 0.0
        self.world.watched = False
        for _ in range(50):  # until the last machine is up and was empty for long enough
            self.world.advance(TICK)
        for machine in self.world.machines.values():
            if machine.deleting:
                self.wrong(f"{machine.name} never drained")
            if machine.initialized and not machine.foreign and not self.world.on(machine.name):
                self.wrong(f"{machine.name} stands idle after the end")
            if not machine.initialized and not machine.shared and machine.created >= EPOCH:
                self.wrong(f"{machine.name}, which never becomes of use, is left")

    # -- the gateway

    def owner(self, request: Request, job: str) -> Owner:
        return Owner(name=job, uid="owner")

    def lacking(self, request: Request) -> list[str]:
        return []

    def observe(self, request: Request, *, fresh: bool) -> Observation:
        if fresh:
            self.world.advance(0.5)  # time passes between any two requests
        return self.world.show(request.pool.name, fresh)

    def create_pods(self, manifests: Sequence[Object]) -> None:
        for manifest in manifests:
            self.create_pod(manifest)

    def delete_pods(self, request: Request, pods: Sequence[tuple[str, str]]) -> None:
        for name, uid in pods:
            self.delete_pod(request, name, uid)

    def create_pod(self, manifest: Object) -> None:
        self._maybe_die()
        pods, name = self.world.pods, manifest["metadata"]["name"]
        if name not in pods:
            self.versions += 1
            manifest["metadata"]["uid"] = f"uid-{self.versions}"
            pods[name] = {**manifest, "status": {"phase": "Pending"}}
        pool = manifest["spec"]["nodeSelector"]["karpenter.sh/nodepool"]
        held = [
            pod
            for pod in pods.values()
            if pod["spec"]["nodeSelector"]["karpenter.sh/nodepool"] == pool
            and pod["status"]["phase"] not in _FINISHED
        ]
        if len(held) > min(self.request.max_nodes, self.world.pools[pool].limit):
            self.wrong(f"{len(held)} placeholders and workers")
        asked = sum(machine.pool == pool and not machine.deleting for machine in self.world.machines.values())
        if asked > self.world.pools[pool].limit:
            self.wrong(f"{asked} machines asked for")
        self._maybe_die()

    def delete_pod(self, request: Request, name: str, uid: str) -> None:
        self._maybe_die()
        if name in self.world.pods and self.world.pods[name]["metadata"]["uid"] == uid:
            self.world.pods[name]["metadata"]["deletionTimestamp"] = "now"
        self._maybe_die()

    def annotate_training(self, request: Request, uid: str, annotations: Mapping[str, str]) -> None:
        self._maybe_die()
        training = self.world.training
        if training is not None and training["metadata"]["uid"] == uid:
            training["metadata"].setdefault("annotations", {}).update(annotations)
        self._maybe_die()

    def delete_training(self, request: Request, uid: str) -> None:
        self._maybe_die()
        training = self.world.training
        if training is not None and training["metadata"]["uid"] == uid:
            if self.world.broken_at is None:
                self.wrong("a running job is deleted")
            training["metadata"].setdefault("deletionTimestamp", "now")
            if backends.of(request).propagation == "Background":
                self.world.advance(0.0)
        self._maybe_die()

    def delete_claim(self, claim: str, uid: str) -> None:
        self._maybe_die()
        machine = self.world.machines.get(claim.removeprefix("claim-"))
        if machine is not None and not machine.deleting and uid == f"uid-{machine.name}":
            now = self.world.now
            taken = machine.foreign and now >= machine.ready_at  # before that there is no Node for a pod
            if machine.complete(now) or taken or machine.created < EPOCH:
                self.wrong(f"{machine.name} given back")
            early = now - machine.created < self.request.node_start_seconds
            if early and (machine.initialized or self._has_pending(machine.pool)):
                self.wrong(f"{machine.name} given back after {now - machine.created:.0f} s")
            machine.deleting = True
            self.released += 1
        self._maybe_die()

    def _has_pending(self, pool: str) -> bool:
        """Whether a pod of the run waits for a machine of this pool."""
        return any(
            not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
            for pod in self.world.pods.values()
            if pod["spec"]["nodeSelector"]["karpenter.sh/nodepool"] == pool
        )

    def apply_runtime(self, manifest: Object) -> None:
        self._maybe_die()
        (job,) = manifest["spec"]["template"]["spec"]["replicatedJobs"]
        self.runtime_nodes = job["template"]["spec"]["completions"]
        self._maybe_die()

    def create_training(self, request: Request, manifest: Object) -> bool:
        self._maybe_die()
        world, now = self.world, self.world.now
        if world.training is not None:
            return False
        self.submits += 1
        nodes = backends.of(request).parse(manifest, request.run_id).nodes
        self.sizes.append(nodes)
        if backends.of(request).runtime is not None and self.runtime_nodes != nodes:
            self.wrong(f"submitted {nodes} nodes with a runtime of {self.runtime_nodes}")
        pool = request.pool.name
        usable = [one for one in world.machines.values() if one.pool == pool and one.usable(now)]
        if nodes != min(len(usable), request.max_nodes):
            self.wrong(f"submitted {nodes} of {len(usable)} nodes")
        if not request.min_nodes <= nodes <= request.max_nodes:
            self.wrong(f"submitted {nodes}, outside MIN and MAX")
        alive = [pod for pod in world.pods.values() if "deletionTimestamp" not in pod["metadata"]]
        if len(alive) > nodes:
            self.wrong(f"{len(alive) - nodes} surplus placeholders at the submit")
        if world.workers():
            self.wrong("submitted beside the workers of the last training")
        if manifest["metadata"]["annotations"][names.ANNOTATION_RESTART] != str(self.submits - 1):
            self.wrong(f"submit {self.submits} is called {manifest['metadata']['annotations']}")
        if self.submits > 1 + request.max_restarts:
            self.wrong(f"{self.submits} submits with {request.max_restarts} restarts")
        world.training = {
            **manifest,
            "metadata": {
                **manifest["metadata"],
                "uid": f"t-{self.submits}",
                "creationTimestamp": stamp(now),
            },
            "status": {},
        }
        chance = self.mishaps if request.max_restarts else 0.0
        if chance and world.fate.random() < 0.4 * chance:
            world.mishap = (now + world.fate.uniform(5, 35), world.fate.choice(MISHAPS))
        selector = {"karpenter.sh/nodepool": pool}
        for index, machine in enumerate(usable[:nodes]):  # the operator's pods displace the placeholders
            for pod in world.on(machine.name):
                pod["metadata"]["deletionTimestamp"] = "now"
            labels = {"training.kubeflow.org/job-name": request.training_job}
            meta = {
                "name": f"w-{index}",
                "namespace": request.namespace,
                "uid": f"w-{self.submits}-{index}",
                "labels": labels,
            }
            world.pods[f"w-{index}"] = {
                "metadata": meta,
                "spec": {"nodeName": machine.name, "nodeSelector": selector},
                "status": {"phase": "Running"},
            }
        if chance and world.fate.random() < 0.15 * chance:
            world.lose(usable[0])  # before any of its workers has done a step
        self._maybe_die()
        return True

    def record(self, event: Object) -> None:
        self.events.append(event["reason"])

    def wait(self, timeout: float) -> None:
        self.tick()

    def lease_store(self) -> Trace:
        return self

    def get(self, _path: str) -> Object | None:
        return self.lease_

    def create(self, manifest: Object) -> Object | None:
        return self._written(manifest) if self.lease_ is None else None

    def put(self, manifest: Object) -> Object | None:
        assert self.lease_ is not None
        if manifest["metadata"]["resourceVersion"] != self.lease_["metadata"]["resourceVersion"]:
            return None
        return self._written(manifest)

    def _written(self, manifest: Object) -> Object:
        self._maybe_die()
        self.versions += 1
        meta = {**manifest["metadata"], "resourceVersion": str(self.versions)}
        self.lease_ = {**manifest, "metadata": meta}
        self._maybe_die()
        return self.lease_


def several(request: Request, seed: int) -> Trace:
    """The trace of this seed: one to three attempts, with or without a second pool, with or without crashes."""
    chosen = dataclasses.replace(
        request,
        min_nodes=1 + seed % 3,
        attempts=1 + seed % 4 % 3,
        fallbacks=request.fallbacks if seed % 2 else (),
        node_start_seconds=90,
        max_restarts=(0, 1, 3)[seed // 8 % 3],
    )
    return Trace(chosen, seed, crashes=(0.0, 0.0, 0.01, 0.05)[seed // 2 % 4])


FINAL = frozenset(
    {names.EXIT_SUCCEEDED, names.EXIT_BELOW_MINIMUM, names.EXIT_IMPOSSIBLE, names.EXIT_TRAINING_FAILED}
)
