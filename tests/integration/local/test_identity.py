"""What a role's policies grant is all that its sessions may do: without one action, its call is denied."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.identity.session import AUDIENCE, DENIED, ROLE_ANNOTATION, assumed
from tests.integration.local.conftest import Stack

# Waits for the main job's `up`.
pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]

# What everybody may do anyway.
HARMLESS = "sts:GetCallerIdentity"
Call = Callable[[Any], Any]


def put(client: Any, stack: Stack) -> None:
    client.put_object(Bucket=stack.outputs["modelBucket"], Key="models/probe", Body=b"x")


def receive(client: Any, _stack: Stack) -> None:
    url = client.get_queue_url(QueueName=_stack.outputs["clusterName"])["QueueUrl"]
    client.receive_message(QueueUrl=url)


def subnets(client: Any, _stack: Stack) -> None:
    client.describe_subnets()


def cluster(client: Any, stack: Stack) -> None:
    client.describe_cluster(name=stack.outputs["clusterName"])


# Service account, action, service, and a call that needs the action.
CASES = [
    ("trainer", "training", "s3:PutObject", "s3", put),
    ("karpenter", "kube-system", "sqs:ReceiveMessage", "sqs", receive),
    ("karpenter", "kube-system", "ec2:DescribeSubnets", "ec2", subnets),
    ("karpenter", "kube-system", "eks:DescribeCluster", "eks", cluster),
]


def session(stack: Stack, account: str, namespace: str, service: str) -> tuple[Any, str]:
    """A client with the credentials that a pod of the service account would get, and the role's ARN."""
    found = stack.get("serviceaccount", account, "-n", namespace)
    role = found["metadata"]["annotations"][ROLE_ANNOTATION]
    words = ("create", "token", account, "-n", namespace, "--audience", AUDIENCE)
    client = assumed(stack.aws, role, stack.kubectl(*words).output, service)
    return client, str(role)


@contextmanager
def without(iam: Any, role: str, action: str) -> Iterator[None]:
    """The role's policies without one action, for a while."""
    attached = iam.list_attached_role_policies(RoleName=role.rsplit("/", 1)[1])["AttachedPolicies"]
    changed: list[tuple[str, str]] = []
    try:
        for policy in attached:
            arn = policy["PolicyArn"]
            version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
            document = iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
            lesser = without_action(document, action)
            if lesser != document:
                answer = iam.create_policy_version(
                    PolicyArn=arn, PolicyDocument=json.dumps(lesser), SetAsDefault=True
                )
                changed.append((arn, version))
                assert answer["PolicyVersion"]["IsDefaultVersion"]
        assert len(changed) == 1, f"{action} stands in {len(changed)} policies of {role}"
        yield
    finally:
        for arn, version in changed:
            lesser_version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
            iam.set_default_policy_version(PolicyArn=arn, VersionId=version)
            iam.delete_policy_version(PolicyArn=arn, VersionId=lesser_version)


def without_action(document: dict[str, Any], action: str) -> dict[str, Any]:
    """The document with the action taken out of each statement. A document needs a statement, and that an action."""
    statements = []
    for statement in document["Statement"]:
        given = statement["Action"]
        kept = [each for each in ([given] if isinstance(given, str) else given) if each != action]
        statements.append(
            {**statement, "Action": (given if isinstance(given, str) and kept else kept) or HARMLESS}
        )
    return {**document, "Statement": statements}


@pytest.mark.parametrize(
    ("account", "namespace", "action", "service", "call"), CASES, ids=[c[2] for c in CASES]
)
def test_without_one_action_its_call_is_denied(
    stack: Stack, account: str, namespace: str, action: str, service: str, call: Callable[[Any, Stack], None]
) -> None:
    client, role = session(stack, account, namespace, service)
    call(client, stack)
    with without(stack.aws("iam"), role, action):
        with pytest.raises(ClientError) as refused:
            call(client, stack)
        error = refused.value.response["Error"]
        assert error["Code"] in DENIED
        assert action in error["Message"]
    call(client, stack)
