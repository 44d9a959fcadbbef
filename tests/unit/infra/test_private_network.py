"""The whole program in a network without egress: no resource needs it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from components.documents.account import Account
from components.documents.vpc import policy
from components.network import endpoint_policy
from tests.shipped import config_of
from tests.unit.components.recording import Recorded
from tests.unit.infra.test_stack import GIVEN, settings_of
from tests.unit.infra.whole import in_a_small_checkout, whole

MIRROR = "123456789012.dkr.ecr.us-west-2.amazonaws.com/mirror"


@pytest.fixture(scope="module")
def private() -> Recorded:
    config = config_of("dev")
    cluster = {k: v for k, v in config["trainyard:cluster"].items() if k != "publicAccessCidrs"}
    changes = {
        "trainyard:network": {"private": True},
        "trainyard:cluster": {**cluster, "deployFrom": "vpc"},
        "trainyard:images": {"build": False, "mirror": MIRROR, **GIVEN},
    }
    with in_a_small_checkout():
        return whole(settings_of("dev", **changes))


def test_private_network_has_no_gateway_or_public_endpoint(private: Recorded) -> None:
    kinds = {r.type for r in private.resources}
    assert kinds.isdisjoint(
        {"aws:ec2/internetGateway:InternetGateway", "aws:ec2/natGateway:NatGateway", "aws:ec2/route:Route"}
    )
    cluster = private.one("eks:index:Cluster").inputs
    assert (cluster["endpointPublicAccess"], cluster["endpointPrivateAccess"]) == (False, True)
    assert "publicSubnetIds" not in cluster


def test_karpenter_calls_only_services_with_an_endpoint(private: Recorded) -> None:
    values = private.one("kubernetes:helm.sh/v3:Release", "karpenter").inputs["values"]
    assert values["settings"]["isolatedVPC"] is True
    assert values["controller"]["image"] == {"repository": f"{MIRROR}/public.ecr.aws/karpenter/controller"}
    profile = private.one("aws:iam/instanceProfile:InstanceProfile")
    for machine in private.of("kubernetes:karpenter.k8s.aws/v1:EC2NodeClass"):
        spec = machine.inputs["spec"]
        assert spec["instanceProfile"] == f"{profile.name}-1a2b3c4"
        assert "role" not in spec


def test_every_service_that_the_cluster_needs_has_an_endpoint(private: Recorded) -> None:
    services = {
        e.inputs["serviceName"].removeprefix("com.amazonaws.us-west-2.")
        for e in private.of("aws:ec2/vpcEndpoint:VpcEndpoint")
    }
    assert {"s3", "ec2", "ecr.api", "ecr.dkr", "eks", "sqs", "ssm", "sts", "logs"} <= services
    assert "fsx" not in services, "this stack has no file system"


def images_in(node: Any) -> Iterator[str]:
    """Return every image that an object names, at any depth."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "image" and isinstance(value, str):
                yield value
            yield from images_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from images_in(value)


def test_every_image_is_in_regional_ecr_or_existing(private: Recorded) -> None:
    """ECR's VPC endpoints also serve AWS's own repositories in the region."""
    images = {
        (r.name, image)
        for r in private.resources
        if r.type.startswith("kubernetes:")
        for image in images_in(r.inputs)
    }
    assert len(images) >= 2
    plugins = {image for name, image in images if name == "nvidia-device-plugin"}
    assert [each for each in plugins if not each.startswith(f"{MIRROR}/nvcr.io/nvidia/")] == []
    assert len(plugins) == 1
    reached = re.compile(r"\d{12}\.dkr\.ecr\.us-west-2\.amazonaws\.com/|registry\.example/")
    elsewhere = {each for each in images if not reached.match(each[1])}
    assert elsewhere == set()


def test_endpoints_admit_only_principals_of_the_account(private: Recorded) -> None:
    endpoints = private.of("aws:ec2/vpcEndpoint:VpcEndpoint")
    statements = {
        each.inputs["serviceName"].partition("us-west-2.")[2]: json.loads(each.inputs["policy"])["Statement"]
        for each in endpoints
    }
    assert {"s3", "sts", "ecr.dkr", "sqs"} <= statements.keys()
    for found in statements.values():
        assert found[0]["Condition"] == {"StringEquals": {"aws:PrincipalAccount": "123456789012"}}
    more = {service: found[1]["Action"] for service, found in statements.items() if len(found) > 1}
    assert more == {"s3": ["s3:GetObject", "s3:ListBucket"], "sts": ["sts:AssumeRoleWithWebIdentity"]}


def test_endpoint_without_policy_support_has_no_policy() -> None:
    assert policy("oidc-eks", Account(id="1", region="us-west-2")) is None
    assert endpoint_policy("ecr.api", None) is None
