"""`python -m trainyard.operator`: serves torchrun queues and jobs until SIGTERM. One at a time does, by a Lease."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence

import kopf

from trainyard.k8s import names
from trainyard.k8s.client import ApiUnavailable, Client
from trainyard.k8s.kubeconfig import connect_in_pod_or_outside
from trainyard.k8s.objects import Objects
from trainyard.operator import handlers
from trainyard.operator import names as n
from trainyard.operator.cluster_reader import ClusterReader
from trainyard.operator.controller import Controller
from trainyard.operator.kinds import Kinds
from trainyard.operator.lease import LeaseHolder
from trainyard.operator.metrics import Metrics
from trainyard.operator.reconciler import Reconciler

# In a pod, network policies say who gets here; outside of one only this machine does.
# A cluster has one IP family, that of its API server's address
# (https://docs.aws.amazon.com/eks/latest/userguide/cni-ipv6.html).
_ALL_ADDRESSES = {4: "0.0.0.0", 6: "::"}  # noqa: S104
_LOOPBACK = "127.0.0.1"
_FAILED = 1

log = logging.getLogger(__name__)


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Returns the exit code once it is stopped: 0, or 1 where there is no way to the API or no port to be had."""
    parser = argparse.ArgumentParser(prog="python -m trainyard.operator", description=__doc__)
    parser.add_argument(
        "--address", help="serve metrics and liveness on this address (default: every one of the pod)"
    )
    parser.add_argument("--metrics-port", type=int, default=names.METRICS_PORT, help="default: %(default)s")
    parser.add_argument("--liveness-port", type=int, default=n.LIVENESS_PORT, help="default: %(default)s")
    given = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    for talkative in ("kopf.objects", "kopf.activities.probe", "aiohttp.access"):
        logging.getLogger(talkative).setLevel(logging.WARNING)  # a line for each event and each probe, else
    image = environment.get(n.ENV_TOOLS_IMAGE, "")
    if not image:
        parser.error(
            f"{n.ENV_TOOLS_IMAGE} is not set; it must be the image of trainyard.workspace, by its digest"
        )
    pod = environment.get(names.ENV_POD_UID)
    address = given.address or (wildcard_address(environment) if pod else _LOOPBACK)
    try:
        rest = connect_in_pod_or_outside()
        return asyncio.run(
            _serve(rest, image, pod or str(uuid.uuid4()), address, given.metrics_port, given.liveness_port)
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


def format_host(address: str) -> str:
    """Return the address in the notation of a URL."""
    return f"[{address}]" if ":" in address else address


async def _serve(
    rest: Client, image: str, holder: str, address: str, metrics_port: int, liveness_port: int
) -> int:
    objects = Objects(rest, n.FIELD_MANAGER)
    metrics = Metrics()
    metrics.serve(address, metrics_port)
    controller = Controller(objects, Reconciler(objects, ClusterReader(objects, image)), metrics)
    stopping, ready = asyncio.Event(), asyncio.Event()
    hold = LeaseHolder(objects, holder)
    kinds = Kinds(handlers.settings(), handlers.DEFINED)
    watching = asyncio.create_task(
        kopf.operator(
            registry=handlers.registry(controller, kinds),
            settings=kinds.settings,
            insights=kinds.insights,
            clusterwide=True,
            standalone=True,
            liveness_endpoint=f"http://{format_host(address)}:{liveness_port}{n.LIVENESS_PATH}",
            ready_flag=ready,
            stop_flag=stopping,
        )
    )
    working = asyncio.create_task(controller.run())
    holding = asyncio.create_task(_hold(hold, controller))
    listening = asyncio.create_task(_hear_signals(ready, stopping))
    stopped = asyncio.create_task(stopping.wait())
    tasks = {watching, working, holding}
    done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopping.set()  # kopf ends in its own order
    working.cancel()
    holding.cancel()
    listening.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.to_thread(hold.release)
    for task in done - {stopped}:
        task.result()  # raises what ended it
    return 0


async def _hear_signals(ready: asyncio.Event, stopping: asyncio.Event) -> None:
    """In kopf's place, once it is ready: it tells nobody of them, and waits five seconds for the controller to end."""
    await ready.wait()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)


async def _hold(hold: LeaseHolder, controller: Controller) -> None:
    """Works as long as the Lease is held, and waits for it while it is not."""
    held: bool | None = None
    while True:
        until = await asyncio.to_thread(hold.keep)
        before, held = held, time.monotonic() < until
        if held != before:
            other = f" by {hold.other}" if hold.other else ""
            log.info(
                "Lease %s is %s", n.CONTROLLER, "held: the work begins" if held else f"held{other}: waits"
            )
        controller.allow(until)
        await asyncio.sleep(hold.pause)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
