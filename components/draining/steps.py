"""The steps of the drain: end jobs, delete load balancers, remove every node, then what depended on nodes.

The stack's state does not contain Karpenter's nodes. They can only be removed while Karpenter, its role and the routes
exist. If Karpenter does not do it, the drain terminates the instances with exactly this cluster's tags, and removes the
finalizers that wait for Karpenter. Pure: cluster, account and clock are passed in. Each step reads what exists, so a
drain that was stopped can be run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from .kinds import (
    GANGS,
    HOLDERS,
    INGRESSES,
    JOBS,
    MPI_JOBS,
    NODE_CLAIMS,
    NODE_CLASSES,
    NODE_POOLS,
    NODES,
    PODS,
    PYTORCH_JOBS,
    QUEUES,
    SERVICES,
    TRAIN_JOBS,
    VOLUME_CLAIMS,
    VOLUMES,
    Kind,
)

POLL_SECONDS: Final = 2.0
REPORT_SECONDS: Final = 15.0
# A controller that moves to another node is unavailable for less time.
ABSENT_SECONDS: Final = 45.0
# Karpenter finalizes an EC2NodeClass within seconds after its last node is deleted, or not at all.
NODE_CLASS_SECONDS: Final = 120.0
# The controller of torchrun jobs finalizes a queue in seconds, or does not run.
QUEUE_SECONDS: Final = 120.0
# Time to detach and delete an EBS volume. Volumes of other drivers than this cluster's are never deleted.
VOLUME_SECONDS: Final = 180.0


class DrainError(Exception):
    """Instances or objects are left. The message names them, and what to do."""


class ClusterApi(Protocol):
    """The calls of the drain to a cluster. `cluster_api` implements them."""

    def names(self, kind: Kind) -> list[str]:
        """Return the names of the stack's objects of a kind; none if the cluster does not know the kind."""

    def delete(self, kind: Kind, name: str) -> None:
        """Delete an object and its dependents. It is no error if it does not exist."""

    def remove_finalizers(self, kind: Kind, name: str) -> None:
        """Remove the finalizers of an object whose controller can't finish it."""

    def controller_runs(self) -> bool:
        """Return whether a pod of Karpenter's controller is available."""

    def delete_blocking_pods(self) -> list[str]:
        """Delete the pods on the stack's nodes for which Karpenter would wait. Return their names."""

    def forget_pods_of(self, nodes: frozenset[str]) -> list[str]:
        """Remove the pods of deleted nodes, as far as permitted. Return their names."""

    def claims_of_volumes(self) -> list[str]:
        """Return the volume claims, `<namespace>/<name>`, whose volumes a driver created and deletes."""

    def end_users_of_claims(self, claims: list[str]) -> list[str]:
        """Delete the stack's pods that mount these claims, by their owners. Return what was not deleted before."""


class AccountApi(Protocol):
    """The calls of the drain to the AWS account. `account_api` implements them."""

    def instances(self) -> list[str]:
        """Return the ids of instances of this cluster (in an existing one: of the stack's pools) that exist."""

    def terminate(self, instances: list[str]) -> None:
        """Terminate instances."""

    def remove_leftovers_of_instances(self) -> list[str]:
        """Remove free interfaces, launch templates and instance profiles. Return their names."""


@dataclass(kw_only=True)
class Clock:
    """The time. Tests pass their own clock."""

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
    """Run the drain's steps. `cluster` is None if it does not exist any more; then only the account is cleaned.

    Raises:
        DrainError: Something is left after `timeout` seconds.
    """
    drain = _Drain(cluster=cluster, account=account, clock=clock, out=say, timeout=timeout)
    if cluster is None:
        drain.say("the cluster does not exist; looking for its instances")
    else:
        drain.end_work(cluster)
        drain.release_addresses(cluster)
        drain.remove_nodes(cluster)
    drain.terminate_rest()
    if cluster is not None:
        drain.forget_pods(cluster)
        drain.release_volumes(cluster)
        drain.end_node_classes(cluster)
    for name in account.remove_leftovers_of_instances():
        drain.say(f"removed {name}, a leftover of an instance")
    drain.say("no node is left")


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
        """The time at which the drain gives up."""
        return self.started + self.timeout

    def say(self, line: str) -> None:
        """Print a line of progress with the seconds since the start."""
        self.out(f"{self.clock.now() - self.started:.0f} s: {line}")

    def end_work(self, cluster: ClusterApi) -> None:
        """Delete launchers first, because they create placeholders; then jobs, warm nodes and pods."""
        for kind, what in (
            (JOBS, "launcher Jobs"),
            (PYTORCH_JOBS, "PyTorchJobs"),
            (MPI_JOBS, "MPIJobs"),
            (TRAIN_JOBS, "TrainJobs"),
        ):
            self._empty(cluster, kind, what)
        self._end_torchrun(cluster)
        for kind, what in ((HOLDERS, "Deployments"), (PODS, "pods")):
            self._empty(cluster, kind, what)

    def _end_torchrun(self, cluster: ClusterApi) -> None:
        """Delete jobs with their pods, then queues, while their controller still runs to finalize them.

        An object that it does not finalize would block the deletion of its definition for ever. Its queue of KAI
        Scheduler then remains.
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
        """Delete load balancers, which use subnets and security groups."""
        for kind, what in ((SERVICES, "Services of type LoadBalancer"), (INGRESSES, "Ingresses")):
            self._empty(cluster, kind, what)

    def remove_nodes(self, cluster: ClusterApi) -> None:
        """Delete NodePools, so that no node is created, then NodeClaims: by Karpenter for at most half of the time."""
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
            if blocking := cluster.delete_blocking_pods():
                self.say(f"deleting pods that block nodes: {some(blocking)}")
            if now - reported >= REPORT_SECONDS:
                reported = now
                self.say(f"waiting for {count(claims, 'node')}: {some(claims)}")
            self.clock.sleep(POLL_SECONDS)

    def _take_down(self, cluster: ClusterApi, why: str) -> None:
        """Terminate the instances without Karpenter, then remove the finalizers that wait for it."""
        instances = self.account.instances()
        self.say(f"Karpenter {why}; terminating {count(instances, 'instance')} by this cluster's tags")
        self.terminate_rest()
        self._release(cluster, (NODE_CLAIMS, NODES))

    def terminate_rest(self) -> None:
        """Terminate instances without a NodeClaim."""
        asked: set[str] = set()
        reported = self.clock.now() - REPORT_SECONDS
        while instances := self.account.instances():
            if fresh := sorted(set(instances) - asked):
                self.account.terminate(fresh)
                asked |= set(fresh)
            if self.clock.now() >= self.end:
                raise DrainError(
                    f"{count(instances, 'instance')} left: {some(instances)}; terminate them, then run the destroy"
                    " again"
                )
            if self.clock.now() - reported >= REPORT_SECONDS:
                reported = self.clock.now()
                self.say(f"waiting for {count(instances, 'instance')} to terminate: {some(instances)}")
            self.clock.sleep(POLL_SECONDS * 2)

    def forget_pods(self, cluster: ClusterApi) -> None:
        """Delete the pods of DaemonSets that outlive their nodes: a DaemonSet ends only with its pods.

        The garbage collector of Kubernetes only deletes them after 40 seconds and runs every 20
        (kube-controller-manager, pkg/controller/podgc/gc_controller.go); the whole destroy would wait for it.
        """
        gone = self.nodes - set(cluster.names(NODES))
        if gone and (pods := cluster.forget_pods_of(frozenset(gone))):
            self.say(f"removed pods of deleted nodes: {some(pods)}")

    def release_volumes(self, cluster: ClusterApi) -> None:
        """Delete the volumes of drivers: after the nodes that mounted them, while the driver still runs.

        A claim remains as long as a pod mounts it, and the pods on the system nodes still run.
        """
        if not cluster.claims_of_volumes():
            return
        asked: set[str] = set()
        began = reported = self.clock.now()
        until = min(self.end, began + VOLUME_SECONDS)
        while volumes := cluster.names(VOLUMES):
            now = self.clock.now()
            if now >= until:
                self.say(f"volumes are left; delete them in the account: {some(volumes)}")
                return
            # In each round, because an operator may create its pods and their claims again.
            claims = cluster.claims_of_volumes()
            if ended := cluster.end_users_of_claims(claims):
                self.say(f"deleting what mounts volumes: {some(ended)}")
            if fresh := set(claims) - asked:
                self.say(f"deleting volume claims: {some(list(fresh))}")
                asked |= fresh
            for name in claims:
                cluster.delete(VOLUME_CLAIMS, name)
            if now - reported >= REPORT_SECONDS:
                reported = now
                self.say(f"waiting for {count(volumes, 'volume')} since {now - began:.0f} s: {some(volumes)}")
            self.clock.sleep(POLL_SECONDS)

    def end_node_classes(self, cluster: ClusterApi) -> None:
        """Delete the EC2NodeClasses. With the last one, Karpenter removes its instance profiles, if it may."""
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
        """Wait until no object of the kind is left. Return False if the time is over."""
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
        """Remove the finalizers of objects whose instances certainly do not exist."""
        for kind in kinds:
            names = cluster.names(kind)
            if names:
                self.say(f"releasing {len(names)} {kind.plural}: {some(names)}")
            for name in names:
                cluster.delete(kind, name)
                cluster.remove_finalizers(kind, name)


def count(names: list[str], noun: str) -> str:
    """Return the number of names with the noun, such as `1 node` or `2 nodes`."""
    return f"{len(names)} {noun}" + ("" if len(names) == 1 else "s")


def some(names: list[str]) -> str:
    """Return the first five names."""
    shown = ", ".join(sorted(names)[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
