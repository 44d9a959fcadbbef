"""A VPC that is given, on the emulator: each thing that can be wrong with it is told by itself, with its key."""

from __future__ import annotations

import pytest

from tests.unit.emulator import REGION, Cloud
from tests.unit.preflight.accounts import OTHER, TAGS, ZONE, Given, only
from trainyard.preflight.filters import Acl, Entry, check_acls
from trainyard.preflight.network import Nat, Route, Routing, Subnet
from trainyard.preflight.wanted import Caution, WantedVpc
from trainyard.preflight.ways_out import check_ways_out

pytestmark = pytest.mark.unit
KEY = "trainyard:network"


def test_a_vpc_with_everything_lacks_nothing(cloud: Cloud) -> None:
    given = Given(cloud)
    given.tag(given.group, **{"karpenter.sh/discovery": "train"})
    report = given.report(vpc={"addresses": {ZONE: {"machines": 100}}})
    assert (report.problems, report.not_checked) == ([], [])


def test_a_vpc_that_does_not_exist_is_named(cloud: Cloud) -> None:
    given = Given(cloud)
    lines = given.problems(vpc={"vpc_id": "vpc-0123456789abcdef0"})
    assert lines[0].startswith(f"{KEY}.vpcId: 'vpc-0123456789abcdef0' does not exist in {REGION}")


def test_a_range_that_is_not_the_vpcs_is_told(cloud: Cloud) -> None:
    given = Given(cloud)
    assert given.problems(vpc={"cidr": "10.1.0.0/16"}) == []
    only(given.problems(vpc={"cidr": "10.2.0.0/16"}), f"{KEY}.cidr", "'10.2.0.0/16'", "must be 10.1.0.0/16")


@pytest.mark.parametrize("flag", ["enableDnsSupport", "enableDnsHostnames"])
def test_dns_that_is_off_is_told(cloud: Cloud, flag: str) -> None:
    given = Given(cloud)
    given.ec2.modify_vpc_attribute(VpcId=given.vpc, **{flag[0].upper() + flag[1:]: {"Value": False}})
    only(given.problems(), f"{KEY}.vpcId", f"has {flag} off", "modify-vpc-attribute")


def test_a_subnet_that_does_not_exist_is_named(cloud: Cloud) -> None:
    given = Given(cloud)
    lines = given.problems(vpc={"private": {**given.private, OTHER: "subnet-0123456789abcdef0"}})
    only(lines, f"{KEY}.privateSubnetIds.{OTHER}", "'subnet-0123456789abcdef0' does not exist", given.vpc)


def test_a_subnet_of_another_vpc_is_named(cloud: Cloud) -> None:
    given, stranger = Given(cloud), cloud.network()
    given.ec2.associate_route_table(RouteTableId=given.table, SubnetId=stranger["subnets"][1])
    lines = given.problems(vpc={"private": {**given.private, OTHER: stranger["subnets"][1]}})
    told = next(line for line in lines if "belongs to" in line)
    assert told.startswith(f"{KEY}.privateSubnetIds.{OTHER}: ")
    assert stranger["vpc"] in told


def test_a_subnet_in_another_zone_is_named(cloud: Cloud) -> None:
    given = Given(cloud)
    both = {ZONE: given.private[OTHER], OTHER: given.private[ZONE]}
    lines = given.problems(vpc={"private": both})
    assert [line.partition(": ")[0] for line in lines] == [
        f"{KEY}.privateSubnetIds.{ZONE}",
        f"{KEY}.privateSubnetIds.{OTHER}",
    ]
    assert f"lies in {OTHER}; it must be a subnet in {ZONE}" in lines[0]


def test_a_subnet_without_enough_free_addresses_is_named_with_what_takes_them(cloud: Cloud) -> None:
    given = Given(cloud, prefix=27)  # 32 addresses, five of which are AWS's
    enough = {"addresses": {ZONE: {"small (2 x g5.12xlarge)": 20, "control plane": 7}}}
    assert given.problems(vpc=enough) == []
    lines = given.problems(vpc={"addresses": {ZONE: {"small (2 x g5.12xlarge)": 20, "control plane": 8}}})
    only(
        lines, f"{KEY}.privateSubnetIds.{ZONE}", "27 free addresses, and 28 may be taken", "control plane: 8"
    )


def test_addresses_that_the_stack_itself_has_already_do_not_count_against_it(cloud: Cloud) -> None:
    given = Given(cloud, prefix=27)
    needs = {"addresses": {ZONE: {"machines": 27}}}
    mine = given.ec2.create_network_interface(SubnetId=given.private[ZONE])["NetworkInterface"]
    assert len(given.problems(vpc=needs)) == 1
    given.tag(mine["NetworkInterfaceId"], **TAGS)
    assert given.problems(vpc=needs) == []


def test_a_private_subnet_without_a_way_out_is_told(cloud: Cloud) -> None:
    given = Given(cloud)
    given.ec2.disassociate_route_table(AssociationId=given.associations[OTHER])
    only(given.problems(), f"{KEY}.privateSubnetIds.{OTHER}", "has no default route")


def test_a_public_subnet_is_no_place_for_machines_without_public_addresses(cloud: Cloud) -> None:
    given = Given(cloud)
    table = given.ec2.create_route_table(VpcId=given.vpc)["RouteTable"]["RouteTableId"]
    given.ec2.create_route(RouteTableId=table, DestinationCidrBlock="0.0.0.0/0", GatewayId=given.gateway)
    given.ec2.disassociate_route_table(AssociationId=given.associations[ZONE])
    given.ec2.associate_route_table(RouteTableId=table, SubnetId=given.private[ZONE])
    only(given.problems(), f"{KEY}.privateSubnetIds.{ZONE}", "is a public subnet", given.gateway)


def judged(
    route: Route, nat_state: str = "available", onward: str = "igw-1", *, public: bool = True
) -> list[str]:
    subnet = Subnet(subnet_id="subnet-1", vpc_id="vpc-1", zone=ZONE, free=100)
    behind = (Route(destination="0.0.0.0/0", target=onward),)
    routing = Routing(
        tables={"subnet-1": ("rtb-1", (route,)), "subnet-2": ("rtb-2", behind)},
        nats={"nat-1": Nat(state=nat_state, public=public, subnet_id="subnet-2")},
        endpoints=(),
    )
    vpc = WantedVpc(vpc_id="vpc-1", private={ZONE: "subnet-1"})
    return [str(p) for p in check_ways_out(vpc, {"subnet-1": subnet}, routing, REGION)]


@pytest.mark.parametrize("target", ["nat-1", "tgw-1", "vgw-1", "eni-1", "pcx-1"])
def test_a_default_route_to_any_gateway_for_private_addresses_will_do(target: str) -> None:
    assert judged(Route(destination="0.0.0.0/0", target=target)) == []


def test_a_nat_gateway_that_failed_is_no_way_out() -> None:
    route = Route(destination="0.0.0.0/0", target="nat-1")
    assert judged(route) == []
    only(judged(route, "failed"), f"{KEY}.privateSubnetIds.{ZONE}", "nat-1, which is failed")


@pytest.mark.parametrize(
    ("public", "onward", "right"),
    [
        (True, "igw-1", True),
        (True, "vpce-1", True),
        (True, "nat-2", False),
        (True, "", False),
        (False, "tgw-1", True),
        (False, "igw-1", False),
        (False, "nat-1", False),
    ],
)
def test_a_nat_gateway_is_a_way_out_where_its_own_subnet_has_one(
    public: bool, onward: str, right: bool
) -> None:
    lines = judged(Route(destination="0.0.0.0/0", target="nat-1"), onward=onward, public=public)
    assert (lines == []) == right


def test_a_private_nat_gateway_leads_nowhere_by_itself(cloud: Cloud) -> None:
    given = Given(cloud)
    made = given.ec2.create_nat_gateway(SubnetId=given.public[ZONE], ConnectivityType="private")["NatGateway"]
    nat = made["NatGatewayId"]
    given.ec2.replace_route(RouteTableId=given.table, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=nat)
    lines = given.problems()
    assert len(lines) == len(given.private)
    assert all(f"to {nat}, which is a private NAT gateway" in line for line in lines)


def test_a_nat_gateway_in_a_subnet_that_is_not_public_is_told_and_so_is_that_subnet(cloud: Cloud) -> None:
    given = Given(cloud)
    given.ec2.delete_route(RouteTableId=given.public_table, DestinationCidrBlock="0.0.0.0/0")
    lines = given.problems()
    assert lines[0].startswith(
        f"{KEY}.publicSubnetIds.{ZONE}: '{given.public[ZONE]}' has no default route to"
    )
    assert [f"{given.nat}, which lies in {given.public[ZONE]}" in line for line in lines] == [
        False,
        True,
        True,
    ]


def test_a_subnet_behind_a_nat_gateway_is_no_public_one(cloud: Cloud) -> None:
    given = Given(cloud)
    only(
        given.problems(vpc={"public": {OTHER: given.private[OTHER]}}),
        f"{KEY}.publicSubnetIds.{OTHER}",
        "no public",
    )


def acl_of(given: Given, subnet: str, *entries: dict[str, object]) -> str:
    """Gives a subnet an ACL of its own with these entries."""
    ec2 = given.ec2
    acl = ec2.create_network_acl(VpcId=given.vpc)["NetworkAcl"]["NetworkAclId"]
    for entry in entries:
        ec2.create_network_acl_entry(NetworkAclId=acl, **entry)
    (there,) = ec2.describe_network_acls(Filters=[{"Name": "association.subnet-id", "Values": [subnet]}])[
        "NetworkAcls"
    ]
    old = next(each for each in there["Associations"] if each["SubnetId"] == subnet)
    ec2.replace_network_acl_association(AssociationId=old["NetworkAclAssociationId"], NetworkAclId=acl)
    return str(acl)


def acl_entry(number: int, *, egress: bool, block: str = "0.0.0.0/0") -> dict[str, object]:
    return {
        "RuleNumber": number,
        "Protocol": "-1",
        "RuleAction": "allow",
        "Egress": egress,
        "CidrBlock": block,
    }


def test_an_acl_that_lets_nothing_through_is_told_for_its_direction(cloud: Cloud) -> None:
    given = Given(cloud)
    acl = acl_of(given, given.private[ZONE], acl_entry(100, egress=True))
    only(given.problems(), f"{KEY}.privateSubnetIds.{ZONE}", f"network ACL {acl}, which lets nothing in;")


def test_an_acl_of_the_owners_own_is_told_and_is_no_problem(cloud: Cloud) -> None:
    given = Given(cloud)
    acl = acl_of(
        given,
        given.private[ZONE],
        acl_entry(100, egress=True),
        acl_entry(100, egress=False, block="10.0.0.0/8"),
    )
    report = given.report()
    assert report.problems == []
    lines = [str(caution) for caution in report.cautions]
    only(lines, f"{KEY}.privateSubnetIds.{ZONE}", acl, "does not let everything in:")


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([(100, True, "0.0.0.0/0"), (200, False, "0.0.0.0/0")], None),
        ([(100, False, "10.9.0.0/16"), (200, True, "0.0.0.0/0")], "everything"),
        ([(200, True, "0.0.0.0/0"), (100, False, "0.0.0.0/0")], "nothing"),
        ([(100, True, "10.0.0.0/8")], "everything"),
        ([], "nothing"),
    ],
)
def test_the_first_rule_of_an_acl_that_fits_decides(
    entries: list[tuple[int, bool, str]], told: str | None
) -> None:
    rules = tuple(
        Entry(number=number, egress=egress, allow=allow, protocol="-1", block=block)
        for number, allow, block in entries
        for egress in (False, True)
    )
    vpc = WantedVpc(vpc_id="vpc-1", private={ZONE: "subnet-1"})
    lines = check_acls(vpc, {"subnet-1": Acl(acl_id="acl-1", entries=rules)})
    if told is None:
        assert lines == []
    else:
        assert all(isinstance(line, Caution) == (told == "everything") for line in lines)
        assert all(told in str(line) for line in lines)
        assert lines


@pytest.mark.parametrize(
    ("servers", "told"), [(["10.2.5.1"], True), (["AmazonProvidedDNS"], False), (["10.1.0.2"], False)]
)
def test_dns_servers_of_the_owners_own_are_told(cloud: Cloud, servers: list[str], told: bool) -> None:
    given = Given(cloud)
    options = given.ec2.create_dhcp_options(
        DhcpConfigurations=[{"Key": "domain-name-servers", "Values": servers}]
    )["DhcpOptions"]["DhcpOptionsId"]
    given.ec2.associate_dhcp_options(DhcpOptionsId=options, VpcId=given.vpc)
    report = given.report()
    assert report.problems == []
    assert [
        str(each).startswith(f"{KEY}.vpcId: '{given.vpc}' has DNS servers") for each in report.cautions
    ] == [True] * told


def test_a_route_into_a_blackhole_is_told() -> None:
    route = Route(destination="0.0.0.0/0", target="tgw-1", state="blackhole")
    only(judged(route), f"{KEY}.privateSubnetIds.{ZONE}", "leads nowhere")


def isolated(given: Given, *services: str) -> dict[str, object]:
    return {"isolated": True, "endpoints": services}


def endpoint(given: Given, service: str, **more: object) -> str:
    made = given.ec2.create_vpc_endpoint(
        VpcId=given.vpc, ServiceName=f"com.amazonaws.{REGION}.{service}", **more
    )
    return str(made["VpcEndpoint"]["VpcEndpointId"])


def interface(given: Given, service: str, *, private_dns: bool = True, group: str | None = None) -> str:
    return endpoint(
        given,
        service,
        VpcEndpointType="Interface",
        SubnetIds=list(given.private.values()),
        PrivateDnsEnabled=private_dns,
        SecurityGroupIds=[group or https_group(given, f"endpoint-{service}-{private_dns}")],
    )


def https_group(given: Given, name: str, *ranges: str) -> str:
    """A group that lets HTTPS in from these ranges, by default the VPC's."""
    group = str(given.ec2.create_security_group(GroupName=name, Description="e", VpcId=given.vpc)["GroupId"])
    blocks = [{"CidrIp": each} for each in ranges or ("10.1.0.0/16",)]
    rule = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": blocks}
    given.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    return group


def test_the_group_of_an_endpoint_must_let_the_private_subnets_or_the_workers_in(cloud: Cloud) -> None:
    given = Given(cloud)
    narrow = https_group(given, "narrow", "10.1.0.0/24")
    made = interface(given, "ec2", group=narrow)
    wanted = isolated(given, "ec2")
    only(
        given.problems(vpc=wanted),
        f"{KEY}.private",
        f"is true, but {made} (",
        "lets no HTTPS in from 10.1.0.0/24, ",
    )
    assert given.problems() == [], "with a way out no endpoint is needed"
    workers = {
        "IpProtocol": "tcp",
        "FromPort": 443,
        "ToPort": 443,
        "UserIdGroupPairs": [{"GroupId": given.group}],
    }
    given.ec2.authorize_security_group_ingress(GroupId=narrow, IpPermissions=[workers])
    assert given.problems(vpc=wanted) == []
    lists = {"IpProtocol": "-1", "PrefixListIds": [{"PrefixListId": "pl-0123456789abcdef0"}]}
    other = given.make_group("lists", ingress=False)
    given.ec2.authorize_security_group_ingress(GroupId=other, IpPermissions=[lists])
    interface(given, "sts", group=other)
    report = given.report(vpc=isolated(given, "sts"))
    assert [str(each).startswith(f"{KEY}.private: whether vpce-") for each in report.unasked] == [True]


def test_an_isolated_network_needs_an_endpoint_per_service(cloud: Cloud) -> None:
    given = Given(cloud)
    interface(given, "ecr.api")
    lines = given.problems(vpc=isolated(given, "ecr.api", "sts", "ec2"))
    only(lines, f"{KEY}.private", given.vpc, "for sts, ec2")
    interface(given, "sts")
    interface(given, "ec2", private_dns=False)
    only(given.problems(vpc=isolated(given, "ecr.api", "sts", "ec2")), f"{KEY}.private", "for ec2;")


def test_an_isolated_subnet_must_reach_s3_by_a_gateway_endpoint_of_its_own_route_table(cloud: Cloud) -> None:
    given = Given(cloud)
    given.ec2.delete_vpc_endpoints(VpcEndpointIds=[given.s3])
    endpoint(given, "s3", VpcEndpointType="Gateway", RouteTableIds=[])
    lines = given.problems(vpc=isolated(given, "s3"))
    assert [line.partition(": ")[0] for line in lines] == [
        f"{KEY}.privateSubnetIds.{ZONE}",
        f"{KEY}.privateSubnetIds.{OTHER}",
    ]
    endpoint(given, "s3", VpcEndpointType="Gateway", RouteTableIds=[given.table])
    assert given.problems(vpc=isolated(given, "s3")) == []


def test_a_subnet_that_reaches_s3_through_nat_is_told_and_is_no_problem(cloud: Cloud) -> None:
    given = Given(cloud)
    assert given.report().cautions == []
    other = given.ec2.create_route_table(VpcId=given.vpc)["RouteTable"]["RouteTableId"]
    given.ec2.create_route(RouteTableId=other, DestinationCidrBlock="0.0.0.0/0", NatGatewayId=given.nat)
    given.ec2.disassociate_route_table(AssociationId=given.associations[OTHER])
    given.ec2.associate_route_table(RouteTableId=other, SubnetId=given.private[OTHER])
    report = given.report()
    assert report.problems == []
    lines = [str(caution) for caution in report.cautions]
    only(lines, f"{KEY}.privateSubnetIds.{OTHER}", given.private[OTHER], "gateway endpoint for S3", other)
    given.ec2.delete_vpc_endpoints(VpcEndpointIds=[given.s3])
    assert len(given.report().cautions) == 2
    interface(given, "s3")
    assert given.report().cautions == [], "it may be reached by an interface endpoint, too"


def test_an_endpoint_that_the_stack_would_make_may_not_be_there(cloud: Cloud) -> None:
    given = Given(cloud)
    there = interface(given, "ecr.api")
    wanted = {"made_endpoints": ("ecr.api", "sts")}
    only(given.problems(vpc=wanted), f"{KEY}.interfaceEndpoints", "names ecr.api", there)
    given.tag(there, **TAGS)  # the stack's own, of an earlier deployment
    assert given.problems(vpc=wanted) == []


def test_tags_of_another_cluster_and_for_public_load_balancers_are_in_the_way(cloud: Cloud) -> None:
    given = Given(cloud)
    given.tag(
        given.private[ZONE], **{"kubernetes.io/cluster/train": "shared", "kubernetes.io/cluster/b": "shared"}
    )
    assert given.problems() == []
    given.tag(given.private[ZONE], **{"kubernetes.io/cluster/b": "owned"})
    only(given.problems(), f"{KEY}.privateSubnetIds.{ZONE}", "kubernetes.io/cluster/b: owned")
    given.tag(given.private[ZONE], **{"kubernetes.io/cluster/b": "shared", "kubernetes.io/role/elb": "1"})
    only(given.problems(), f"{KEY}.privateSubnetIds.{ZONE}", "kubernetes.io/role/elb")


def test_a_given_vpc_with_this_stacks_own_tags_would_look_like_a_leftover(cloud: Cloud) -> None:
    given = Given(cloud)
    given.tag(given.vpc, **{**TAGS, "trainyard:stack": "another"})
    assert given.problems() == []
    given.tag(given.vpc, **TAGS)
    only(given.problems(), f"{KEY}.vpcId", "this stack's own tags")
