"""Filters with wildcards, page tokens, and the lists of Service Quotas."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from tests.unit.emulator import Cloud

pytestmark = pytest.mark.unit


def test_filters_of_ec2_have_wildcards(cloud: Cloud) -> None:
    ec2, network = cloud.client("ec2"), cloud.network()
    subnet, vpc = network["subnets"][0], network["vpc"]
    ec2.create_tags(Resources=[subnet], Tags=[{"Key": "Name", "Value": "training-a"}])
    nat = ec2.create_nat_gateway(SubnetId=subnet, ConnectivityType="private")["NatGateway"]["NatGatewayId"]
    group = ec2.create_security_group(GroupName="training", Description="d", VpcId=vpc)["GroupId"]
    placed = ec2.create_placement_group(
        GroupName="training-efa",
        TagSpecifications=[{"ResourceType": "placement-group", "Tags": [{"Key": "team", "Value": "a"}]}],
    )["PlacementGroup"]["GroupName"]
    ec2.run_instances(ImageId="ami-1", InstanceType="g5.12xlarge", MinCount=1, MaxCount=1, SubnetId=subnet)
    rows = (
        ("describe_subnets", "Subnets", "SubnetId", subnet, "tag:Name", "train*-?"),
        ("describe_subnets", "Subnets", "SubnetId", subnet, "cidr-block", "10.0.0*"),
        ("describe_security_groups", "SecurityGroups", "GroupId", group, "group-name", "train*"),
        ("describe_nat_gateways", "NatGateways", "NatGatewayId", nat, "subnet-id", f"{subnet[:-1]}?"),
        ("describe_placement_groups", "PlacementGroups", "GroupName", placed, "group-name", "*-efa"),
        ("describe_placement_groups", "PlacementGroups", "GroupName", placed, "tag-key", "tea?"),
    )
    for call, key, identity, expected, name, value in rows:
        for pattern, found in ((value, [expected]), (f"{value}-none", [])):
            answer = getattr(ec2, call)(Filters=[{"Name": name, "Values": [pattern]}])
            assert [each[identity] for each in answer[key]] == found, (call, name, pattern)
    by_type = [{"Name": "instance-type", "Values": ["g5.*"]}]
    assert ec2.describe_instances(Filters=by_type)["Reservations"]


def test_filter_needs_one_of_several_values(cloud: Cloud) -> None:
    ec2, network = cloud.client("ec2"), cloud.network()
    tables = [ec2.create_route_table(VpcId=network["vpc"])["RouteTable"]["RouteTableId"] for _ in range(2)]
    for subnet in network["subnets"]:
        ec2.associate_route_table(RouteTableId=tables[0], SubnetId=subnet)
    wanted = [{"Name": "association.subnet-id", "Values": [network["subnets"][0], "subnet-00000000"]}]
    found = ec2.describe_route_tables(Filters=wanted)["RouteTables"]
    assert [each["RouteTableId"] for each in found] == tables[:1]


@pytest.mark.parametrize(
    ("service", "call", "parameter", "key", "code"),
    [
        ("eks", "describe_addon_versions", "nextToken", "addons", "InvalidParameterException"),
        ("fsx", "describe_file_systems", "NextToken", "FileSystems", "BadRequest"),
        ("service-quotas", "list_services", "NextToken", "Services", "InvalidPaginationTokenException"),
    ],
)
def test_page_token_that_was_not_given_is_refused(
    cloud: Cloud, service: str, call: str, parameter: str, key: str, code: str
) -> None:
    list_page = getattr(cloud.client(service), call)
    size = {"maxResults" if parameter == "nextToken" else "MaxResults": 1}
    for token in ("1", "abcd", "b3RoZXIvMQ=="):  # the last is a token of another list
        with pytest.raises(ClientError) as error:
            list_page(**size, **{parameter: token})
        assert error.value.response["Error"]["Code"] == code
    first = list_page(**size)
    if first[key]:
        assert list_page(**size, **{parameter: first[parameter]})[key] not in (first[key], [])
    assert parameter not in list_page()


def test_service_quotas_are_listed(cloud: Cloud) -> None:
    quotas = cloud.client("service-quotas")
    services = {each["ServiceCode"] for each in quotas.list_services()["Services"]}
    for service in services:
        listed = quotas.list_service_quotas(ServiceCode=service)["Quotas"]
        for each in listed[:2]:
            code = {"ServiceCode": service, "QuotaCode": each["QuotaCode"]}
            assert quotas.get_service_quota(**code)["Quota"] == each
        defaults = quotas.list_aws_default_service_quotas(ServiceCode=service)["Quotas"]
        assert {each["QuotaCode"] for each in defaults} == {each["QuotaCode"] for each in listed}
    raised = {"ServiceCode": "vpc", "QuotaCode": "L-F678F1CE"}
    quotas.request_service_quota_increase(**raised, DesiredValue=50)
    [found] = quotas.list_service_quotas(**raised)["Quotas"]
    assert found["Value"] == 50
    with pytest.raises(ClientError, match="NoSuchResourceException"):
        quotas.list_service_quotas(ServiceCode="nothing")
