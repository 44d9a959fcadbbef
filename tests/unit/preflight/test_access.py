"""Who deploys and from where, administrators, zones, and the service-linked role for spot instances."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.unit.emulator import REGION, Cloud
from tests.unit.preflight.accounts import (
    ACCOUNT,
    ADMINISTRATOR,
    EXISTING,
    OTHER,
    VPC,
    ZONE,
    Answers,
    account,
    checks,
    expect,
    findings,
    only,
    stack,
)
from trainyard.preflight.checks import Report, examine
from trainyard.preflight.findings import SKIPPED

KEY = "trainyard:cluster.administrators"
IAM = f"arn:aws:iam::{ACCOUNT}"
ROLE = f"{IAM}:role/platform"
SSO = "AWSReservedSSO_Admin_0123"
STRANGER = "arn:aws:iam::999999999999:role/platform"


@pytest.mark.parametrize(
    ("caller", "administrator", "key", "parts"),
    [
        (f"arn:aws:sts::{ACCOUNT}:assumed-role/platform/alice", ROLE, "", ()),
        # A session does not show the role's path.
        (f"arn:aws:sts::{ACCOUNT}:assumed-role/{SSO}/a", f"{IAM}:role/aws-reserved/sso.amazonaws.com/{SSO}", "", ()),
        (f"{IAM}:user/platform", ROLE, KEY, ("does not contain", f"{IAM}:user/platform")),
        (STRANGER, ROLE, KEY, (f"account {ACCOUNT}", "account 999999999999")),
    ],
)  # fmt: skip
def test_caller_must_be_an_administrator_of_the_account(
    caller: str, administrator: str, key: str, parts: tuple[str, ...]
) -> None:
    aws = Answers(get_caller_identity={"Arn": caller})
    lines = findings(aws, stack(cluster={"administrators": [administrator]}), "caller")
    expect(lines, key, *parts)


def test_key_of_a_wrong_account_is_the_setting_that_names_it() -> None:
    stranger = Answers(get_caller_identity={"Arn": STRANGER.replace(":iam:", ":sts:")})
    both = {"administrators": [ROLE, STRANGER], "accountId": ACCOUNT}
    only(findings(stranger, stack(cluster=both), "caller"), "trainyard:cluster.accountId")
    existing = stack(cluster={"existing": EXISTING})
    only(findings(stranger, existing, "caller"), "trainyard:cluster.existing.oidcProviderArn")
    anybody = Answers(get_caller_identity={"Arn": f"{IAM}:user/anybody"})
    assert findings(anybody, existing, "caller") == []


def test_emulators_deployer_is_recognized(cloud: Cloud) -> None:
    assert findings(account(cloud), stack(), "caller") == []
    other = stack(cluster={"administrators": [ROLE]})
    only(findings(account(cloud), other, "caller"), KEY, ADMINISTRATOR)


def test_documentation_range_is_refused() -> None:
    def lines(*blocks: str) -> list[str]:
        settings = stack(cluster={"publicAccessCidrs": list(blocks)})
        return findings(Answers(), settings, "public access ranges")

    assert lines("198.51.101.0/24", "203.0.112.0/23") == []
    found = lines("8.8.8.8/32", "203.0.113.0/24", "198.51.100.7/32", "192.0.2.0/25")
    assert [line.split(" is a ")[0] for line in found] == [
        f"trainyard:cluster.publicAccessCidrs[{index}]: {block}"
        for index, block in ((1, "203.0.113.0/24"), (2, "198.51.100.7/32"), (3, "192.0.2.0/25"))
    ]


OF_ADMINISTRATORS = ("administrators: roles", "administrators: users")


def administrators(cloud: Cloud, *arns: str) -> Report:
    settings = stack(cluster={"administrators": list(arns), "accountId": ACCOUNT})
    return examine(settings, account(cloud), checks(*OF_ADMINISTRATORS))


def role_with_path(cloud: Cloud) -> str:
    """Return the ARN of a role as IAM Identity Center creates it."""
    trust = '{"Version": "2012-10-17", "Statement": []}'
    iam = cloud.client("iam")
    made = iam.create_role(RoleName="ops", Path="/team/a/", AssumeRolePolicyDocument=trust)
    return str(made["Role"]["Arn"])


def test_existing_administrators_pass(cloud: Cloud) -> None:
    report = administrators(cloud, ADMINISTRATOR, cloud.role("platform", None), role_with_path(cloud))
    assert (report.findings, report.denied, report.checked) == ([], [], 2)


@pytest.mark.parametrize("arn", [f"{IAM}:role/nobody", f"{IAM}:user/nobody", f"{IAM}:role/deployer"])
def test_missing_administrator_is_refused_like_eks_does(cloud: Cloud, arn: str) -> None:
    lines = [str(each) for each in administrators(cloud, ADMINISTRATOR, arn).of()]
    only(lines, f"{KEY}[1]", f"'{arn}' does not exist")
    cloud.cluster()
    with pytest.raises(ClientError, match="invalid principal"):
        cloud.client("eks").create_access_entry(clusterName="main", principalArn=arn)


def test_role_without_its_path_gets_the_real_arn(cloud: Cloud) -> None:
    real = role_with_path(cloud)
    lines = [str(each) for each in administrators(cloud, f"{IAM}:role/ops").of()]
    only(lines, f"{KEY}[0]", f"It must be '{real}'")


def test_administrator_of_another_account_is_not_asked(cloud: Cloud) -> None:
    report = administrators(cloud, ADMINISTRATOR, STRANGER)
    assert report.of() == []
    lines = [str(each) for each in report.of(SKIPPED)]
    only(lines, f"{KEY}[1]", "of account 999999999999", f"credentials of account {ACCOUNT}")


def test_users_are_checked_without_the_permission_for_roles(cloud: Cloud) -> None:
    allowed = {"Effect": "Allow", "Action": "iam:GetUser", "Resource": "*"}
    aws = account(cloud, cloud.session("reader", allowed))
    arns = [f"{IAM}:user/nobody", f"{IAM}:role/reader"]
    report = examine(stack(cluster={"administrators": arns}), aws, checks(*OF_ADMINISTRATORS))
    assert report.denied == [("administrators: roles", "iam:GetRole")]
    assert [each.key for each in report.findings] == [f"{KEY}[0]"]


def zone(name: str, zone_id: str = "x", state: str = "available") -> dict[str, str]:
    return {"ZoneName": name, "ZoneId": zone_id, "State": state}


@pytest.mark.parametrize(
    ("zones", "changes", "keys", "part"),
    [
        ([zone(ZONE), zone(OTHER)], {}, [], ""),
        ([zone(ZONE)], {}, ["trainyard:network.zones[1]"], "does not exist"),
        ([zone(ZONE), zone(OTHER, state="impaired")], {}, ["trainyard:network.zones[1]"], "is impaired"),
        ([zone(ZONE, "use1-az3"), zone(OTHER)], {}, ["trainyard:network.zones[0]"], f"one of {ZONE}, {OTHER}"),
        ([zone(ZONE, "use1-az3"), zone(OTHER)], {"cluster": {"existing": EXISTING}, "network": VPC}, [], ""),
        ([zone(ZONE)], {"network": VPC}, ["trainyard:network.privateSubnetIds"], "does not exist"),
    ],
)  # fmt: skip
def test_zone_must_be_available_and_take_a_control_plane(
    zones: list[dict[str, str]], changes: dict[str, Any], keys: list[str], part: str
) -> None:
    lines = findings(Answers(describe_availability_zones=zones), stack(**changes), "zones")
    assert [line.split(": ")[0] for line in lines] == keys
    assert all(part in line for line in lines)


def test_zones_of_the_emulator_pass(cloud: Cloud) -> None:
    assert findings(account(cloud), stack(), "zones") == []
    assert ZONE.startswith(REGION)


def test_spot_needs_its_service_linked_role(cloud: Cloud) -> None:
    spot = stack({"purchase": "spot"})
    lines = findings(account(cloud), spot, "spot role")
    only(lines, "trainyard:pools[0].purchase", "create-service-linked-role")
    cloud.client("iam").create_service_linked_role(AWSServiceName="spot.amazonaws.com")
    assert findings(account(cloud), spot, "spot role") == []
