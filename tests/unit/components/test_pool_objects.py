"""The objects of a pool, for every instance type: EFA layouts, reservations, groups, taints."""

from __future__ import annotations

import dataclasses
import email
import subprocess
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from components.documents import efa, eks, instance_types
from components.documents.pool import Pool, node_class, node_pool, request
from components.pools import Placement, PlacementArgs
from tests.unit.components.crd import problems
from tests.unit.components.pools import CPU
from tests.unit.components.pools import pool as stack_pool
from tests.unit.components.recording import deploy
from tests.unit.infra.changing import settings, with_pool

EVERY = [
    (facts.name, policy)
    for facts in instance_types.TYPES.values()
    for policy in ((efa.IP, efa.BANDWIDTH) if facts.efa else (efa.NONE,))
]


def pool(**change: Any) -> Pool:
    return settings(with_pool(**change)).pools[0]


def spec(pool_: Pool, **more: Any) -> dict[str, Any]:
    given = {
        "cluster": "c",
        "ami": "al2023@v20260724",
        "role": "workers",
        "subnet_id": "subnet-0123456789abcdef0",
    }
    return node_class(pool_, **{**given, "tags": {"trainyard:stack": "test"}, **more})


def test_objects_of_every_type_are_valid_for_karpenter() -> None:
    for type_, policy in EVERY:
        each = pool(instanceType=type_, efa=policy)
        assert problems("EC2NodeClass", spec(each)) == [], (type_, policy)
        assert problems("NodePool", node_pool(each, lustre=True)) == [], (type_, policy)


# What CoreDNS and the controllers of the CSI drivers tolerate (their charts, kubernetes-sigs/aws-fsx-csi-driver,
# charts/aws-fsx-csi-driver/values.yaml, and the add-on's Deployment).
SYSTEM_TOLERATIONS: list[dict[str, Any]] = [
    {"key": "CriticalAddonsOnly", "operator": "Exists"},
    {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
    {"effect": "NoExecute", "operator": "Exists", "tolerationSeconds": 300},
]


@pytest.mark.parametrize("type_", ["m5.large", "g5.12xlarge", "trn1.32xlarge"])
def test_nodes_of_every_pool_take_workers_and_no_system_pods(type_: str) -> None:
    each = pool(instanceType=type_)
    (taint,) = node_pool(each)["template"]["spec"]["taints"]
    assert taint["effect"] == "NoSchedule"

    def tolerated(tolerations: list[dict[str, Any]]) -> bool:
        return any(
            one.get("key") in (None, taint["key"])
            and one.get("effect") in (None, taint["effect"])
            and one.get("operator") == "Exists"
            for one in tolerations
        )

    assert tolerated(each.tolerations)
    assert tolerated(request(each)["tolerations"])
    assert not tolerated(SYSTEM_TOLERATIONS)


def test_karpenters_definitions_take_the_grace_of_machines_that_are_taken_back() -> None:
    spot = node_pool(pool(purchase="spot"))
    assert problems("NodePool", spot) == []
    wrong = {**spot["template"]["spec"], "terminationGracePeriod": 90}
    assert problems("NodePool", {**spot, "template": {**spot["template"], "spec": wrong}})


def test_the_definitions_are_held_to_the_letter() -> None:
    """So that the test above can fail: another type of interface, another field, a card without a number."""
    right = spec(pool(instanceType="p5.48xlarge"))
    interface = {"networkCardIndex": 0, "deviceIndex": 0}
    assert problems("EC2NodeClass", {**right, "networkInterfaces": [{**interface, "interfaceType": "efa"}]})
    assert problems("EC2NodeClass", {**right, "networkInterface": []})
    assert problems("EC2NodeClass", {**right, "networkInterfaces": [{**interface, "networkCardIndex": "0"}]})
    assert problems("NodePool", {**node_pool(pool()), "limits": ["16"]})


def test_every_type_with_efa_has_the_layout_of_its_cards() -> None:
    for type_, policy in EVERY:
        facts = instance_types.TYPES[type_]
        if facts.efa:
            each = pool(instanceType=type_, efa=policy)
            layout = efa.layout(facts.efa, policy, facts.cards_per_ip_group, facts.first_efa_card)
            assert spec(each)["networkInterfaces"] == layout, (type_, policy)
            assert request(each)["efaPerNode"] == facts.efa


@given(
    interfaces=st.integers(1, 64),
    policy=st.sampled_from((efa.IP, efa.BANDWIDTH)),
    group=st.sampled_from((1, 2, 4)),
    first=st.integers(0, 3),
)
def test_a_layout_keeps_the_rules_of_ec2_and_karpenter(
    interfaces: int, policy: str, group: int, first: int
) -> None:
    """The last three are the CEL rules of `networkInterfaces` in Karpenter's definition of an EC2NodeClass."""
    layout = efa.layout(interfaces, policy, group, first)
    places = [(each["networkCardIndex"], each["deviceIndex"]) for each in layout]
    cards = [each["networkCardIndex"] for each in layout if each["interfaceType"] == "efa-only"]
    ip = [each["networkCardIndex"] for each in layout if each["interfaceType"] == "interface"]
    assert sorted(cards) == list(range(first, first + interfaces))
    assert {device for _, device in places} <= {0, 1}, "a card of a p5 has room for two"
    assert ip == [0] if policy == efa.IP else len(ip) == -(-(first + interfaces) // group)
    assert len(set(places)) == len(places), "a place twice"
    assert layout[0] == {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"}


def test_the_first_card_of_a_b300_has_no_efa() -> None:
    """AWS's own example, which github.com/aws/aws-parallelcluster/issues/7143 quotes."""
    saving = spec(pool(instanceType="p6-b300.48xlarge", efa="ip"))["networkInterfaces"]
    assert saving == [
        {"networkCardIndex": 0, "deviceIndex": 0, "interfaceType": "interface"},
        *({"networkCardIndex": card, "deviceIndex": 0, "interfaceType": "efa-only"} for card in range(1, 17)),
    ]


def test_a_p5_has_32_efa_and_one_or_eight_interfaces_for_ip() -> None:
    """The two use cases of EC2's guide, "EFA configuration for P5 and P5e instances"."""
    saving = spec(pool(instanceType="p5.48xlarge", efa="ip"))["networkInterfaces"]
    most = spec(pool(instanceType="p5.48xlarge", efa="bandwidth"))["networkInterfaces"]
    for layout, cards in ((saving, [0]), (most, [0, 4, 8, 12, 16, 20, 24, 28])):
        assert [i["networkCardIndex"] for i in layout if i["interfaceType"] == "interface"] == cards
        assert sum(i["interfaceType"] == "efa-only" for i in layout) == 32
    assert {"networkCardIndex": 4, "deviceIndex": 1, "interfaceType": "interface"} in most
    assert {"networkCardIndex": 4, "deviceIndex": 0, "interfaceType": "efa-only"} in most


@pytest.mark.parametrize(("interfaces", "policy"), [(0, "ip"), (4, "none"), (4, "most")])
def test_a_layout_that_does_not_exist_is_refused(interfaces: int, policy: str) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        efa.layout(interfaces, policy)


def test_a_pool_without_efa_leaves_its_interfaces_to_karpenter() -> None:
    assert "networkInterfaces" not in spec(pool(efa="none"))
    assert request(pool(efa="none"))["efaPerNode"] == 0
    assert request(pool(instanceType="p4d.24xlarge"))["efaPerNode"] == 4


def test_a_reserved_pool_buys_on_demand_only_when_it_says_so() -> None:
    def capacity_types(**change: Any) -> list[str]:
        reserved = pool(purchase="reserved", capacityReservationIds=["cr-0123456789abcdef0"], **change)
        assert problems("EC2NodeClass", spec(reserved)) == []
        requirements = node_pool(reserved)["template"]["spec"]["requirements"]
        return next(r["values"] for r in requirements if r["key"] == "karpenter.sh/capacity-type")

    assert capacity_types() == ["reserved"]
    assert capacity_types(onDemandFallback=True) == ["reserved", "on-demand"]


@pytest.mark.parametrize(("type_", "seconds"), [("p5.48xlarge", 2400), ("p6e-gb200.36xlarge", 4200)])
def test_launcher_receives_capacity_block_end(type_: str, seconds: int) -> None:
    reserved = {"purchase": "reserved", "capacityReservationIds": ["cr-0123456789abcdef0"]}
    ends = {"reservationEnds": "2027-01-31T11:30:00Z"}
    of_block = pool(**reserved, **ends, reservationType="capacity-block", onDemandFallback=True)
    of_block = dataclasses.replace(of_block, instance_type=type_)
    assert request(of_block)["block"] == {
        "ends": "2027-01-31T11:30:00+00:00",
        "takenBackSeconds": seconds,
        "onDemandFallback": True,
    }
    begins = dataclasses.replace(of_block, reservation_begins="2027-01-17T11:30:00+00:00")
    assert request(begins)["block"] == {
        **request(of_block)["block"],
        "begins": "2027-01-17T11:30:00+00:00",
    }
    # Machines of an on-demand reservation outlive it.
    assert request(pool(**reserved, **ends))["block"] is None


def test_a_placement_group_is_selected_by_name() -> None:
    assert "placementGroupSelector" not in spec(pool())
    grouped = spec(pool(placementGroup="theirs"))
    assert grouped["placementGroupSelector"] == {"name": "theirs"}
    assert problems("EC2NodeClass", grouped) == []


@pytest.mark.parametrize("names", [(), ("small",), ("small", "more")])
def test_placement_creates_each_group_of_the_stack_once(names: tuple[str, ...]) -> None:
    own = [stack_pool(name=name, placement_group="own", makes_placement_group=True) for name in names]
    pools = (*own, CPU, stack_pool(placement_group="theirs"))
    recorded = deploy(lambda: Placement("placement", PlacementArgs(pools=pools, tags={"a": "b"})))
    groups = [each.inputs for each in recorded.of("aws:ec2/placementGroup:PlacementGroup")]
    assert groups == [{"name": "own", "strategy": "cluster", "tags": {"a": "b"}}][: len(names)]


def test_no_pod_starts_before_a_machine_can_mount_the_file_system() -> None:
    taint = {"key": "fsx.csi.aws.com/agent-not-ready", "effect": "NoExecute"}
    assert node_pool(pool(), lustre=True)["template"]["spec"]["startupTaints"] == [taint]
    assert "startupTaints" not in node_pool(pool())["template"]["spec"]


@pytest.mark.parametrize(("type_", "fast"), [("m5.large", False), ("g5.xlarge", False), ("g5.2xlarge", True)])
def test_images_are_pulled_in_parallel_on_machines_that_are_large_enough(type_: str, fast: bool) -> None:
    assert ("FastImagePull: true" in spec(pool(instanceType=type_)).get("userData", "")) is fast


@pytest.mark.parametrize("size", [None, 300])
@pytest.mark.parametrize("type_", ["m5.large", "g5.2xlarge"])
def test_a_snapshot_with_images_is_a_disk_of_its_own(type_: str, size: int | None) -> None:
    given = spec(pool(instanceType=type_, dataSnapshotId="snap-0123456789abcdef0", dataVolumeGiB=size))
    assert problems("EC2NodeClass", given) == []
    system, images = given["blockDeviceMappings"]
    assert (system["deviceName"], images["deviceName"]) == ("/dev/xvda", "/dev/xvdb")
    assert "snapshotID" not in system["ebs"]
    assert images["ebs"]["snapshotID"] == "snap-0123456789abcdef0"
    assert images["ebs"].get("volumeSize") == (f"{size}Gi" if size else None)
    assert images["ebs"]["encrypted"] is True
    assert len(spec(pool(instanceType=type_))["blockDeviceMappings"]) == 1


@pytest.mark.parametrize(("type_", "local_disks"), [("m5.2xlarge", False), ("g5.2xlarge", True)])
def test_a_machine_takes_the_snapshots_images_before_its_runtime_starts(
    type_: str, local_disks: bool
) -> None:
    given = spec(pool(instanceType=type_, dataSnapshotId="snap-0123456789abcdef0"))
    archive = email.message_from_string(given["userData"])
    parts = {part.get_content_type(): str(part.get_payload()) for part in archive.get_payload()}
    script = parts.pop("text/x-shellscript")
    assert script.startswith("#!/bin/bash\n")
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    # Fast pulls have a store of their own, which the snapshot does not fill; local disks would hide it.
    assert "FastImagePull" not in given["userData"]
    assert list(parts) == (["application/node.eks.aws"] if local_disks else [])
    for text in parts.values():
        storage = yaml.safe_load(text)["spec"]["instance"]["localStorage"]
        assert storage == {"strategy": given["instanceStorePolicy"], "disabledMounts": ["Containerd"]}


def test_what_is_given_by_id_is_not_searched_by_tags() -> None:
    given = spec(
        pool(),
        instance_profile="workers",
        worker_security_group_id="sg-0123456789abcdef0",
        cluster_security_group_id="sg-0223456789abcdef0",
    )
    assert given["securityGroupSelectorTerms"] == [
        {"id": "sg-0123456789abcdef0"},
        {"id": "sg-0223456789abcdef0"},
    ]
    assert given["instanceProfile"] == "workers"
    assert "role" not in given, "Karpenter would make a profile for it"
    assert problems("EC2NodeClass", given) == []


@pytest.mark.parametrize(
    ("pods", "taken"),
    [
        # One interface of fifty, the first of which no pod gets: the least, 14.
        (0, 15),
        (eks.PODS, 15),
        (eks.PODS + 1, 16),
        (45, 50),
        # The fiftieth address is of a second interface, with a first address of its own.
        (46, 52),
        # All that fifteen interfaces have.
        (2000, 750),
    ],
)
def test_a_machine_has_addresses_for_its_pods_and_some_to_spare(pods: int, taken: int) -> None:
    """As in the examples of the VPC CNI's documentation, of a p3dn with both targets."""
    assert eks.NodeNetwork(interfaces=15, addresses=50, pods=pods).address_count == taken


def test_the_cni_of_a_given_cluster_fills_whole_interfaces() -> None:
    """The examples of the VPC CNI's documentation: a p3dn with three pods has two interfaces of fifty addresses."""
    p3dn = {"interfaces": 15, "addresses": 50, "own_cni": False}
    assert eks.NodeNetwork(**p3dn).address_count == 100
    assert eks.NodeNetwork(**p3dn, policy=efa.IP).address_count == 100
    assert eks.usable_addresses("10.0.0.0/24") == 251


def test_an_efa_takes_the_place_of_an_interface_of_its_card() -> None:
    p5 = {"interfaces": 2, "addresses": 50, "policy": efa.IP}
    assert eks.NodeNetwork(**p5, cards=32, own_cni=False).address_count == 50
    assert eks.NodeNetwork(**p5, cards=32, pods=90).address_count == 50
    assert eks.NodeNetwork(**p5, cards=33, first_efa_card=1, own_cni=False).address_count == 100
    assert eks.NodeNetwork(**p5, cards=33, first_efa_card=1, pods=90).address_count == 96


@pytest.mark.parametrize(
    ("cards", "group", "first", "policy"),
    [(4, 1, 0, efa.IP), (4, 1, 0, efa.BANDWIDTH), (32, 4, 0, efa.BANDWIDTH), (17, 1, 1, efa.IP)],
)
def test_a_machine_has_the_interfaces_of_its_layout_and_those_of_many_pods(
    cards: int, group: int, first: int, policy: str
) -> None:
    network = {"interfaces": 15, "addresses": 50, "cards": cards, "policy": policy}
    groups = {"cards_per_ip_group": group, "first_efa_card": first}
    laid_out = len(efa.layout(cards - first, policy, group, first))
    assert eks.NodeNetwork(**network, **groups).network_interfaces == laid_out
    # Forty-nine of an interface are for pods, of which four rest.
    assert eks.NodeNetwork(**network, **groups, pods=46).network_interfaces == laid_out + 1
    assert eks.NodeNetwork(**network, **groups, own_cni=False).network_interfaces == laid_out + 1
    assert eks.NodeNetwork(interfaces=15, addresses=50).network_interfaces == 1


@given(
    interfaces=st.integers(2, 15),
    each=st.integers(10, 64),
    pods=st.integers(0, 400),
    policy=st.sampled_from(efa.POLICIES),
)
@pytest.mark.long
def test_no_machine_takes_more_than_its_interfaces_have(
    interfaces: int, each: int, pods: int, policy: str
) -> None:
    taken = eks.NodeNetwork(interfaces=interfaces, addresses=each, pods=pods, policy=policy).address_count
    usable = interfaces - (policy != efa.NONE)
    assert min(pods, usable * (each - 1)) < taken <= usable * each
