"""Routes of an existing VPC, its VPC endpoints, and the endpoints that a stack creates."""

from __future__ import annotations

from typing import Any

import pytest

from components.documents.vpc import KNOWN, private_endpoints
from tests.unit.emulator import REGION, Cloud
from tests.unit.preflight.accounts import (
    OTHER,
    TAGS,
    VPC,
    ZONE,
    Answers,
    ExistingVpc,
    account,
    expect,
    findings,
    only,
    stack,
)
from trainyard.preflight.egress import check_endpoint_services
from trainyard.preflight.findings import SKIPPED, WARNING, new_endpoints, required_endpoints

KEY = "trainyard:network"
PRIVATE, PUBLIC = f"{KEY}.privateSubnetIds", f"{KEY}.publicSubnetIds"
MIRROR = {"mirror": f"123456789012.dkr.ecr.{REGION}.amazonaws.com/mirror"}
# A private network needs images from a registry that it can reach.
NETWORK = {"private": True, "cidr": "10.1.0.0/16", "publicSubnetIds": None}
ISOLATED: dict[str, Any] = {"network": NETWORK, "images": MIRROR}
EXISTING_ISOLATED = {**VPC, "private": True, "cidr": "10.1.0.0/16"}


def test_private_subnet_needs_a_default_route_to_a_nat_gateway(existing: ExistingVpc) -> None:
    key = f"{PRIVATE}.{OTHER}"
    existing.ec2.disassociate_route_table(AssociationId=existing.associations[1])
    only(existing.findings(), key, "has no default route")
    existing.route_table([existing.private[OTHER]], GatewayId=existing.gateway)
    lines = [line for line in existing.findings() if "S3" not in line]
    only(lines, key, "is a public subnet", existing.gateway)


def test_nat_gateway_needs_a_route_to_the_internet(existing: ExistingVpc) -> None:
    existing.ec2.delete_route(RouteTableId=existing.public_table, DestinationCidrBlock="0.0.0.0/0")
    lines = existing.findings()
    assert [line.split(": ")[0] for line in lines] == [
        *(f"{PUBLIC}.{zone}" for zone in (ZONE, OTHER)),
        *(f"{PRIVATE}.{zone}" for zone in (ZONE, OTHER)),
    ]
    assert f"{existing.nat}, which is in {existing.public[ZONE]}, a subnet without" in lines[2]
    made = existing.ec2.create_nat_gateway(SubnetId=existing.public[ZONE], ConnectivityType="private")
    nat = made["NatGateway"]["NatGatewayId"]
    existing.ec2.replace_route(
        RouteTableId=existing.table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=nat
    )
    assert f"to {nat}, which is a private NAT gateway" in existing.findings()[2]


def test_public_subnet_behind_a_nat_gateway_is_refused(existing: ExistingVpc) -> None:
    existing.ec2.disassociate_route_table(AssociationId=existing.public_associations[1])
    existing.ec2.associate_route_table(RouteTableId=existing.table, SubnetId=existing.public[OTHER])
    only(existing.findings(), f"{PUBLIC}.{OTHER}", "is not a public subnet")


def route(**target: str) -> dict[str, str]:
    return {"DestinationCidrBlock": "0.0.0.0/0", **target}


@pytest.mark.parametrize(
    ("default", "nat", "beyond", "part"),
    [
        (route(TransitGatewayId="tgw-1"), {}, route(), ""),
        (route(GatewayId="vgw-1"), {}, route(), ""),
        (route(NetworkInterfaceId="eni-1"), {}, route(), ""),
        (route(VpcPeeringConnectionId="pcx-1"), {}, route(), ""),
        (route(NatGatewayId="nat-1"), {}, route(GatewayId="igw-1"), ""),
        (route(NatGatewayId="nat-1"), {}, route(GatewayId="vpce-1"), ""),
        (route(NatGatewayId="nat-1"), {}, route(NatGatewayId="nat-2"), "which is in subnet-2"),
        (route(NatGatewayId="nat-1"), {}, route(), "which is in subnet-2"),
        (route(NatGatewayId="nat-1"), {"State": "failed"}, route(GatewayId="igw-1"), "nat-1, which is failed"),
        (route(NatGatewayId="nat-1"), {"SubnetId": ""}, route(), ""),
        (route(NatGatewayId="nat-1"), {"ConnectivityType": "private"}, route(TransitGatewayId="tgw-1"), ""),
        (route(NatGatewayId="nat-1"), {"ConnectivityType": "private"}, route(GatewayId="igw-1"), "private NAT"),
        (route(TransitGatewayId="tgw-1", State="blackhole"), {}, route(), "a missing target"),
    ],
)  # fmt: skip
def test_default_route_must_lead_out(
    default: dict[str, str], nat: dict[str, str], beyond: dict[str, str], part: str
) -> None:
    subnets: dict[str, str] = VPC["privateSubnetIds"]  # type: ignore[assignment]
    tables = [
        {"RouteTableId": "rtb-1", "Routes": [default], "Associations": [{"Main": True}]},
        {"RouteTableId": "rtb-2", "Routes": [beyond], "Associations": [{"SubnetId": "subnet-2"}]},
    ]
    gateway = {"NatGatewayId": "nat-1", "State": "available", "SubnetId": "subnet-2", **nat}
    aws = Answers(
        describe_subnets=[{"SubnetId": subnets[ZONE]}],
        describe_route_tables=tables,
        describe_nat_gateways=[gateway],
    )
    lines = findings(aws, stack(network=VPC), "routes")
    expect(lines, f"{PRIVATE}.{ZONE}", part, "It must have a default route to a NAT gateway")


def https_group(existing: ExistingVpc, name: str, *ranges: str) -> str:
    """Create a group that allows HTTPS in from ranges."""
    made = existing.ec2.create_security_group(GroupName=name, Description="e", VpcId=existing.vpc)
    blocks = [{"CidrIp": each} for each in ranges]
    rule = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": blocks}
    existing.ec2.authorize_security_group_ingress(GroupId=made["GroupId"], IpPermissions=[rule])
    return str(made["GroupId"])


def interface(existing: ExistingVpc, service: str, group: str, *, private_dns: bool = True) -> str:
    return existing.endpoint(
        service,
        VpcEndpointType="Interface",
        SubnetIds=list(existing.private.values()),
        PrivateDnsEnabled=private_dns,
        SecurityGroupIds=[group],
    )


NEEDED = private_endpoints(file_system=False)


def test_isolated_vpc_needs_an_endpoint_per_service(existing: ExistingVpc) -> None:
    group = https_group(existing, "endpoints", "10.1.0.0/16")
    first, second, *others = NEEDED
    for service in others:
        interface(existing, service, group)
    interface(existing, second, group, private_dns=False)
    only(existing.findings(**ISOLATED), f"{KEY}.private", existing.vpc, f"for {first}, {second}.")
    only(
        existing.findings(network={**NETWORK, "interfaceEndpoints": [first]}, images=MIRROR),
        f"{KEY}.private",
        f"for {second}.",
    )
    assert existing.findings() == [], "with a NAT gateway no endpoint is needed"


def test_isolated_subnet_needs_a_route_to_s3(existing: ExistingVpc) -> None:
    group = https_group(existing, "endpoints", "10.1.0.0/16")
    for service in NEEDED:
        interface(existing, service, group)
    assert existing.findings(**ISOLATED) == []
    existing.ec2.delete_vpc_endpoints(VpcEndpointIds=[existing.s3])
    lines = existing.findings(**ISOLATED)
    assert [line.partition(": ")[0] for line in lines] == [f"{PRIVATE}.{ZONE}", f"{PRIVATE}.{OTHER}"]


def test_s3_through_a_nat_gateway_is_a_warning(existing: ExistingVpc) -> None:
    assert existing.report().findings == []
    existing.ec2.disassociate_route_table(AssociationId=existing.associations[1])
    table, _ = existing.route_table([existing.private[OTHER]], NatGatewayId=existing.nat)
    assert existing.findings() == []
    lines = existing.findings(kind=WARNING)
    only(lines, f"{PRIVATE}.{OTHER}", existing.private[OTHER], "gateway endpoint for S3", table)
    existing.ec2.delete_vpc_endpoints(VpcEndpointIds=[existing.s3])
    assert len(existing.findings(kind=WARNING)) == 2
    interface(existing, "s3", existing.group)
    assert existing.findings(kind=WARNING) == [], "an interface endpoint works, too"


def test_group_of_an_endpoint_must_allow_the_workers(existing: ExistingVpc) -> None:
    for service in NEEDED[1:]:
        interface(existing, service, https_group(existing, service, "10.1.0.0/16"))
    narrow = https_group(existing, "narrow", "10.1.0.0/24")
    endpoint = interface(existing, NEEDED[0], narrow)
    only(
        existing.findings(**ISOLATED),
        f"{KEY}.private",
        f"is true, but {endpoint} (",
        "HTTPS from 10.1.0.0/24, ",
    )
    workers = [
        {
            "IpProtocol": "tcp",
            "FromPort": 443,
            "ToPort": 443,
            "UserIdGroupPairs": [{"GroupId": existing.group}],
        }
    ]
    existing.ec2.authorize_security_group_ingress(GroupId=narrow, IpPermissions=workers)
    assert existing.report(**ISOLATED).findings == []
    existing.ec2.revoke_security_group_ingress(GroupId=narrow, IpPermissions=workers)
    lists = [{"IpProtocol": "-1", "PrefixListIds": [{"PrefixListId": "pl-0123456789abcdef0"}]}]
    existing.ec2.authorize_security_group_ingress(GroupId=narrow, IpPermissions=lists)
    only(existing.findings(kind=SKIPPED, **ISOLATED), f"{KEY}.private", f"the prefix lists of {endpoint}")


def test_endpoint_that_the_stack_creates_must_not_exist(existing: ExistingVpc) -> None:
    endpoint = interface(existing, "ecr.api", existing.group)
    network = {"interfaceEndpoints": ["ecr.api", "sts"], "cidr": "10.1.0.0/16"}
    only(existing.findings(network=network), f"{KEY}.interfaceEndpoints", "contains ecr.api", endpoint)
    existing.tag(endpoint, **TAGS)
    assert existing.findings(network=network) == [], "an earlier deployment created it"


@pytest.mark.parametrize(
    ("changes", "new", "required"),
    [
        ({}, (), ()),
        ({"network": {"interfaceEndpoints": ["sts"]}}, ("sts",), ()),
        ({"network": {"private": True}, "images": MIRROR}, NEEDED, ()),
        ({"network": {**EXISTING_ISOLATED}, "images": MIRROR}, (), ("s3", *NEEDED)),
        (
            {"network": {**EXISTING_ISOLATED, "interfaceEndpoints": ["sts"]}, "images": MIRROR},
            ("sts",),
            ("s3", *(name for name in NEEDED if name != "sts")),
        ),
    ],
)
def test_endpoints_follow_the_settings(
    changes: dict[str, Any], new: tuple[str, ...], required: tuple[str, ...]
) -> None:
    settings = stack(**changes)
    assert (new_endpoints(settings), required_endpoints(settings)) == (new, required)


def service(name: str, *zones: str, kind: str = "Interface") -> dict[str, Any]:
    full = f"com.amazonaws.{REGION}.{name}"
    return {"ServiceName": full, "AvailabilityZones": list(zones), "ServiceType": [{"ServiceType": kind}]}


STS = service("sts", ZONE, OTHER)


@pytest.mark.parametrize(
    ("services", "network", "key", "parts"),
    [
        ([STS, service("fsx", ZONE, OTHER)], {}, "", ()),
        ([STS, service("fsx", OTHER)], {}, f"{KEY}.zones", (f"{ZONE}: the interface endpoint fsx", f"be in {OTHER}")),
        ([STS, service("fsx", OTHER)], {**VPC, "cidr": "10.1.0.0/16"}, PRIVATE, (f"{ZONE}: the interface endpoint",)),
        ([service("fsx", kind="Gateway")], {}, f"{KEY}.interfaceEndpoints", (f"sts, fsx: {REGION} offers no",)),
    ],
)  # fmt: skip
def test_new_endpoint_must_be_offered_in_every_zone(
    services: list[dict[str, Any]], network: dict[str, Any], key: str, parts: tuple[str, ...]
) -> None:
    settings = stack(network={**network, "interfaceEndpoints": ["sts", "fsx"]})
    lines = findings(Answers(describe_vpc_endpoint_services=services), settings, "endpoint services")
    expect(lines, key, *parts)


def test_every_endpoint_of_the_settings_is_a_service_of_the_region(cloud: Cloud) -> None:
    """By moto's list, which has AWS's own names."""
    settings = stack(network={"interfaceEndpoints": sorted(KNOWN)})
    assert check_endpoint_services(settings, account(cloud)) == []
