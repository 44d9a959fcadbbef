"""Address ranges in a stack file: public access to the API, and ranges of VPCs."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from infra.settings.ranges import public_problem
from tests.unit.infra.changing import (
    GIVEN_VPC,
    POOL,
    mistakes,
    settings,
    with_,
    with_existing_cluster,
)
from trainyard.policies.network import is_public


def with_public(*blocks: str) -> dict[str, Any]:
    return with_({"cluster": {"publicAccessCidrs": list(blocks)}})


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("0.0.0.0/0", "'0.0.0.0/0' is too large"),
        ("0.0.0.0/00", "'0.0.0.0/00' is too large"),
        ("128.0.0.0/1", "'128.0.0.0/1' is too large"),
        (
            "3.0.0.0/8",
            "'3.0.0.0/8' is too large; it must be the public range that you deploy from, /16 or smaller",
        ),
        ("100.0.0.0/10", "'100.0.0.0/10' is too large"),
        ("52.0.0.0/15", "'52.0.0.0/15' is too large"),
        ("10.0.0.0/8", "'10.0.0.0/8' is private, and nobody comes from it over the internet"),
        ("172.31.0.0/16", "'172.31.0.0/16' is private"),
        ("192.168.1.1/32", "'192.168.1.1/32' is private"),
        ("100.64.0.0/24", "'100.64.0.0/24' is private"),
        ("169.254.169.254/32", "'169.254.169.254/32' is nobody's address"),
        ("224.0.0.0/8", "'224.0.0.0/8' is nobody's address"),
        ("255.255.255.255/32", "'255.255.255.255/32' is nobody's address"),
        ("0.0.0.0/8", "'0.0.0.0/8' is nobody's address"),
        ("3.0.0.0/08", "'3.0.0.0/08' is too large"),
        ("203.0.113.7/24", "203.0.113.7/24 has host bits set"),
        ("1.2.3.4/33", "it must be a range such as 203.0.113.0/24"),
        ("198.51.100.7", "'198.51.100.7' is an address; did you mean 198.51.100.7/32?"),
        ("my office", "'my office' is invalid; it must be an IPv4 range such as 203.0.113.0/24"),
        ("::/0", "'::/0' is invalid; it must be an IPv4 range"),
    ],
)
def test_invalid_public_range_is_reported_once(block: str, message: str) -> None:
    (line,) = mistakes(with_public(block))
    assert line.startswith("trainyard:cluster.publicAccessCidrs[0]: ")
    assert message in line


@pytest.mark.parametrize(
    "block", ["203.0.113.0/24", "8.8.8.8/32", "52.0.0.0/16", "127.0.0.1/32", "127.0.0.0/8"]
)
def test_public_range_is_accepted(block: str) -> None:
    assert settings(with_public(block)).cluster.public_access_cidrs == (block,)


def test_public_ranges_are_limited_and_unique() -> None:
    blocks = [f"203.0.113.{index}/32" for index in range(41)]
    assert len(settings(with_public(*blocks[:40])).cluster.public_access_cidrs) == 40
    (line,) = mistakes(with_public(*blocks))
    assert line == "trainyard:cluster.publicAccessCidrs: has 41 entries; EKS takes at most 40"
    (line,) = mistakes(with_public(blocks[0], blocks[1], blocks[0]))
    assert line.startswith(
        "trainyard:cluster.publicAccessCidrs[2]: '203.0.113.0/32' is listed twice. Remove one."
    )


@pytest.mark.parametrize(
    "block",
    [
        "127.0.0.0/16",
        "0.0.0.0/16",
        "169.254.0.0/16",
        "224.0.0.0/16",
        "240.0.0.0/16",
        "8.8.0.0/16",
        "172.15.0.0/16",
    ],
)
def test_new_vpc_with_public_range_is_refused(block: str) -> None:
    (line,) = mistakes(with_({"network": {"cidr": block}}))
    assert line == (
        f"trainyard:network.cidr: '{block}' is not private; it must lie in 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16"
        " or 100.64.0.0/10"
    )


@pytest.mark.parametrize("block", ["10.0.0.0/16", "172.31.0.0/16", "192.168.0.0/16", "100.127.0.0/16"])
def test_new_vpc_with_private_range_is_accepted(block: str) -> None:
    assert settings(with_({"network": {"cidr": block}})).network.cidr == block


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ("999.0.0.0/99", "it must be the VPC's range, such as 10.64.0.0/16"),
        ("10.0.0.1/16", "10.0.0.1/16 has host bits set; it must be the VPC's range"),
        ("10.0.0.0/8", "'10.0.0.0/8' is the range of no VPC, which is /16 to /28"),
        ("0.0.0.0/0", "'0.0.0.0/0' is the range of no VPC, which is /16 to /28"),
        ("10.0.0.0/29", "'10.0.0.0/29' is the range of no VPC, which is /16 to /28"),
        ("127.0.0.0/16", "'127.0.0.0/16' is nobody's address"),
        ("224.0.0.0/16", "'224.0.0.0/16' is nobody's address"),
    ],
)
def test_existing_vpc_with_impossible_range_is_reported(block: str, message: str) -> None:
    (line,) = mistakes(with_({"network": {**GIVEN_VPC, "cidr": block}}))
    assert line.startswith("trainyard:network.cidr: ")
    assert message in line


def test_existing_vpc_with_public_range_is_accepted() -> None:
    assert settings(with_({"network": {**GIVEN_VPC, "cidr": "8.8.0.0/24"}})).network.cidr == "8.8.0.0/24"


@hypothesis_settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(0, 32))
def test_accepted_public_ranges_are_global_and_small(address: int, prefix: int) -> None:
    block = str(ipaddress.IPv4Network((address, prefix), strict=False))
    if public_problem(block) is None:
        network = ipaddress.IPv4Network(block)
        assert not is_public(block), "`make policy` would refuse the deployed cluster"
        assert network.is_loopback or not any(
            network.subnet_of(ipaddress.IPv4Network(each)) for each in ("10.0.0.0/8", "192.168.0.0/16")
        )


def test_zones_without_subnets_are_reported_only_for_network() -> None:
    (line,) = mistakes(with_({"network": {"vpcId": GIVEN_VPC["vpcId"]}, "storage": {"lustre": {}}}))
    assert line.startswith("trainyard:network.privateSubnetIds: is missing")
    config = with_({"network": {"vpcId": GIVEN_VPC["vpcId"]}, "pools": [{**POOL, "zone": "eu-west-1a"}]})
    assert (
        "trainyard:pools[0].zone: 'eu-west-1a' is not in us-west-2; it must be a zone such as us-west-2a"
        in mistakes(config)
    )


def test_existing_cluster_empty_administrators_reported_once() -> None:
    (line,) = mistakes(with_existing_cluster(administrators=[]))
    assert line.startswith("trainyard:cluster.administrators: is for a cluster that the stack makes")
