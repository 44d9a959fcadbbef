"""The steps of the drain: end jobs, delete load balancers, remove every node, then what depended on nodes.

The stack's state does not contain Karpenter's nodes. They can only be removed while Karpenter, its role and the routes
exist. If Karpenter does not do it, the drain terminates the instances with exactly this cluster's tags, and removes the
finalizers that wait for Karpenter. Each step reads what exists, so a drain that was stopped can be run again.

`run` is the drain; `remove_remains` cleans the network after the cluster was deleted. Both get cluster, account and
clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from .account_api import AccountClient
from .cluster_api import Cluster, DrainError
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


@dataclass(kw_only=True)
class Clock:
    """The time. Tests pass their own clock."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Progress:
    """Prints lines with the seconds since the start."""

    def __init__(self, out: Callable[[str], None], clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._started = self._printed = clock.now()

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return self._clock.now() - self._started

    def report(self, line: str) -> None:
        """Print a line."""
        self._printed = self._clock.now()
        self._out(f"{self.seconds:.0f} s: {line}")

    def wait(self, line: str, seconds: float = POLL_SECONDS) -> None:
        """Sleep, and print what is waited for if nothing was printed for 15 seconds."""
        if self._clock.now() - self._printed >= REPORT_SECONDS:
            self.report(f"waiting for {line}")
        self._clock.sleep(seconds)


def run(
    cluster: Cluster | None,
    account: AccountClient,
    *,
    timeout: float,
    report: Callable[[str], None],
    clock: Clock,
) -> None:
    """Run the drain's steps. `cluster` is None if it does not exist any more; then only the account is cleaned.

    Raises:
        DrainError: Something is left after `timeout` seconds.
    """
    progress = Progress(report, clock)
    if cluster is None:
        progress.report("the cluster does not exist; looking for its instances")
        _terminate_instances(account, progress, timeout)
    else:
        drain = _Drain(cluster=cluster, account=account, progress=progress, timeout=timeout)
        drain.end_work()
        # Load balancers use subnets and security groups.
        drain.delete_all(SERVICES, INGRESSES)
        drain.remove_nodes()
        _terminate_instances(account, progress, timeout)
        drain.forget_pods()
        drain.release_volumes()
        drain.end_node_classes()
    for name in account.remove_leftovers_of_instances():
        progress.report(f"removed {name}, a leftover of an instance")
    progress.report("no node is left")


def _terminate_instances(account: AccountClient, progress: Progress, timeout: float) -> None:
    """Terminate the instances that are left, with or without a NodeClaim."""
    requested: set[str] = set()
    while instances := account.instances():
        if fresh := sorted(set(instances) - requested):
            account.terminate(fresh)
            requested |= set(fresh)
            progress.report(f"terminating {_count(instances, 'instance')}: {_first(instances)}")
        if progress.seconds >= timeout:
            raise DrainError(
                f"{_count(instances, 'instance')} left: {_first(instances)}; terminate them, then run the destroy"
                " again"
            )
        progress.wait(f"{_count(instances, 'instance')} to terminate: {_first(instances)}", POLL_SECONDS * 2)


@dataclass(kw_only=True)
class _Drain:
    cluster: Cluster
    account: AccountClient
    progress: Progress
    timeout: float
    nodes: set[str] = field(default_factory=set)

    def end_work(self) -> None:
        """Delete launchers first, because they create placeholders; then jobs, warm nodes and pods."""
        self.delete_all(JOBS, PYTORCH_JOBS, MPI_JOBS, TRAIN_JOBS)
        # Jobs with their pods, then queues, while their controller still runs to finalize them. An object that it does
        # not finalize would block the deletion of its definition for ever. Its queue of KAI Scheduler then remains.
        for kind in (GANGS, QUEUES):
            if not self._delete(kind, QUEUE_SECONDS):
                self._release(kind)
        self.delete_all(HOLDERS, PODS)

    def delete_all(self, *kinds: Kind) -> None:
        """Delete every object of each kind, and wait until they are gone before the next kind."""
        for kind in kinds:
            if not self._delete(kind, self.timeout):
                raise DrainError(
                    f"{kind.plural} do not end: {_first(self.cluster.names(kind))} (namespace {kind.namespace});"
                    " see `kubectl describe` of them, then run the destroy again"
                )

    def remove_nodes(self) -> None:
        """Delete NodePools, so that no node is created, then NodeClaims: by Karpenter for at most half of the time."""
        cluster, progress = self.cluster, self.progress
        for name in cluster.names(NODE_POOLS):
            cluster.delete(NODE_POOLS, name)
        requested: set[str] = set()
        seen = progress.seconds
        while claims := cluster.names(NODE_CLAIMS):
            self.nodes |= set(cluster.names(NODES))
            now = progress.seconds
            if cluster.controller_runs():
                seen = now
            if now >= self.timeout / 2 or now - seen >= ABSENT_SECONDS:
                reason = "is not running" if now > seen else "does not finish"
                progress.report(f"Karpenter {reason}; terminating the instances by this cluster's tags")
                _terminate_instances(self.account, progress, self.timeout)
                self._release(NODE_CLAIMS)
                self._release(NODES)
                return
            if fresh := sorted(set(claims) - requested):
                progress.report(f"deleting NodeClaims: {_first(fresh)}")
                for name in fresh:
                    cluster.delete(NODE_CLAIMS, name)
                requested |= set(fresh)
            if blocking := cluster.delete_blocking_pods():
                progress.report(f"deleting pods that block nodes: {_first(blocking)}")
            progress.wait(f"{_count(claims, 'node')}: {_first(claims)}")

    def forget_pods(self) -> None:
        """Delete the pods of DaemonSets that outlive their nodes: a DaemonSet ends only with its pods.

        The garbage collector of Kubernetes only deletes them after 40 seconds and runs every 20
        (kube-controller-manager, pkg/controller/podgc/gc_controller.go); the whole destroy would wait for it.
        """
        gone = self.nodes - set(self.cluster.names(NODES))
        if gone and (pods := self.cluster.forget_pods_of(frozenset(gone))):
            self.progress.report(f"removed pods of deleted nodes: {_first(pods)}")

    def release_volumes(self) -> None:
        """Delete the volumes of drivers: after the nodes that mounted them, while the driver still runs.

        A claim remains as long as a pod mounts it, and the pods on the system nodes still run.
        """
        cluster, progress = self.cluster, self.progress
        if not cluster.claims_of_volumes():
            return
        requested: set[str] = set()
        began = progress.seconds
        while volumes := cluster.names(VOLUMES):
            if progress.seconds >= min(self.timeout, began + VOLUME_SECONDS):
                progress.report(f"volumes are left; delete them in the account: {_first(volumes)}")
                return
            # In each round, because an operator may create its pods and their claims again.
            claims = cluster.claims_of_volumes()
            if ended := cluster.end_users_of_claims(claims):
                progress.report(f"deleting what mounts volumes: {_first(ended)}")
            if fresh := sorted(set(claims) - requested):
                progress.report(f"deleting volume claims: {_first(fresh)}")
                requested |= set(fresh)
            for name in claims:
                cluster.delete(VOLUME_CLAIMS, name)
            progress.wait(f"{_count(volumes, 'volume')}: {_first(volumes)}")

    def end_node_classes(self) -> None:
        """Delete the EC2NodeClasses. With the last one, Karpenter removes its instance profiles, if it may."""
        for name in self.cluster.names(NODE_CLASSES):
            self.cluster.delete(NODE_CLASSES, name)
        patience = NODE_CLASS_SECONDS if self.cluster.controller_runs() else 0
        end = self.progress.seconds + patience
        for kind in (NODE_CLASSES, NODE_POOLS):
            if not self._wait(kind, end - self.progress.seconds):
                self._release(kind)

    def _delete(self, kind: Kind, seconds: float) -> bool:
        """Delete every object of a kind and wait until they are gone. Return False if the time is over."""
        if names := self.cluster.names(kind):
            self.progress.report(f"deleting {kind.plural}: {_first(names)}")
            for name in names:
                self.cluster.delete(kind, name)
        return self._wait(kind, seconds)

    def _wait(self, kind: Kind, seconds: float) -> bool:
        """Wait until no object of the kind is left. Return False if the time of the kind or the drain is over."""
        end = min(self.timeout, self.progress.seconds + seconds)
        while names := self.cluster.names(kind):
            if self.progress.seconds >= end:
                return False
            self.progress.wait(f"{len(names)} {kind.plural}: {_first(names)}")
        return True

    def _release(self, kind: Kind) -> None:
        """Remove the finalizers of objects whose instances certainly do not exist."""
        names = self.cluster.names(kind)
        if names:
            self.progress.report(f"releasing {len(names)} {kind.plural}: {_first(names)}")
        for name in names:
            self.cluster.delete(kind, name)
            self.cluster.remove_finalizers(kind, name)


def remove_remains(
    account: AccountClient,
    vpc: str | None,
    *,
    timeout: float,
    late_logs: float,
    report: Callable[[str], None],
    clock: Clock,
) -> None:
    """Remove what a deleted cluster leaves in its network and in no state.

    The VPC CNI leaves network interfaces if their node ends first. EKS leaves its security group if such an interface
    uses it, and GuardDuty keeps its endpoint and group. The control plane's log group must go because the next cluster
    needs its name: EKS delivers entries within a few minutes
    (https://docs.aws.amazon.com/eks/latest/userguide/control-plane-logs.html) with its own role, and entries after the
    deletion of the group create it again.

    Args:
        account: The account.
        vpc: The id of the VPC if the stack created it, None for an existing one.
        timeout: After these seconds, the network must be free.
        late_logs: The seconds for which entries of the control plane's logs may still come.
        report: Prints a line.
        clock: The time.

    Raises:
        DrainError: Something still uses the network after `timeout` seconds.
    """
    progress = Progress(report, clock)
    while True:
        # Before the search for the group, so that the last round sees an entry of the last moment.
        left = late_logs - progress.seconds
        removed = [*account.remove_interfaces(), *account.remove_cluster_group(), *account.remove_late_logs()]
        removed += account.remove_guardduty(vpc) if vpc else []
        for name in removed:
            progress.report(f"removed {name}")
        if remaining := account.remaining(vpc):
            if progress.seconds >= timeout:
                raise DrainError(
                    f"still in the network: {_first(remaining)}; find who uses them, then run the destroy again"
                )
            progress.wait(_first(remaining), POLL_SECONDS * 2)
        elif left > 0:
            late = f"late entries of the control plane's logs, {left:.0f} s more"
            progress.wait(late, min(POLL_SECONDS * 2, left))
        else:
            return


def _count(names: Sequence[str], noun: str) -> str:
    """Return the number of names with the noun, such as `1 node` or `2 nodes`."""
    return f"{len(names)} {noun}" + ("" if len(names) == 1 else "s")


def _first(names: Sequence[str]) -> str:
    """Return the first five names."""
    shown = ", ".join(sorted(names)[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
