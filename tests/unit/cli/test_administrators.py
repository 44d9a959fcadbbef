"""Administrators that a stack file names, made on the local cloud so that EKS lets them in."""

from __future__ import annotations

from typing import Any

import pytest

from tests.shipped import shipped
from tests.unit.emulator import REGION, Cloud
from tests.unit.infra.changing import stack_file
from trainyard.cli.existing_resources import with_existing_resources

OURS = "arn:aws:iam::123456789012"
DEPLOYER = f"{OURS}:user/deployer"


def administrator_arns(cluster: Any) -> list[str]:
    said: list[str] = []
    with_existing_resources({"config": {"aws:region": REGION, "trainyard:cluster": cluster}}, said.append)
    return said


def test_users_and_roles_are_made_with_their_paths_and_found_the_next_time(account: Cloud) -> None:
    people = [f"{OURS}:role/platform", f"{OURS}:role/team/a/ops", f"{OURS}:user/ada", DEPLOYER]
    said = administrator_arns({"administrators": people})
    there = "created in the emulated account, because the stack file names it as existing"
    assert said == [f"{there}: {arn.split(':')[5].split('/')[0]} {arn}" for arn in people[:3]]
    account.cluster()
    eks = account.client("eks")
    for arn in people[:3]:
        eks.create_access_entry(clusterName="main", principalArn=arn)
    assert administrator_arns({"administrators": people}) == []


def test_people_of_another_account_are_not_made(account: Cloud) -> None:
    before = len(account.client("iam").list_roles()["Roles"])
    assert administrator_arns({"administrators": ["arn:aws:iam::999999999999:role/platform"]}) == []
    assert len(account.client("iam").list_roles()["Roles"]) == before


@pytest.mark.parametrize("named", ["platform", [3], ["platform"], [f"{OURS}:role/"], None])
def test_what_is_written_wrongly_is_left_for_the_program_to_refuse(account: Cloud, named: Any) -> None:
    assert administrator_arns({"administrators": named}) == []


@pytest.mark.parametrize("stack", shipped())
def test_every_shipped_stack_files_administrators_exist_on_the_local_cloud(
    account: Cloud, stack: str
) -> None:
    cluster = stack_file(stack)["trainyard:cluster"]
    administrator_arns(cluster)
    account.cluster()
    for arn in cluster["administrators"]:
        if arn != DEPLOYER:
            account.client("eks").create_access_entry(clusterName="main", principalArn=arn)
