"""A VPC of a stack in every configuration: where it leads to, what is closed, and what must outlive machines."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest

from components.documents.vpc import KNOWN, private_endpoints, service_name
from components.network import FlowLogSettings, Network, NetworkArgs
from tests.unit.components.recording import ACCOUNT, HERE, Recorded, Resource, deploy

TAGS = {"trainyard:stack": "test"}
KEY = f"arn:aws:kms:us-west-2:{ACCOUNT}:key/logs"
SERVICES = ("ecr.api", "sqs")


@dataclass(frozen=True)
class Shape:
    """One configuration; its name is that of its network."""

    name: str
    zones: int
    nat_per_zone: bool
    private: bool
    endpoints: bool
    flow_logs: bool
    shared: bool

    def args(self) -> NetworkArgs:
        return NetworkArgs(
            account=HERE,
            cluster=self.name,
            cidr="10.0.0.0/16",
            zones=tuple(f"us-west-2{letter}" for letter in "abcd"[: self.zones]),
            nat_per_zone=self.nat_per_zone,
            private=self.private,
            shared=self.shared,
            interface_endpoints=SERVICES if self.endpoints else (),
            flow_logs=FlowLogSettings(key_arn=KEY, retention_days=365) if self.flow_logs else None,
            tags=TAGS,
        )


WAYS_OUT = ((False, False), (True, False), (False, True))
"""`natPerZone` and `private`, which exclude each other."""
CHOICES = list(product(WAYS_OUT, product((False, True), (False, True))))
"""All of these, each with one number of zones, so that each number comes with each single choice."""
SHAPES = [
    Shape(f"n{index:02}", 2 + (index + index // 4) % 3, *way, *more, shared=index % 2 == 1)
    for index, (way, more) in enumerate(CHOICES)
]
everywhere = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
# What a route, a rule or an endpoint is: without it a machine loses a way.
WAYS = {
    "aws:ec2/route:Route",
    "aws:ec2/routeTableAssociation:RouteTableAssociation",
    "aws:ec2/vpcEndpoint:VpcEndpoint",
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule",
}


@dataclass(frozen=True)
class All:
    recorded: Recorded
    networks: dict[str, Network]

    def of(self, shape: Shape, kind: str) -> list[Resource]:
        return [
            r for r in self.recorded.of(kind) if r.name == shape.name or r.name.startswith(f"{shape.name}-")
        ]

    def named(self, shape: Shape, kind: str, name: str) -> Resource:
        return self.recorded.one(kind, f"{shape.name}-{name}")


@pytest.fixture(scope="module")
def made() -> All:
    networks: dict[str, Network] = {}

    def program() -> None:
        for shape in SHAPES:
            networks[shape.name] = Network(shape.name, shape.args())

    return All(deploy(program), networks)


def routes_of(made: All, shape: Shape, kind: str) -> list[dict[str, Any]]:
    """Routes of the tables of the public or the private subnets; each subnet has exactly one table."""
    subnets = [s for s in made.of(shape, "aws:ec2/subnet:Subnet") if f"-{kind}-" in s.name]
    tables: dict[str, str] = {}
    for association in made.of(shape, "aws:ec2/routeTableAssociation:RouteTableAssociation"):
        assert association.inputs["subnetId"] not in tables, "a subnet has one table"
        tables[association.inputs["subnetId"]] = association.inputs["routeTableId"]
    of_kind = {tables[f"{subnet.name}-id"] for subnet in subnets}
    return [r.inputs for r in made.of(shape, "aws:ec2/route:Route") if r.inputs["routeTableId"] in of_kind]


@everywhere
def test_no_private_subnet_has_a_way_to_an_internet_gateway(made: All, shape: Shape) -> None:
    subnets = [s for s in made.of(shape, "aws:ec2/subnet:Subnet") if "-private-" in s.name]
    assert len(subnets) == shape.zones
    routes = routes_of(made, shape, "private")
    assert len(routes) == (0 if shape.private else shape.zones)
    assert all("gatewayId" not in route and route["natGatewayId"] for route in routes)
    assert not any(s.inputs["mapPublicIpOnLaunch"] for s in made.of(shape, "aws:ec2/subnet:Subnet"))


@everywhere
def test_a_private_network_has_no_gateway_to_anywhere(made: All, shape: Shape) -> None:
    gateways = (
        made.of(shape, "aws:ec2/internetGateway:InternetGateway"),
        made.of(shape, "aws:ec2/natGateway:NatGateway"),
        made.of(shape, "aws:ec2/eip:Eip"),
    )
    nats = shape.zones if shape.nat_per_zone else 1
    wanted = [0, 0, 0] if shape.private else [1, nats, nats]
    assert [len(found) for found in gateways] == wanted
    public = [s for s in made.of(shape, "aws:ec2/subnet:Subnet") if "-public-" in s.name]
    assert len(public) == (0 if shape.private else shape.zones)
    assert len(made.networks[shape.name].public_subnet_ids) == len(public)


@everywhere
def test_a_zones_traffic_goes_through_its_own_nat_gateway_where_there_is_one(made: All, shape: Shape) -> None:
    used = {route["natGatewayId"] for route in routes_of(made, shape, "private")}
    zones = shape.args().zones[: shape.zones if shape.nat_per_zone else 1]
    assert used == (set() if shape.private else {f"{shape.name}-{zone}-id" for zone in zones})


@everywhere
def test_vpc_resolves_names_and_its_default_group_has_no_rules(made: All, shape: Shape) -> None:
    (vpc,) = made.of(shape, "aws:ec2/vpc:Vpc")
    # Nodes find the private endpoint of the API, and AWS by interface endpoints, by their names.
    assert (vpc.inputs["enableDnsSupport"], vpc.inputs["enableDnsHostnames"]) == (True, True)
    (group,) = made.of(shape, "aws:ec2/defaultSecurityGroup:DefaultSecurityGroup")
    assert "ingress" not in group.inputs
    assert "egress" not in group.inputs


@everywhere
def test_egress_holds_every_way_that_a_machine_may_need(made: All, shape: Shape) -> None:
    """So that in-cluster resources, which depend on it, are gone before any of these."""
    ways = {(r.type, r.name) for kind in WAYS for r in made.of(shape, kind)}
    listed = {(r._type, r._name) for r in made.networks[shape.name].egress}
    assert ways <= listed
    reached = set(listed)
    for kind, name in listed:
        reached |= made.recorded.needs(kind, name)
    wanted = {"aws:ec2/internetGateway:InternetGateway", "aws:ec2/natGateway:NatGateway"}
    gateways = {(r.type, r.name) for kind in wanted for r in made.of(shape, kind)}
    assert gateways <= reached


@everywhere
def test_s3_is_reached_from_every_private_subnet_without_nat(made: All, shape: Shape) -> None:
    endpoint = made.named(shape, "aws:ec2/vpcEndpoint:VpcEndpoint", "s3").inputs
    assert endpoint["serviceName"] == "com.amazonaws.us-west-2.s3"
    tables = {f"{shape.name}-private-{zone}-id" for zone in shape.args().zones}
    assert set(endpoint["routeTableIds"]) == tables


@everywhere
def test_interface_endpoints_lie_in_every_zone_and_answer_to_the_usual_name(made: All, shape: Shape) -> None:
    endpoints = [
        e.inputs
        for e in made.of(shape, "aws:ec2/vpcEndpoint:VpcEndpoint")
        if e.inputs["vpcEndpointType"] == "Interface"
    ]
    names = sorted(e["serviceName"].removeprefix("com.amazonaws.us-west-2.") for e in endpoints)
    assert names == (list(SERVICES) if shape.endpoints else [])
    for endpoint in endpoints:
        assert endpoint["privateDnsEnabled"] is True
        assert len(endpoint["subnetIds"]) == shape.zones
        assert endpoint["securityGroupIds"] == [f"{shape.name}-endpoints-id"]
    if shape.endpoints:
        rule = made.named(
            shape, "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", "endpoints-from-vpc"
        ).inputs
        assert (rule["cidrIpv4"], rule["fromPort"], rule["toPort"]) == ("10.0.0.0/16", 443, 443)


@everywhere
def test_endpoints_of_a_private_network_serve_its_account_alone_unless_it_is_shared(
    made: All, shape: Shape
) -> None:
    policies = [each.inputs.get("policy") for each in made.of(shape, "aws:ec2/vpcEndpoint:VpcEndpoint")]
    assert all(HERE.id in (each or "") for each in policies) is (shape.private and not shape.shared)


@everywhere
def test_flow_logs_are_kept_where_they_are_asked_for(made: All, shape: Shape) -> None:
    logs = made.of(shape, "aws:ec2/flowLog:FlowLog")
    assert len(logs) == (1 if shape.flow_logs else 0)
    for log in logs:
        assert log.inputs["vpcId"] == f"{shape.name}-id"
        assert log.inputs["trafficType"] == "ALL"
        group = made.named(shape, "aws:cloudwatch/logGroup:LogGroup", "flow-logs").inputs
        assert (group["kmsKeyId"], group["retentionInDays"]) == (KEY, 365)


WITH_LOGS = next(shape for shape in SHAPES if shape.flow_logs)


def test_only_flow_logs_of_this_account_and_region_can_take_their_role(made: All) -> None:
    role = made.named(WITH_LOGS, "aws:iam/role:Role", "flow-logs").inputs
    (trust,) = json.loads(role["assumeRolePolicy"])["Statement"]
    assert trust["Principal"] == {"Service": "vpc-flow-logs.amazonaws.com"}
    assert trust["Condition"] == {
        "StringEquals": {"aws:SourceAccount": ACCOUNT},
        "ArnLike": {"aws:SourceArn": f"arn:aws:ec2:us-west-2:{ACCOUNT}:vpc-flow-log/*"},
    }


def test_flow_logs_can_write_but_not_create_group(made: All) -> None:
    policy = made.named(WITH_LOGS, "aws:iam/rolePolicy:RolePolicy", "flow-logs").inputs["policy"]
    writing, finding = json.loads(policy)["Statement"]
    group = f"arn:aws:logs:us-west-2:{ACCOUNT}:log-group"
    assert writing["Resource"] == f"{group}:/aws/vpc/{WITH_LOGS.name}/flow-logs:*"
    assert "logs:CreateLogGroup" not in policy
    assert (finding["Action"], finding["Resource"]) == ("logs:DescribeLogGroups", f"{group}:*")


def test_the_flow_log_begins_after_its_role_has_its_rights(made: All) -> None:
    name = f"{WITH_LOGS.name}-flow-logs"
    needed = made.recorded.needs("aws:ec2/flowLog:FlowLog", name)
    assert {("aws:iam/rolePolicy:RolePolicy", name), ("aws:cloudwatch/logGroup:LogGroup", name)} <= needed


def test_workers_are_open_to_each_other_and_reach_out_by_https_alone(made: All) -> None:
    shape = SHAPES[0]
    group = made.named(shape, "aws:ec2/securityGroup:SecurityGroup", "workers")
    assert group.inputs["tags"]["karpenter.sh/discovery"] == shape.name
    (inward,) = made.of(shape, "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule")
    own = f"{group.name}-id"
    assert (inward.inputs["referencedSecurityGroupId"], inward.inputs["ipProtocol"]) == (own, "-1")
    outward = {
        r.name: r.inputs for r in made.of(shape, "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule")
    }
    assert outward[f"{group.name}-to-each-other"]["referencedSecurityGroupId"] == own
    out = outward[f"{group.name}-out"]
    assert (out["ipProtocol"], out["fromPort"], out["toPort"]) == ("tcp", 443, 443)
    assert len(outward) == 2


def test_every_rule_is_identifiable_by_tags(made: All) -> None:
    """A killed deployment finds what it had made by tags: two rules with the same ones could be mixed up."""
    rules = [r for kind in WAYS if "Rule" in kind for r in made.recorded.of(kind)]
    assert len({json.dumps(r.inputs["tags"], sort_keys=True) for r in rules}) == len(rules)


def test_a_network_without_a_way_out_reaches_what_eks_and_karpenter_need() -> None:
    always = private_endpoints(file_system=False)
    assert {"ec2", "ecr.api", "ecr.dkr", "eks", "eks-auth", "logs", "sqs", "ssm", "sts"} <= set(always)
    assert {"fsx", "elasticloadbalancing", "s3", "iam"}.isdisjoint(always)
    more = private_endpoints(file_system=True, more=("kms",))
    assert set(more) - set(always) == {"fsx", "kms"}
    assert all(KNOWN[name] for name in always), "each has its reason"


def test_a_whole_service_name_is_taken_as_it_is() -> None:
    assert service_name("us-west-2", "ecr.api") == "com.amazonaws.us-west-2.ecr.api"
    assert service_name("cn-north-1", "cn.com.amazonaws.cn-north-1.ecr.api").startswith("cn.com")
