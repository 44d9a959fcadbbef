"""EKS: clusters, node groups, add-ons and access entries (API reference: Amazon EKS)."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from local.plugins.aws.cloud import Cloud, retry_busy
from local.plugins.aws.resource import Props, Resource, search
from local.plugins.sdk import split_names


@dataclass(frozen=True, kw_only=True)
class _Row(Resource):
    service: str = "eks"
    tag_op: str = "tag_resource"
    tag_by: str = "arn"
    gone: frozenset[str] = split_names("DELETING")


@dataclass(frozen=True, kw_only=True)
class _Waiting(_Row):
    """A row whose resources take a while.

    A degraded add-on or node group exists and reports its state. The official provider waits until its deadline.
    """

    status: str = "status"
    ready: str = "ACTIVE"
    failed: frozenset[str] = split_names("CREATE_FAILED FAILED DELETE_FAILED UPDATE_FAILED")
    reason: str = "health.issues"
    seconds: float = 1800.0


# ------------------------------------------------------------------------------------------------- clusters

_NETWORK = split_names(
    "endpointPublicAccess endpointPrivateAccess publicAccessCidrs subnetIds securityGroupIds"
)


class _Cluster(_Waiting):
    """A cluster. Its id is its name."""

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        try:
            self.settle(cloud, rid)
        except RuntimeError:
            # EKS never retries: such a cluster can only be deleted. This provider deletes it, so that the next `up`
            # creates another one. The official provider leaves the deletion to the user.
            self.delete(cloud, rid, {})
            raise

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        steps: list[Props] = []
        if "vpcConfig" in changed:
            before, after = old["vpcConfig"], new["vpcConfig"]
            network = {key: after[key] for key in _NETWORK & after.keys() if after[key] != before.get(key)}
            steps.append({"resourcesVpcConfig": network})
        if "enabledClusterLogTypes" in changed:
            on = new.get("enabledClusterLogTypes") or []
            off = sorted(set(old.get("enabledClusterLogTypes") or []) - set(on))
            logs = [{"types": types, "enabled": types is on} for types in (on, off) if types]
            steps.append({"logging": {"clusterLogging": logs}})
        # The API accepts one kind of change per call, and none during another update.
        for step in steps:
            retry_busy(functools.partial(cloud.client("eks").update_cluster_config, name=rid, **step))
            self.settle(cloud, rid)
        super().update(cloud, rid, old, new, changed - {"vpcConfig", "enabledClusterLogTypes"})


def _logging(_cloud: Cloud, inputs: Props) -> Props:
    types = inputs.get("enabledClusterLogTypes")
    return {"logging": {"clusterLogging": [{"types": types, "enabled": True}]}} if types else {}


def _live_cluster(_cloud: Cloud, _rid: str, inputs: Props, found: Any) -> Props:
    authority = {"data": found.get("certificateAuthority", {}).get("data", "")}
    issuer = found.get("identity", {}).get("oidc", {}).get("issuer", "")
    given = inputs.get("vpcConfig") or {}
    vpc = {k: v for k, v in found.get("resourcesVpcConfig", {}).items() if v is not None}
    live: Props = {
        # Values that the API does not return stay as the program set them.
        "bootstrapSelfManagedAddons": inputs.get("bootstrapSelfManagedAddons"),
        "endpoint": found.get("endpoint", ""),
        "enabledClusterLogTypes": search("logging.clusterLogging[?enabled].types[]", found) or [],
        "certificateAuthority": authority,
        "certificateAuthorities": [authority],
        "identities": [{"oidcs": [{"issuer": issuer}]}],
        "vpcConfig": {**given, **vpc},
    }
    if found.get("accessConfig"):
        # The bootstrap flag has an effect only at creation, and the API does not always return it.
        wanted = inputs.get("accessConfig") or {}
        flag = {k: v for k, v in wanted.items() if k.startswith("bootstrap") and v is not None}
        live["accessConfig"] = {**wanted, **found["accessConfig"], **flag}
    return live


# ------------------------------------------------------------------------------------------------- node groups


class _NodeGroup(_Waiting):
    """A managed node group. Its id is `<cluster>:<group>`."""

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        if "labels" in changed:
            before, after = old.get("labels") or {}, new.get("labels") or {}
            labels = {
                "addOrUpdateLabels": {k: v for k, v in after.items() if before.get(k) != v},
                "removeLabels": [k for k in before if k not in after],
            }
            cloud.client("eks").update_nodegroup_config(**self.parts(rid), labels=labels)
            self.settle(cloud, rid)
        super().update(cloud, rid, old, new, changed - {"labels"})


# ------------------------------------------------------------------------------------------------- access


def _live_association(_cloud: Cloud, rid: str, _inputs: Props, found: Any) -> Props:
    scope = {key: value for key, value in found["accessScope"].items() if value}
    cluster, principal, _ = rid.split("#")
    return {"clusterName": cluster, "principalArn": principal, "accessScope": scope}


ROWS = (
    _Cluster(
        "aws:eks/cluster:Cluster",
        kind="EKS cluster",
        accepts=split_names(
            "name roleArn version vpcConfig accessConfig bootstrapSelfManagedAddons deletionProtection "
            "enabledClusterLogTypes encryptionConfig kubernetesNetworkConfig upgradePolicy tags"
        ),
        unordered=split_names("enabledClusterLogTypes subnetIds securityGroupIds publicAccessCidrs"),
        changes=split_names("vpcConfig enabledClusterLogTypes"),
        computed_in={"vpcConfig": ("clusterSecurityGroupId", "vpcId")},
        defaults={"bootstrapSelfManagedAddons": True},
        auto_name="name",
        auto_name_limit=100,
        create_op="create_cluster",
        more=_logging,
        id="{name}",
        key="name",
        read_op="describe_cluster",
        found="cluster",
        updates=(
            ("update_cluster_config", split_names("upgradePolicy")),
            ("update_cluster_config", split_names("deletionProtection")),
            ("update_cluster_version", split_names("version")),
        ),
        names={"vpcConfig": "resourcesVpcConfig"},
        live=_live_cluster,
        delete_op="delete_cluster",
    ),
    _NodeGroup(
        "aws:eks/nodeGroup:NodeGroup",
        kind="node group",
        accepts=split_names(
            "clusterName nodeGroupName nodeRoleArn subnetIds scalingConfig amiType capacityType diskSize "
            "instanceTypes labels launchTemplate releaseVersion remoteAccess updateConfig version tags"
        ),
        unordered=split_names("subnetIds"),
        changes=split_names("labels"),
        auto_name="nodeGroupName",
        auto_name_limit=63,
        create_op="create_nodegroup",
        id="{clusterName}:{nodeGroupName}",
        key="clusterName:nodegroupName",
        read_op="describe_nodegroup",
        found="nodegroup",
        updates=(
            ("update_nodegroup_config", split_names("scalingConfig updateConfig")),
            ("update_nodegroup_version", split_names("version releaseVersion launchTemplate")),
        ),
        names={"arn": "nodegroupArn", "nodeRoleArn": "nodeRole", "subnetIds": "subnets"},
        live=lambda _cloud, _rid, _inputs, found: {
            "resources": [found["resources"]] if found.get("resources") else []
        },
        delete_op="delete_nodegroup",
    ),
    _Waiting(
        "aws:eks/addon:Addon",
        kind="add-on",
        accepts=split_names(
            "clusterName addonName addonVersion configurationValues preserve resolveConflictsOnCreate "
            "resolveConflictsOnUpdate serviceAccountRoleArn tags"
        ),
        documents=split_names("configurationValues"),
        write_only=split_names("preserve resolveConflictsOnCreate resolveConflictsOnUpdate"),
        create_op="create_addon",
        more=lambda _cloud, inputs: {"resolveConflicts": inputs.get("resolveConflictsOnCreate") or "NONE"},
        id="{clusterName}:{addonName}",
        key="clusterName:addonName",
        read_op="describe_addon",
        found="addon",
        updates=(
            (
                "update_addon",
                split_names(
                    "addonVersion configurationValues serviceAccountRoleArn resolveConflictsOnUpdate"
                ),
            ),
        ),
        names={"arn": "addonArn", "resolveConflictsOnUpdate": "resolveConflicts"},
        delete_op="delete_addon",
        delete_with=split_names("preserve"),
        # The official provider's deadline for add-ons.
        seconds=1200.0,
    ),
    _Row(
        "aws:eks/accessEntry:AccessEntry",
        accepts=split_names("clusterName principalArn type tags"),
        exclusive=True,
        create_op="create_access_entry",
        id="{clusterName}:{principalArn}",
        key="clusterName:principalArn",
        read_op="describe_access_entry",
        found="accessEntry",
        tag_by="accessEntryArn",
        delete_op="delete_access_entry",
    ),
    _Row(
        "aws:eks/accessPolicyAssociation:AccessPolicyAssociation",
        accepts=split_names("clusterName principalArn policyArn accessScope"),
        create_op="associate_access_policy",
        id="{clusterName}#{principalArn}#{policyArn}",
        key="clusterName#principalArn#policyArn",
        read_op="list_associated_access_policies",
        found="associatedAccessPolicies[?policyArn=='{policyArn}'] | [0]",
        live=_live_association,
        delete_op="disassociate_access_policy",
    ),
)
