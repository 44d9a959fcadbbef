"""The workers' security group in an existing VPC, and which rules let a client in."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.emulator import Cloud
from tests.unit.preflight.accounts import TAGS, ExistingVpc, expect, only
from trainyard.preflight.security_groups import allows_in
from trainyard.preflight.storage import LUSTRE_PORTS

KEY = "trainyard:network.workerSecurityGroupId"
DISCOVERY = {"karpenter.sh/discovery": "train"}
ANYWHERE = {"IpRanges": [{"CidrIp": "0.0.0.0/0"}]}


@pytest.mark.parametrize(("missing", "word"), [("ingress", "in"), ("egress", "out")])
def test_self_rule_is_required_in_both_directions(existing: ExistingVpc, missing: str, word: str) -> None:
    group = existing.make_group("other", **{missing: False})
    lines = existing.findings(network={"workerSecurityGroupId": group})
    only(lines, KEY, f"'{group}'", f"everything {word} from", f"authorize-security-group-{missing}")


@pytest.mark.parametrize("is_range", [True, False])
def test_rule_for_a_range_or_for_tcp_is_no_self_rule(existing: ExistingVpc, is_range: bool) -> None:
    group = existing.make_group("other", ingress=False)
    rule: dict[str, Any] = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "10.0.0.0/8"}]}
    if not is_range:
        rule = {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 65535, "UserIdGroupPairs": [{"GroupId": group}]}
    existing.ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule])
    only(existing.findings(network={"workerSecurityGroupId": group}), KEY, "everything in from")


@pytest.mark.parametrize(
    ("block", "is_enough"),
    [(None, False), ("192.0.2.1/32", False), ("10.1.0.0/24", False), ("10.1.0.0/16", True), ("0.0.0.0/0", True)],
)  # fmt: skip
def test_https_must_be_allowed_to_the_private_subnets(
    existing: ExistingVpc, block: str | None, is_enough: bool
) -> None:
    everything = [{"IpProtocol": "-1", **ANYWHERE}]
    existing.ec2.revoke_security_group_egress(GroupId=existing.group, IpPermissions=everything)
    if block:
        https = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443, "IpRanges": [{"CidrIp": block}]}
        existing.ec2.authorize_security_group_egress(GroupId=existing.group, IpPermissions=[https])
    key = "" if is_enough else KEY
    expect(existing.findings(), key, "allows no HTTPS out", "10.1.0.0/24, 10.1.1.0/24")


@pytest.mark.parametrize("ranges", [ANYWHERE, {"Ipv6Ranges": [{"CidrIpv6": "::/0"}]}])
def test_public_group_is_refused(existing: ExistingVpc, ranges: dict[str, Any]) -> None:
    some = {"IpProtocol": "tcp", "FromPort": 30000, "ToPort": 32767, **ranges}
    existing.ec2.authorize_security_group_ingress(GroupId=existing.group, IpPermissions=[some])
    assert existing.findings() == []
    everything = [{"IpProtocol": "-1", **ranges}]
    existing.ec2.authorize_security_group_ingress(GroupId=existing.group, IpPermissions=everything)
    only(existing.findings(), KEY, f"'{existing.group}' allows everything in from everywhere")


def test_group_must_exist_in_the_vpc(cloud: Cloud) -> None:
    existing, other = ExistingVpc(cloud), ExistingVpc(cloud)
    only(existing.findings(network={"workerSecurityGroupId": "sg-0123456789abcdef0"}), KEY, "does not exist")
    only(existing.findings(network={"workerSecurityGroupId": other.group}), KEY, f"belongs to {other.vpc}")


def test_only_the_workers_group_has_the_discovery_tag(existing: ExistingVpc) -> None:
    existing.tag(existing.group, **DISCOVERY)
    other = existing.make_group("other")
    existing.tag(other, **{"karpenter.sh/discovery": "train-two"})
    assert existing.findings() == []
    existing.tag(other, **DISCOVERY)
    only(existing.findings(), KEY, other, "exactly one group")
    # A group that the stack has created has its tags.
    existing.tag(other, **TAGS)
    lines = existing.findings(network={"workerSecurityGroupId": None})
    only(lines, "trainyard:network.vpcId", existing.group)


def test_tag_of_eks_own_group_is_refused(existing: ExistingVpc) -> None:
    existing.tag(existing.group, **{"kubernetes.io/cluster/train": "owned"})
    only(existing.findings(), KEY, "kubernetes.io/cluster/train")


def rule(first: int, last: int, *sources: str, protocol: str = "tcp") -> dict[str, Any]:
    return {
        "IpProtocol": protocol,
        "FromPort": first,
        "ToPort": last,
        "UserIdGroupPairs": [{"GroupId": each} for each in sources if each.startswith("sg-")],
        "IpRanges": [{"CidrIp": each} for each in sources if "/" in each],
        "PrefixListIds": [{"PrefixListId": each} for each in sources if each.startswith("pl-")],
    }


@pytest.mark.parametrize(
    ("rules", "workers", "is_open"),
    [
        ([rule(988, 988, "sg-w"), rule(1018, 1023, "10.1.0.0/16")], ["sg-w"], True),
        ([rule(0, 0, "sg-w", protocol="-1")], ["sg-w"], True),
        ([rule(988, 988, "sg-w")], ["sg-w"], False),
        ([rule(988, 988, "sg-w"), rule(1021, 1023, "sg-w")], ["sg-w"], False),
        ([rule(988, 1023, "10.2.0.0/16")], ["sg-w"], False),
        ([rule(988, 1023, "10.1.0.0/24")], ["sg-w"], False),
        ([rule(988, 1023, "sg-w")], [], False),
        ([rule(988, 1023, "10.1.0.0/16")], [], True),
        ([rule(988, 1023, "pl-1")], ["sg-w"], None),
        ([rule(988, 988, "pl-1")], ["sg-w"], False),
    ],
)
def test_ports_must_be_open_to_the_group_or_to_all_subnets(
    rules: list[dict[str, Any]], workers: list[str], is_open: bool | None
) -> None:
    groups = [{"GroupId": "sg-f", "IpPermissions": rules}]
    assert allows_in(groups, LUSTRE_PORTS, workers, ["10.1.0.0/24", "10.1.1.0/24"]) is is_open
