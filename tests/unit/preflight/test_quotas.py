"""Service quotas: which quota a type counts towards, and what is told where one is too small."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from infra import accelerators
from tests.unit.emulator import Cloud
from tests.unit.preflight.accounts import NOW, TAGS, ZONE, Given, account, checks, only, pool, tagged, wanted
from trainyard.preflight.quotas import DISKS, ELASTIC_IPS, VPCS, quota_of
from trainyard.preflight.run import examine
from trainyard.preflight.wanted import WantedSystem

pytestmark = pytest.mark.unit


OF_QUOTAS = checks("service quotas")


def problems(cloud: Cloud, **changes: Any) -> list[str]:
    report = examine(account(cloud), wanted(**changes), NOW, OF_QUOTAS)
    assert (report.not_checked, report.failed) == ([], [])
    return [str(problem) for problem in report.problems]


def allow(cloud: Cloud, code: str, value: float, service: str = "ec2") -> None:
    cloud.client("service-quotas").request_service_quota_increase(
        ServiceCode=service, QuotaCode=code, DesiredValue=value
    )


@pytest.mark.parametrize(
    ("name", "purchase", "code"),
    [
        ("m6i.large", "on-demand", "L-1216C47A"),
        ("c5.2xlarge", "spot", "L-34B43A08"),
        ("g5.12xlarge", "on-demand", "L-DB2E81BA"),
        ("g4dn.metal", "spot", "L-3819A6DF"),
        ("p3dn.24xlarge", "spot", "L-7212CCBC"),
        ("p4de.24xlarge", "on-demand", "L-417A185B"),
        ("p5.48xlarge", "on-demand", "L-417A185B"),
        ("p5en.48xlarge", "spot", "L-C4BD4855"),
        ("p6-b300.48xlarge", "on-demand", "L-417A185B"),
        ("g7e.48xlarge", "on-demand", "L-DB2E81BA"),
        ("gr6.8xlarge", "spot", "L-3819A6DF"),
        ("trn1.32xlarge", "on-demand", "L-2C3B7624"),
        ("trn2.48xlarge", "spot", "L-6B0D517C"),
    ],
)
def test_a_type_counts_towards_the_quota_of_its_family(name: str, purchase: str, code: str) -> None:
    quota = quota_of(name, purchase)
    assert quota is not None
    assert quota.code == code


def test_every_known_type_has_an_on_demand_quota() -> None:
    assert [name for name in accelerators.TYPES if quota_of(name, "on-demand") is None] == []


def test_families_with_quotas_of_their_own_are_not_taken_for_standard_ones() -> None:
    assert [
        quota_of(name, "on-demand")
        for name in ("inf2.xlarge", "dl1.24xlarge", "hpc7a.48xlarge", "x2idn.metal")
    ] == [None] * 4


def test_the_emulator_has_every_quota_that_is_asked_for(cloud: Cloud) -> None:
    from local.aws.quotas import QUOTAS  # it imports moto

    asked = {
        (q.service, q.code)
        for q in (quota_of(n, p) for n in accelerators.TYPES for p in ("on-demand", "spot"))
        if q
    }
    assert asked <= {(service, code) for service, code, *_ in QUOTAS}
    assert problems(cloud) == []


def test_ceiling_above_quota_is_reported_with_the_request(cloud: Cloud) -> None:
    allow(cloud, "L-DB2E81BA", 96)
    assert problems(cloud) == []  # two of 48
    line = only(
        problems(cloud, pools=(pool(max_nodes=3),)),
        "trainyard:pools[0].maxNodes",
        "3 g5.12xlarge need 144 vCPUs of the quota 'Running On-Demand G and VT instances' (L-DB2E81BA)",
        "96 of 96 are left",
    )
    assert line.endswith("--service-code ec2 --quota-code L-DB2E81BA --desired-value 144")


def test_pools_of_one_family_share_a_quota_and_both_are_named(cloud: Cloud) -> None:
    allow(cloud, "L-DB2E81BA", 96)
    pools = (pool(max_nodes=1), pool(key="trainyard:pools[1]", name="b", max_nodes=2))
    only(
        problems(cloud, pools=pools),
        "trainyard:pools[0].maxNodes and trainyard:pools[1].maxNodes",
        "need 144",
    )


def test_machines_of_others_count_and_the_stacks_own_do_not(cloud: Cloud) -> None:
    allow(cloud, "L-DB2E81BA", 96)
    ec2 = cloud.client("ec2")
    started = ec2.run_instances(ImageId="ami-1", InstanceType="g5.12xlarge", MinCount=1, MaxCount=1)
    only(problems(cloud), "trainyard:pools[0].maxNodes", "48 of 96 are left", "--desired-value 144")
    ec2.create_tags(Resources=[started["Instances"][0]["InstanceId"]], Tags=tagged(TAGS))
    assert problems(cloud) == []


def test_what_is_reserved_and_not_used_by_others_counts_already(cloud: Cloud) -> None:
    allow(cloud, "L-DB2E81BA", 96)
    made = cloud.client("ec2").create_capacity_reservation(
        InstanceType="g5.12xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=pool().zone,
        InstanceCount=2,
        InstanceMatchCriteria="targeted",
    )["CapacityReservation"]["CapacityReservationId"]
    only(problems(cloud), "trainyard:pools[0].maxNodes", "0 of 96 are left")
    reserved = pool(purchase="reserved", reservation_ids=(made,))
    assert problems(cloud, pools=(reserved,)) == []


def test_addresses_vpcs_and_gateways_are_counted_without_the_stacks_own(cloud: Cloud) -> None:
    ec2 = cloud.client("ec2")
    allow(cloud, VPCS.code, 1, "vpc")
    allow(cloud, ELASTIC_IPS.code, 1)
    for vpc in ec2.describe_vpcs()["Vpcs"]:
        ec2.create_tags(Resources=[vpc["VpcId"]], Tags=tagged(TAGS))
    assert problems(cloud) == []
    ec2.create_vpc(CidrBlock="10.9.0.0/16")
    ec2.allocate_address(Domain="vpc")
    lines = problems(cloud)
    assert [line.partition(": ")[0] for line in lines] == [
        "trainyard:network",
        "trainyard:network.natPerZone",
    ]
    assert "0 of 1 are left" in lines[1]


def test_the_disks_of_all_machines_count_in_tib_besides_those_of_others(cloud: Cloud) -> None:
    allow(cloud, DISKS.code, 1, "ebs")
    half = pool(disks_gib=512)
    assert problems(cloud, pools=(half,)) == []
    line = only(problems(cloud, pools=(pool(max_nodes=3, disks_gib=512),)), "trainyard:pools[0].maxNodes")
    assert "need 1536 GiB" in line
    assert line.endswith("--service-code ebs --quota-code L-7A658B76 --desired-value 2")
    ec2 = cloud.client("ec2")
    made = ec2.create_volume(AvailabilityZone=pool().zone, Size=100, VolumeType="gp3")["VolumeId"]
    ec2.create_volume(AvailabilityZone=pool().zone, Size=100, VolumeType="io2", Iops=100)
    only(problems(cloud, pools=(half,)), "trainyard:pools[0].maxNodes", "924 of 1024 are left")
    ec2.create_tags(Resources=[made], Tags=tagged(TAGS))
    assert problems(cloud, pools=(half,)) == []


def test_the_disks_of_the_system_nodes_and_those_as_large_as_their_snapshot_count_too(cloud: Cloud) -> None:
    allow(cloud, DISKS.code, 1, "ebs")
    system = WantedSystem(instance_type="m6i.large", count=3, vcpus=2, disk_gib=50)
    key = "trainyard:cluster.systemNodes and trainyard:pools[0].maxNodes"
    assert problems(cloud, system=system, pools=(pool(disks_gib=437),)) == []
    only(
        problems(cloud, system=system, pools=(pool(disks_gib=438),)),
        key,
        "the disks of 3 m6i.large, the disks of 2 g5.12xlarge need 1026 GiB",
    )
    ec2 = cloud.client("ec2")
    disk = ec2.create_volume(AvailabilityZone=ZONE, Size=300, VolumeType="gp2", Encrypted=True)["VolumeId"]
    snapshot = ec2.create_snapshot(VolumeId=disk)["SnapshotId"]
    images = pool(disks_gib=137, snapshot_id=snapshot)
    assert problems(cloud, system=system, pools=(images,)) == []
    only(problems(cloud, system=system, pools=(replace(images, disks_gib=138),)), key, "need 1026 GiB")
    # What the stack file says is counted already.
    assert problems(cloud, system=system, pools=(replace(images, disks_gib=400, data_volume_gib=300),)) == []


def test_a_new_file_system_needs_room_in_the_quota_of_its_kind(cloud: Cloud) -> None:
    key = "trainyard:storage.lustre.capacityGiB"
    only(
        problems(cloud, new_lustre=("PERSISTENT_2", 19_200_000)),
        key,
        "L-8F1B9C74",
        "100800 of 100800 are left",
    )
    given = Given(cloud)
    allow(cloud, "L-AD2FC696", 2400, "fsx")
    made = cloud.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[given.private[ZONE]],
        SecurityGroupIds=[given.make_group("lustre")],
        LustreConfiguration={"DeploymentType": "SCRATCH_1"},
    )["FileSystem"]
    assert problems(cloud, new_lustre=("SCRATCH_2", 1200)) == []
    only(problems(cloud, new_lustre=("SCRATCH_2", 2400)), key, "1200 of 2400 are left", "must be 3600")
    assert problems(cloud, new_lustre=("PERSISTENT_2", 2400)) == []
    cloud.client("fsx").tag_resource(ResourceARN=made["ResourceARN"], Tags=tagged(TAGS))
    assert problems(cloud, new_lustre=("SCRATCH_2", 2400)) == []


def test_a_stack_in_a_given_vpc_needs_neither_vpc_nor_address(cloud: Cloud) -> None:
    given = Given(cloud)
    allow(cloud, VPCS.code, 1, "vpc")
    allow(cloud, ELASTIC_IPS.code, 1)
    assert given.problems(of=OF_QUOTAS) == []
