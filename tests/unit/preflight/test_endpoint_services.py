"""Interface endpoints that a stack makes, where their services are."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from components.documents.vpc import KNOWN
from tests.unit.emulator import Cloud
from tests.unit.infra.changing import GIVEN_VPC, settings, with_
from tests.unit.preflight.accounts import NOW, account, checks, wanted
from trainyard.preflight import endpoint_services
from trainyard.preflight.mapping import wanted_of
from trainyard.preflight.run import examine
from trainyard.preflight.wanted import Wanted

pytestmark = pytest.mark.unit

ZONES = ("us-west-2a", "us-west-2b")
ONE = checks("endpoint services")


def found(cloud: Cloud, asked: Wanted) -> list[str]:
    return [str(problem) for problem in examine(account(cloud), asked, NOW, ONE).problems]


def of(*names: str) -> Wanted:
    return replace(wanted(), endpoints=names, zones=ZONES)


def told(here: dict[str, frozenset[str]], asked: Wanted) -> list[str]:
    return [str(problem) for problem in endpoint_services.check(asked, here)]


def test_a_service_in_all_zones_is_right_and_one_without_a_zone_is_told_with_the_zone() -> None:
    assert told({"sts": frozenset(ZONES), "sqs": frozenset(ZONES)}, of("sts", "sqs")) == []
    (line,) = told(
        {"sts": frozenset(ZONES), "fsx": frozenset({"us-west-2b", "us-west-2c"})}, of("sts", "fsx")
    )
    assert line.startswith("trainyard:network.zones: us-west-2a: the interface endpoint fsx is not offered")
    assert "us-west-2b, us-west-2c" in line


def test_services_that_a_region_does_not_have_are_told_in_one_line() -> None:
    (line,) = told({"sts": frozenset(ZONES)}, of("eks-auth", "sts", "fsx"))
    assert line.startswith("trainyard:network.interfaceEndpoints: eks-auth, fsx: us-west-2 offers no")


def test_in_a_given_vpc_the_subnets_are_what_can_be_changed() -> None:
    config = with_({"network": {**GIVEN_VPC, "cidr": "10.0.0.0/16", "interfaceEndpoints": ["sts"]}})
    (line,) = told({"sts": frozenset({"us-west-2a"})}, wanted_of(settings(config)))
    assert line.startswith("trainyard:network.privateSubnetIds: us-west-2b: the interface endpoint sts")


@pytest.mark.parametrize(
    ("network", "endpoints"),
    [
        ({}, ()),
        ({"interfaceEndpoints": ["sts"]}, ("sts",)),
        ({**GIVEN_VPC, "private": True}, ()),
    ],
)
def test_what_the_stack_makes_is_asked_for_and_no_more(
    network: dict[str, Any], endpoints: tuple[str, ...]
) -> None:
    mirror = {"images": {"mirror": "registry.example/mirror"}} if network.get("private") else {}
    config = with_({"network": copy.deepcopy(network), **mirror})
    assert wanted_of(settings(config)).endpoints == endpoints


def test_nothing_is_asked_for_a_stack_without_endpoints(cloud: Cloud) -> None:
    assert found(cloud, wanted()) == []


def test_the_account_is_asked_for_zones_and_kind(cloud: Cloud) -> None:
    """The emulator offers them in zones a to d of the region; DynamoDB is no interface there."""
    here = endpoint_services.read(account(cloud), of("sts", "ecr.api", "nothing"))
    assert set(here) == {"sts", "ecr.api"}
    assert set(ZONES) <= here["sts"]
    lines = found(cloud, of("sts", "nothing"))
    assert [line.split(":")[1] for line in lines] == ["network.interfaceEndpoints"]


def test_every_endpoint_that_settings_know_is_a_service_of_the_region(cloud: Cloud) -> None:
    """By moto's list, which is of AWS's own names."""
    assert set(endpoint_services.read(account(cloud), of(*KNOWN))) == set(KNOWN)
