"""Managed node groups: EC2 instances in their subnets, as the group's Auto Scaling group would launch them."""

from __future__ import annotations

import logging
import uuid
from typing import Any

from moto.core.exceptions import ServiceException
from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends
from moto.ec2.utils import convert_tag_spec

from local.aws import images, launch, volume_keys
from local.aws.account import ACCOUNT_ID
from local.aws.eks import access
from local.aws.eks.clusters import require_role
from local.aws.eks.store import Cluster, Document, NodeGroup, arn, in_use, invalid, not_found
from local.aws.errors import ApiError

log = logging.getLogger(__name__)

# AMI type -> architecture and variant of its image (Amazon Linux 2023 family).
AMI_TYPES = {
    "AL2023_x86_64_STANDARD": ("x86_64", "standard"),
    "AL2023_ARM_64_STANDARD": ("arm64", "standard"),
    "AL2023_x86_64_NVIDIA": ("x86_64", "nvidia"),
    "AL2023_ARM_64_NVIDIA": ("arm64", "nvidia"),
    "AL2023_x86_64_NEURON": ("x86_64", "neuron"),
    "CUSTOM": ("x86_64", "standard"),
}


def create(cluster: Cluster, params: Document) -> NodeGroup:
    """Answer CreateNodegroup: active with its instances running.

    Raises:
        ResourceInUseException: The name is in use.
        InvalidParameterException: Its instances can't be launched.
    """
    name = params["nodegroupName"]
    if name in cluster.node_groups:
        raise in_use(f"NodeGroup already exists with name {name} and cluster name {cluster.name}")
    require_role(params.get("nodeRole", ""))
    ami_type = params.get("amiType") or "AL2023_x86_64_STANDARD"
    if ami_type not in AMI_TYPES:
        raise invalid(f"amiType: {ami_type!r} must be one of {', '.join(AMI_TYPES)} on the local cloud")
    scaling = {"minSize": 1, "maxSize": 2, "desiredSize": 2, **(params.get("scalingConfig") or {})}
    template = params.get("launchTemplate")
    backend = ec2_backends[ACCOUNT_ID][cluster.region]
    group_id, version, now = str(uuid.uuid4()), params.get("version") or cluster.document["version"], utcnow()
    document: Document = {
        "nodegroupName": name,
        "nodegroupArn": arn(cluster.region, "nodegroup", cluster.name, name, group_id),
        "clusterName": cluster.name,
        "version": version,
        "releaseVersion": params.get("releaseVersion") or images.release_version(version),
        "createdAt": now,
        "modifiedAt": now,
        "status": "CREATING",
        "capacityType": params.get("capacityType") or "ON_DEMAND",
        "scalingConfig": scaling,
        "subnets": list(params.get("subnets") or []),
        "amiType": ami_type,
        "nodeRole": params["nodeRole"],
        "labels": dict(params.get("labels") or {}),
        "taints": list(params.get("taints") or []),
        "resources": {"autoScalingGroups": [{"name": f"eks-{name}-{group_id}"}]},
        "health": {"issues": []},
        "updateConfig": params.get("updateConfig") or {"maxUnavailable": 1},
        "tags": dict(params.get("tags") or {}),
    }
    if template:
        found, number = _template(backend, template)
        document["launchTemplate"] = {"id": found.id, "name": found.name, "version": number}
    else:
        document["diskSize"] = params.get("diskSize") or 20
    if params.get("instanceTypes") or not template:
        document["instanceTypes"] = list(params.get("instanceTypes") or ["t3.medium"])
    group = NodeGroup(document)
    cluster.node_groups[name] = group
    mode = cluster.document["accessConfig"]["authenticationMode"]
    if mode != "CONFIG_MAP" and document["nodeRole"] not in cluster.entries:
        # EKS accepts the nodes of its own groups.
        access.create(cluster, {"principalArn": document["nodeRole"], "type": "EC2_LINUX"})
    try:
        _scale(cluster, group)
    except ServiceException as error:
        log.warning("node group %s: %s", name, error)
        document["status"] = "CREATE_FAILED"
        issue = {"code": "AsgInstanceLaunchFailures", "message": str(error), "resourceIds": []}
        document["health"] = {"issues": [issue]}
        return group
    document["status"] = "ACTIVE"
    return group


def find(cluster: Cluster, name: str) -> NodeGroup:
    """Return a node group.

    Raises:
        ResourceNotFoundException: It does not exist.
    """
    group = cluster.node_groups.get(name)
    if group is None:
        raise not_found(f"No node group found for name: {name}.")
    return group


def delete(cluster: Cluster, name: str) -> NodeGroup:
    """Answer DeleteNodegroup: terminate its instances."""
    group = find(cluster, name)
    del cluster.node_groups[name]
    group.document["status"] = "DELETING"
    _terminate(cluster, running(cluster, group))
    return group


def update_config(cluster: Cluster, group: NodeGroup, params: Document) -> Document:
    """Answer UpdateNodegroupConfig: size, labels, taints and update settings."""
    document = group.document
    labels = params.get("labels") or {}
    document["labels"].update(labels.get("addOrUpdateLabels") or {})
    for key in labels.get("removeLabels") or []:
        document["labels"].pop(key, None)
    taints = params.get("taints") or {}
    new = taints.get("addOrUpdateTaints") or []
    gone = {(t.get("key"), t.get("effect")) for t in [*new, *(taints.get("removeTaints") or [])]}
    document["taints"] = [
        t for t in document["taints"] if (t.get("key"), t.get("effect")) not in gone
    ] + list(new)
    if params.get("scalingConfig"):
        document["scalingConfig"] = {**document["scalingConfig"], **params["scalingConfig"]}
        _scale(cluster, group)
    if params.get("updateConfig"):
        document["updateConfig"] = params["updateConfig"]
    document["modifiedAt"] = utcnow()
    return cluster.record_update("ConfigUpdate")


def update_version(cluster: Cluster, group: NodeGroup, params: Document) -> Document:
    """Answer UpdateNodegroupVersion: replace the instances by ones of the new version or launch template."""
    document = group.document
    backend = ec2_backends[ACCOUNT_ID][cluster.region]
    if params.get("launchTemplate"):
        found, number = _template(backend, params["launchTemplate"])
        document["launchTemplate"] = {"id": found.id, "name": found.name, "version": number}
    version = params.get("version") or document["version"]
    document["version"] = version
    document["releaseVersion"] = params.get("releaseVersion") or images.release_version(version)
    old = running(cluster, group)
    _launch(cluster, group, len(old))
    _terminate(cluster, old)
    document["modifiedAt"] = utcnow()
    return cluster.record_update("VersionUpdate")


def running(cluster: Cluster, group: NodeGroup) -> list[Any]:
    """Return the running instances of a group, oldest first."""
    backend = ec2_backends[ACCOUNT_ID][cluster.region]
    mine = set(group.instance_ids)
    return [i for i in backend.all_instances() if i.id in mine and i.state == "running"]


def _template(backend: Any, reference: Document) -> tuple[Any, str]:
    try:
        found = backend.get_launch_template(reference["id"])
        number = str(found.get_version(reference.get("version") or "$Default").number)
    except ServiceException as error:
        raise invalid(f"launchTemplate: {error.message}") from None
    return found, number


def _scale(cluster: Cluster, group: NodeGroup) -> None:
    wanted, now = int(group.document["scalingConfig"]["desiredSize"]), running(cluster, group)
    if wanted > len(now):
        _launch(cluster, group, wanted - len(now))
    _terminate(cluster, now[wanted:])


def _launch(cluster: Cluster, group: NodeGroup, count: int) -> None:
    document = group.document
    backend = ec2_backends[ACCOUNT_ID][cluster.region]
    data: Document = {}
    version = None
    if document.get("launchTemplate"):
        template = backend.get_launch_template(document["launchTemplate"]["id"])
        version = template.get_version(document["launchTemplate"]["version"])
        data = version.data
    refused = volume_keys.refusal(backend, data, volume_keys.AUTO_SCALING)
    if refused is not None:
        raise ApiError("AsgInstanceLaunchFailures", f"Instances ended at launch: {refused.message}")
    architecture, variant = AMI_TYPES[document["amiType"]]
    image_id = data.get("ImageId") or images.image(
        cluster.region, ACCOUNT_ID, images.image_name(document["version"], architecture, variant)
    )
    groups = launch.template_groups(data) or [
        cluster.document["resourcesVpcConfig"]["clusterSecurityGroupId"]
    ]
    tags = {
        "eks:cluster-name": cluster.name,
        "eks:nodegroup-name": document["nodegroupName"],
        f"kubernetes.io/cluster/{cluster.name}": "owned",
        "aws:autoscaling:groupName": document["resources"]["autoScalingGroups"][0]["name"],
        **convert_tag_spec(data.get("TagSpecifications") or []).get("instance", {}),
    }
    used = [i.subnet_id for i in running(cluster, group)]
    for _ in range(count):
        # Use the subnet with the fewest instances of the group: an Auto Scaling group balances its zones.
        subnet_id = min(document["subnets"], key=used.count)
        used.append(subnet_id)
        reservation = backend.run_instances(
            image_id,
            1,
            None,
            [],
            instance_type=data.get("InstanceType") or document["instanceTypes"][0],
            is_instance_type_default=False,
            region_name=cluster.region,
            subnet_id=subnet_id,
            security_group_ids=groups,
            instance_market_options="spot" if document["capacityType"] == "SPOT" else None,
            tags={"instance": tags},
        )
        instance = reservation.instances[0]
        instance.node_role = document["nodeRole"]
        launch.complete(instance, {k: v for k, v in data.items() if k != "IamInstanceProfile"}, version)
        group.instance_ids.append(instance.id)


def _terminate(cluster: Cluster, instances: list[Any]) -> None:
    if instances:
        ec2_backends[ACCOUNT_ID][cluster.region].terminate_instances([i.id for i in instances])
