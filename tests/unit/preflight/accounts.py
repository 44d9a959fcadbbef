"""An account that has everything for a stack, of which a test then changes one thing."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from infra.settings import Settings, read
from tests.unit.emulator import REGION, Cloud
from trainyard.preflight.aws import Aws
from trainyard.preflight.checks import CHECKS, Report, examine
from trainyard.preflight.findings import MISSING, Check

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ACCOUNT = "123456789012"
ADMINISTRATOR = f"arn:aws:iam::{ACCOUNT}:user/deployer"
TAGS = {"trainyard:project": "trainyard", "trainyard:stack": "train"}
ZONE, OTHER = f"{REGION}a", f"{REGION}b"
POOL: dict[str, Any] = {
    "name": "small",
    "instanceType": "g5.12xlarge",
    "zone": ZONE,
    "maxNodes": 2,
    "efa": "none",
}
EXISTING: dict[str, Any] = {
    "name": "research",
    "endpoint": "https://AB.gr7.us-west-2.eks.amazonaws.com",
    "certificateAuthority": "LS0tLS1CRUdJTg==",
    "oidcProviderArn": f"arn:aws:iam::{ACCOUNT}:oidc-provider/oidc.eks.us-west-2.amazonaws.com/id/AB",
    "oidcIssuer": "https://oidc.eks.us-west-2.amazonaws.com/id/AB",
    "securityGroupId": "sg-0123456789abcdef0",
}
VPC = {
    "vpcId": "vpc-0123456789abcdef0",
    "privateSubnetIds": {ZONE: "subnet-0a23456789abcdef0", OTHER: "subnet-0b23456789abcdef0"},
}


def checks(*names: str) -> tuple[Check, ...]:
    """Return some of the checks."""
    found = tuple(check for check in CHECKS if check.name in names)
    assert len(found) == len(names), names
    return found


def stack(
    *pools: dict[str, Any],
    cluster: dict[str, Any] | None = None,
    network: dict[str, Any] | None = None,
    **sections: Any,
) -> Settings:
    """Return the settings of the stack `train` with a new VPC and cluster and one pool, with changes.

    Each of `pools` changes `POOL`. `network` with a vpcId and `cluster` with `existing` replace the section.
    """
    if "existing" in (cluster or {}):
        network = network or VPC
    new_cluster = {
        "name": "train",
        "administrators": [ADMINISTRATOR],
        "publicAccessCidrs": ["8.8.8.8/32"],
        "systemNodes": {"instanceType": "m6i.large", "count": 2},
    }
    config = {
        "aws:region": REGION,
        "trainyard:cluster": {**({} if "existing" in (cluster or {}) else new_cluster), **(cluster or {})},
        "trainyard:network": {
            **({} if "vpcId" in (network or {}) else {"zones": [ZONE, OTHER]}),
            **(network or {}),
        },
        "trainyard:pools": [
            {**POOL, **({"name": f"pool-{index}"} if index else {}), **changes}
            for index, changes in enumerate(pools or ({},))
        ],
        **{f"trainyard:{name}": value for name, value in sections.items()},
    }
    return read("train", copy.deepcopy(config), NOW)


class Session:
    """Provides the emulator's clients, as the deployer or with the credentials of a role session."""

    def __init__(self, cloud: Cloud, credentials: dict[str, str] | None = None) -> None:
        self._cloud, self._credentials = cloud, credentials

    def client(self, service: str, **_: Any) -> Any:
        return self._cloud.client(service, self._credentials)


def account(cloud: Cloud, credentials: dict[str, str] | None = None, now: datetime = NOW) -> Aws:
    return Aws(REGION, Session(cloud, credentials), now=now)


class Answers(Aws):
    """An account that gives the same answer to each call of a method; none to other methods."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(REGION, session=object(), now=NOW)
        self.answers = answers

    def call(self, service: str, method: str, **_: Any) -> Any:
        return self.answers.get(method)

    def items(self, service: str, method: str, key: str, **_: Any) -> Any:
        return self.answers.get(method) or []


def findings(aws: Aws, settings: Settings, *names: str, kind: str = MISSING) -> list[str]:
    """Return the findings of some checks, each of which must be possible."""
    report = examine(settings, aws, checks(*names))
    assert (report.denied, report.failed) == ([], [])
    return [str(each) for each in report.of(kind)]


@contextmanager
def recorded_calls(aws: Aws, *services: str) -> Iterator[list[str]]:
    """Record the names of the operations that an account is asked for."""
    calls: list[str] = []
    for service in services:
        aws.client(service).meta.events.register(
            "before-call", lambda model, **_: calls.append(model.name), unique_id=f"seen-{service}"
        )
    yield calls
    for service in services:
        aws.client(service).meta.events.unregister("before-call", unique_id=f"seen-{service}")


def tagged(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


OF_NETWORK = checks(
    "VPC",
    "subnets",
    "free addresses",
    "network tags",
    "routes",
    "route to S3",
    "VPC endpoints",
    "endpoint security groups",
    "network ACLs",
    "DNS servers",
    "worker security group",
)


class ExistingVpc:
    """A VPC with two private subnets behind a NAT gateway, S3's endpoint, a public subnet and the workers' group."""

    def __init__(self, cloud: Cloud, prefix: int = 24) -> None:
        self.cloud, self.ec2 = cloud, cloud.client("ec2")
        ec2 = self.ec2
        self.vpc = ec2.create_vpc(CidrBlock="10.1.0.0/16")["Vpc"]["VpcId"]
        for flag in ("EnableDnsSupport", "EnableDnsHostnames"):
            ec2.modify_vpc_attribute(VpcId=self.vpc, **{flag: {"Value": True}})
        self.private = {
            ZONE: self.subnet(f"10.1.0.0/{prefix}", ZONE),
            OTHER: self.subnet("10.1.1.0/24", OTHER),
        }
        self.public = {ZONE: self.subnet("10.1.2.0/24", ZONE), OTHER: self.subnet("10.1.3.0/24", OTHER)}
        self.gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        ec2.attach_internet_gateway(InternetGatewayId=self.gateway, VpcId=self.vpc)
        address = ec2.allocate_address(Domain="vpc")["AllocationId"]
        made = ec2.create_nat_gateway(SubnetId=self.public[ZONE], AllocationId=address)
        self.nat = made["NatGateway"]["NatGatewayId"]
        self.public_table, self.public_associations = self.route_table(
            self.public.values(), GatewayId=self.gateway
        )
        self.table, self.associations = self.route_table(self.private.values(), NatGatewayId=self.nat)
        self.s3 = self.endpoint("s3", VpcEndpointType="Gateway", RouteTableIds=[self.table])
        self.group = self.make_group("workers")

    def subnet(self, block: str, zone: str) -> str:
        made = self.ec2.create_subnet(VpcId=self.vpc, CidrBlock=block, AvailabilityZone=zone)
        return str(made["Subnet"]["SubnetId"])

    def route_table(self, subnets: Sequence[str], **target: str) -> tuple[str, list[str]]:
        """Create a route table with a default route; return its id and its associations."""
        table = self.ec2.create_route_table(VpcId=self.vpc)["RouteTable"]["RouteTableId"]
        self.ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", **target)
        made = [self.ec2.associate_route_table(RouteTableId=table, SubnetId=subnet) for subnet in subnets]
        return table, [each["AssociationId"] for each in made]

    def endpoint(self, service: str, **more: Any) -> str:
        name = f"com.amazonaws.{REGION}.{service}"
        made = self.ec2.create_vpc_endpoint(VpcId=self.vpc, ServiceName=name, **more)
        return str(made["VpcEndpoint"]["VpcEndpointId"])

    def make_group(self, name: str, *, ingress: bool = True, egress: bool = True) -> str:
        group = self.ec2.create_security_group(GroupName=name, Description=name, VpcId=self.vpc)["GroupId"]
        itself = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
        if ingress:
            self.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=itself)
        if egress:
            self.ec2.authorize_security_group_egress(GroupId=group, IpPermissions=itself)
        return str(group)

    def tag(self, identity: str, **tags: str) -> None:
        self.ec2.create_tags(Resources=[identity], Tags=tagged(tags))

    def settings(
        self, *pools: dict[str, Any], network: dict[str, Any] | None = None, **changes: Any
    ) -> Settings:
        """Return a stack in this VPC; `network` changes its section, without the keys whose value is None."""
        section = {
            "vpcId": self.vpc,
            "privateSubnetIds": self.private,
            "publicSubnetIds": self.public,
            "workerSecurityGroupId": self.group,
            **(network or {}),
        }
        section = {key: value for key, value in section.items() if value is not None}
        return stack(*pools, network=section, **changes)

    def report(self, *pools: dict[str, Any], of: Sequence[Check] = OF_NETWORK, **changes: Any) -> Report:
        report = examine(self.settings(*pools, **changes), account(self.cloud), of)
        assert (report.denied, report.failed) == ([], [])
        return report

    def findings(self, *pools: dict[str, Any], kind: str = MISSING, **changes: Any) -> list[str]:
        return [str(each) for each in self.report(*pools, **changes).of(kind)]


def only(lines: list[str], key: str, *parts: str) -> str:
    """Return the only line, which has this key and all of these parts."""
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"{key}: "), lines[0]
    for part in parts:
        assert part in lines[0], (part, lines[0])
    return lines[0]


def expect(lines: list[str], key: str, *parts: str) -> None:
    """Check the only line as `only` does. With an empty key or an empty part, there must be no line."""
    if key and all(parts):
        only(lines, key, *parts)
    else:
        assert lines == []
