"""Who deploys, and the region's zones."""

from __future__ import annotations

import pytest

from tests.unit.emulator import REGION, Cloud
from tests.unit.preflight.accounts import ADMINISTRATOR, NOW, OTHER, ZONE, account, checks, only, wanted
from trainyard.preflight.identity import Zone, check_caller, check_zones, principal_arn
from trainyard.preflight.run import examine
from trainyard.preflight.wanted import WantedCluster

pytestmark = pytest.mark.unit
ROLE = "arn:aws:iam::123456789012:role/platform"


def told(caller: str, *administrators: str) -> list[str]:
    return [str(problem) for problem in check_caller(wanted(administrators=administrators), caller)]


def test_the_role_behind_a_session_is_the_one_that_counts() -> None:
    session = "arn:aws:sts::123456789012:assumed-role/platform/alice"
    assert principal_arn(session) == ROLE
    assert told(session, ROLE) == []


def test_of_a_role_with_a_path_the_name_decides_since_a_session_does_not_show_the_path() -> None:
    session = "arn:aws:sts::123456789012:assumed-role/AWSReservedSSO_Admin_0123/alice"
    given = "arn:aws:iam::123456789012:role/aws-reserved/sso.amazonaws.com/AWSReservedSSO_Admin_0123"
    assert told(session, given) == []


def test_a_range_of_documents_is_nobodys_to_deploy_from(cloud: Cloud) -> None:
    def told(*blocks: str) -> list[str]:
        asked = examine(account(cloud), wanted(public_ranges=blocks), NOW, checks("where from"))
        return [str(problem) for problem in asked.problems]

    assert told("198.51.101.0/24", "203.0.112.0/23", "127.0.0.1/32") == []
    assert told("8.8.8.8/32", "203.0.113.0/24", "198.51.100.7/32", "192.0.2.0/25") == [
        f"trainyard:cluster.publicAccessCidrs[{index}]: {block} is a documentation range, from which nobody comes; it"
        " must hold the address that you deploy from"
        for index, block in ((1, "203.0.113.0/24"), (2, "198.51.100.7/32"), (3, "192.0.2.0/25"))
    ]


def test_a_user_is_not_a_role_of_the_same_name() -> None:
    only(
        told("arn:aws:iam::123456789012:user/platform", ROLE),
        "trainyard:cluster.administrators",
        "does not name arn:aws:iam::123456789012:user/platform",
    )


def test_credentials_of_another_account_are_told() -> None:
    only(
        told("arn:aws:iam::999999999999:role/platform", ROLE),
        "trainyard:cluster.administrators",
        "account 123456789012",
        "account 999999999999",
    )


def test_whoever_deploys_into_a_given_cluster_must_be_of_its_account() -> None:
    key = "trainyard:cluster.existing.oidcProviderArn"
    given = wanted(administrators=(), account_key=key)
    assert check_caller(given, "arn:aws:iam::123456789012:user/anybody") == []
    lines = [str(p) for p in check_caller(given, "arn:aws:iam::999999999999:user/anybody")]
    only(lines, key, "says account 123456789012", "of account 999999999999")


def test_of_administrators_of_several_accounts_one_is_deployed_to() -> None:
    people = (ROLE, "arn:aws:iam::999999999999:role/platform")
    asked = wanted(administrators=people, account_key="trainyard:cluster.accountId")
    lines = [str(p) for p in check_caller(asked, "arn:aws:sts::999999999999:assumed-role/platform/alice")]
    only(lines, "trainyard:cluster.accountId", "says account 123456789012")


def test_the_emulators_deployer_is_recognised(cloud: Cloud) -> None:
    of = checks("who deploys")
    assert examine(account(cloud), wanted(), NOW, of).problems == []
    problems = examine(account(cloud), wanted(administrators=(ROLE,)), NOW, of).problems
    only([str(p) for p in problems], "trainyard:cluster.administrators", ADMINISTRATOR)


def test_a_zone_that_the_account_does_not_have_is_named(cloud: Cloud) -> None:
    of = checks("zones")
    assert examine(account(cloud), wanted(), NOW, of).problems == []
    problems = examine(account(cloud), wanted(zones=(ZONE, f"{REGION}z")), NOW, of).problems
    only([str(p) for p in problems], "trainyard:network.zones[1]", f"zone {REGION}z does not exist", OTHER)


def test_a_zone_in_which_eks_has_no_control_planes_is_told() -> None:
    zones = [
        Zone(name=ZONE, zone_id="use1-az3", state="available"),
        Zone(name=OTHER, zone_id="x", state="impaired"),
    ]
    lines = [str(p) for p in check_zones(wanted(), zones)]
    assert "use1-az3" in lines[0]
    assert lines[1].startswith(f"trainyard:network.zones[1]: zone {OTHER} is impaired")
    given = wanted(existing_cluster=WantedCluster(name="research", versions=("1.35",)))
    assert [str(p) for p in check_zones(given, zones)] == lines[1:], "its control plane is there already"
