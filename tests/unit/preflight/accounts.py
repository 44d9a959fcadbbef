"""An account on the emulator with everything that a stack wants, of which a test then spoils one thing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tests.unit.emulator import REGION, Cloud
from trainyard.preflight.account import Account
from trainyard.preflight.run import CHECKS, Check, Report, examine
from trainyard.preflight.wanted import Wanted, WantedPool, WantedSystem, WantedVpc

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
ADMINISTRATOR = "arn:aws:iam::123456789012:user/deployer"
TAGS = {"trainyard:project": "trainyard", "trainyard:stack": "train"}
ZONE, OTHER = f"{REGION}a", f"{REGION}b"


def checks(*names: str) -> dict[str, Check]:
    """Some of the checks, so that a test asks the emulator for nothing else."""
    return {name: CHECKS[name] for name in names}


OF_NETWORK = checks(
    "VPC",
    "subnets",
    "free addresses",
    "tags of the network",
    "ways out and endpoints",
    "groups of endpoints",
    "network ACLs",
    "DNS servers",
    "security groups",
)


class Session:
    """Hands out the emulator's clients, as the deployer or with the credentials of a role session."""

    def __init__(self, cloud: Cloud, credentials: dict[str, str] | None = None) -> None:
        self._cloud, self._credentials = cloud, credentials

    def client(self, service: str, **_: Any) -> Any:
        return self._cloud.client(service, self._credentials)


def account(cloud: Cloud, credentials: dict[str, str] | None = None) -> Account:
    return Account(REGION, Session(cloud, credentials))


def pool(**changes: Any) -> WantedPool:
    made = WantedPool(
        key="trainyard:pools[0]",
        name="small",
        instance_type="g5.12xlarge",
        zone=ZONE,
        max_nodes=2,
        vcpus=48,
    )
    return replace(made, **changes)


def wanted(**changes: Any) -> Wanted:
    """A stack with a new VPC and cluster, and one pool."""
    made = Wanted(
        stack="train",
        region=REGION,
        account="123456789012",
        account_key="trainyard:cluster.administrators",
        tags=TAGS,
        cluster="train",
        administrators=(ADMINISTRATOR,),
        zones=(ZONE, OTHER),
        pools=(pool(),),
        system=WantedSystem(instance_type="m6i.large", count=2, vcpus=2),
        elastic_ips=1,
        kubernetes="1.35",
        kubernetes_supported=("1.34", "1.35", "1.36"),
        ami="al2023@v20260724",
    )
    return replace(made, **changes)


def tagged(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


class Given:
    """A VPC as a team has it: two private subnets behind a NAT gateway and with S3's endpoint, a public one, and a
    group for workers."""

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
        self.public = {ZONE: self.subnet("10.1.2.0/24", ZONE)}
        self.gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
        ec2.attach_internet_gateway(InternetGatewayId=self.gateway, VpcId=self.vpc)
        address = ec2.allocate_address(Domain="vpc")["AllocationId"]
        self.nat = ec2.create_nat_gateway(SubnetId=self.public[ZONE], AllocationId=address)["NatGateway"][
            "NatGatewayId"
        ]
        public = ec2.create_route_table(VpcId=self.vpc)["RouteTable"]["RouteTableId"]
        ec2.create_route(RouteTableId=public, DestinationCidrBlock="0.0.0.0/0", GatewayId=self.gateway)
        ec2.associate_route_table(RouteTableId=public, SubnetId=self.public[ZONE])
        self.public_table = public
        self.table = ec2.create_route_table(VpcId=self.vpc)["RouteTable"]["RouteTableId"]
        ec2.create_route(RouteTableId=self.table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=self.nat)
        self.associations = {
            zone: ec2.associate_route_table(RouteTableId=self.table, SubnetId=subnet)["AssociationId"]
            for zone, subnet in self.private.items()
        }
        self.s3 = ec2.create_vpc_endpoint(
            VpcId=self.vpc,
            ServiceName=f"com.amazonaws.{REGION}.s3",
            VpcEndpointType="Gateway",
            RouteTableIds=[self.table],
        )["VpcEndpoint"]["VpcEndpointId"]
        self.group = self.make_group("workers")

    def subnet(self, block: str, zone: str) -> str:
        made = self.ec2.create_subnet(VpcId=self.vpc, CidrBlock=block, AvailabilityZone=zone)
        return str(made["Subnet"]["SubnetId"])

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

    def wanted(self, *, vpc: dict[str, Any] | None = None, **changes: Any) -> Wanted:
        """A stack in this VPC; `vpc` changes what it says of it."""
        given = WantedVpc(vpc_id=self.vpc, private=self.private, public=self.public, worker_group=self.group)
        return wanted(vpc=replace(given, **(vpc or {})), elastic_ips=0, **changes)

    def report(
        self, *, vpc: dict[str, Any] | None = None, of: dict[str, Check] = CHECKS, **changes: Any
    ) -> Report:
        return examine(account(self.cloud), self.wanted(vpc=vpc, **changes), NOW, of)

    def problems(
        self, *, vpc: dict[str, Any] | None = None, of: dict[str, Check] = OF_NETWORK, **changes: Any
    ) -> list[str]:
        report = self.report(vpc=vpc, of=of, **changes)
        assert report.failed == []
        return [str(problem) for problem in report.problems]


def only(lines: list[str], key: str, *parts: str) -> str:
    """The one line that there must be: of this key, with all of these parts."""
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"{key}: "), lines[0]
    for part in parts:
        assert part in lines[0], lines[0]
    return lines[0]
