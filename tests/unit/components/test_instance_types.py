"""The table of instance types against what EC2 answers: moto's copy of DescribeInstanceTypes, which the local cloud
and, on it, Karpenter go by."""

from __future__ import annotations

import functools
import gzip
import json
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from components.documents import efa
from components.documents.instance_types import TYPES, InstanceType


@functools.cache
def instance_types() -> dict[str, Any]:
    """Return the answer for each type. The import of `moto.ec2` takes a second and needs none of it here."""
    (moto,) = find_spec("moto").submodule_search_locations
    resource = Path(moto, "ec2", "resources", "instance_types.json.gz")
    return dict(json.loads(gzip.decompress(resource.read_bytes())))


def network(name: str) -> dict[str, Any]:
    return dict(instance_types()[name]["NetworkInfo"])


def devices(name: str) -> int:
    """GPUs, or Neuron devices."""
    answer = instance_types()[name]
    found = answer.get("GpuInfo", {}).get("Gpus") or answer.get("NeuronInfo", {}).get("NeuronDevices") or []
    return sum(each["Count"] for each in found)


def test_table_of_types_says_what_ec2_says() -> None:
    for facts in TYPES.values():
        answer, found = instance_types()[facts.name], network(facts.name)
        assert facts == replace(
            facts,
            vcpus=answer["VCpuInfo"]["DefaultVCpus"],
            memory_gib=answer["MemoryInfo"]["SizeInMiB"] / 1024,
            accelerators=devices(facts.name),
            nvme_gb=answer.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
            interfaces=found["NetworkCards"][0]["MaximumNetworkInterfaces"],
            addresses=found["Ipv4AddressesPerInterface"],
            efa=(found.get("EfaInfo") or {}).get("MaximumEfaInterfaces", 0),
        )


def test_bandwidth_of_types_with_efa_is_what_ec2_says() -> None:
    """`NetworkPerformance` is a text such as `4x 100 Gigabit`."""
    for facts in TYPES.values():
        count, amount = (
            re.fullmatch(r"(?:(\d+)x )?(\d+) Gigabit", network(facts.name)["NetworkPerformance"]).groups()
            if facts.efa
            else (0, 0)
        )
        assert facts.gigabits == int(count or 1) * int(amount), facts.name


def test_every_type_runs_the_images_that_are_pinned() -> None:
    for name in TYPES:
        assert instance_types()[name]["ProcessorInfo"]["SupportedArchitectures"] == ["x86_64"], name


@pytest.mark.parametrize("policy", [efa.IP, efa.BANDWIDTH])
def test_layout_gives_cards_interfaces_that_they_take(policy: str) -> None:
    for facts in TYPES.values():
        if facts.efa:
            check_layout(facts, policy)


def check_layout(facts: InstanceType, policy: str) -> None:
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
