"""Run the controller of TorchrunQueues and TorchrunJobs until SIGTERM. A Lease makes sure that only one is active."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from launcher.cost import KarpenterPrices
from launcher.server import wildcard_address
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable, Client
from trainyard.k8s.kubeconfig import connect_in_pod_or_outside
from trainyard.k8s.lease import LeaderElector, Lost, Standing
from trainyard.k8s.objects import Objects
from trainyard.operator import names as n
from trainyard.operator.cluster_reader import ClusterReader
from trainyard.operator.controller import STUCK_SECONDS, Controller, Watches
from trainyard.operator.index import ObjectIndex
from trainyard.operator.metrics import Metrics, serve_liveness
from trainyard.operator.reconciler import Reconciler

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
        return asyncio.run(_serve(client, image, pod or str(uuid.uuid4()), address, options))
    except (ApiUnavailable, OSError) as error:
        place = f"{address}: " if isinstance(error, OSError) else ""
        print(f"torchrun-controller: {place}{error}", file=sys.stderr)
        return _FAILED


async def _serve(client: Client, image: str, holder: str, address: str, options: argparse.Namespace) -> int:
    objects = Objects(client, n.FIELD_MANAGER)
    metrics = Metrics()
    metrics.serve(address, options.metrics_port)
    index = ObjectIndex()
    prices = KarpenterPrices()
    prices.start()
    reconciler = Reconciler(objects, ClusterReader(objects, image), index=index, price=prices)
    controller = Controller(reconciler, metrics, index)
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    watches = Watches(client, controller, loop)
    serve_liveness(address, options.liveness_port, controller.silent_seconds, STUCK_SECONDS, watches.died)
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
    ended = asyncio.Event()
    reconciling = asyncio.create_task(controller.run())
    renewing = asyncio.create_task(_renew(lease, controller, ended))
    stopped = asyncio.create_task(stopping.wait())
    tasks: list[asyncio.Task[Any]] = [reconciling, renewing]
    done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
    reconciling.cancel()
    await asyncio.gather(reconciling, return_exceptions=True)
    ended.set()  # the Lease is renewed as long as a reconcile runs
    await asyncio.gather(renewing, return_exceptions=True)
    await asyncio.to_thread(lease.release)
    for task in tasks:
        if task in done:
            task.result()


async def _renew(lease: LeaseHolder, controller: Controller, ended: asyncio.Event) -> None:
    """Until `ended` is set, allow reconciles while this process holds the Lease, and wait for it otherwise."""
    is_allowed: bool | None = None
    while not ended.is_set():
        controller.beat()
        until = await asyncio.to_thread(lease.keep)
        before, is_allowed = is_allowed, time.monotonic() < until
        if is_allowed != before:
            other = f" by {lease.other}" if lease.other else ""
            state = "held: reconciles start" if is_allowed else f"held{other}: waits"
            log.info("Lease %s is %s", n.CONTROLLER, state)
        controller.allow(until)
        with suppress(TimeoutError):
            async with asyncio.timeout(lease.pause):
                await ended.wait()


class LeaseHolder(LeaderElector):
    """The controller's Lease for one holder.

    Even a Deployment with one replica and the strategy Recreate has two pods if a node stops answering.
    `clock` counts seconds and is never set back; `now` is seconds since the epoch, for people who read the Lease.
    `pause` is the number of seconds until the next `keep`.
    """

    def __init__(
        self,
        objects: Objects,
        holder: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        metadata = {"name": n.CONTROLLER, "namespace": n.CONTROLLER_NAMESPACE}
        super().__init__(objects, metadata, holder, clock, now)
        self.pause: float = names.LEASE_RENEW_SECONDS
        self._until = float("-inf")

    def keep(self) -> float:
        """Take or renew the Lease. Return until when it is held, as a time of `clock`. It may be in the past."""
        self.pause = names.LEASE_RENEW_SECONDS
        try:
            is_held = self._renew_or_take()
        except (ApiError, ApiUnavailable) as error:
            self.pause = max(self.pause, error.retry_after)
            log.warning("Lease %s: %s", n.CONTROLLER, error)
            return self._until
        self._until = self.renewed + names.LEASE_SECONDS if is_held else float("-inf")
        return self._until

    def _renew_or_take(self) -> bool:
        # After a lost Lease, or a lost answer, `take` reads the Lease.
        with suppress(Lost):
            self.renew()
            return True
        return self.take() is Standing.OURS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
