"""Our resources as a Terraform plan: names, blocks, unknown values, references."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.policy.terraform_plan import PlanError, by_address, plan, snake, type_of
from tests.unit.policies.building import made
from trainyard.policies.model import UNKNOWN, Resource, Stack

BUCKET = made("aws:s3/bucket:Bucket", "a:b", tags={"Name": "x"}, forceDestroy=True)
VERSIONING = made(
    "aws:s3/bucketVersioning:BucketVersioning",
    "versions",
    of={"bucket": BUCKET},
    bucket=UNKNOWN,
    versioningConfiguration={"status": "Enabled"},
)


def values(*resources: Resource) -> list[dict[str, Any]]:
    return [each["values"] for each in plan(Stack(resources))["planned_values"]["root_module"]["resources"]]


@pytest.mark.parametrize(
    ("token", "wanted"),
    [
        ("aws:ec2/vpc:Vpc", "aws_vpc"),
        ("aws:ec2/routeTableAssociation:RouteTableAssociation", "aws_route_table_association"),
        ("aws:eks/nodeGroup:NodeGroup", "aws_eks_node_group"),
        ("aws:s3/bucket:Bucket", "aws_s3_bucket"),
        ("aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule", "aws_vpc_security_group_egress_rule"),
        ("aws:iam/openIdConnectProvider:OpenIdConnectProvider", "aws_iam_openid_connect_provider"),
        ("aws:fsx/lustreFileSystem:LustreFileSystem", "aws_fsx_lustre_file_system"),
    ],
)
def test_types_have_terraforms_names(token: str, wanted: str) -> None:
    assert type_of(token) == wanted


def test_a_type_of_an_unknown_module_is_an_error() -> None:
    with pytest.raises(PlanError, match="aws:new/thing:Thing"):
        type_of("aws:new/thing:Thing")


def test_names_are_in_snake_case() -> None:
    assert [snake(name) for name in ("cidrIpv4", "kmsKeyId", "ipv6CidrBlocks", "tags")] == [
        "cidr_ipv4",
        "kms_key_id",
        "ipv6_cidr_blocks",
        "tags",
    ]


def test_single_blocks_are_lists_and_maps_are_not() -> None:
    (bucket,) = values(BUCKET)
    assert bucket == {"tags": {"Name": "x"}, "force_destroy": True}
    (versioning,) = values(VERSIONING)
    assert versioning == {"versioning_configuration": [{"status": "Enabled"}]}


def test_lists_have_terraforms_number() -> None:
    settings = [{"encryptionType": "KMS"}]
    (repository,) = values(made("aws:ecr/repository:Repository", encryptionConfigurations=settings))
    assert repository == {"encryption_configuration": [{"encryption_type": "KMS"}]}


def test_unknown_values_are_marked_and_have_no_value() -> None:
    log = made(
        "aws:ec2/launchTemplate:LaunchTemplate", imageId=UNKNOWN, names=["a", UNKNOWN], a={"b": UNKNOWN}
    )
    (change,) = plan(Stack([log]))["resource_changes"]
    assert change["change"]["after_unknown"] == {"image_id": True, "names": [False, True], "a": [{"b": True}]}
    assert change["change"]["after"] == {"names": ["a"], "a": [{}]}


def test_the_configuration_says_where_values_come_from() -> None:
    configured = plan(Stack([BUCKET, VERSIONING]))["configuration"]["root_module"]["resources"]
    assert configured[1]["address"] == "aws_s3_bucket_versioning.versions"
    assert configured[1]["expressions"]["bucket"] == {
        "references": ["aws_s3_bucket.a_b.id", "aws_s3_bucket.a_b"]
    }


def test_two_resources_with_one_address_are_an_error() -> None:
    other = made("aws:s3/bucket:Bucket", "a_b")
    with pytest.raises(PlanError, match="both have the address"):
        by_address(Stack([BUCKET, other]))


def test_only_aws_resources_are_in_the_plan() -> None:
    assert values(made("kubernetes:core/v1:Namespace", "n")) == []
