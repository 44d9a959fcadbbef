"""Administrators who do not exist, whom EKS would refuse once its control plane is there."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from tests.unit.emulator import Cloud
from tests.unit.preflight.accounts import ADMINISTRATOR, NOW, account, checks, only, wanted
from trainyard.preflight.run import Report, examine

pytestmark = pytest.mark.unit

OURS = "arn:aws:iam::123456789012"
KEY = "trainyard:cluster.administrators"
OF = checks("administrators: roles", "administrators: users")


def report(cloud: Cloud, *people: str) -> Report:
    return examine(account(cloud), wanted(administrators=people), NOW, OF)


def told(cloud: Cloud, *people: str) -> list[str]:
    return [str(problem) for problem in report(cloud, *people).problems]


def in_team(cloud: Cloud, name: str) -> str:
    """A role with a path, as IAM Identity Center makes them."""
    trust = '{"Version": "2012-10-17", "Statement": []}'
    made = cloud.client("iam").create_role(RoleName=name, Path="/team/a/", AssumeRolePolicyDocument=trust)
    return str(made["Role"]["Arn"])


def test_users_and_roles_that_exist_pass(cloud: Cloud) -> None:
    people = (ADMINISTRATOR, cloud.role("platform", None), in_team(cloud, "ops"))
    found = report(cloud, *people)
    assert (found.problems, found.unasked, found.not_checked, found.checked) == ([], [], [], 2)


@pytest.mark.parametrize("arn", [f"{OURS}:role/nobody", f"{OURS}:user/nobody", f"{OURS}:role/team/"])
def test_who_does_not_exist_is_named_by_the_key_and_refused_by_eks(cloud: Cloud, arn: str) -> None:
    only(told(cloud, ADMINISTRATOR, arn), f"{KEY}[1]", f"'{arn}' does not exist")
    cloud.cluster()
    with pytest.raises(ClientError, match="invalid principal"):
        cloud.client("eks").create_access_entry(clusterName="main", principalArn=arn)


def test_a_role_without_its_path_is_told_its_right_arn(cloud: Cloud) -> None:
    real = in_team(cloud, "ops")
    only(told(cloud, f"{OURS}:role/ops"), f"{KEY}[0]", f"it must be '{real}'")


def test_a_user_is_no_role(cloud: Cloud) -> None:
    only(told(cloud, f"{OURS}:role/deployer"), f"{KEY}[0]", "does not exist; it must be a role")


def test_people_of_another_account_are_said_to_be_unasked(cloud: Cloud) -> None:
    found = report(cloud, ADMINISTRATOR, "arn:aws:iam::999999999999:role/platform")
    assert found.problems == []
    lines = [str(each) for each in found.unasked]
    only(lines, f"{KEY}[1]", "of account 999999999999", "credentials of account 123456789012")


def test_a_missing_permission_is_named_for_its_kind_alone(cloud: Cloud) -> None:
    allowed = {"Effect": "Allow", "Action": "iam:GetUser", "Resource": "*"}
    asking = account(cloud, cloud.session("reader", allowed))
    people = (f"{OURS}:user/nobody", f"{OURS}:role/reader")
    found = examine(asking, wanted(administrators=people), NOW, OF)
    assert found.not_checked == [("administrators: roles", "iam:GetRole")]
    assert [problem.key for problem in found.problems] == [f"{KEY}[0]"]
