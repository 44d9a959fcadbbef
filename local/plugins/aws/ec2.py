"""EC2: networks, security groups, launch templates (API reference: Amazon EC2, version 2016-11-15)."""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from typing import Any

from local.plugins.aws.cloud import Cloud, retry_busy
from local.plugins.aws.resource import Props, Resource, plain_tags
from local.plugins.sdk import split_names


@dataclass(frozen=True, kw_only=True)
class _Row(Resource):
    """A row of EC2. Tags are set with the creation, and changed with CreateTags and DeleteTags."""

    service: str = "ec2"
    tag_op: str = "create_tags"


def _operations(noun: str) -> Props:
    """Return the operations of a resource that EC2 names regularly, such as `NatGateway`."""
    snake = re.sub("(?<=[a-z])(?=[A-Z])", "_", noun).lower()
    return {
        "create_op": f"create_{snake}",
        "id": f"{noun}.{noun}Id",
        "key": f"{noun}Id",
        "read_op": f"describe_{snake}s",
        "found": f"{noun}s[0]",
        "delete_op": f"delete_{snake}",
    }


# ------------------------------------------------------------------------------------------------- gateways


def _detach(cloud: Cloud, rid: str) -> None:
    found = cloud.client("ec2").describe_internet_gateways(InternetGatewayIds=[rid])["InternetGateways"]
    detach = cloud.client("ec2").detach_internet_gateway
    for attachment in found[0].get("Attachments", []):
        retry_busy(functools.partial(detach, InternetGatewayId=rid, VpcId=attachment["VpcId"]))


def _move_gateway(cloud: Cloud, rid: str, _old: Props, new: Props, changed: frozenset[str]) -> None:
    if "vpcId" in changed:
        _detach(cloud, rid)
        if new.get("vpcId"):
            cloud.client("ec2").attach_internet_gateway(InternetGatewayId=rid, VpcId=new["vpcId"])


class _InternetGateway(_Row):
    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        _move_gateway(cloud, rid, {}, inputs, frozenset(inputs))


# ------------------------------------------------------------------------------------------------- routes

_TARGETS = split_names("gatewayId natGatewayId")
_ROUTE = split_names("routeTableId destinationCidrBlock")


class _Route(_Row):
    """One route of a table. It has no id of its own. A new target is set in place."""

    def create(self, cloud: Cloud, inputs: Props) -> str:
        cloud.client("ec2").create_route(**self.arguments(cloud, "create_route", inputs))
        digest = hashlib.sha256(str(inputs["destinationCidrBlock"]).encode()).hexdigest()
        return f"r-{inputs['routeTableId']}{int(digest[:8], 16)}"

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        answer = cloud.client("ec2").describe_route_tables(RouteTableIds=[inputs["routeTableId"]])
        for route in answer["RouteTables"][0]["Routes"]:
            if route.get("DestinationCidrBlock") == inputs["destinationCidrBlock"]:
                empty = dict.fromkeys(_TARGETS, "")
                return {**empty, "routeTableId": inputs["routeTableId"], **self.properties(route)}
        return None

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        cloud.client("ec2").replace_route(**self.arguments(cloud, "replace_route", new))

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("ec2").delete_route(**self.arguments(cloud, "delete_route", state, _ROUTE))


def _check_route(inputs: Props) -> list[tuple[str, str]]:
    found = [key for key in _TARGETS if inputs.get(key) is not None]
    if len(found) == 1:
        return []
    targets = " and ".join(sorted(_TARGETS))
    return [("gatewayId", f"a route needs exactly one target of {targets}; got {len(found)}")]


# ------------------------------------------------------------------------------------------------- endpoints

# Inputs that only one type of endpoint has.
_ONLY = {"Gateway": ("routeTableIds",), "Interface": ("subnetIds", "securityGroupIds", "privateDnsEnabled")}


def _check_endpoint(inputs: Props) -> list[tuple[str, str]]:
    kind = inputs.get("vpcEndpointType")
    return [
        (key, f"is for endpoints of type {other}; this one is of type {kind}")
        for other, keys in _ONLY.items()
        for key in keys
        if kind in _ONLY and kind != other and inputs.get(key)
    ]


def _live_endpoint(_cloud: Cloud, _rid: str, _inputs: Props, found: Any) -> Props:
    return {
        "securityGroupIds": [group["GroupId"] for group in found.get("Groups", [])],
        "vpcEndpointType": found.get("VpcEndpointType", "Gateway"),
        "privateDnsEnabled": found.get("PrivateDnsEnabled", False),
        "state": found["State"].lower(),
    }


class _VpcEndpoint(_Row):
    """A gateway or interface endpoint. Members of its lists are added and removed."""

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        arguments: Props = {}
        for key in sorted(changed & split_names("routeTableIds securityGroupIds subnetIds")):
            name = key[0].upper() + key[1:]
            before, after = set(old.get(key) or []), set(new.get(key) or [])
            arguments |= {f"Add{name}": sorted(after - before)} if after - before else {}
            arguments |= {f"Remove{name}": sorted(before - after)} if before - after else {}
        if "policy" in changed:
            arguments |= {"PolicyDocument": new["policy"]} if new.get("policy") else {"ResetPolicy": True}
        if "privateDnsEnabled" in changed:
            arguments["PrivateDnsEnabled"] = bool(new.get("privateDnsEnabled"))
        if arguments:
            cloud.client("ec2").modify_vpc_endpoint(VpcEndpointId=rid, **arguments)
            self.settle(cloud, rid)
        super().update(cloud, rid, old, new, changed & {"tags"})


class _FlowLog(_Row):
    """Flow logs of a VPC. The official provider waits until a new role is known everywhere. Here it is at once."""

    def create(self, cloud: Cloud, inputs: Props) -> str:
        answer = cloud.client("ec2").create_flow_logs(
            ResourceType="VPC",
            ResourceIds=[inputs["vpcId"]],
            **self.arguments(cloud, self.create_op, inputs),
            **(self.creation_tags(cloud, inputs["tags"]) if inputs.get("tags") else {}),
        )
        for refused in answer.get("Unsuccessful", []):
            raise RuntimeError(f"flow log of {inputs['vpcId']}: {refused['Error']['Message']}")
        return str(answer["FlowLogIds"][0])


def _live_flow_log(_cloud: Cloud, _rid: str, inputs: Props, found: Any) -> Props:
    destination = found.get("LogDestination") or inputs.get("logDestination", "")
    return {
        "vpcId": found["ResourceId"],
        "logDestination": str(destination).removesuffix(":*"),
    }


# ------------------------------------------------------------------------------------------------- security groups


def _revoke(cloud: Cloud, group: str, *directions: str) -> None:
    """Remove the rules of a group in the directions (`ingress`, `egress`)."""
    ec2 = cloud.client("ec2")
    live = ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]
    for direction in directions:
        rules = live["IpPermissions" if direction == "ingress" else "IpPermissionsEgress"]
        if rules:
            getattr(ec2, f"revoke_security_group_{direction}")(GroupId=group, IpPermissions=rules)


class _SecurityGroup(_Row):
    """A security group. Its rules are resources of their own; rules inside the group are refused."""

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        # Like the official provider, remove the rule "all egress" that AWS adds.
        _revoke(cloud, rid, "egress")


class _DefaultSecurityGroup(_Row):
    """A VPC's own default group. Creation removes its rules; deletion changes nothing."""

    def create(self, cloud: Cloud, inputs: Props) -> str:
        pairs = {"vpc-id": inputs["vpcId"], "group-name": "default"}
        filters = [{"Name": name, "Values": [value]} for name, value in pairs.items()]
        groups = cloud.client("ec2").describe_security_groups(Filters=filters)["SecurityGroups"]
        if not groups:
            raise LookupError(f"VPC {inputs['vpcId']} has no default security group")
        return str(groups[0]["GroupId"])

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        _revoke(cloud, rid, "ingress", "egress")
        self.retag(cloud, rid, {}, inputs)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        return None


class _Rule(_Row):
    """One rule with its own id. The token says the direction."""

    @property
    def _direction(self) -> str:
        return "egress" if "Egress" in self.token else "ingress"

    def create(self, cloud: Cloud, inputs: Props) -> str:
        text = {"Description": inputs["description"]} if inputs.get("description") else {}
        rule: Props = {"IpProtocol": inputs["ipProtocol"]}
        if inputs["ipProtocol"] != "-1":
            rule |= {"FromPort": int(inputs["fromPort"]), "ToPort": int(inputs["toPort"])}
        for key, ranges, member in (
            ("cidrIpv4", "IpRanges", "CidrIp"),
            ("referencedSecurityGroupId", "UserIdGroupPairs", "GroupId"),
        ):
            if inputs.get(key):
                rule[ranges] = [{member: inputs[key], **text}]
        answer = getattr(cloud.client("ec2"), f"authorize_security_group_{self._direction}")(
            GroupId=inputs["securityGroupId"],
            IpPermissions=[rule],
            **(self.creation_tags(cloud, inputs["tags"]) if inputs.get("tags") else {}),
        )
        return str(answer["SecurityGroupRules"][0]["SecurityGroupRuleId"])

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        if changed - {"tags"}:
            rule = {
                "IpProtocol": new["ipProtocol"],
                # -1 is the API's form of "all ports". The emulator requires it.
                "FromPort": new.get("fromPort", -1),
                "ToPort": new.get("toPort", -1),
                "CidrIpv4": new.get("cidrIpv4"),
                "ReferencedGroupId": new.get("referencedSecurityGroupId"),
                "Description": new.get("description"),
            }
            given = {key: value for key, value in rule.items() if value is not None}
            cloud.client("ec2").modify_security_group_rules(
                GroupId=new["securityGroupId"],
                SecurityGroupRules=[{"SecurityGroupRuleId": rid, "SecurityGroupRule": given}],
            )
        super().update(cloud, rid, old, new, changed & {"tags"})

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        revoke = getattr(cloud.client("ec2"), f"revoke_security_group_{self._direction}")
        revoke(GroupId=state["securityGroupId"], SecurityGroupRuleIds=[rid])


def _live_rule(_cloud: Cloud, _rid: str, _inputs: Props, found: Any) -> Props:
    """Return a rule's ports and its description."""
    props: Props = {"description": found.get("Description") or ""}
    if found["IpProtocol"] == "-1":
        props |= {"fromPort": None, "toPort": None}
    return props


_RULE: Props = {
    "accepts": split_names(
        "securityGroupId ipProtocol fromPort toPort cidrIpv4 referencedSecurityGroupId description tags"
    ),
    "changes": split_names("ipProtocol fromPort toPort cidrIpv4 referencedSecurityGroupId description"),
    "key": "SecurityGroupRuleId",
    "create_op": "authorize_security_group_ingress",
    "read_op": "describe_security_group_rules",
    "found": "SecurityGroupRules[?SecurityGroupRuleId=='{id}'] | [0]",
    "names": {
        "securityGroupId": "GroupId",
        "referencedSecurityGroupId": "ReferencedGroupInfo.GroupId",
    },
    "kind": "security-group-rule",
    "live": _live_rule,
}

# ------------------------------------------------------------------------------------------------- launch templates

_DATA = split_names(
    "blockDeviceMappings ebsOptimized imageId instanceType keyName metadataOptions tagSpecifications userData "
    "vpcSecurityGroupIds"
)


def _live_template(cloud: Cloud, rid: str, _inputs: Props, found: Any) -> Props:
    """Return a template's data without the tags of the template itself, which the emulator adds to it.

    The tags are from DescribeTags, because the emulator's template always reports the tags of its creation.
    """
    tags = cloud.client("ec2").describe_tags(Filters=[{"Name": "resource-id", "Values": [rid]}])["Tags"]
    return {
        "tags": plain_tags(tags),
        "tagSpecifications": [
            {"resourceType": each["ResourceType"], "tags": plain_tags(each["Tags"])}
            for each in found["LaunchTemplateData"].get("TagSpecifications", [])
            if each["ResourceType"] != "launch-template"
        ],
    }


def _new_version(cloud: Cloud, rid: str, _old: Props, new: Props, changed: frozenset[str]) -> None:
    if changed & TEMPLATE.changes:
        arguments = TEMPLATE.arguments(cloud, "create_launch_template_version", new, TEMPLATE.changes)
        cloud.client("ec2").create_launch_template_version(LaunchTemplateId=rid, **arguments)


TEMPLATE = _Row(
    "aws:ec2/launchTemplate:LaunchTemplate",
    accepts=_DATA | split_names("name description tags"),
    unordered=split_names("vpcSecurityGroupIds"),
    moving=split_names("latestVersion"),
    auto_name="name",
    auto_name_limit=128,
    create_op="create_launch_template",
    id="LaunchTemplate.LaunchTemplateId",
    key="LaunchTemplateId",
    read_op="describe_launch_template_versions",
    read_with={"Versions": ["$Latest"]},
    found="LaunchTemplateVersions[0]",
    extras={"defaultVersion": ("describe_launch_templates", "LaunchTemplates[0].DefaultVersionNumber", {})},
    delete_op="delete_launch_template",
    names={
        "name": "LaunchTemplateName",
        "description": "VersionDescription",
        "latestVersion": "VersionNumber",
        "vpcSecurityGroupIds": "LaunchTemplateData.SecurityGroupIds",
        "tagSpecifications": "LaunchTemplateData.TagSpecifications",
    },
    within="LaunchTemplateData",
    kind="launch-template",
    live=_live_template,
    changes=_DATA | {"description"},
    change=_new_version,
)

# ------------------------------------------------------------------------------------------------- the table

ROWS = (
    _Row(
        "aws:ec2/vpc:Vpc",
        accepts=split_names("cidrBlock enableDnsHostnames enableDnsSupport instanceTenancy tags"),
        defaults={"enableDnsSupport": True, "instanceTenancy": "default"},
        **_operations("Vpc"),
        extras={
            "enableDnsSupport": (
                "describe_vpc_attribute",
                "EnableDnsSupport.Value",
                {"Attribute": "enableDnsSupport"},
            ),
            "enableDnsHostnames": (
                "describe_vpc_attribute",
                "EnableDnsHostnames.Value",
                {"Attribute": "enableDnsHostnames"},
            ),
        },
        # One attribute per call: the API refuses two.
        updates=(
            ("modify_vpc_attribute", split_names("enableDnsSupport")),
            ("modify_vpc_attribute", split_names("enableDnsHostnames")),
        ),
        names={
            "enableDnsSupport": "EnableDnsSupport.Value",
            "enableDnsHostnames": "EnableDnsHostnames.Value",
        },
        kind="vpc",
    ),
    _Row(
        "aws:ec2/subnet:Subnet",
        accepts=split_names("vpcId cidrBlock availabilityZone mapPublicIpOnLaunch tags"),
        defaults={"mapPublicIpOnLaunch": False},
        **_operations("Subnet"),
        updates=(("modify_subnet_attribute", split_names("mapPublicIpOnLaunch")),),
        names={"mapPublicIpOnLaunch": "MapPublicIpOnLaunch.Value"},
        kind="subnet",
    ),
    _InternetGateway(
        "aws:ec2/internetGateway:InternetGateway",
        accepts=split_names("vpcId tags"),
        **_operations("InternetGateway"),
        names={"vpcId": "Attachments[0].VpcId"},
        changes=split_names("vpcId"),
        change=_move_gateway,
        before_delete=lambda cloud, rid, _: _detach(cloud, rid),
        kind="internet-gateway",
    ),
    _Row(
        "aws:ec2/eip:Eip",
        accepts=split_names("domain tags"),
        create_op="allocate_address",
        id="AllocationId",
        key="AllocationId",
        read_op="describe_addresses",
        found="Addresses[0]",
        delete_op="release_address",
        kind="elastic-ip",
    ),
    _Row(
        "aws:ec2/natGateway:NatGateway",
        accepts=split_names("allocationId subnetId connectivityType tags"),
        defaults={"connectivityType": "public"},
        **_operations("NatGateway"),
        names={
            "allocationId": "NatGatewayAddresses[0].AllocationId",
            "networkInterfaceId": "NatGatewayAddresses[0].NetworkInterfaceId",
            "publicIp": "NatGatewayAddresses[0].PublicIp",
            "privateIp": "NatGatewayAddresses[0].PrivateIp",
        },
        kind="natgateway",
        status="State",
        ready="available",
        # A deleted gateway stays visible for about an hour.
        gone=split_names("deleting deleted failed"),
    ),
    _Row(
        "aws:ec2/routeTable:RouteTable",
        accepts=split_names("vpcId tags"),
        **_operations("RouteTable"),
        kind="route-table",
    ),
    _Route(
        "aws:ec2/route:Route",
        accepts=_ROUTE | _TARGETS,
        changes=_TARGETS,
        check=_check_route,
    ),
    _Row(
        "aws:ec2/routeTableAssociation:RouteTableAssociation",
        accepts=split_names("routeTableId subnetId"),
        # The association gets a new id when its table changes.
        exclusive=True,
        create_op="associate_route_table",
        id="AssociationId",
        key="AssociationId",
        read_op="describe_route_tables",
        found="RouteTables[].Associations[?RouteTableAssociationId=='{id}'][] | [0]",
        delete_op="disassociate_route_table",
    ),
    _VpcEndpoint(
        "aws:ec2/vpcEndpoint:VpcEndpoint",
        accepts=split_names(
            "vpcId serviceName vpcEndpointType policy privateDnsEnabled routeTableIds securityGroupIds subnetIds tags"
        ),
        unordered=split_names("routeTableIds securityGroupIds subnetIds"),
        changes=split_names("policy privateDnsEnabled routeTableIds securityGroupIds subnetIds"),
        documents=split_names("policy"),
        defaults={"vpcEndpointType": "Gateway"},
        check=_check_endpoint,
        **{**_operations("VpcEndpoint"), "delete_op": "delete_vpc_endpoints"},
        names={"policy": "PolicyDocument"},
        live=_live_endpoint,
        kind="vpc-endpoint",
        status="State",
        ready="available",
        gone=split_names("deleted Deleted"),
    ),
    _FlowLog(
        "aws:ec2/flowLog:FlowLog",
        accepts=split_names(
            "vpcId trafficType logDestination logDestinationType iamRoleArn maxAggregationInterval tags"
        ),
        defaults={"logDestinationType": "cloud-watch-logs", "maxAggregationInterval": 600},
        check=lambda inputs: [] if inputs.get("vpcId") else [("vpcId", "is required")],
        create_op="create_flow_logs",
        key="FlowLogId",
        read_op="describe_flow_logs",
        found="FlowLogs[0]",
        names={"iamRoleArn": "DeliverLogsPermissionArn"},
        live=_live_flow_log,
        delete_op="delete_flow_logs",
        kind="vpc-flow-log",
    ),
    _SecurityGroup(
        "aws:ec2/securityGroup:SecurityGroup",
        accepts=split_names("name description vpcId tags"),
        defaults={"description": "Managed by Pulumi"},
        auto_name="name",
        create_op="create_security_group",
        id="GroupId",
        key="GroupId",
        read_op="describe_security_groups",
        found="SecurityGroups[0]",
        names={"name": "GroupName"},
        delete_op="delete_security_group",
        kind="security-group",
    ),
    _DefaultSecurityGroup(
        "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup",
        accepts=split_names("vpcId tags"),
        create_op="create_security_group",
        key="GroupId",
        read_op="describe_security_groups",
        found="SecurityGroups[0]",
        names={"name": "GroupName"},
        kind="security-group",
    ),
    *(
        _Rule(
            f"aws:vpc/securityGroup{direction}Rule:SecurityGroup{direction}Rule",
            **_RULE,
        )
        for direction in ("Ingress", "Egress")
    ),
    TEMPLATE,
    _Row(
        "aws:ec2/placementGroup:PlacementGroup",
        accepts=split_names("name strategy tags"),
        auto_name="name",
        create_op="create_placement_group",
        id="{name}",
        key="GroupName",
        read_op="describe_placement_groups",
        found="PlacementGroups[0]",
        names={"name": "GroupName", "arn": "GroupArn", "placementGroupId": "GroupId"},
        tag_by="placementGroupId",
        delete_op="delete_placement_group",
        kind="placement-group",
    ),
)
