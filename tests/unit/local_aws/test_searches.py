"""Filters with several values."""

from __future__ import annotations

import pytest

from tests.unit.emulator import Cloud

pytestmark = pytest.mark.unit


def test_filter_needs_one_of_several_values(cloud: Cloud) -> None:
    ec2, network = cloud.client("ec2"), cloud.network()
    tables = [ec2.create_route_table(VpcId=network["vpc"])["RouteTable"]["RouteTableId"] for _ in range(2)]
    for subnet in network["subnets"]:
        ec2.associate_route_table(RouteTableId=tables[0], SubnetId=subnet)
    wanted = [{"Name": "association.subnet-id", "Values": [network["subnets"][0], "subnet-00000000"]}]
    found = ec2.describe_route_tables(Filters=wanted)["RouteTables"]
    assert [each["RouteTableId"] for each in found] == tables[:1]
