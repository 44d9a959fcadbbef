"""The EKS component plugin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from local.plugins import sdk
from local.plugins.eks.arguments import CLUSTER, NODE_GROUP, refusals
from local.plugins.provider import Provider, ProviderError

CLUSTER_TOKEN = "eks:index:Cluster"
NODE_GROUP_TOKEN = "eks:index:ManagedNodeGroup"


class EksProvider(Provider):
    """The provider of `eks.Cluster` and `eks.ManagedNodeGroup`."""

    name = "eks"
    version = sdk.sdk_version("eks")

    def construct(self, name: str, resource_type: str, inputs: Mapping[str, Any], options: Any) -> Any:
        """Register the component and its children. Refuse arguments that would have no effect."""
        from pulumi.provider import ConstructResult

        from local.plugins.eks.cluster import Cluster
        from local.plugins.eks.node_group import ManagedNodeGroup
        from local.plugins.eks.resources import accept_references

        accept_references()
        accepted = {CLUSTER_TOKEN: CLUSTER, NODE_GROUP_TOKEN: NODE_GROUP}.get(resource_type)
        if accepted is None:
            raise ProviderError(
                f"{resource_type} is not served by the local EKS plugin; {CLUSTER_TOKEN} and {NODE_GROUP_TOKEN} are"
            )
        found = refusals(resource_type, accepted, inputs)
        if found:
            raise ProviderError(f"{resource_type} {name}: {'; '.join(found)}")
        kind = Cluster if resource_type == CLUSTER_TOKEN else ManagedNodeGroup
        made = kind(name, inputs, options)
        return ConstructResult(made.urn, made.state)
