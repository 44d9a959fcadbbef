"""Policies bind services to this account, and nodes have only the permissions that no add-on role can have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from components.documents.karpenter_iam import NODE_ROLE_POLICIES
from tests.unit.components.recording import Recorded
from tests.unit.infra.whole import shipped
from trainyard.policies.model import rows

STACKS = ("dev", "large", "p4de-odcr-existing-vpc", "lustre-existing-vpc")
# What binds a service to this account's resources
# (https://docs.aws.amazon.com/IAM/latest/UserGuide/confused-deputy.html); keys of log groups go by the group's name.
BINDING = ("aws:sourcearn", "aws:sourceaccount", "kms:encryptioncontext:aws:logs:arn")
# A role that only an instance profile or a cluster of this account hands over: iam:PassRole decides.
PASSED = ("ec2.amazonaws.com", "eks.amazonaws.com")
# Add-ons that call AWS, and those that only talk to the cluster or the kernel. The FSx CSI driver mounts what is there
# and creates nothing.
CALLING = {"vpc-cni", "aws-ebs-csi-driver"}
OTHERS = {"coredns", "kube-proxy", "eks-node-monitoring-agent", "aws-fsx-csi-driver"}


@pytest.fixture(params=STACKS)
def recorded(request: pytest.FixtureRequest) -> Recorded:
    return shipped(request.param)


def statements(inputs: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for value in inputs.values():
        if isinstance(value, str) and value.startswith("{") and '"Statement"' in value:
            found += json.loads(value)["Statement"]
    return found


def test_services_in_policies_are_bound_to_the_stack(recorded: Recorded) -> None:
    loose = []
    for each in recorded.resources:
        for statement in statements(each.inputs):
            principal = statement.get("Principal")
            services = principal.get("Service", []) if isinstance(principal, dict) else []
            services = [services] if isinstance(services, str) else services
            keys = {key.lower() for values in (statement.get("Condition") or {}).values() for key in values}
            if any(service not in PASSED for service in services) and not keys & set(BINDING):
                loose.append(f"{each.type} {each.name}: {services}")
    assert loose == []


def test_addons_that_call_aws_have_their_own_roles(recorded: Recorded) -> None:
    addons = {
        each.inputs["addonName"]: each.inputs
        for each in recorded.resources
        if each.type == "aws:eks/addon:Addon"
    }
    assert addons
    assert set(addons) <= CALLING | OTHERS, "say whether a new add-on calls AWS"
    without = [addon for addon in CALLING & set(addons) if not addons[addon].get("serviceAccountRoleArn")]
    assert without == []


def test_nodes_have_only_kubelet_permissions(recorded: Recorded) -> None:
    of_nodes = [
        each.inputs["policyArn"].rpartition("/")[2]
        for each in recorded.resources
        if each.type == "aws:iam/rolePolicyAttachment:RolePolicyAttachment"
        and ("-worker-node-" in each.name or "-system-node-" in each.name)
    ]
    assert of_nodes
    assert set(of_nodes) <= set(NODE_ROLE_POLICIES)


def test_karpenter_has_the_permissions_of_its_finalizer(recorded: Recorded) -> None:
    """Without them, `destroy` waits forever for the EC2NodeClasses."""
    policies = [each for each in recorded.resources if each.type == "aws:iam/policy:Policy"]
    found = [
        statement for each in policies if "karpenter" in each.name for statement in statements(each.inputs)
    ]
    actions = {action for each in found if each["Effect"] == "Allow" for action in rows(each["Action"])}
    assert {
        "iam:ListInstanceProfiles",
        "iam:GetInstanceProfile",
        "iam:RemoveRoleFromInstanceProfile",
        "iam:DeleteInstanceProfile",
    } <= actions
