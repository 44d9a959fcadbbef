"""The components ConfigFile, ConfigGroup and kustomize's Directory: one child resource per object.

They run on Pulumi's SDK (imported only here). Children are plain custom resources with the token of their kind, so the
big `pulumi_kubernetes` package is not needed.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Mapping
from typing import Any

import pulumi
from pulumi.provider import ConstructResult

from local.plugins import sdk
from local.plugins.kubernetes import objects
from local.plugins.kubernetes.cluster import Cluster
from local.plugins.kubernetes.documents import Child, children, flatten, kustomize, parse, read_files
from local.plugins.provider import ProviderError
from local.plugins.values import Props

CONFIG_FILE = "kubernetes:yaml/v2:ConfigFile"
CONFIG_GROUP = "kubernetes:yaml/v2:ConfigGroup"
DIRECTORY = "kubernetes:kustomize/v2:Directory"


def construct(
    cluster: Cluster,
    name: str,
    resource_type: str,
    inputs: Mapping[str, Any],
    options: pulumi.ResourceOptions,
) -> ConstructResult:
    """Register the component and its children.

    Raises:
        ProviderError: The component type is not supported.
    """
    if resource_type not in (CONFIG_FILE, CONFIG_GROUP, DIRECTORY):
        raise ProviderError(f"{resource_type} is not supported by the local kubernetes plugin")
    failures = sdk.check_inputs(resource_type, dict(inputs))
    if failures:
        raise ProviderError("; ".join(failure.reason for failure in failures))
    component = pulumi.ComponentResource(resource_type, name, {}, options)

    async def register(values: dict[str, Any]) -> list[pulumi.CustomResource]:
        # Rendering reads files and starts kubectl. It runs on a thread, so that other calls continue.
        loop = asyncio.get_running_loop()
        work = functools.partial(render, cluster, name, resource_type, values)
        return _register(component, await loop.run_in_executor(None, work))

    resources: pulumi.Output[Any] = pulumi.Output.all(**inputs).apply(register)
    component.register_outputs({"resources": resources})
    return ConstructResult(component.urn, {"resources": resources})


def render(cluster: Cluster, name: str, resource_type: str, values: Mapping[str, Any]) -> list[Child]:
    """Return the objects of a component."""
    items: list[Props] = []
    if resource_type == DIRECTORY:
        items = parse(kustomize(str(values["directory"])), str(values["directory"]))
    elif resource_type == CONFIG_FILE:
        items = read_files([str(values["file"])])
    else:
        items = read_files(map(str, values.get("files") or []))
        items += parse(str(values.get("yaml") or ""), f"{name}.yaml")
        items += flatten(values.get("objs") or [], f"{name}.objs")
    return children(
        items,
        str(values.get("resourcePrefix") or name),
        str(values.get("namespace") or cluster.default_namespace()),
        functools.partial(namespaced, cluster),
        skip_await=bool(values.get("skipAwait")),
    )


def namespaced(cluster: Cluster, api_version: str, kind: str) -> bool:
    """Return whether a kind is namespaced. Unknown kinds count as namespaced."""
    try:
        return cluster.namespaced(api_version, kind)
    except ProviderError:
        return True


def _register(component: pulumi.ComponentResource, found: list[Child]) -> list[pulumi.CustomResource]:
    made: dict[str, pulumi.CustomResource] = {}
    pending = list(found)
    while pending:
        ready = [child for child in pending if all(name in made for name in child.after)]
        if not ready:
            raise ProviderError(
                f"the objects {', '.join(child.name for child in pending)} wait for each other"
            )
        for child in ready:
            token = objects.token_of(child.inputs["apiVersion"], child.inputs["kind"])
            after = [made[name] for name in child.after]
            options = pulumi.ResourceOptions(parent=component, depends_on=after)
            made[child.name] = pulumi.CustomResource(token, child.name, child.inputs, options)
        pending = [child for child in pending if child.name not in made]
    return [made[child.name] for child in found]
