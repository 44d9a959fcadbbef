"""The device plugins, which report a node's GPUs, EFA interfaces and Neuron devices to Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pulumi
import pulumi_kubernetes as k8s

from trainyard.k8s.names import DEVICE_PLUGIN_NAMESPACE

from . import identity
from .documents import pods, versions
from .documents.device_plugins import NAMES, NAMESPACE_LABELS, NEURON_RULES, daemon_set, where
from .documents.pool import GPU, NEURON, Pool

# EKS keeps the image for EFA in a registry of each region.
IMAGES: Final = {GPU: versions.DEVICE_PLUGIN_IMAGE, NEURON: versions.NEURON_PLUGIN_IMAGE}


@dataclass(frozen=True, kw_only=True)
class DevicePluginsArgs:
    """The pools with devices, and the images of plugins."""

    pools: tuple[Pool, ...]
    after: list[pulumi.Resource]
    images: Mapping[str, str] = field(default_factory=lambda: dict(IMAGES))
    """The image of each device plugin, by resource: nvidia.com/gpu, vpc.amazonaws.com/efa, aws.amazon.com/neuron."""


class DevicePlugins(pulumi.ComponentResource):
    """The device plugins of the pools' nodes.

    Creates, if a pool has GPUs, EFA interfaces or Neuron devices:

    - the namespace `device-plugins`. It is the stack's only namespace whose pods can mount directories of their
      node. A network policy blocks all ingress to its pods;
    - one DaemonSet per kind of device, which runs only on the nodes of pools that have it;
    - for the Neuron plugin, a service account with its RBAC.

    `objects` must exist as long as the pools have nodes.
    """

    def __init__(
        self, name: str, args: DevicePluginsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("trainyard:devices:DevicePlugins", name, None, opts)
        self.objects: list[pulumi.Resource] = []
        """The resources that must exist as long as there is a node with devices."""
        needed = where(args.pools)
        missing = sorted(needed.keys() - args.images.keys())
        if missing:
            raise ValueError(f"images: no image for {missing[0]}, which a pool has. Add its device plugin.")
        if needed:
            self._namespace(args.after)
        for resource, instance_types in needed.items():
            permissions = self._permissions(NAMES[resource]) if resource == NEURON else []
            plugin = k8s.apps.v1.DaemonSet(
                NAMES[resource],
                metadata={"name": NAMES[resource], "namespace": DEVICE_PLUGIN_NAMESPACE},
                spec=daemon_set(resource, args.images[resource], instance_types),
                opts=pulumi.ResourceOptions(parent=self, depends_on=[*self.objects[:1], *permissions]),
            )
            self.objects += [*permissions, plugin]
        self.register_outputs({"resources": list(needed)})

    def _namespace(self, after: list[pulumi.Resource]) -> None:
        namespace = k8s.core.v1.Namespace(
            DEVICE_PLUGIN_NAMESPACE,
            metadata={"name": DEVICE_PLUGIN_NAMESPACE, "labels": NAMESPACE_LABELS},
            opts=pulumi.ResourceOptions(parent=self, depends_on=after),
        )
        self.objects.append(namespace)
        k8s.networking.v1.NetworkPolicy(
            f"{DEVICE_PLUGIN_NAMESPACE}-closed",
            metadata={"name": "closed", "namespace": DEVICE_PLUGIN_NAMESPACE},
            spec=pods.deny_ingress(),
            opts=pulumi.ResourceOptions(parent=self, depends_on=[namespace]),
        )
        identity.disable_default_token(DEVICE_PLUGIN_NAMESPACE, self, namespace)

    def _permissions(self, name: str) -> list[pulumi.Resource]:
        """Create the service account `name` and its RBAC."""
        inside = pulumi.ResourceOptions(parent=self, depends_on=self.objects[:1])
        account = k8s.core.v1.ServiceAccount(
            name, metadata={"name": name, "namespace": DEVICE_PLUGIN_NAMESPACE}, opts=inside
        )
        rbac = identity.bind_role(
            name,
            NEURON_RULES,
            account=name,
            account_namespace=DEVICE_PLUGIN_NAMESPACE,
            namespace=None,
            parent=self,
            after=[*self.objects[:1], account],
        )
        return [account, *rbac]
