"""Further EC2 resources: launch templates and placement groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from local.plugins.aws.cloud import Cloud, retry_busy
from local.plugins.aws.ec2_network import Ec2Handler, only
from local.plugins.aws.resource import Props, canonical, listed, random_name, serves, tag_list, tag_map, upper

# Blocks of a launch template, with the API's names of the fields for which upper case is not enough.
_FIELDS = {
    "vpcSecurityGroupIds": "SecurityGroupIds",
    "securityGroups": "Groups",
    "ramDiskId": "RamDiskId",
    "httpPutResponseHopLimit": "HttpPutResponseHopLimit",
}
# Numbers and booleans that are strings in the official schema.
_BOOLEANS = frozenset({"deleteOnTermination", "encrypted", "associatePublicIpAddress", "ebsOptimized"})


def template_data(value: Any) -> Any:
    """Return launch template data of the API from the SDK's properties."""
    if isinstance(value, Mapping):
        made: Props = {}
        for key, item in value.items():
            if item is None:
                continue
            if key in _BOOLEANS and isinstance(item, str):
                item = item.lower() == "true"
            if key == "tagSpecifications":
                made["TagSpecifications"] = [
                    {"ResourceType": s["resourceType"], "Tags": tag_list(s.get("tags"))} for s in item
                ]
                continue
            made[_FIELDS.get(key, key[0].upper() + key[1:])] = template_data(item)
        return made
    return [template_data(item) for item in value] if isinstance(value, list) else value


def template_props(value: Any, names: Mapping[str, str]) -> Any:
    """Return the SDK's properties from launch template data of the API."""
    if isinstance(value, Mapping):
        made: Props = {}
        for key, item in value.items():
            if key == "TagSpecifications":
                made["tagSpecifications"] = [
                    {"resourceType": s["ResourceType"], "tags": tag_map(s.get("Tags"))} for s in item
                ]
                continue
            made[names.get(key, key[0].lower() + key[1:])] = template_props(item, names)
        return made
    return [template_props(item, names) for item in value] if isinstance(value, list) else value


_DATA = frozenset(
    {
        "blockDeviceMappings",
        "ebsOptimized",
        "iamInstanceProfile",
        "imageId",
        "instanceType",
        "keyName",
        "metadataOptions",
        "networkInterfaces",
        "tagSpecifications",
        "userData",
        "vpcSecurityGroupIds",
    }
)


@serves
class LaunchTemplate(Ec2Handler):
    """A launch template. Each change of its data creates a new version."""

    token = "aws:ec2/launchTemplate:LaunchTemplate"
    kind = "launch-template"
    accepts = _DATA | {"name", "namePrefix", "description", "defaultVersion", "updateDefaultVersion", "tags"}
    replaces = frozenset({"name", "namePrefix"})
    unordered = frozenset({"vpcSecurityGroupIds", "securityGroups"})
    write_only = frozenset({"updateDefaultVersion", "namePrefix"})
    moving = frozenset({"latestVersion", "defaultVersion"})
    auto_name = "name"
    auto_name_limit = 128

    def create(self, cloud: Cloud, inputs: Props) -> str:
        name = inputs.get("name") or random_name(str(inputs["namePrefix"]).rstrip("-"), 128)
        answer = cloud.client("ec2").create_launch_template(
            LaunchTemplateName=name,
            LaunchTemplateData=template_data({k: v for k, v in inputs.items() if k in _DATA}),
            **({"VersionDescription": inputs["description"]} if inputs.get("description") else {}),
            **self.tag_specification(inputs),
        )
        return str(answer["LaunchTemplate"]["LaunchTemplateId"])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        ec2 = cloud.client("ec2")
        found = only(ec2.describe_launch_templates(LaunchTemplateIds=[rid])["LaunchTemplates"])
        if found is None:
            return None
        version = only(
            ec2.describe_launch_template_versions(LaunchTemplateId=rid, Versions=["$Latest"])[
                "LaunchTemplateVersions"
            ]
        )
        data = template_props((version or {}).get("LaunchTemplateData", {}), {"Groups": "securityGroups"})
        if "securityGroupIds" in data:
            data["vpcSecurityGroupIds"] = data.pop("securityGroupIds")
        tagged_types = [s["resourceType"] for s in listed(inputs.get("tagSpecifications"))]
        if "tagSpecifications" in data:
            # The emulator adds the template's own tags to its data; EC2 doesn't.
            own = [s for s in data["tagSpecifications"] if s["resourceType"] != "launch-template"]
            data["tagSpecifications"] = (
                data["tagSpecifications"] if "launch-template" in tagged_types else own
            )
        spelled = {k: v for k, v in inputs.items() if k in _DATA}
        # Booleans that the schema types as strings stay as the program wrote them.
        for key, value in spelled.items():
            if key in data and canonical(self, key, template_data(value)) == canonical(
                self, key, template_data(data[key])
            ):
                data[key] = value
        return {
            **{k: v for k, v in data.items() if k in _DATA},
            "arn": cloud.arn("ec2", f"launch-template/{rid}"),
            "name": found["LaunchTemplateName"],
            "description": (version or {}).get("VersionDescription", ""),
            "defaultVersion": int(found["DefaultVersionNumber"]),
            "latestVersion": int(found["LatestVersionNumber"]),
            # Use DescribeTags, because the emulator's template always reports the tags of its creation.
            "tags": tag_map(ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [rid]}])["Tags"]),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        super().update(cloud, rid, old, new, changed)
        ec2 = cloud.client("ec2")
        version = new.get("defaultVersion")
        if changed & (_DATA | {"description"}):
            made = ec2.create_launch_template_version(
                LaunchTemplateId=rid,
                LaunchTemplateData=template_data({k: v for k, v in new.items() if k in _DATA}),
                **({"VersionDescription": new["description"]} if new.get("description") else {}),
            )
            if new.get("updateDefaultVersion"):
                version = made["LaunchTemplateVersion"]["VersionNumber"]
        if version is not None:
            ec2.modify_launch_template(LaunchTemplateId=rid, DefaultVersion=str(version))

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        retry_busy(lambda: cloud.client("ec2").delete_launch_template(LaunchTemplateId=rid))


@serves
class PlacementGroup(Ec2Handler):
    """A placement group. Its id is its name."""

    token = "aws:ec2/placementGroup:PlacementGroup"
    kind = "placement-group"
    accepts = frozenset({"name", "strategy", "partitionCount", "spreadLevel", "tags"})
    required = frozenset({"strategy"})
    replaces = accepts - {"tags"}
    auto_name = "name"

    def create(self, cloud: Cloud, inputs: Props) -> str:
        cloud.client("ec2").create_placement_group(
            GroupName=inputs["name"],
            **upper(inputs, ["strategy", "partitionCount", "spreadLevel"]),
            **self.tag_specification(inputs),
        )
        return str(inputs["name"])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        answer = cloud.client("ec2").describe_placement_groups(GroupNames=[rid])
        group = only(answer["PlacementGroups"])
        if group is None:
            return None
        return {
            "arn": group.get("GroupArn", cloud.arn("ec2", f"placement-group/{rid}")),
            "name": group["GroupName"],
            "strategy": group["Strategy"],
            "placementGroupId": group.get("GroupId", ""),
            "tags": tag_map(group.get("Tags")),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        live = self.read(cloud, rid, new) or {}
        self.retag(cloud, live["placementGroupId"], old, new)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        retry_busy(lambda: cloud.client("ec2").delete_placement_group(GroupName=rid))
