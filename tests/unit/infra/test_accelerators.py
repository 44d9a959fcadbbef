"""The table of instance types against what EC2 answers: moto's copy of DescribeInstanceTypes, which the local cloud
and, on it, Karpenter go by."""

from __future__ import annotations

from typing import Any

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from components.shared import efa
from infra.accelerators import TYPES, InstanceType

pytestmark = pytest.mark.unit

EVERY = pytest.mark.parametrize("facts", TYPES.values(), ids=lambda facts: facts.name)
WITH_EFA = [facts for facts in TYPES.values() if facts.efa]


def network(name: str) -> dict[str, Any]:
    return dict(INSTANCE_TYPES[name]["NetworkInfo"])


def devices(name: str) -> int:
    """GPUs, or Neuron devices."""
    answer = INSTANCE_TYPES[name]
    found = answer.get("GpuInfo", {}).get("Gpus") or answer.get("NeuronInfo", {}).get("NeuronDevices") or []
    return sum(each["Count"] for each in found)


@EVERY
def test_the_table_says_what_ec2_says(facts: InstanceType) -> None:
    answer = INSTANCE_TYPES[facts.name]
    assert (facts.vcpus, facts.memory_gib * 1024) == (
        answer["VCpuInfo"]["DefaultVCpus"],
        answer["MemoryInfo"]["SizeInMiB"],
    )
    assert (facts.accelerators, facts.nvme_gb) == (
        devices(facts.name),
        answer.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
    )
    found = network(facts.name)
    assert (facts.interfaces, facts.addresses, facts.efa) == (
        found["NetworkCards"][0]["MaximumNetworkInterfaces"],
        found["Ipv4AddressesPerInterface"],
        (found.get("EfaInfo") or {}).get("MaximumEfaInterfaces", 0),
    )


@EVERY
def test_every_type_runs_the_images_that_are_pinned(facts: InstanceType) -> None:
    assert INSTANCE_TYPES[facts.name]["ProcessorInfo"]["SupportedArchitectures"] == ["x86_64"]


@pytest.mark.parametrize("policy", [efa.IP, efa.BANDWIDTH])
@pytest.mark.parametrize("facts", WITH_EFA, ids=lambda facts: facts.name)
def test_no_card_is_asked_for_an_interface_that_it_does_not_take(facts: InstanceType, policy: str) -> None:
    cards = {card["NetworkCardIndex"]: card for card in network(facts.name)["NetworkCards"]}
    assert {index for index, card in cards.items() if "efa-only" in card["InterfaceTypes"]} == set(
        range(facts.first_efa_card, facts.first_efa_card + facts.efa)
    )
    layout = efa.layout(facts.efa, policy, facts.cards_per_ip_group, facts.first_efa_card)
    assert {each["networkCardIndex"] for each in layout} == set(cards), "a card without anything"
    for index, card in cards.items():
        wanted = [each for each in layout if each["networkCardIndex"] == index]
        assert {each["interfaceType"] for each in wanted} <= set(card["InterfaceTypes"])
        assert len(wanted) <= card["MaximumNetworkInterfaces"]
        assert all(each["deviceIndex"] < card["MaximumNetworkInterfaces"] for each in wanted)
