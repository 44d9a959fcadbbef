"""EKS: clusters and node groups (API reference: Amazon EKS)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from local.plugins.aws.cloud import Cloud, absent, retry_busy, wait_until
from local.plugins.aws.resource import Handler, Props, listed, random_name, serves, tag_changes

CREATE_SECONDS = 1800.0


def retag(cloud: Cloud, arn: str, old: Props, new: Props) -> None:
    """Apply a change of tags to an EKS resource."""
    gone, put = tag_changes(old, new)
    if gone:
        cloud.client("eks").untag_resource(resourceArn=arn, tagKeys=gone)
    if put:
        cloud.client("eks").tag_resource(resourceArn=arn, tags=put)


def settled(what: str, status: str, issues: Any = None) -> bool:
    """Return whether a create or update succeeded.

    Raises:
        RuntimeError: It failed. The message names `what`.
    """
    if status in ("CREATE_FAILED", "FAILED", "DELETE_FAILED", "UPDATE_FAILED"):
        raise RuntimeError(f"{what} is {status}" + (f": {issues}" if issues else ""))
    # A degraded add-on or node group exists and reports its state. The official provider waits until its deadline.
    return status == "ACTIVE"


def plain_tags(tags: Any) -> dict[str, str]:
    """Return tags of EKS, which are a map, without those of AWS."""
    return {key: value for key, value in (tags or {}).items() if not key.startswith("aws:")}


@serves
class Cluster(Handler):
    """An EKS cluster. Its id is its name. Creation waits for the status ACTIVE."""

    token = "aws:eks/cluster:Cluster"
    accepts = frozenset(
        {
            "name",
            "roleArn",
            "version",
            "vpcConfig",
            "accessConfig",
            "bootstrapSelfManagedAddons",
            "deletionProtection",
            "enabledClusterLogTypes",
            "encryptionConfig",
            "kubernetesNetworkConfig",
            "upgradePolicy",
            "tags",
        }
    )
    required = frozenset({"roleArn", "vpcConfig"})
    replaces = frozenset(
        {"name", "roleArn", "bootstrapSelfManagedAddons", "encryptionConfig", "kubernetesNetworkConfig"}
    )
    unordered = frozenset({"enabledClusterLogTypes", "subnetIds", "securityGroupIds", "publicAccessCidrs"})
    write_only = frozenset({"bootstrapSelfManagedAddons"})
    computed_in: ClassVar[Mapping[str, tuple[str, ...]]] = {"vpcConfig": ("clusterSecurityGroupId", "vpcId")}
    defaults: ClassVar[Props] = {"bootstrapSelfManagedAddons": True}
    auto_name = "name"
    auto_name_limit = 100
    tagged = True

    def create(self, cloud: Cloud, inputs: Props) -> str:
        types = listed(inputs.get("enabledClusterLogTypes"))
        arguments: Props = {
            "name": inputs["name"],
            "roleArn": inputs["roleArn"],
            "resourcesVpcConfig": dict(inputs["vpcConfig"]),
            "tags": inputs.get("tags") or {},
            "bootstrapSelfManagedAddons": inputs["bootstrapSelfManagedAddons"],
        }
        if types:
            arguments["logging"] = {"clusterLogging": [{"types": types, "enabled": True}]}
        if inputs.get("encryptionConfig"):
            arguments["encryptionConfig"] = [inputs["encryptionConfig"]]
        for key in (
            "version",
            "accessConfig",
            "deletionProtection",
            "kubernetesNetworkConfig",
            "upgradePolicy",
        ):
            if inputs.get(key) is not None:
                arguments[key] = inputs[key]
        cloud.client("eks").create_cluster(**arguments)
        return str(inputs["name"])

    def _live(self, cloud: Cloud, rid: str) -> Any:
        return cloud.client("eks").describe_cluster(name=rid)["cluster"]

    def _settle(self, cloud: Cloud, rid: str) -> None:
        def ready() -> bool:
            live = self._live(cloud, rid)
            return settled(f"EKS cluster {rid}", live["status"], live.get("health", {}).get("issues"))

        wait_until(f"EKS cluster {rid} ACTIVE", ready, CREATE_SECONDS)

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        try:
            self._settle(cloud, rid)
        except RuntimeError:
            # EKS never retries: such a cluster can only be deleted. This provider deletes it, so that the next `up`
            # creates another one. The official provider leaves the deletion to the user.
            self.delete(cloud, rid, {})
            raise

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        found = self._live(cloud, rid)
        if found["status"] == "DELETING":
            return None
        vpc = found.get("resourcesVpcConfig", {})
        given = inputs.get("vpcConfig") or {}
        # Values that the API does not return (for example, an older emulator) stay as the program set them.
        live: Props = {
            "arn": found["arn"],
            "clusterId": found.get("id", ""),
            "name": found["name"],
            "roleArn": found["roleArn"],
            "version": found["version"],
            "platformVersion": found.get("platformVersion", ""),
            "endpoint": found.get("endpoint", ""),
            "status": found["status"],
            "createdAt": str(found.get("createdAt", "")),
            "certificateAuthority": {"data": found.get("certificateAuthority", {}).get("data", "")},
            "certificateAuthorities": [{"data": found.get("certificateAuthority", {}).get("data", "")}],
            "identities": [
                {"oidcs": [{"issuer": found.get("identity", {}).get("oidc", {}).get("issuer", "")}]}
            ],
            "vpcConfig": {**given, **{k: v for k, v in vpc.items() if v is not None}},
            "enabledClusterLogTypes": [
                kind
                for entry in found.get("logging", {}).get("clusterLogging", [])
                if entry.get("enabled")
                for kind in entry.get("types", [])
            ],
            "tags": plain_tags(found.get("tags")),
        }
        if found.get("accessConfig"):
            # The bootstrap flag has an effect only at creation, and the API does not always return it.
            live["accessConfig"] = {**(inputs.get("accessConfig") or {}), **found["accessConfig"]}
            bootstrap = (inputs.get("accessConfig") or {}).get("bootstrapClusterCreatorAdminPermissions")
            if bootstrap is not None:
                live["accessConfig"]["bootstrapClusterCreatorAdminPermissions"] = bootstrap
        if found.get("encryptionConfig"):
            live["encryptionConfig"] = found["encryptionConfig"][0]
        for key in ("upgradePolicy", "deletionProtection", "kubernetesNetworkConfig"):
            if found.get(key) is not None:
                live[key] = found[key]
        return live

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        eks = cloud.client("eks")
        steps: list[Props] = []
        if "vpcConfig" in changed:
            steps.append({"resourcesVpcConfig": _vpc_change(old["vpcConfig"], new["vpcConfig"])})
        if "enabledClusterLogTypes" in changed:
            on, before = listed(new.get("enabledClusterLogTypes")), listed(old.get("enabledClusterLogTypes"))
            off = sorted(set(before) - set(on))
            logs = [{"types": on, "enabled": True}] if on else []
            logs += [{"types": off, "enabled": False}] if off else []
            steps.append({"logging": {"clusterLogging": logs}})
        if "accessConfig" in changed:
            mode = (new.get("accessConfig") or {}).get("authenticationMode")
            steps.append({"accessConfig": {"authenticationMode": mode}})
        for key in ("upgradePolicy", "deletionProtection"):
            if key in changed and new.get(key) is not None:
                steps.append({key: new[key]})
        # The API accepts one kind of change per call, and none during another update.
        for step in steps:
            retry_busy(lambda step=step: eks.update_cluster_config(name=rid, **step))  # type: ignore[misc]
            self._settle(cloud, rid)
        if "version" in changed:
            eks.update_cluster_version(name=rid, version=new["version"])
            self._settle(cloud, rid)
        if "tags" in changed:
            retag(cloud, self._live(cloud, rid)["arn"], old, new)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        eks = cloud.client("eks")
        retry_busy(lambda: eks.delete_cluster(name=rid))
        wait_until(
            f"EKS cluster {rid} deleted", lambda: absent(lambda: self._live(cloud, rid)), CREATE_SECONDS
        )


def _vpc_change(old: Props, new: Props) -> Props:
    keys = (
        "endpointPublicAccess",
        "endpointPrivateAccess",
        "publicAccessCidrs",
        "subnetIds",
        "securityGroupIds",
    )
    return {key: new[key] for key in keys if key in new and new.get(key) != old.get(key)}


@serves
class NodeGroup(Handler):
    """A managed node group. Its id is `<cluster>:<group>`."""

    token = "aws:eks/nodeGroup:NodeGroup"
    accepts = frozenset(
        {
            "clusterName",
            "nodeGroupName",
            "nodeGroupNamePrefix",
            "nodeRoleArn",
            "subnetIds",
            "scalingConfig",
            "amiType",
            "capacityType",
            "diskSize",
            "forceUpdateVersion",
            "instanceTypes",
            "labels",
            "launchTemplate",
            "nodeRepairConfig",
            "releaseVersion",
            "remoteAccess",
            "taints",
            "updateConfig",
            "version",
            "tags",
        }
    )
    required = frozenset({"clusterName", "nodeRoleArn", "subnetIds", "scalingConfig"})
    replaces = frozenset(
        {
            "clusterName",
            "nodeGroupName",
            "nodeGroupNamePrefix",
            "nodeRoleArn",
            "subnetIds",
            "amiType",
            "capacityType",
            "diskSize",
            "instanceTypes",
            "remoteAccess",
        }
    )
    unordered = frozenset({"subnetIds", "taints"})
    write_only = frozenset({"nodeGroupNamePrefix", "forceUpdateVersion"})
    auto_name = "nodeGroupName"
    auto_name_limit = 63
    tagged = True

    def create(self, cloud: Cloud, inputs: Props) -> str:
        name = inputs.get("nodeGroupName") or random_name(str(inputs["nodeGroupNamePrefix"]).rstrip("-"), 63)
        plain = self.accepts - {
            "nodeGroupName",
            "nodeGroupNamePrefix",
            "nodeRoleArn",
            "subnetIds",
            "forceUpdateVersion",
        }
        arguments = {key: inputs[key] for key in plain if inputs.get(key) is not None}
        cloud.client("eks").create_nodegroup(
            nodegroupName=name,
            nodeRole=inputs["nodeRoleArn"],
            subnets=inputs["subnetIds"],
            **_integers(arguments),
        )
        return f"{inputs['clusterName']}:{name}"

    def _live(self, cloud: Cloud, rid: str) -> Any:
        cluster, _, group = rid.partition(":")
        return cloud.client("eks").describe_nodegroup(clusterName=cluster, nodegroupName=group)["nodegroup"]

    def _settle(self, cloud: Cloud, rid: str) -> None:
        def ready() -> bool:
            live = self._live(cloud, rid)
            return settled(f"node group {rid}", live["status"], live.get("health", {}).get("issues"))

        wait_until(f"node group {rid} ACTIVE", ready, CREATE_SECONDS)

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        self._settle(cloud, rid)

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        found = self._live(cloud, rid)
        if found["status"] == "DELETING":
            return None
        live = {
            "arn": found["nodegroupArn"],
            "clusterName": found["clusterName"],
            "nodeGroupName": found["nodegroupName"],
            "nodeRoleArn": found["nodeRole"],
            "subnetIds": found["subnets"],
            "status": found["status"],
            "tags": plain_tags(found.get("tags")),
            "labels": found.get("labels") or {},
            "taints": listed(found.get("taints")),
            "resources": [found["resources"]] if found.get("resources") else [],
        }
        always = ("scalingConfig", "amiType", "capacityType", "diskSize", "instanceTypes", "version")
        more = ("releaseVersion", "updateConfig", "launchTemplate", "remoteAccess", "nodeRepairConfig")
        live |= {key: found[key] for key in (*always, *more) if found.get(key) is not None}
        return live

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        eks = cloud.client("eks")
        cluster, _, group = rid.partition(":")
        subject = {"clusterName": cluster, "nodegroupName": group}
        settings: Props = {}
        for key in changed & {"scalingConfig", "updateConfig", "nodeRepairConfig"}:
            settings[key] = new[key]
        if "labels" in changed:
            before, after = old.get("labels") or {}, new.get("labels") or {}
            settings["labels"] = {
                "addOrUpdateLabels": {k: v for k, v in after.items() if before.get(k) != v},
                "removeLabels": [k for k in before if k not in after],
            }
        if "taints" in changed:
            was, now = listed(old.get("taints")), listed(new.get("taints"))
            settings["taints"] = {
                "addOrUpdateTaints": [t for t in now if t not in was],
                "removeTaints": [t for t in was if t not in now],
            }
        if settings:
            eks.update_nodegroup_config(**subject, **_integers(settings))
            self._settle(cloud, rid)
        if changed & {"version", "releaseVersion", "launchTemplate"}:
            keys = ("version", "releaseVersion", "launchTemplate")
            wanted = {key: new[key] for key in keys if new.get(key) is not None}
            eks.update_nodegroup_version(**subject, **wanted, force=bool(new.get("forceUpdateVersion")))
            self._settle(cloud, rid)
        if "tags" in changed:
            retag(cloud, self._live(cloud, rid)["nodegroupArn"], old, new)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cluster, _, group = rid.partition(":")
        eks = cloud.client("eks")
        retry_busy(lambda: eks.delete_nodegroup(clusterName=cluster, nodegroupName=group))
        wait_until(
            f"node group {rid} deleted", lambda: absent(lambda: self._live(cloud, rid)), CREATE_SECONDS
        )


def _integers(value: Any) -> Any:
    """Convert the engine's doubles to integers, which the API's parameters are."""
    if isinstance(value, dict):
        return {key: _integers(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value
