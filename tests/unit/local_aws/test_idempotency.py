"""Requests that repeat a client token."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.unit.emulator import Cloud
from tests.unit.local_aws.test_fsx import Site

TYPE = "g5.12xlarge"
MISMATCH = {
    "ec2": "IdempotentParameterMismatch",
    "eks": "InvalidParameterException",
    "fsx": "IncompatibleParameterError",
}
Samples = dict[str, tuple[str, str, dict[str, Any], dict[str, Any], Callable[[Any], Any]]]


def samples(cloud: Cloud) -> Samples:
    """Return for each operation its service, token, arguments, other arguments and the identity in its answer."""
    network, site = cloud.network(), Site(cloud)
    subnet, other = network["subnets"]
    count = {"MinCount": 1, "MaxCount": 1}
    cluster = {
        "name": "main",
        "roleArn": cloud.role("main-cluster", None),
        "resourcesVpcConfig": {"subnetIds": network["subnets"]},
    }
    system = {
        "FileSystemType": "LUSTRE",
        "StorageCapacity": 1200,
        "SubnetIds": [site.subnet],
        "SecurityGroupIds": [site.servers],
        "FileSystemTypeVersion": "2.15",
        "LustreConfiguration": {"DeploymentType": "SCRATCH_2"},
    }
    return {
        "create_nat_gateway": (
            "ec2", "ClientToken", {"SubnetId": subnet, "ConnectivityType": "private"}, {"SubnetId": other},
            lambda answer: answer["NatGateway"]["NatGatewayId"],
        ),
        "run_instances": (
            "ec2", "ClientToken", {"ImageId": "ami-1", "InstanceType": TYPE, **count}, {"MaxCount": 2},
            lambda answer: answer["Instances"][0]["InstanceId"],
        ),
        "create_cluster": (
            "eks", "clientRequestToken", cluster, {"name": "other"}, lambda answer: answer["cluster"]["arn"],
        ),
        "create_file_system": (
            "fsx", "ClientRequestToken", system, {"StorageCapacity": 2400},
            lambda answer: answer["FileSystem"]["FileSystemId"],
        ),
    }  # fmt: skip


def test_repeated_token_returns_the_same_resource(cloud: Cloud) -> None:
    token = "a-token-of-at-least-33-characters-for-eks"
    for operation, (service, parameter, arguments, changes, identity) in samples(cloud).items():
        call = partial(getattr(cloud.client(service), operation), **{parameter: token})
        made = identity(call(**arguments))
        assert identity(call(**arguments)) == made
        with pytest.raises(ClientError) as error:
            call(**{**arguments, **changes})
        assert error.value.response["Error"]["Code"] == MISMATCH[service], operation


def test_failed_and_dry_requests_leave_the_token_unused(cloud: Cloud) -> None:
    ec2, token = cloud.client("ec2"), {"ClientToken": "token"}
    count = {"ImageId": "ami-1", "MinCount": 1, "MaxCount": 1}
    for wrong, code in ({"InstanceType": "g5.13xlarge"}, "Invalid"), ({"DryRun": True}, "DryRunOperation"):
        with pytest.raises(ClientError, match=code):
            ec2.run_instances(**{**count, **wrong}, **token)
    assert ec2.run_instances(**count, InstanceType=TYPE, **token)["Instances"]


def test_concurrent_requests_create_one_resource(cloud: Cloud) -> None:
    ec2, subnet = cloud.client("ec2"), cloud.network()["subnets"][0]

    def create(_number: int) -> Any:
        return ec2.create_nat_gateway(SubnetId=subnet, ConnectivityType="private", ClientToken="token")

    with ThreadPoolExecutor(4) as threads:
        made = {each["NatGateway"]["NatGatewayId"] for each in threads.map(create, range(4))}
    assert len(made) == 1
