"""The drain: end the work, release addresses, give back every machine, then what hangs on machines.

Karpenter's machines are not in the state of the stack; they end only while Karpenter, its role and the routes are
alive. Where Karpenter does not do it, the machines are terminated by exactly this cluster's tags, and what waits for
Karpenter is released. Pure: cluster, account and clock are passed in. Each step asks what is there, so that a drain
that was stopped is simply run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from components.draining.kinds import (
    GANGS,
    HOLDERS,
    INGRESSES,
    JOBS,
    MPI_TRAININGS,
    NODE_CLAIMS,
    NODE_CLASSES,
    NODE_POOLS,
    NODES,
    PODS,
    QUEUES,
    SERVICES,
    TRAININGS,
    VOLUME_CLAIMS,
    VOLUMES,
    Kind,
)

POLL_SECONDS: Final = 2.0
REPORT_SECONDS: Final = 15.0
# A controller that moves to another node is away for less.
ABSENT_SECONDS: Final = 45.0
# Karpenter clears an EC2NodeClass in seconds once its last machine is gone, or not at all.
NODE_CLASS_SECONDS: Final = 120.0
# The controller of torchrun jobs releases a queue in seconds, or is not there.
QUEUE_SECONDS: Final = 120.0
# Detaching and deleting an EBS volume; one that is not made by a driver of this cluster never goes.
VOLUME_SECONDS: Final = 180.0


class DrainError(Exception):
    """Machines or objects are left; the message names them and what to do."""


class ClusterApi(Protocol):
    """What the drain asks of a cluster. `cluster_api` has the real one."""

    def names(self, kind: Kind) -> list[str]:
        """Names of the stack's own objects of a kind; an empty list where the kind itself is not known."""

    def delete(self, kind: Kind, name: str) -> None:
        """Delete an object, its dependents with it; one that is gone is no error."""

    def remove_finalizers(self, kind: Kind, name: str) -> None:
        """Let an object go whose controller can't finish it."""

    def controller_runs(self) -> bool:
        """Whether a pod of Karpenter's controller is available."""

    def delete_pods_that_hold_machines(self) -> list[str]:
        """Delete the pods on the stack's machines that Karpenter would wait for; returns those found."""

    def forget_pods_of(self, nodes: frozenset[str]) -> list[str]:
        """Remove the pods of nodes that are gone, as far as this may be done; returns those."""

    def claims_of_volumes(self) -> list[str]:
        """Volume claims, `<namespace>/<name>`, whose volumes a driver made and removes again."""

    def end_users_of_claims(self, claims: list[str]) -> list[str]:
        """Delete the stack's own pods that mount these claims, by what makes them anew; returns what is new of it."""


class AccountApi(Protocol):
    """What the drain asks of the account. `account_api` has the real one."""

    def machines(self) -> list[str]:
        """Ids of instances with exactly this cluster's tags (in a given one: own pools') that are not terminated."""

    def terminate(self, instances: list[str]) -> None:
        """Terminate instances."""

    def remove_remains_of_machines(self) -> list[str]:
        """Remove free interfaces, launch templates and instance profiles of machines; returns their names."""


@dataclass(kw_only=True)
class Clock:
    """Time, so that tests need none of it."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def run(
    cluster: ClusterApi | None,
    account: AccountApi,
    *,
    timeout: float,
    say: Callable[[str], None],
    clock: Clock,
) -> None:
    """The drain's steps; `cluster` None is one that is gone, of which only the account is left.

    Raises:
        DrainError: something is left after `timeout` seconds.
    """
    drain = _Drain(cluster=cluster, account=account, clock=clock, out=say, timeout=timeout)
    if cluster is None:
        drain.say("the cluster is gone; looking for machines that it left")
    else:
        drain.end_work(cluster)
        drain.release_addresses(cluster)
        drain.give_back_machines(cluster)
    drain.terminate_rest()
    if cluster is not None:
        drain.forget_pods(cluster)
        drain.release_volumes(cluster)
        drain.end_node_classes(cluster)
    for name in account.remove_remains_of_machines():
        drain.say(f"removed {name}, which a machine had left")
    drain.say("no machine is left")


@dataclass(kw_only=True)
class _Drain:
    cluster: ClusterApi | None
    account: AccountApi
    clock: Clock
    out: Callable[[str], None]
    timeout: float
    started: float = field(init=False)
    nodes: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.started = self.clock.now()

    @property
    def end(self) -> float:
        """When the time is over."""
        return self.started + self.timeout

    def say(self, line: str) -> None:
        """One line of progress, with the seconds since the start."""
        self.out(f"{self.clock.now() - self.started:.0f} s: {line}")

    def end_work(self, cluster: ClusterApi) -> None:
        """The launcher first: it would make the placeholders anew; likewise what keeps machines warm."""
        for kind, what in (
            (JOBS, "launcher Jobs"),
            (TRAININGS, "PyTorchJobs"),
            (MPI_TRAININGS, "MPIJobs"),
        ):
            self._empty(cluster, kind, what)
        self._end_torchrun(cluster)
        for kind, what in ((HOLDERS, "Deployments"), (PODS, "pods")):
            self._empty(cluster, kind, what)

    def _end_torchrun(self, cluster: ClusterApi) -> None:
        """Jobs, whose pods go with them, then queues, while the controller runs that has to release some of these.

        What it does not release would keep the definitions from going for ever. Of a queue KAI's is left then, which is
        nobody's any more.
        """
        for kind, what in ((GANGS, "TorchrunJobs"), (QUEUES, "TorchrunQueues")):
            names = cluster.names(kind)
            if not names:
                continue
            self.say(f"deleting {what}: {some(names)}")
            for name in names:
                cluster.delete(kind, name)
            if not self._wait(cluster, kind, what, min(self.end, self.clock.now() + QUEUE_SECONDS)):
                self._release(cluster, (kind,))

    def release_addresses(self, cluster: ClusterApi) -> None:
        """Load balancers hold subnets and groups; their controllers let go of the object when they are gone."""
        for kind, what in ((SERVICES, "Services of type LoadBalancer"), (INGRESSES, "Ingresses")):
            self._empty(cluster, kind, what)

    def give_back_machines(self, cluster: ClusterApi) -> None:
        """Pools, so that nothing new is bought; then claims, for half of the time at most by Karpenter itself."""
        for name in cluster.names(NODE_POOLS):
            cluster.delete(NODE_POOLS, name)
        half = self.started + self.timeout / 2
        asked: set[str] = set()
        seen = reported = self.clock.now()
        while claims := cluster.names(NODE_CLAIMS):
            self.nodes |= set(cluster.names(NODES))
            now = self.clock.now()
            if cluster.controller_runs():
                seen = now
            if now >= half or now - seen >= ABSENT_SECONDS:
                self._take_down(cluster, "is not running" if now > seen else "does not finish")
                return
            if fresh := set(claims) - asked:
                self.say(f"deleting NodeClaims: {some(list(fresh))}")
                for name in sorted(fresh):
                    cluster.delete(NODE_CLAIMS, name)
                asked |= fresh
            if held := cluster.delete_pods_that_hold_machines():
                self.say(f"deleting pods that hold machines: {some(held)}")
            if now - reported >= REPORT_SECONDS:
                reported = now
                self.say(f"waiting for {len(claims)} machines: {some(claims)}")
            self.clock.sleep(POLL_SECONDS)

    def _take_down(self, cluster: ClusterApi, why: str) -> None:
        """Karpenter won't do it: terminate the machines ourselves, then release what waits for it."""
        machines = self.account.machines()
        self.say(f"Karpenter {why}; terminating {len(machines)} machines by this cluster's tags")
        self.terminate_rest()
        self._release(cluster, (NODE_CLAIMS, NODES))

    def terminate_rest(self) -> None:
        """Machines that no claim names (any more)."""
        asked: set[str] = set()
        reported = self.clock.now() - REPORT_SECONDS
        while machines := self.account.machines():
            if fresh := sorted(set(machines) - asked):
                self.account.terminate(fresh)
                asked |= set(fresh)
            if self.clock.now() >= self.end:
                raise DrainError(
                    f"{len(machines)} machines are left: {some(machines)}; terminate them, then run the destroy again"
                )
            if self.clock.now() - reported >= REPORT_SECONDS:
                reported = self.clock.now()
                self.say(f"waiting for {len(machines)} machines to terminate: {some(machines)}")
            self.clock.sleep(POLL_SECONDS * 2)

    def forget_pods(self, cluster: ClusterApi) -> None:
        """The pods of a DaemonSet outlive their machines, and a DaemonSet ends only with its pods.

        The garbage collector of Kubernetes leaves them for 40 seconds and looks every 20 (kube-controller-manager,
        pkg/controller/podgc/gc_controller.go), which all of a destroy would wait for.
        """
        gone = self.nodes - set(cluster.names(NODES))
        if gone and (pods := cluster.forget_pods_of(frozenset(gone))):
            self.say(f"removed pods of machines that are gone: {some(pods)}")

    def release_volumes(self, cluster: ClusterApi) -> None:
        """Disks that a driver made: after the machines that held them, while the driver still runs.

        A claim stays as long as a pod mounts it, and the pods on the system nodes are still there.
        """
        if not cluster.claims_of_volumes():
            return
        asked: set[str] = set()
        began = reported = self.clock.now()
        until = min(self.end, began + VOLUME_SECONDS)
        while volumes := cluster.names(VOLUMES):
            now = self.clock.now()
            if now >= until:
                self.say(f"still there, look for them in the account: {some(volumes)}")
                return
            # Again and again: an operator may make its pods, and their claims, anew.
            claims = cluster.claims_of_volumes()
            if ended := cluster.end_users_of_claims(claims):
                self.say(f"ending what mounts volumes: {some(ended)}")
            if fresh := set(claims) - asked:
                self.say(f"deleting volume claims: {some(list(fresh))}")
                asked |= fresh
            for name in claims:
                cluster.delete(VOLUME_CLAIMS, name)
            if now - reported >= REPORT_SECONDS:
                reported = now
                self.say(f"waiting for {len(volumes)} volumes since {now - began:.0f} s: {some(volumes)}")
            self.clock.sleep(POLL_SECONDS)

    def end_node_classes(self, cluster: ClusterApi) -> None:
        """With the last EC2NodeClass Karpenter removes its instance profiles, unless its role no longer may."""
        for name in cluster.names(NODE_CLASSES):
            cluster.delete(NODE_CLASSES, name)
        patience = NODE_CLASS_SECONDS if cluster.controller_runs() else 0
        until = min(self.end, self.clock.now() + patience)
        for kind, what in ((NODE_CLASSES, "EC2NodeClasses"), (NODE_POOLS, "NodePools")):
            if not self._wait(cluster, kind, what, until):
                self._release(cluster, (kind,))

    def _empty(self, cluster: ClusterApi, kind: Kind, what: str) -> None:
        """Delete every object of a kind and wait until they are gone."""
        names = cluster.names(kind)
        if not names:
            return
        self.say(f"deleting {what}: {some(names)}")
        for name in names:
            cluster.delete(kind, name)
        if not self._wait(cluster, kind, what, self.end):
            raise DrainError(
                f"{what} do not end: {some(cluster.names(kind))} (namespace {kind.namespace});"
                " see `kubectl describe` of them, then run the destroy again"
            )

    def _wait(self, cluster: ClusterApi, kind: Kind, what: str, until: float) -> bool:
        """Wait until no object of the kind is left; False when the time is over."""
        began = reported = self.clock.now()
        while names := cluster.names(kind):
            now = self.clock.now()
            if now >= until:
                return False
            if now - reported >= REPORT_SECONDS:
                reported = now
                self.say(f"waiting for {len(names)} {what} since {now - began:.0f} s: {some(names)}")
            self.clock.sleep(POLL_SECONDS)
        return True

    def _release(self, cluster: ClusterApi, kinds: tuple[Kind, ...]) -> None:
        """Remove finalizers of objects whose machines are gone for sure."""
        for kind in kinds:
            names = cluster.names(kind)
            if names:
                self.say(f"releasing {len(names)} {kind.plural}: {some(names)}")
            for name in names:
                cluster.delete(kind, name)
                cluster.remove_finalizers(kind, name)


def some(names: list[str]) -> str:
    """The first five of the names."""
    shown = ", ".join(sorted(names)[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
