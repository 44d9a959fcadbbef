"""`eks:index:ManagedNodeGroup`: one node group of an existing cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pulumi

from local.plugins.eks.arguments import ami_type
from local.plugins.eks.resources import Component, Resource

# Arguments that the node group uses unchanged.
PLAIN = (
    "instanceTypes",
    "labels",
    "launchTemplate",
    "nodeGroupName",
    "releaseVersion",
    "scalingConfig",
    "tags",
)


class ManagedNodeGroup(pulumi.ComponentResource):
    """A node group. By default it has the subnets and the Kubernetes version of the cluster."""

    def __init__(self, name: str, inputs: Mapping[str, Any], opts: pulumi.ResourceOptions | None) -> None:
        super().__init__("eks:index:ManagedNodeGroup", name, {}, opts)
        plane = pulumi.Output.from_input(inputs["cluster"]).apply(control_plane)
        kinds = pulumi.Output.all(inputs.get("instanceTypes"), inputs.get("operatingSystem"))
        role = inputs.get("nodeRole")
        props = {
            **{key: inputs.get(key) for key in PLAIN},
            "amiType": inputs.get("amiType") or kinds.apply(lambda all_: ami_type(all_[0] or [], all_[1])),
            "clusterName": plane.apply(lambda found: found.output("name")),
            "nodeRoleArn": inputs.get("nodeRoleArn")
            or pulumi.Output.from_input(role).apply(lambda found: found.output("arn")),
            "subnetIds": inputs.get("subnetIds")
            or plane.apply(lambda found: found.output("vpcConfig")).apply(lambda found: found["subnetIds"]),
            "version": inputs.get("version") or plane.apply(lambda found: found.output("version")),
        }
        child = pulumi.ResourceOptions(parent=self)
        self.group = Resource("aws:eks/nodeGroup:NodeGroup", name, props, child)
        self.state = {"nodeGroup": self.group, "placementGroupName": ""}
        self.register_outputs(self.state)


def control_plane(cluster: Any) -> Any:
    """Return the `aws.eks.Cluster` of an existing `eks.Cluster`, or of its `core`."""
    if isinstance(cluster, Component):
        return cluster.output("core").apply(lambda core: core["cluster"])
    return cluster["cluster"]
