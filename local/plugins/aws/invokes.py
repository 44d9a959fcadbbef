"""Functions of the AWS package (`aws.get_partition()` and the like).

The first argument is the session, or None if no local cloud runs. A preview needs answers in that case, too: for a
version a text that says that it is asked at `up`. Without a local cloud nothing can be created, so no such answer gets
into a resource.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from local.plugins.aws.cloud import Cloud, dns_suffix_of, partition_of
from local.plugins.aws.resource import Props

ASKED_LATER = "asked-at-up"


def _partition(_cloud: Cloud | None, region: str, _args: Props) -> Props:
    suffix, name = dns_suffix_of(region), partition_of(region)
    reverse = ".".join(reversed(suffix.split(".")))
    return {"id": name, "partition": name, "dnsSuffix": suffix, "reverseDnsPrefix": reverse}


def _region(_cloud: Cloud | None, region: str, args: Props) -> Props:
    name = str(args.get("region") or args.get("name") or region)
    endpoint = f"ec2.{name}.{dns_suffix_of(name)}"
    return {"id": name, "region": name, "name": name, "description": name, "endpoint": endpoint}


def _addon_version(cloud: Cloud | None, _region: str, args: Props) -> Props:
    name, kubernetes = str(args["addonName"]), str(args["kubernetesVersion"])
    result = {"id": name, "addonName": name, "kubernetesVersion": kubernetes}
    if cloud is None:
        return {**result, "version": ASKED_LATER}
    answer = cloud.client("eks").describe_addon_versions(addonName=name, kubernetesVersion=kubernetes)
    versions = [version for addon in answer["addons"] for version in addon["addonVersions"]]
    if not versions:
        raise LookupError(f"EKS has no version of add-on {name} for Kubernetes {kubernetes}")
    if args.get("mostRecent"):
        return {**result, "mostRecent": True, "version": versions[0]["addonVersion"]}
    default = [v for v in versions if any(c.get("defaultVersion") for c in v.get("compatibilities", []))]
    return {**result, "version": (default or versions)[0]["addonVersion"]}


FUNCTIONS: Mapping[str, Callable[[Cloud | None, str, Props], Props]] = {
    "aws:index/getPartition:getPartition": _partition,
    "aws:index/getRegion:getRegion": _region,
    "aws:eks/getAddonVersion:getAddonVersion": _addon_version,
}
