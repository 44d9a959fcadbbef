"""Resources by token: children of the components, and the targets of references in their inputs.

This module does not import the official SDK of AWS. The import takes seconds, and the tokens contain all that is
needed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi.runtime import ResourceModule, register_resource_module

# Outputs that the components use, by token. The plugin returns more; they are dropped here.
OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "aws:eks/cluster:Cluster": (
        "arn",
        "name",
        "version",
        "endpoint",
        "certificateAuthority",
        "identities",
        "vpcConfig",
        "accessConfig",
    ),
    "aws:eks/nodeGroup:NodeGroup": ("arn", "nodeGroupName", "resources"),
    "aws:iam/role:Role": ("arn", "name", "assumeRolePolicy"),
    "aws:iam/openIdConnectProvider:OpenIdConnectProvider": ("arn", "url"),
}


class Resource(pulumi.CustomResource):
    """A resource of any token. Its outputs are attributes with the names of the schema."""

    def __init__(self, token: str, name: str, props: Mapping[str, Any], opts: pulumi.ResourceOptions) -> None:
        given = {key: value for key, value in props.items() if value is not None}
        outputs = dict.fromkeys(OUTPUTS.get(token, ()))
        super().__init__(token, name, {**outputs, **given}, opts)

    def output(self, name: str) -> pulumi.Output[Any]:
        """Return an output of the table above, or an input of this resource."""
        found: pulumi.Output[Any] = getattr(self, name)
        return found


class Component(pulumi.ComponentResource):
    """A component that arrived as a reference. Its registered outputs are readable."""

    def __init__(self, token: str, name: str, urn: str, outputs: tuple[str, ...]) -> None:
        super().__init__(token, name, dict.fromkeys(outputs), pulumi.ResourceOptions(urn=urn))

    def output(self, name: str) -> pulumi.Output[Any]:
        """Return an output by its name."""
        found: pulumi.Output[Any] = getattr(self, name)
        return found


class _References(ResourceModule):
    """A resolver that creates resources for references in inputs."""

    def version(self) -> None:
        return None

    def construct(self, name: str, typ: str, urn: str) -> pulumi.Resource:
        if typ == "eks:index:Cluster":
            return Component(typ, name, urn, ("core", "eksCluster"))
        return Resource(typ, name, {}, pulumi.ResourceOptions(urn=urn))


@functools.cache
def accept_references() -> None:
    """Allow references to the components' resources in inputs. The SDK keeps such modules per process."""
    modules = {tuple(token.split(":")[:2]) for token in OUTPUTS}
    for package, module in sorted({*modules, ("eks", "index")}):
        register_resource_module(package, module, _References())
