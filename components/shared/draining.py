"""Giving back every machine of a cluster before the cluster goes. No Pulumi: runs inside the drain's provider.

Karpenter's machines are not in the state of the stack; they end only while Karpenter, its role and the routes are
alive. So: end the launchers, the trainings and the placeholders; then the pools and the claims; then wait. If claims
are left when half of the time is gone, the machines are terminated by exactly this cluster's tags.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from components.shared.contract import LABEL_NODEPOOL, LABEL_ROLE, ROLE_LAUNCHER, TRAINING_NAMESPACE

POLL_SECONDS: Final = 2.0
REPORT_SECONDS: Final = 15.0
CLUSTER_TAG: Final = "eks:eks-cluster-name"
NOT_FOUND: Final = 404

KARPENTER: Final = "karpenter.sh"
KARPENTER_AWS: Final = "karpenter.k8s.aws"


class DrainError(Exception):
    """Machines or objects are left; the message names them and what to do."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of object: where it is served, and in which namespace (None: cluster-wide)."""

    group: str
    version: str
    plural: str
    namespace: str | None = None


JOBS: Final = Kind(group="batch", version="v1", plural="jobs", namespace=TRAINING_NAMESPACE)
TRAININGS: Final = Kind(
    group="kubeflow.org", version="v1", plural="pytorchjobs", namespace=TRAINING_NAMESPACE
)
PODS: Final = Kind(group="", version="v1", plural="pods", namespace=TRAINING_NAMESPACE)
NODE_POOLS: Final = Kind(group=KARPENTER, version="v1", plural="nodepools")
NODE_CLAIMS: Final = Kind(group=KARPENTER, version="v1", plural="nodeclaims")
NODE_CLASSES: Final = Kind(group=KARPENTER_AWS, version="v1", plural="ec2nodeclasses")
NODES: Final = Kind(group="", version="v1", plural="nodes")


class Api:
    """What the drain asks of a cluster and of EC2. `components.shared.drain_api` has the real one."""

    def names(self, kind: Kind) -> list[str]:
        """Names of the objects that exist; an empty list where the kind itself is not known."""
        raise NotImplementedError

    def delete(self, kind: Kind, name: str) -> None:
        """Delete an object, its dependents with it; one that is gone is no error."""
        raise NotImplementedError

    def remove_finalizers(self, kind: Kind, name: str) -> None:
        """Let an object go whose controller can't finish it."""
        raise NotImplementedError

    def machines(self) -> list[str]:
        """Ids of the instances with exactly this cluster's tags that are not terminated."""
        raise NotImplementedError

    def terminate(self, instances: list[str]) -> None:
        """Terminate instances."""
        raise NotImplementedError


@dataclass(kw_only=True)
class Clock:
    """Time, so that tests need none of it."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def drain(*, cluster: str, region: str, timeout: float) -> None:
    """Drain a cluster, with progress on standard output. A cluster that is gone has nothing left to drain.

    Raises:
        DrainError: something is left after `timeout` seconds.
    """
    from components.shared.drain_api import ClusterGone, connect

    def say(line: str) -> None:
        print(f"drain of {cluster}: {line}", flush=True)

    try:
        api = connect(cluster, region)
    except ClusterGone:
        say("the cluster is gone, nothing to do")
        return
    run(api, timeout=timeout, say=say, clock=Clock())


def run(api: Api, *, timeout: float, say: Callable[[str], None], clock: Clock) -> None:
    """The drain's steps on an API.

    Raises:
        DrainError: something is left after `timeout` seconds.
    """
    end = clock.now() + timeout
    half = clock.now() + timeout / 2
    # The launcher first: it would make the placeholders anew.
    for kind, what in ((JOBS, "launcher Jobs"), (TRAININGS, "PyTorchJobs"), (PODS, "pods")):
        _empty(api, kind, what, end, say, clock)
    for kind in (NODE_POOLS, NODE_CLAIMS, NODE_CLASSES):
        for name in api.names(kind):
            api.delete(kind, name)
    if not _wait(api, (NODE_CLAIMS,), "machines", half, say, clock):
        _take_down(api, end, say, clock)
    left = api.machines()
    if left:
        api.terminate(left)
        _wait_for_instances(api, end, say, clock)
    if not _wait(api, (NODE_CLASSES, NODE_POOLS), "EC2NodeClasses", end, say, clock):
        _release(api, (NODE_CLASSES, NODE_POOLS), say)
    say("no machine is left")


def _empty(api: Api, kind: Kind, what: str, end: float, say: Callable[[str], None], clock: Clock) -> None:
    """Delete every object of a kind and wait until they are gone."""
    names = api.names(kind)
    if not names:
        return
    say(f"deleting {len(names)} {what}: {_some(names)}")
    for name in names:
        api.delete(kind, name)
    if not _wait(api, (kind,), what, end, say, clock):
        raise DrainError(
            f"{what} do not end: {_some(api.names(kind))} in namespace {kind.namespace};"
            " see `kubectl describe` of them, then run the destroy again"
        )


def _wait(
    api: Api, kinds: tuple[Kind, ...], what: str, end: float, say: Callable[[str], None], clock: Clock
) -> bool:
    """Wait until no object of the kinds is left; False when the time is over."""
    started = reported = clock.now()
    while True:
        left = [name for kind in kinds for name in api.names(kind)]
        if not left:
            return True
        if clock.now() >= end:
            return False
        if clock.now() - reported >= REPORT_SECONDS:
            reported = clock.now()
            say(f"waiting for {len(left)} {what} ({reported - started:.0f} s): {_some(left)}")
        clock.sleep(POLL_SECONDS)


def _take_down(api: Api, end: float, say: Callable[[str], None], clock: Clock) -> None:
    """Karpenter does not finish: terminate the machines ourselves, then release what waits for it."""
    machines = api.machines()
    say(f"Karpenter does not finish; terminating {len(machines)} machines by this cluster's tags")
    if machines:
        api.terminate(machines)
    _wait_for_instances(api, end, say, clock)
    _release(api, (NODE_CLAIMS, NODES), say)


def _wait_for_instances(api: Api, end: float, say: Callable[[str], None], clock: Clock) -> None:
    reported = clock.now() - REPORT_SECONDS
    while machines := api.machines():
        if clock.now() >= end:
            raise DrainError(
                f"{len(machines)} machines are left: {_some(machines)}; terminate them, then run the destroy again"
            )
        if clock.now() - reported >= REPORT_SECONDS:
            reported = clock.now()
            say(f"waiting for {len(machines)} machines to terminate: {_some(machines)}")
        clock.sleep(POLL_SECONDS * 2)


def _release(api: Api, kinds: tuple[Kind, ...], say: Callable[[str], None]) -> None:
    """Remove finalizers of objects whose machines are gone for sure."""
    for kind in kinds:
        names = api.names(kind)
        if names:
            say(f"releasing {len(names)} {kind.plural}: {_some(names)}")
        for name in names:
            api.delete(kind, name)
            api.remove_finalizers(kind, name)


def _some(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def selector(kind: Kind) -> str | None:
    """The label selector of the objects that belong to the training: of Nodes those of pools, of Jobs and pods ours.

    A Job that was made from the manifest in the outputs has no run of its own name, so that the role tells.
    """
    if kind == NODES:
        return LABEL_NODEPOOL
    if kind == JOBS:
        return f"{LABEL_ROLE}={ROLE_LAUNCHER}"
    return LABEL_ROLE if kind == PODS else None
