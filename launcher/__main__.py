"""Wait for nodes, submit the training job and follow it; with `--dry-run`, only print the objects.

The request comes from the environment (launcher/request.py). The exit codes are in trainyard/k8s/names.py.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from launcher import backends, manifests
from launcher.manifests import JsonObject, Owner
from launcher.progress import initial_progress
from launcher.request import Request, RequestError, parse_request
from launcher.server import wildcard_address
from trainyard.k8s import names

log = logging.getLogger(__name__)


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run one launcher and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m launcher", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--dry-run", action="store_true", help="print the request and the objects as YAML, create nothing"
    )
    parser.add_argument(
        "--metrics-address",
        metavar="ADDRESS",
        help="serve metrics on this address (default: on each one of the pod, and outside of a pod on 127.0.0.1)",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="also log each change of a count, as debug lines"
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    if options.verbose:
        logging.getLogger("launcher").setLevel(logging.DEBUG)
    try:
        request = parse_request(environment)
    except RequestError as error:
        for problem in error.problems:
            print(f"launcher: {problem}", file=sys.stderr)
        return names.EXIT_BAD_REQUEST
    job = environment.get(names.ENV_JOB_NAME) or f"{names.LAUNCHER_JOB_PREFIX}{request.run_id}"
    if options.dry_run:
        print(dry_run(request, job), end="")
        return names.EXIT_SUCCEEDED
    pod = environment.get(names.ENV_POD_UID)
    # Outside of a pod, only this host may connect.
    address = options.metrics_address or (wildcard_address(environment) if pod else "127.0.0.1")
    return run(request, job, pod or str(uuid.uuid4()), address)


def run(request: Request, job: str, holder: str, address: str) -> int:
    """Run the request against the cluster and return the exit code. SIGTERM and SIGINT end it cleanly.

    Args:
        job: The name of the launcher's Job.
        holder: The identity in the run's Lease.
        address: The address on which metrics are served.
    """
    from launcher.cost import KarpenterPrices
    from launcher.gateway import Gateway
    from launcher.loop import Launcher
    from trainyard.k8s.client import ApiUnavailable
    from trainyard.k8s.kubeconfig import connect_in_pod_or_outside

    try:
        gateway = Gateway(connect_in_pod_or_outside(), time.time)
    except ApiUnavailable as error:
        print(f"launcher: can't connect to the Kubernetes API: {error}", file=sys.stderr)
        return names.EXIT_API_ERROR
    stopping = threading.Event()

    def stop(*_: object) -> None:
        stopping.set()
        gateway.wake()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    prices = KarpenterPrices()
    prices.start()
    launcher = Launcher(request, job, gateway, stopping=stopping, holder=holder, price=prices)
    launcher.metrics.serve(address, names.METRICS_PORT)
    try:
        return launcher.run()
    finally:
        gateway.close()


def dry_run(request: Request, job: str) -> str:
    """Return the request, and the placeholders and the training job of each candidate, as YAML documents.

    They are for MAX nodes, or for the pool's maximum. A pool that may have fewer than MIN nodes has none.
    """
    import yaml

    owner = Owner(name=job, uid="00000000-0000-0000-0000-000000000000")
    documents: list[JsonObject] = [{"request": asdict(request)}]
    for index in range(request.candidate_count):
        candidate = request.candidate(index)
        pool = candidate.pool
        nodes = min(request.max_nodes, pool.max_nodes)
        if nodes < request.min_nodes:
            log.warning(
                "pool %s may have %d nodes, fewer than MIN (%d): no run starts there",
                pool.name,
                nodes,
                request.min_nodes,
            )
            continue
        wait = replace(initial_progress(0.0), candidate=index).label
        documents += (manifests.placeholder(candidate, number, owner, wait) for number in range(nodes))
        reason = f"dry run: as if all nodes of pool {pool.name} were there"
        backend = backends.of(candidate)
        if backend.runtime is not None:
            documents.append(backend.runtime(candidate, nodes, 0, owner))
        documents.append(backend.build(candidate, nodes, reason, 0))
    # A copy by JSON shares no objects, so the YAML has no anchors.
    return str(yaml.safe_dump_all(json.loads(json.dumps(documents)), sort_keys=False))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
