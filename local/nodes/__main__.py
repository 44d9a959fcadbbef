"""`python -m local.nodes --cluster NAME --home DIR`: the nodes of one cluster, until SIGTERM.

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
from local.nodes import images, network, node
from local.nodes.api import Api, ApiUnavailable, Informer, Object
from local.nodes.context import Context, Settings, Tasks
from local.nodes.csi import Drivers, Provisioner
from local.nodes.kubelet import Kubelet
from local.nodes.pod import Pods
from local.nodes.registration import Registration
from local.tools import ToolError


async def serve(settings: Settings) -> None:
    """Run everything until SIGTERM or SIGINT."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)

    def listeners() -> dict[network.Target, list[network.Target]]:
        found = network.listeners(
            context.services.objects.values(), context.pods.objects.values(), context.moved_ports
        )
        return found | {(settings.service_ip, 443): [(network.HOST_IP, settings.api_port)]}

    tasks, proxies = Tasks(), network.Proxies(listeners)
    pods = Pods(proxies.settle)

    def pod_seen(what: str, item: Object) -> None:
        pods.pod_changed(what, item)
        if node.plugin_resources(item):
            registration.plugin_seen(item["spec"]["nodeName"])

    directory = images.write_helpers(settings.state / "bin")
    async with Api(settings.kubeconfig) as api:
        context = Context(
            settings=settings,
            api=api,
            images=images.Images(settings.home.images_file, settings.home.bin, directory, settings.account),
            pods=Informer(api, "/api/v1/pods", pod_seen, "spec.nodeName!="),
            services=Informer(api, "/api/v1/services", pods.service_changed),
            config_maps=Informer(api, "/api/v1/configmaps", pods.data_changed),
            # Helm stores its releases in Secrets, which are large and which no pod uses.
            secrets=Informer(api, "/api/v1/secrets", pods.data_changed, "type!=helm.sh/release.v1"),
            addresses=network.Addresses(settings.pod_network),
            tasks=tasks,
            preload=images.preload_library(),
            helpers=directory,
        )
        pods.context = context
        kubelet = Kubelet(pods, settings.state, settings.pki)
        port = await kubelet.start()

        def ready(name: str, allocatable: Object) -> None:
            context.allocatable[name] = allocatable
            pods.node_ready(name)

        def plugins(name: str) -> frozenset[str]:
            return node.running_plugins(context.pods.objects.values(), name)

        registration = Registration(settings, api, tasks, port, ready, pods.node_gone, plugins)
        context.instances = registration.instances
        drivers = Drivers(api, registration.instances)
        provisioner = Provisioner(settings, api, registration.instances)
        informers = (context.pods, context.services, context.config_maps, context.secrets)
        for informer in (*informers, drivers.nodes, provisioner.claims, provisioner.volumes):
            tasks.start_loop(informer.run, f"watch {informer.path}")
        tasks.start_loop(drivers.run, "CSI drivers")
        tasks.start_loop(provisioner.run, "volumes")
        tasks.start_loop(proxies.run, "services")
        for informer in informers:
            await informer.synced.wait()
        pods.prune()
        tasks.start_loop(pods.keep_names, "names")
        tasks.start_loop(pods.keep_fresh, "tokens")
        tasks.start_loop(pods.keep_clocks, "logs")
        tasks.start_loop(registration.send_heartbeats, "heartbeat")
        tasks.start_loop(registration.follow, "instances")
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
        print(f"nodes of cluster {arguments.cluster}: {error}", file=sys.stderr)
        return 2
    try:
        asyncio.run(serve(settings))
    except (ToolError, ApiUnavailable) as error:
        print(f"nodes of cluster {arguments.cluster}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
