"""An existing VPC on the emulator: each thing that can be wrong is one finding with its key."""

from __future__ import annotations

import pytest

from tests.unit.emulator import REGION, Cloud
from tests.unit.preflight.accounts import (
    OTHER,
    TAGS,
    VPC,
    ZONE,
    Answers,
    ExistingVpc,
    checks,
    findings,
    only,
    stack,
)
from trainyard.preflight.findings import WARNING

KEY = "trainyard:network"
PRIVATE = f"{KEY}.privateSubnetIds"
SUBNET = "subnet-0123456789abcdef0"


def test_complete_vpc_has_no_findings(existing: ExistingVpc) -> None:
    existing.tag(existing.group, **{"karpenter.sh/discovery": "train"})
    assert existing.report().findings == []


def test_missing_vpc_is_named(cloud: Cloud) -> None:
    lines = ExistingVpc(cloud).findings(network={"vpcId": VPC["vpcId"]})
    assert lines[0].startswith(f"{KEY}.vpcId: '{VPC['vpcId']}' does not exist in {REGION}")


def test_cidr_must_be_a_range_of_the_vpc(existing: ExistingVpc) -> None:
    assert existing.findings(network={"cidr": "10.1.0.0/16"}) == []
    only(existing.findings(network={"cidr": "10.2.0.0/16"}), f"{KEY}.cidr", "'10.2.0.0/16'", "be 10.1.0.0/16")


@pytest.mark.parametrize("flag", ["enableDnsSupport", "enableDnsHostnames"])
def test_dns_flag_must_be_on(existing: ExistingVpc, flag: str) -> None:
    existing.ec2.modify_vpc_attribute(VpcId=existing.vpc, **{flag[0].upper() + flag[1:]: {"Value": False}})
    only(existing.findings(), f"{KEY}.vpcId", f"has {flag} off", "modify-vpc-attribute")


def test_subnet_must_exist_in_the_vpc_and_in_its_zone(cloud: Cloud) -> None:
    existing, stranger = ExistingVpc(cloud), cloud.network()["subnets"][1]

    def check(**private: str) -> list[str]:
        subnets = {**existing.private, **{f"{REGION}{zone}": name for zone, name in private.items()}}
        return existing.findings(network={"privateSubnetIds": subnets}, of=checks("subnets"))

    only(check(b=SUBNET), f"{PRIVATE}.{OTHER}", f"'{SUBNET}' does not exist", existing.vpc)
    only(check(b=stranger), f"{PRIVATE}.{OTHER}", "belongs to")
    lines = check(a=existing.private[OTHER], b=existing.private[ZONE])
    assert [line.partition(": ")[0] for line in lines] == [f"{PRIVATE}.{ZONE}", f"{PRIVATE}.{OTHER}"]
    assert f"is in {OTHER}. It must be a subnet in {ZONE}" in lines[0]


def test_subnet_needs_free_addresses_for_the_whole_stack(cloud: Cloud) -> None:
    existing = ExistingVpc(cloud, prefix=27)  # 32 addresses, of which AWS has five
    line = only(existing.findings(), f"{PRIVATE}.{ZONE}", "27 free addresses, but the stack may need ")
    assert "small (2 x g5.12xlarge, 15 each): 30" in line
    assert "control plane: 16" in line
    for own, free in ((TAGS, 27), ({"cluster.k8s.amazonaws.com/name": "train"}, 27), ({}, 26)):
        made = existing.ec2.create_network_interface(SubnetId=existing.private[ZONE])["NetworkInterface"]
        existing.tag(made["NetworkInterfaceId"], **(own or {"a": "b"}))
        only(existing.findings(), f"{PRIVATE}.{ZONE}", f"{free} free addresses")


def test_prefixes_of_own_interfaces_count_sixteen_addresses() -> None:
    subnet = {
        "SubnetId": VPC["privateSubnetIds"][ZONE],
        "AvailabilityZone": ZONE,
        "AvailableIpAddressCount": 0,
    }  # type: ignore[index]
    tags = [{"Key": "cluster.k8s.amazonaws.com/name", "Value": "train"}]
    own = {"SubnetId": subnet["SubnetId"], "TagSet": tags, "PrivateIpAddresses": [1], "Ipv4Prefixes": [1, 2]}
    aws = Answers(describe_subnets=[subnet], describe_network_interfaces=[own])
    only(findings(aws, stack(network=VPC), "free addresses"), f"{PRIVATE}.{ZONE}", "has 33 free addresses")


def set_acl(existing: ExistingVpc, subnet: str, *entries: tuple[bool, str]) -> str:
    """Give a subnet a network ACL that allows everything (egress, range)."""
    ec2 = existing.ec2
    acl = ec2.create_network_acl(VpcId=existing.vpc)["NetworkAcl"]["NetworkAclId"]
    for egress, block in entries:
        ec2.create_network_acl_entry(
            NetworkAclId=acl,
            RuleNumber=100,
            Protocol="-1",
            RuleAction="allow",
            Egress=egress,
            CidrBlock=block,
        )
    by_subnet = [{"Name": "association.subnet-id", "Values": [subnet]}]
    (current,) = ec2.describe_network_acls(Filters=by_subnet)["NetworkAcls"]
    old = next(each for each in current["Associations"] if each["SubnetId"] == subnet)
    ec2.replace_network_acl_association(AssociationId=old["NetworkAclAssociationId"], NetworkAclId=acl)
    return str(acl)


def test_acl_that_allows_nothing_is_refused_and_a_narrow_one_is_a_warning(existing: ExistingVpc) -> None:
    key = f"{PRIVATE}.{ZONE}"
    acl = set_acl(existing, existing.private[ZONE], (True, "0.0.0.0/0"))
    only(existing.findings(), key, f"network ACL {acl}, which allows nothing in.")
    acl = set_acl(existing, existing.private[ZONE], (True, "0.0.0.0/0"), (False, "10.0.0.0/8"))
    assert existing.findings() == []
    only(existing.findings(kind=WARNING), key, acl, "does not allow everything in.")


@pytest.mark.parametrize(
    ("entries", "kind"),
    [
        ([(100, "allow", "0.0.0.0/0"), (200, "deny", "0.0.0.0/0")], None),
        ([(100, "deny", "10.9.0.0/16"), (200, "allow", "0.0.0.0/0")], WARNING),
        ([(200, "allow", "0.0.0.0/0"), (100, "deny", "0.0.0.0/0")], "missing"),
        ([(100, "allow", "10.0.0.0/8")], WARNING),
        ([], "missing"),
    ],
)
def test_acl_rule_with_the_lowest_number_decides(
    entries: list[tuple[int, str, str]], kind: str | None
) -> None:
    rules = [
        {"RuleNumber": number, "Egress": egress, "RuleAction": action, "Protocol": "-1", "CidrBlock": block}
        for number, action, block in entries
        for egress in (False, True)
    ]
    subnet = VPC["privateSubnetIds"][ZONE]  # type: ignore[index]
    acl = {"NetworkAclId": "acl-1", "Entries": rules, "Associations": [{"SubnetId": subnet}]}
    aws = Answers(describe_network_acls=[acl])
    for each in ("missing", WARNING):
        assert bool(findings(aws, stack(network=VPC), "network ACLs", kind=each)) == (each == kind)


@pytest.mark.parametrize(
    ("server", "is_warning"), [("10.2.5.1", True), ("AmazonProvidedDNS", False), ("10.1.0.2", False)]
)
def test_other_dns_servers_than_amazons_are_a_warning(
    existing: ExistingVpc, server: str, is_warning: bool
) -> None:
    options = existing.ec2.create_dhcp_options(
        DhcpConfigurations=[{"Key": "domain-name-servers", "Values": [server]}]
    )["DhcpOptions"]["DhcpOptionsId"]
    existing.ec2.associate_dhcp_options(DhcpOptionsId=options, VpcId=existing.vpc)
    report = existing.report()
    assert report.of() == []
    assert [each.key for each in report.of(WARNING)] == [f"{KEY}.vpcId"] * is_warning


def test_tags_of_other_clusters_and_of_public_load_balancers_are_refused(existing: ExistingVpc) -> None:
    key = f"{PRIVATE}.{ZONE}"
    subnet = existing.private[ZONE]
    existing.tag(subnet, **{"kubernetes.io/cluster/train": "shared", "kubernetes.io/cluster/b": "shared"})
    assert existing.findings() == []
    existing.tag(subnet, **{"kubernetes.io/cluster/b": "owned"})
    only(existing.findings(), key, "kubernetes.io/cluster/b: owned")
    existing.tag(subnet, **{"kubernetes.io/cluster/b": "shared", "kubernetes.io/role/elb": "1"})
    only(existing.findings(), key, "kubernetes.io/role/elb")


def test_own_tags_on_an_existing_vpc_are_refused(existing: ExistingVpc) -> None:
    existing.tag(existing.vpc, **{**TAGS, "trainyard:stack": "another"})
    assert existing.findings() == []
    existing.tag(existing.vpc, **TAGS)
    existing.tag(existing.private[OTHER], **TAGS)
    vpc, subnet = existing.findings()
    only([vpc], f"{KEY}.vpcId", "has this stack's tags")
    only([subnet], f"{PRIVATE}.{OTHER}", "has this stack's tags")
