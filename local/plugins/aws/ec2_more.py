"""Further EC2 resources: VPC endpoints, flow logs, launch templates, placement groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from local.plugins.aws.cloud import Cloud, is_gone, retry_busy, wait_until
from local.plugins.aws.ec2_network import Ec2Handler, only
from local.plugins.aws.resource import Props, canonical, listed, random_name, serves, tag_list, tag_map, upper


@serves
class VpcEndpoint(Ec2Handler):
    """A gateway or interface endpoint."""

    token = "aws:ec2/vpcEndpoint:VpcEndpoint"
    kind = "vpc-endpoint"
    accepts = frozenset(
        {
            "vpcId",
            "serviceName",
            "vpcEndpointType",
            "policy",
            "privateDnsEnabled",
            "routeTableIds",
            "securityGroupIds",
            "subnetIds",
            "tags",
        }
    )
    required = frozenset({"vpcId", "serviceName"})
    replaces = frozenset({"vpcId", "serviceName", "vpcEndpointType"})
    unordered = frozenset({"routeTableIds", "securityGroupIds", "subnetIds"})
    documents = frozenset({"policy"})
    defaults: ClassVar[Props] = {"vpcEndpointType": "Gateway"}

    def create(self, cloud: Cloud, inputs: Props) -> str:
        arguments = upper(
            inputs,
            [
                "vpcId",
                "serviceName",
                "vpcEndpointType",
                "privateDnsEnabled",
                "routeTableIds",
                "subnetIds",
                "securityGroupIds",
            ],
        )
        if inputs.get("policy"):
            arguments["PolicyDocument"] = inputs["policy"]
        answer = cloud.client("ec2").create_vpc_endpoint(**arguments, **self.tag_specification(inputs))
        return str(answer["VpcEndpoint"]["VpcEndpointId"])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        found = only(cloud.client("ec2").describe_vpc_endpoints(VpcEndpointIds=[rid])["VpcEndpoints"])
        if found is None or str(found.get("State", "")).lower() == "deleted":
            return None
        return {
            "arn": cloud.arn("ec2", f"vpc-endpoint/{rid}"),
            "vpcId": found["VpcId"],
            "serviceName": found["ServiceName"],
            "vpcEndpointType": found.get("VpcEndpointType", "Gateway"),
            "routeTableIds": listed(found.get("RouteTableIds")),
            "subnetIds": listed(found.get("SubnetIds")),
            "securityGroupIds": [g["GroupId"] for g in listed(found.get("Groups"))]
            or listed(inputs.get("securityGroupIds")),
            "privateDnsEnabled": bool(found.get("PrivateDnsEnabled", False)),
            **({"policy": found["PolicyDocument"]} if found.get("PolicyDocument") else {}),
            "state": str(found.get("State", "available")).lower(),
            "networkInterfaceIds": listed(found.get("NetworkInterfaceIds")),
            "ownerId": found.get("OwnerId", cloud.account),
            "tags": tag_map(found.get("Tags")),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        super().update(cloud, rid, old, new, changed)
        arguments: Props = {}
        for key, name in (("routeTableIds", "RouteTableIds"), ("subnetIds", "SubnetIds")):
            if key in changed:
                before, after = set(listed(old.get(key))), set(listed(new.get(key)))
                if after - before:
                    arguments[f"Add{name}"] = sorted(after - before)
                if before - after:
                    arguments[f"Remove{name}"] = sorted(before - after)
        if "securityGroupIds" in changed:
            before, after = set(listed(old.get("securityGroupIds"))), set(listed(new.get("securityGroupIds")))
            arguments["AddSecurityGroupIds"] = sorted(after - before)
            arguments["RemoveSecurityGroupIds"] = sorted(before - after)
        if "policy" in changed:
            arguments |= {"PolicyDocument": new["policy"]} if new.get("policy") else {"ResetPolicy": True}
        if "privateDnsEnabled" in changed:
            arguments["PrivateDnsEnabled"] = bool(new.get("privateDnsEnabled"))
        if arguments:
            cloud.client("ec2").modify_vpc_endpoint(VpcEndpointId=rid, **arguments)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("ec2").delete_vpc_endpoints(VpcEndpointIds=[rid])
        wait_until(f"VPC endpoint {rid} deleted", lambda: self._absent(cloud, rid), 600)

    def _absent(self, cloud: Cloud, rid: str) -> bool:
        try:
            return self.read(cloud, rid, {}) is None
        except Exception as error:
            if is_gone(error):
                return True
            raise


@serves
class FlowLog(Ec2Handler):
    """Flow logs of a VPC or a subnet, to a log group or a bucket. Everything but tags needs a new one."""

    token = "aws:ec2/flowLog:FlowLog"
    kind = "vpc-flow-log"
    accepts = frozenset(
        {
            "vpcId",
            "subnetId",
            "trafficType",
            "logDestination",
            "logDestinationType",
            "iamRoleArn",
            "logFormat",
            "maxAggregationInterval",
            "tags",
        }
    )
    replaces = accepts - {"tags"}
    defaults: ClassVar[Props] = {"logDestinationType": "cloud-watch-logs", "maxAggregationInterval": 600}

    def create(self, cloud: Cloud, inputs: Props) -> str:
        subject = ("VPC", inputs["vpcId"]) if inputs.get("vpcId") else ("Subnet", inputs["subnetId"])
        arguments = upper(
            inputs,
            ["trafficType", "logDestination", "logDestinationType", "logFormat", "maxAggregationInterval"],
        )
        if inputs.get("iamRoleArn"):
            arguments["DeliverLogsPermissionArn"] = inputs["iamRoleArn"]
        answer = cloud.client("ec2").create_flow_logs(
            ResourceType=subject[0], ResourceIds=[subject[1]], **arguments, **self.tag_specification(inputs)
        )
        refused = listed(answer.get("Unsuccessful"))
        if refused:
            raise RuntimeError(f"flow log of {subject[1]}: {refused[0]['Error']['Message']}")
        return str(answer["FlowLogIds"][0])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        log = only(
            cloud.client("ec2").describe_flow_logs(Filters=[{"Name": "flow-log-id", "Values": [rid]}])[
                "FlowLogs"
            ]
        )
        if log is None:
            return None
        return {
            "arn": cloud.arn("ec2", f"vpc-flow-log/{rid}"),
            "vpcId" if log["ResourceId"].startswith("vpc-") else "subnetId": log["ResourceId"],
            "trafficType": log.get("TrafficType", ""),
            "logDestination": log.get("LogDestination") or inputs.get("logDestination", ""),
            "logDestinationType": log.get("LogDestinationType", "cloud-watch-logs"),
            "iamRoleArn": log.get("DeliverLogsPermissionArn", ""),
            "logFormat": log.get("LogFormat", ""),
            "maxAggregationInterval": int(log.get("MaxAggregationInterval", 600)),
            "tags": tag_map(log.get("Tags")),
        }

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("ec2").delete_flow_logs(FlowLogIds=[rid])


# Blocks of a launch template and how their fields are called in the API where upper case is not enough.
_FIELDS = {
    "vpcSecurityGroupIds": "SecurityGroupIds",
    "securityGroups": "Groups",
    "ramDiskId": "RamDiskId",
    "httpPutResponseHopLimit": "HttpPutResponseHopLimit",
}
# Numbers and booleans that the official schema types as strings.
_BOOLEANS = frozenset({"deleteOnTermination", "encrypted", "associatePublicIpAddress", "ebsOptimized"})


def template_data(value: Any) -> Any:
    """Launch template data of the API from the SDK's properties."""
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
    """The other way round, for what the API tells back."""
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
    """A launch template; each change of its data is a new version of it."""

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
        told = [s["resourceType"] for s in listed(inputs.get("tagSpecifications"))]
        if "tagSpecifications" in data:
            # The emulator adds the template's own tags to its data; EC2 doesn't.
            own = [s for s in data["tagSpecifications"] if s["resourceType"] != "launch-template"]
            data["tagSpecifications"] = data["tagSpecifications"] if "launch-template" in told else own
        spelled = {k: v for k, v in inputs.items() if k in _DATA}
        # Strings that the schema wants for booleans stay as the program wrote them.
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
            # DescribeTags, because the emulator's template keeps telling the tags of its creation.
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
    """A placement group; its id is its name."""

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
