"""What the official SDK says about a resource's properties, read from its source."""

from __future__ import annotations

import sys

import pytest

from local.plugins import sdk
from local.plugins.values import UNKNOWN

DEPLOYMENT = "kubernetes:apps/v1:Deployment"


@pytest.mark.parametrize(
    ("token", "known"),
    [
        ("aws:ec2/vpc:Vpc", "cidrBlock"),
        ("aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", "cidrIpv4"),
        ("eks:index:Cluster", "authenticationMode"),
        ("docker-build:index:Image", "buildArgs"),
        ("kubernetes:rbac.authorization.k8s.io/v1:ClusterRole", "rules"),
        ("kubernetes:helm.sh/v3:Release", "skipCrds"),
        ("pulumi:providers:aws", "defaultTags"),
    ],
)
def test_a_token_of_each_package_is_found_with_its_properties(token: str, known: str) -> None:
    assert known in sdk.properties(sdk.resource(token))


def test_an_unknown_token_is_named_with_what_is_near_it() -> None:
    with pytest.raises(
        sdk.UnknownTokenError, match=r"ec2/vpx:Vpx is no resource of pulumi_aws; .*aws:ec2/vpc:Vpc"
    ):
        sdk.resource("aws:ec2/vpx:Vpx")


def test_an_unknown_property_is_named_with_its_path_at_any_depth() -> None:
    inputs = {"spec": {"template": {"spec": {"containers": [{"name": "c"}, {"imag": "x"}]}}}}
    [failure] = sdk.check_inputs(DEPLOYMENT, inputs)
    assert failure.path == "spec.template.spec.containers[1].imag"
    assert "did you mean image?" in failure.reason
    assert DEPLOYMENT in failure.reason


def test_free_maps_unknown_values_and_our_own_keys_are_left_alone() -> None:
    metadata = {"labels": {"anything.at/all": "x"}, "name": UNKNOWN}
    assert sdk.check_inputs(DEPLOYMENT, {"metadata": metadata, "spec": UNKNOWN, "__internal": 1}) == []


def test_a_scalar_in_place_of_an_object_is_named() -> None:
    [failure] = sdk.check_inputs(DEPLOYMENT, {"spec": "three replicas"})
    assert failure.reason.endswith("spec must be an object, not str")


def test_reading_the_sdk_does_not_import_it() -> None:
    before = "pulumi_aws" in sys.modules
    sdk.check_inputs("aws:sqs/queue:Queue", {"name": "q"})
    assert ("pulumi_aws" in sys.modules) == before
