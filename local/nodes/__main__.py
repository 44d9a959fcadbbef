"""`python -m local.nodes --cluster NAME --home DIR`: the machines of one cluster, until SIGTERM.

Ends with 2 where the cluster is not there. Pods' processes go on when this ends; the next start takes them over.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from local.home import Home
from local.nodes import devices, helpers, preload
from local.nodes.api import Api, ApiUnavailable, Informer, Object
from local.nodes.context import Addresses, Context, Tasks
from local.nodes.drivers import Drivers
from local.nodes.images import Images
from local.nodes.kubelet import Kubelet
from local.nodes.machines import Machines
from local.nodes.pods import Pods
from local.nodes.provisioner import Provisioner
from local.nodes.services import Proxies
from local.nodes.settings import Settings
from local.tools import ToolError


async def serve(settings: Settings) -> None:
    """Run everything until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    tasks, proxies = Tasks(), Proxies()
    pods = Pods(proxies.settle)

    def pod_seen(what: str, item: Object) -> None:
        pods.pod_changed(what, item)
        if devices.offered(item):
            machines.plugin_seen(item["spec"]["nodeName"])

    directory = helpers.make(settings.state / "bin")
    async with Api(settings.kubeconfig) as api:
        context = Context(
            settings=settings,
            api=api,
            images=Images(settings.home.images_file, settings.home.bin, directory, settings.account),
            pods=Informer(api, "/api/v1/pods", pod_seen, "spec.nodeName!="),
            services=Informer(api, "/api/v1/services", pods.service_changed),
            config_maps=Informer(api, "/api/v1/configmaps", pods.data_changed),
            # Helm stores its releases in Secrets, which are large and which no pod uses.
            secrets=Informer(api, "/api/v1/secrets", pods.data_changed, "type!=helm.sh/release.v1"),
            addresses=Addresses(settings.pod_network),
            tasks=tasks,
            preload=preload.library(),
            helpers=directory,
        )
        pods.context = proxies.context = context
        kubelet = Kubelet(pods, settings.state, settings.pki)
        port = await kubelet.start()

        def ready(name: str, allocatable: Object) -> None:
            context.allocatable[name] = allocatable
            pods.machine_ready(name)

        def plugins(name: str) -> frozenset[str]:
            return devices.running(context.pods.objects.values(), name)

        machines = Machines(settings, api, tasks, port, ready, pods.machine_gone, plugins)
        context.instances = machines.instances
        drivers = Drivers(api, machines.instances)
        provisioner = Provisioner(settings, api, machines.instances)
        informers = (context.pods, context.services, context.config_maps, context.secrets)
        for informer in (drivers.nodes, provisioner.claims, provisioner.volumes):
            tasks.start(informer.run(), f"watch {informer.path}")
        tasks.start(drivers.keep(), "CSI drivers")
        tasks.start(provisioner.keep(), "volumes")
        for informer in informers:
            tasks.start(informer.run(), f"watch {informer.path}")
        tasks.start(proxies.run(), "services")
        for informer in informers:
            await informer.synced.wait()
        pods.prune()
        tasks.start(pods.keep_names(), "names")
        tasks.start(pods.keep_fresh(), "tokens")
        tasks.start(pods.keep_clocks(), "logs")
        tasks.start(machines.heartbeat(), "heartbeat")
        tasks.start(machines.follow(), "instances")
        await ended.wait()
        await kubelet.stop()
        proxies.close()


def main() -> int:
    """Parse the arguments, run, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m local.nodes", description=__doc__)
    parser.add_argument("--cluster", required=True, help="name of the cluster")
    parser.add_argument("--home", type=Path, default=None, help="state directory of the local cloud")
    arguments = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        settings = Settings.load(arguments.cluster, Home(arguments.home))
    except ValueError as error:
        print(f"machines of cluster {arguments.cluster}: {error}", file=sys.stderr)
        return 2
    try:
        asyncio.run(serve(settings))
    except (ToolError, ApiUnavailable) as error:
        print(f"machines of cluster {arguments.cluster}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
