"""Network resources of EC2: VPC, subnets and gateways (API reference: Amazon EC2, version 2016-11-15)."""

from __future__ import annotations

from typing import Any, ClassVar

from local.plugins.aws.cloud import Cloud, retry_busy, wait_until
from local.plugins.aws.resource import (
    Handler,
    Props,
    serves,
    tag_changes,
    tag_list,
    tag_map,
    upper,
)


class Ec2Handler(Handler):
    """A resource that gets tags with `TagSpecifications` and changes them with CreateTags and DeleteTags."""

    tagged: ClassVar[bool] = True
    # The resource type's name in TagSpecifications, and in the ARN.
    kind: ClassVar[str]

    def tag_specification(self, inputs: Props) -> Props:
        """Return the `TagSpecifications` argument; absent if there are no tags."""
        tags = tag_list(inputs.get("tags"))
        return {"TagSpecifications": [{"ResourceType": self.kind, "Tags": tags}]} if tags else {}

    def retag(self, cloud: Cloud, rid: str, old: Props, new: Props) -> None:
        """Apply the change of tags to an EC2 resource id."""
        gone, put = tag_changes(old, new)
        if gone:
            cloud.client("ec2").delete_tags(Resources=[rid], Tags=[{"Key": key} for key in gone])
        if put:
            cloud.client("ec2").create_tags(Resources=[rid], Tags=tag_list(put))

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        """Update the tags, which are the only thing that changes in place. Subclasses extend this."""
        if "tags" in changed:
            self.retag(cloud, rid, old, new)


def only(items: list[Any]) -> Any | None:
    """Return the single item of a describe call, or None."""
    return items[0] if items else None


@serves
class Vpc(Ec2Handler):
    """A VPC and its two DNS attributes."""

    token = "aws:ec2/vpc:Vpc"
    kind = "vpc"
    accepts = frozenset({"cidrBlock", "enableDnsHostnames", "enableDnsSupport", "instanceTenancy", "tags"})
    replaces = frozenset({"cidrBlock", "instanceTenancy"})
    required = frozenset({"cidrBlock"})
    defaults: ClassVar[Props] = {"enableDnsSupport": True, "instanceTenancy": "default"}

    def create(self, cloud: Cloud, inputs: Props) -> str:
        answer = cloud.client("ec2").create_vpc(
            **upper(inputs, ["cidrBlock", "instanceTenancy"]), **self.tag_specification(inputs)
        )
        return str(answer["Vpc"]["VpcId"])

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        self._attributes(cloud, rid, inputs)

    def _attributes(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        # One attribute per call: the API refuses two.
        modify = cloud.client("ec2").modify_vpc_attribute
        modify(VpcId=rid, EnableDnsSupport={"Value": bool(inputs.get("enableDnsSupport", True))})
        modify(VpcId=rid, EnableDnsHostnames={"Value": bool(inputs.get("enableDnsHostnames", False))})

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        ec2 = cloud.client("ec2")
        vpc = only(ec2.describe_vpcs(VpcIds=[rid])["Vpcs"])
        if vpc is None:
            return None
        by_vpc = [{"Name": "vpc-id", "Values": [rid]}]
        tables = ec2.describe_route_tables(
            Filters=[*by_vpc, {"Name": "association.main", "Values": ["true"]}]
        )
        groups = ec2.describe_security_groups(
            Filters=[*by_vpc, {"Name": "group-name", "Values": ["default"]}]
        )
        acls = ec2.describe_network_acls(Filters=[*by_vpc, {"Name": "default", "Values": ["true"]}])
        main = (only(tables["RouteTables"]) or {}).get("RouteTableId", "")

        def attribute(name: str) -> bool:
            answer = ec2.describe_vpc_attribute(VpcId=rid, Attribute=name)
            return bool(answer[name[0].upper() + name[1:]]["Value"])

        return {
            "arn": cloud.arn("ec2", f"vpc/{rid}"),
            "cidrBlock": vpc["CidrBlock"],
            "instanceTenancy": vpc.get("InstanceTenancy", "default"),
            "enableDnsSupport": attribute("enableDnsSupport"),
            "enableDnsHostnames": attribute("enableDnsHostnames"),
            "mainRouteTableId": main,
            "defaultRouteTableId": main,
            "defaultSecurityGroupId": (only(groups["SecurityGroups"]) or {}).get("GroupId", ""),
            "defaultNetworkAclId": (only(acls["NetworkAcls"]) or {}).get("NetworkAclId", ""),
            "dhcpOptionsId": vpc.get("DhcpOptionsId", "default"),
            "ownerId": vpc.get("OwnerId", cloud.account),
            "tags": tag_map(vpc.get("Tags")),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        super().update(cloud, rid, old, new, changed)
        if changed & {"enableDnsSupport", "enableDnsHostnames"}:
            self._attributes(cloud, rid, new)

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        retry_busy(lambda: cloud.client("ec2").delete_vpc(VpcId=rid))


@serves
class Subnet(Ec2Handler):
    """A subnet in one zone."""

    token = "aws:ec2/subnet:Subnet"
    kind = "subnet"
    accepts = frozenset(
        {"vpcId", "cidrBlock", "availabilityZone", "availabilityZoneId", "mapPublicIpOnLaunch", "tags"}
    )
    required = frozenset({"vpcId"})
    replaces = frozenset({"vpcId", "cidrBlock", "availabilityZone", "availabilityZoneId"})
    defaults: ClassVar[Props] = {"mapPublicIpOnLaunch": False}

    def create(self, cloud: Cloud, inputs: Props) -> str:
        answer = cloud.client("ec2").create_subnet(
            **upper(inputs, ["vpcId", "cidrBlock", "availabilityZone", "availabilityZoneId"]),
            **self.tag_specification(inputs),
        )
        return str(answer["Subnet"]["SubnetId"])

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        if inputs.get("mapPublicIpOnLaunch"):
            self._public(cloud, rid, True)

    def _public(self, cloud: Cloud, rid: str, value: bool) -> None:
        cloud.client("ec2").modify_subnet_attribute(SubnetId=rid, MapPublicIpOnLaunch={"Value": value})

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        subnet = only(cloud.client("ec2").describe_subnets(SubnetIds=[rid])["Subnets"])
        if subnet is None:
            return None
        return {
            "arn": cloud.arn("ec2", f"subnet/{rid}"),
            "vpcId": subnet["VpcId"],
            "cidrBlock": subnet["CidrBlock"],
            "availabilityZone": subnet["AvailabilityZone"],
            "availabilityZoneId": subnet.get("AvailabilityZoneId", ""),
            "mapPublicIpOnLaunch": subnet.get("MapPublicIpOnLaunch", False),
            "ownerId": subnet.get("OwnerId", cloud.account),
            "tags": tag_map(subnet.get("Tags")),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        super().update(cloud, rid, old, new, changed)
        if "mapPublicIpOnLaunch" in changed:
            self._public(cloud, rid, bool(new.get("mapPublicIpOnLaunch")))

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        retry_busy(lambda: cloud.client("ec2").delete_subnet(SubnetId=rid))


@serves
class InternetGateway(Ec2Handler):
    """An internet gateway, attached to a VPC."""

    token = "aws:ec2/internetGateway:InternetGateway"
    kind = "internet-gateway"
    accepts = frozenset({"vpcId", "tags"})

    def create(self, cloud: Cloud, inputs: Props) -> str:
        answer = cloud.client("ec2").create_internet_gateway(**self.tag_specification(inputs))
        return str(answer["InternetGateway"]["InternetGatewayId"])

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        if inputs.get("vpcId"):
            cloud.client("ec2").attach_internet_gateway(InternetGatewayId=rid, VpcId=inputs["vpcId"])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        answer = cloud.client("ec2").describe_internet_gateways(InternetGatewayIds=[rid])
        gateway = only(answer["InternetGateways"])
        if gateway is None:
            return None
        attachment = only(gateway.get("Attachments", [])) or {}
        return {
            "arn": cloud.arn("ec2", f"internet-gateway/{rid}"),
            "vpcId": attachment.get("VpcId", ""),
            "ownerId": gateway.get("OwnerId", cloud.account),
            "tags": tag_map(gateway.get("Tags")),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        super().update(cloud, rid, old, new, changed)
        if "vpcId" in changed:
            self._detach(cloud, rid)
            self.finish(cloud, rid, new)

    def _detach(self, cloud: Cloud, rid: str) -> None:
        live = self.read(cloud, rid, {}) or {}
        if live.get("vpcId"):
            detach = cloud.client("ec2").detach_internet_gateway
            retry_busy(lambda: detach(InternetGatewayId=rid, VpcId=live["vpcId"]))

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        self._detach(cloud, rid)
        retry_busy(lambda: cloud.client("ec2").delete_internet_gateway(InternetGatewayId=rid))


@serves
class Eip(Ec2Handler):
    """An elastic IP address of a VPC. Its id is the allocation's."""

    token = "aws:ec2/eip:Eip"
    kind = "elastic-ip"
    accepts = frozenset({"domain", "tags"})
    replaces = frozenset({"domain"})

    def create(self, cloud: Cloud, inputs: Props) -> str:
        answer = cloud.client("ec2").allocate_address(
            Domain=inputs.get("domain", "vpc"), **self.tag_specification(inputs)
        )
        return str(answer["AllocationId"])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        address = only(cloud.client("ec2").describe_addresses(AllocationIds=[rid])["Addresses"])
        if address is None:
            return None
        return {
            "arn": cloud.arn("ec2", f"elastic-ip/{rid}"),
            "allocationId": rid,
            "domain": address.get("Domain", "vpc"),
            "publicIp": address["PublicIp"],
            "associationId": address.get("AssociationId", ""),
            "networkInterface": address.get("NetworkInterfaceId", ""),
            "tags": tag_map(address.get("Tags")),
        }

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        retry_busy(lambda: cloud.client("ec2").release_address(AllocationId=rid))


@serves
class NatGateway(Ec2Handler):
    """A zonal NAT gateway."""

    token = "aws:ec2/natGateway:NatGateway"
    kind = "natgateway"
    accepts = frozenset({"allocationId", "subnetId", "connectivityType", "privateIp", "tags"})
    required = frozenset({"subnetId"})
    replaces = frozenset({"allocationId", "subnetId", "connectivityType", "privateIp"})
    defaults: ClassVar[Props] = {"connectivityType": "public"}

    def create(self, cloud: Cloud, inputs: Props) -> str:
        answer = cloud.client("ec2").create_nat_gateway(
            **{
                **upper(inputs, ["allocationId", "subnetId", "connectivityType"]),
                **({"PrivateIpAddress": inputs["privateIp"]} if inputs.get("privateIp") else {}),
                **self.tag_specification(inputs),
            }
        )
        return str(answer["NatGateway"]["NatGatewayId"])

    def _live(self, cloud: Cloud, rid: str) -> Any | None:
        gateway = only(cloud.client("ec2").describe_nat_gateways(NatGatewayIds=[rid])["NatGateways"])
        # A deleted gateway stays visible for about an hour.
        return None if gateway is None or gateway["State"] in ("deleted", "failed") else gateway

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        wait_until(
            f"NAT gateway {rid} available",
            lambda: (self._live(cloud, rid) or {}).get("State") == "available",
            600,
        )

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        gateway = self._live(cloud, rid)
        if gateway is None or gateway["State"] == "deleting":
            return None
        address = only(gateway.get("NatGatewayAddresses", [])) or {}
        return {
            "subnetId": gateway["SubnetId"],
            "connectivityType": gateway.get("ConnectivityType", "public"),
            "allocationId": address.get("AllocationId", ""),
            "networkInterfaceId": address.get("NetworkInterfaceId", ""),
            "publicIp": address.get("PublicIp", ""),
            "privateIp": address.get("PrivateIp", ""),
            "tags": tag_map(gateway.get("Tags")),
        }

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        retry_busy(lambda: cloud.client("ec2").delete_nat_gateway(NatGatewayId=rid))
        wait_until(f"NAT gateway {rid} deleted", lambda: self._live(cloud, rid) is None, 600)
