"""The workers' security group in a given VPC, on the emulator."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.emulator import Cloud
from tests.unit.preflight.accounts import TAGS, Given, only

pytestmark = pytest.mark.unit
KEY = "trainyard:network.workerSecurityGroupId"
DISCOVERY = {"karpenter.sh/discovery": "train"}


@pytest.mark.parametrize(
    ("missing", "word", "command"),
    [
        ("ingress", "everything in", "authorize-security-group-ingress"),
        ("egress", "everything out", "authorize-security-group-egress"),
    ],
)
def test_a_missing_self_rule_is_told_for_its_direction(
    cloud: Cloud, missing: str, word: str, command: str
) -> None:
    given = Given(cloud)
    group = given.make_group("other", **{missing: False})
    only(given.problems(vpc={"worker_group": group}), KEY, f"'{group}'", word, command)


def test_a_rule_for_the_address_range_is_no_self_rule(cloud: Cloud) -> None:
    given = Given(cloud)
    group = given.make_group("other", ingress=False)
    everything = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "10.0.0.0/8"}]}]
    given.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=everything)
    only(given.problems(vpc={"worker_group": group}), KEY, "everything in")


def test_a_self_rule_for_tcp_alone_is_no_self_rule(cloud: Cloud) -> None:
    given = Given(cloud)
    group = given.make_group("other", ingress=False)
    tcp = {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 65535, "UserIdGroupPairs": [{"GroupId": group}]}
    given.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[tcp])
    only(given.problems(vpc={"worker_group": group}), KEY, "everything in")


def test_a_group_without_a_way_out_is_told_and_https_alone_will_do(cloud: Cloud) -> None:
    given = Given(cloud)
    everywhere = [{"CidrIp": "0.0.0.0/0"}]
    given.ec2.revoke_security_group_egress(
        GroupId=given.group, IpPermissions=[{"IpProtocol": "-1", "IpRanges": everywhere}]
    )
    only(given.problems(), KEY, "lets no HTTPS out")
    https = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": everywhere}
    given.ec2.authorize_security_group_egress(GroupId=given.group, IpPermissions=[https])
    assert given.problems() == []


@pytest.mark.parametrize(
    ("block", "right"),
    [("192.0.2.1/32", False), ("10.1.0.0/24", False), ("10.1.0.0/16", True), ("0.0.0.0/0", True)],
)
def test_https_must_get_out_to_the_private_subnets_at_least(cloud: Cloud, block: str, right: bool) -> None:
    given = Given(cloud)
    given.ec2.revoke_security_group_egress(
        GroupId=given.group, IpPermissions=[{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]
    )
    https = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": [{"CidrIp": block}]}
    given.ec2.authorize_security_group_egress(GroupId=given.group, IpPermissions=[https])
    if right:
        assert given.problems() == []
    else:
        only(given.problems(), KEY, "lets no HTTPS out to where it is needed", "10.1.0.0/24, 10.1.1.0/24")


@pytest.mark.parametrize(
    "ranges", [{"IpRanges": [{"CidrIp": "0.0.0.0/0"}]}, {"Ipv6Ranges": [{"CidrIpv6": "::/0"}]}]
)
def test_a_group_that_is_open_to_everybody_is_told(cloud: Cloud, ranges: dict[str, Any]) -> None:
    given = Given(cloud)
    some = {"IpProtocol": "tcp", "FromPort": 30000, "ToPort": 32767, **ranges}
    given.ec2.authorize_security_group_ingress(GroupId=given.group, IpPermissions=[some])
    assert given.problems() == []
    given.ec2.authorize_security_group_ingress(
        GroupId=given.group, IpPermissions=[{"IpProtocol": "-1", **ranges}]
    )
    only(given.problems(), KEY, f"'{given.group}' lets everything in from everywhere")


def test_a_group_that_does_not_exist_or_is_another_vpcs_is_named(cloud: Cloud) -> None:
    given, other = Given(cloud), Given(cloud)
    only(given.problems(vpc={"worker_group": "sg-0123456789abcdef0"}), KEY, "does not exist")
    only(given.problems(vpc={"worker_group": other.group}), KEY, f"belongs to {other.vpc}")


def test_exactly_one_group_may_carry_the_discovery_tag(cloud: Cloud) -> None:
    given = Given(cloud)
    given.tag(given.group, **DISCOVERY)
    stranger = given.make_group("stranger")
    given.tag(stranger, **{"karpenter.sh/discovery": "train-two"})
    assert given.problems() == []
    given.tag(stranger, **DISCOVERY)
    only(given.problems(), KEY, stranger, "exactly one group")


def test_where_the_stack_makes_the_group_none_but_its_own_may_have_the_tag(cloud: Cloud) -> None:
    given = Given(cloud)
    made = given.make_group("made")
    given.tag(made, **DISCOVERY, **TAGS)
    assert given.problems(vpc={"worker_group": None}) == []
    given.tag(given.group, **DISCOVERY)
    only(given.problems(vpc={"worker_group": None}), "trainyard:network.vpcId", given.group)


def test_a_second_group_with_the_clusters_tag_is_told(cloud: Cloud) -> None:
    given = Given(cloud)
    given.tag(given.group, **{"kubernetes.io/cluster/train": "owned"})
    only(given.problems(), KEY, "kubernetes.io/cluster/train")
