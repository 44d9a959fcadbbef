"""Run the controller of TorchrunQueues and TorchrunJobs until SIGTERM. A Lease makes sure that only one is active."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable, Client
from trainyard.k8s.kubeconfig import connect_in_pod_or_outside
from trainyard.k8s.lease import LeaderElector, Lost, ObjectsStore, Standing
from trainyard.k8s.objects import Objects
from trainyard.operator import names as n
from trainyard.operator.cluster_reader import ClusterReader
from trainyard.operator.controller import STUCK_SECONDS, Controller, Watches
from trainyard.operator.index import ObjectIndex
from trainyard.operator.metrics import Metrics, serve_liveness
from trainyard.operator.reconciler import Reconciler

# In a pod, network policies restrict the access.
# A cluster has one IP family, that of its API server's address
# (https://docs.aws.amazon.com/eks/latest/userguide/cni-ipv6.html).
_ALL_ADDRESSES = {4: "0.0.0.0", 6: "::"}  # noqa: S104
_LOOPBACK = "127.0.0.1"
_FAILED = 1

log = logging.getLogger(__name__)


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run until SIGTERM. Return 0, or 1 if the API server or an address is not available."""
    parser = argparse.ArgumentParser(prog="python -m trainyard.operator", description=__doc__)
    parser.add_argument(
        "--address", help="serve metrics and liveness on this address (default: all addresses of the pod)"
    )
    parser.add_argument("--metrics-port", type=int, default=names.METRICS_PORT, help="default: %(default)s")
    parser.add_argument("--liveness-port", type=int, default=n.LIVENESS_PORT, help="default: %(default)s")
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    image = environment.get(n.ENV_TOOLS_IMAGE, "")
    if not image:
        parser.error(
            f"{n.ENV_TOOLS_IMAGE} is not set; it must be the image of trainyard.workspace, by its digest"
        )
    pod = environment.get(names.ENV_POD_UID)
    address = options.address or (wildcard_address(environment) if pod else _LOOPBACK)
    try:
        client = connect_in_pod_or_outside()
        return asyncio.run(
            _serve(
                client, image, pod or str(uuid.uuid4()), address, options.metrics_port, options.liveness_port
            )
        )
    except ApiUnavailable as error:
        print(f"torchrun-controller: {error}", file=sys.stderr)
        return _FAILED
    except OSError as error:
        print(f"torchrun-controller: {address}: {error}", file=sys.stderr)
        return _FAILED


def wildcard_address(environment: Mapping[str, str]) -> str:
    """Return the wildcard address of the cluster's IP family."""
    return _ALL_ADDRESSES[6 if ":" in environment.get("KUBERNETES_SERVICE_HOST", "") else 4]


async def _serve(
    client: Client, image: str, holder: str, address: str, metrics_port: int, liveness_port: int
) -> int:
    objects = Objects(client, n.FIELD_MANAGER)
    metrics = Metrics()
    metrics.serve(address, metrics_port)
    index = ObjectIndex()
    reconciler = Reconciler(objects, ClusterReader(objects, image), index=index)
    controller = Controller(objects, reconciler, metrics, index)
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    watches = Watches(client, controller, loop)
    serve_liveness(address, liveness_port, controller.silent_seconds, STUCK_SECONDS, watches.died)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await asyncio.to_thread(watches.start)
    await run_until(stopping, controller, LeaseHolder(objects, holder))
    await asyncio.to_thread(watches.stop)
    return 0


async def run_until(stopping: asyncio.Event, controller: Controller, lease: LeaseHolder) -> None:
    """Reconcile until `stopping` is set, and release the Lease as soon as no reconcile runs.

    The next controller waits for the Lease. Raises the error of a task that ended by itself.
    """
    # In the order in which they end: the Lease is renewed as long as reconciles run.
    work = (controller.run(), _hold_lease(lease, controller))
    tasks: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in work]
    stopped: asyncio.Task[Any] = asyncio.create_task(stopping.wait())
    done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await asyncio.to_thread(lease.release)
    for task in done - {stopped}:
        task.result()


async def _hold_lease(lease: LeaseHolder, controller: Controller) -> None:
    """Allow reconciles while this process holds the Lease, and wait for it otherwise."""
    held: bool | None = None
    while True:
        controller.beat()
        until = await asyncio.to_thread(lease.keep)
        before, held = held, time.monotonic() < until
        if held != before:
            other = f" by {lease.other}" if lease.other else ""
            state = "held: reconciles start" if held else f"held{other}: waits"
            log.info("Lease %s is %s", n.CONTROLLER, state)
        controller.allow(until)
        await asyncio.sleep(lease.pause)


class LeaseHolder:
    """The controller's Lease for one holder.

    Even a Deployment with one replica and the strategy Recreate has two pods if a node stops answering.
    `clock` counts seconds and is never set back; `now` is seconds since the epoch, for people who read the Lease.
    """

    def __init__(
        self,
        objects: Objects,
        holder: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        store = ObjectsStore(objects, n.CONTROLLER_NAMESPACE, n.CONTROLLER)
        metadata = {"name": n.CONTROLLER, "namespace": n.CONTROLLER_NAMESPACE}
        self._elector = LeaderElector(store, metadata, holder, clock, now)
        self._until = float("-inf")
        self._retry_after = 0.0
        self._lock = threading.Lock()
        self._released = False

    @property
    def pause(self) -> float:
        """Return the seconds until the next `keep`: the renewal interval, or longer if the API asked for it."""
        return max(names.LEASE_RENEW_SECONDS, self._retry_after)

    @property
    def other(self) -> str:
        """Return the last other holder that was seen."""
        return self._elector.other

    def keep(self) -> float:
        """Take or renew the Lease. Return until when it is held, as a time of `clock`. It may be in the past."""
        with self._lock:
            self._retry_after = 0.0
            if self._released:
                return float("-inf")
            try:
                held = self._renew_or_take()
            except (ApiError, ApiUnavailable) as error:
                self._retry_after = error.retry_after
                log.warning("Lease %s: %s", n.CONTROLLER, error)
                return self._until
            self._until = self._elector.renewed + names.LEASE_SECONDS if held else float("-inf")
            return self._until

    def _renew_or_take(self) -> bool:
        if self._elector.held:
            try:
                self._elector.renew({})
                return True
            except Lost:
                pass  # or only an answer was lost; the next call reads the Lease
        return self._elector.take() is Standing.OURS

    def release(self) -> None:
        """Release the Lease for the next controller, if the API allows it.

        A renewal in another thread ends first, so that its version is released. No renewal begins later.
        """
        with self._lock:
            self._released = True
            self._elector.release({})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
