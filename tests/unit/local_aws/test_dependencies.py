"""Deletions that AWS refuses while something depends on the resource, second associations, and their search."""

from __future__ import annotations

import json

import pytest
from botocore.exceptions import ClientError


def refused(call, code="DependencyViolation"):
    with pytest.raises(ClientError) as error:
        call()
    assert error.value.response["Error"]["Code"] == code


def test_a_vpc_goes_after_all_that_is_in_it(cloud):
    ec2, network = cloud.client("ec2"), cloud.network()
    vpc, subnet = network["vpc"], network["subnets"][0]
    gateway = ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    nat = ec2.create_nat_gateway(SubnetId=subnet, AllocationId=address)["NatGateway"]
    group = ec2.create_security_group(GroupName="g", Description="g", VpcId=vpc)["GroupId"]

    assert nat["NatGatewayAddresses"][0]["PrivateIp"].startswith("10.0.0.")
    assert nat["ConnectivityType"] == "public"
    refused(lambda: ec2.delete_vpc(VpcId=vpc))
    refused(lambda: ec2.delete_subnet(SubnetId=subnet))
    refused(lambda: ec2.detach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc))
    refused(lambda: ec2.release_address(AllocationId=address), "InvalidIPAddress.InUse")
    ec2.delete_nat_gateway(NatGatewayId=nat["NatGatewayId"])
    ec2.release_address(AllocationId=address)
    for each in network["subnets"]:
        ec2.delete_subnet(SubnetId=each)
    refused(lambda: ec2.delete_vpc(VpcId=vpc))
    ec2.delete_security_group(GroupId=group)
    refused(lambda: ec2.delete_vpc(VpcId=vpc))
    ec2.detach_internet_gateway(InternetGatewayId=gateway, VpcId=vpc)
    ec2.delete_vpc(VpcId=vpc)


def test_a_group_that_another_groups_rule_names_stays(cloud):
    ec2, network = cloud.client("ec2"), cloud.network()
    first, second = (
        ec2.create_security_group(GroupName=n, Description=n, VpcId=network["vpc"])["GroupId"]
        for n in ("a", "b")
    )
    rule = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": first}]}]
    ec2.authorize_security_group_ingress(GroupId=second, IpPermissions=rule)
    ec2.authorize_security_group_ingress(GroupId=first, IpPermissions=rule)
    refused(lambda: ec2.delete_security_group(GroupId=first))
    ec2.revoke_security_group_ingress(GroupId=second, IpPermissions=rule)
    ec2.delete_security_group(GroupId=first)


def test_roles_and_policies_that_are_in_use_stay(cloud):
    iam = cloud.client("iam")
    cloud.role("r", None)
    document = {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}],
    }
    policy = iam.create_policy(PolicyName="p", PolicyDocument=json.dumps(document))["Policy"]["Arn"]
    iam.attach_role_policy(RoleName="r", PolicyArn=policy)
    refused(lambda: iam.delete_role(RoleName="r"), "DeleteConflict")
    refused(lambda: iam.delete_policy(PolicyArn=policy), "DeleteConflict")
    iam.detach_role_policy(RoleName="r", PolicyArn=policy)
    iam.delete_policy(PolicyArn=policy)
    iam.delete_role(RoleName="r")


def test_a_bucket_with_objects_stays(cloud):
    s3 = cloud.client("s3")
    s3.create_bucket(Bucket="models", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    s3.put_object(Bucket="models", Key="k", Body=b"x")
    refused(lambda: s3.delete_bucket(Bucket="models"), "BucketNotEmpty")


def test_second_association_is_refused(cloud):
    ec2, network = cloud.client("ec2"), cloud.network()
    vpc, (subnet, other) = network["vpc"], network["subnets"]
    first, second = (ec2.create_route_table(VpcId=vpc)["RouteTable"]["RouteTableId"] for _ in range(2))
    gateways = [ec2.create_internet_gateway()["InternetGateway"]["InternetGatewayId"] for _ in range(2)]
    ec2.attach_internet_gateway(InternetGatewayId=gateways[0], VpcId=vpc)
    made = [
        ec2.associate_route_table(RouteTableId=first, **target)["AssociationId"]
        for target in ({"SubnetId": subnet}, {"SubnetId": subnet}, {"GatewayId": gateways[0]})
    ]
    assert made[0] == made[1]
    taken = "Resource.AlreadyAssociated"
    refused(lambda: ec2.associate_route_table(RouteTableId=second, SubnetId=subnet), taken)
    refused(lambda: ec2.associate_route_table(RouteTableId=second, GatewayId=gateways[0]), taken)
    refused(
        lambda: ec2.attach_internet_gateway(InternetGatewayId=gateways[1], VpcId=vpc), "InvalidParameterValue"
    )
    ec2.associate_route_table(RouteTableId=second, SubnetId=other)
    ec2.disassociate_route_table(AssociationId=made[0])
    ec2.associate_route_table(RouteTableId=second, SubnetId=subnet)


def test_filter_needs_one_of_several_values(cloud):
    ec2, network = cloud.client("ec2"), cloud.network()
    tables = [ec2.create_route_table(VpcId=network["vpc"])["RouteTable"]["RouteTableId"] for _ in range(2)]
    for subnet in network["subnets"]:
        ec2.associate_route_table(RouteTableId=tables[0], SubnetId=subnet)
    wanted = [{"Name": "association.subnet-id", "Values": [network["subnets"][0], "subnet-00000000"]}]
    found = ec2.describe_route_tables(Filters=wanted)["RouteTables"]
    assert [each["RouteTableId"] for each in found] == tables[:1]
