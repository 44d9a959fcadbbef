"""Service quotas: the quota of an instance type, what counts as used, and the request for an increase."""

from __future__ import annotations

import pytest

from components.documents import instance_types
from infra.settings import Settings
from tests.unit.emulator import Cloud
from tests.unit.preflight.accounts import (
    OTHER,
    TAGS,
    ZONE,
    ExistingVpc,
    account,
    checks,
    findings,
    only,
    stack,
    tagged,
)
from trainyard.preflight.quotas import ELASTIC_IPS, INTERFACES, VOLUMES, VPCS, Quota, quota_of

MAX = "trainyard:pools[0].maxNodes"
G: Quota = quota_of("g5.12xlarge", "on-demand")  # type: ignore[assignment]
SYSTEM = "trainyard:cluster.systemNodes"


def check(cloud: Cloud, settings: Settings) -> list[str]:
    return findings(account(cloud), settings, "service quotas")


def allow(cloud: Cloud, quota: Quota, value: float) -> None:
    cloud.client("service-quotas").request_service_quota_increase(
        ServiceCode=quota.service, QuotaCode=quota.code, DesiredValue=value
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
        ("p5en.48xlarge", "spot", "L-C4BD4855"),
        ("p6-b300.48xlarge", "on-demand", "L-417A185B"),
        ("gr6.8xlarge", "spot", "L-3819A6DF"),
        ("trn1.32xlarge", "on-demand", "L-2C3B7624"),
        ("trn2.48xlarge", "spot", "L-6B0D517C"),
        ("inf2.xlarge", "on-demand", None),
        ("dl1.24xlarge", "on-demand", None),
        ("hpc7a.48xlarge", "on-demand", None),
        ("x2idn.metal", "on-demand", None),
    ],
)
def test_type_counts_towards_the_quota_of_its_family(name: str, purchase: str, code: str | None) -> None:
    quota = quota_of(name, purchase)
    assert (quota.code if quota else None) == code


def test_emulator_has_the_quota_of_every_type(cloud: Cloud) -> None:
    from local.aws.quotas import QUOTAS  # it imports moto

    assert all(quota_of(name, "on-demand") for name in instance_types.TYPES)
    asked = {
        (quota.service, quota.code)
        for name in instance_types.TYPES
        for purchase in ("on-demand", "spot")
        if (quota := quota_of(name, purchase))
    }
    assert asked <= {(service, code) for service, code, *_ in QUOTAS}
    assert check(cloud, stack()) == []


def test_quota_that_is_too_small_has_the_request_for_an_increase(cloud: Cloud) -> None:
    allow(cloud, G, 96)
    assert check(cloud, stack({"maxNodes": 2})) == []
    line = only(
        check(cloud, stack({"maxNodes": 3})),
        MAX,
        "3 g5.12xlarge need 144 vCPUs of the quota 'Running On-Demand G and VT instances' (L-DB2E81BA)",
        "96 of 96 are free",
    )
    assert line.endswith("--service-code ec2 --quota-code L-DB2E81BA --desired-value 144")
    both = stack({"maxNodes": 1}, {"maxNodes": 2})
    only(check(cloud, both), f"{MAX} and trainyard:pools[1].maxNodes", "need 144")


def test_instances_and_reservations_of_others_count(cloud: Cloud) -> None:
    allow(cloud, G, 96)
    ec2 = cloud.client("ec2")
    started = ec2.run_instances(ImageId="ami-1", InstanceType="g5.12xlarge", MinCount=1, MaxCount=1)
    only(check(cloud, stack()), MAX, "48 of 96 are free", "--desired-value 144")
    ec2.create_tags(Resources=[started["Instances"][0]["InstanceId"]], Tags=tagged(TAGS))
    assert check(cloud, stack()) == []
    made = ec2.create_capacity_reservation(
        InstanceType="g5.12xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=ZONE,
        InstanceCount=2,
        InstanceMatchCriteria="targeted",
    )["CapacityReservation"]["CapacityReservationId"]
    only(check(cloud, stack()), MAX, "0 of 96 are free")
    assert check(cloud, stack({"purchase": "reserved", "capacityReservationIds": [made]})) == []


def test_vpcs_and_addresses_of_others_count_for_a_new_vpc(cloud: Cloud) -> None:
    ec2 = cloud.client("ec2")
    allow(cloud, VPCS, 1)
    allow(cloud, ELASTIC_IPS, 1)
    for vpc in ec2.describe_vpcs()["Vpcs"]:
        ec2.create_tags(Resources=[vpc["VpcId"]], Tags=tagged(TAGS))
    assert check(cloud, stack()) == []
    only(check(cloud, stack(network={"natPerZone": True})), "trainyard:network.natPerZone", "2 NAT gateways")
    existing = ExistingVpc(cloud)
    lines = check(cloud, stack())
    assert [line.partition(": ")[0] for line in lines] == [
        "trainyard:network",
        "trainyard:network.natPerZone",
    ]
    assert existing.findings(of=checks("service quotas")) == []


def test_volumes_count_in_tib_in_addition_to_those_of_others(cloud: Cloud) -> None:
    allow(cloud, VOLUMES, 1)
    # Two system nodes have 100 GiB.
    fits, larger = stack({"rootVolumeGiB": 462}), stack({"rootVolumeGiB": 463})
    assert check(cloud, fits) == []
    line = only(
        check(cloud, larger),
        f"{SYSTEM} and {MAX}",
        "the volumes of 2 m6i.large, the volumes of 2 g5.12xlarge need 1026 GiB",
    )
    assert line.endswith("--service-code ebs --quota-code L-7A658B76 --desired-value 2")
    ec2 = cloud.client("ec2")
    made = ec2.create_volume(AvailabilityZone=ZONE, Size=100, VolumeType="gp3")["VolumeId"]
    ec2.create_volume(AvailabilityZone=ZONE, Size=100, VolumeType="io2", Iops=100)
    only(check(cloud, fits), f"{SYSTEM} and {MAX}", "924 of 1024 are free")
    ec2.create_tags(Resources=[made], Tags=tagged(TAGS))
    assert check(cloud, fits) == []


def test_volume_without_a_size_has_the_size_of_its_snapshot(cloud: Cloud) -> None:
    allow(cloud, VOLUMES, 1)
    ec2 = cloud.client("ec2")
    made = ec2.create_volume(AvailabilityZone=ZONE, Size=300, VolumeType="gp2", Encrypted=True)["VolumeId"]
    pool = {"dataSnapshotId": ec2.create_snapshot(VolumeId=made)["SnapshotId"]}
    assert check(cloud, stack({**pool, "rootVolumeGiB": 162})) == []
    only(check(cloud, stack({**pool, "rootVolumeGiB": 163})), f"{SYSTEM} and {MAX}", "need 1026 GiB")
    assert check(cloud, stack({**pool, "rootVolumeGiB": 100, "dataVolumeGiB": 362})) == []


def lustre(deployment: str, gib: int) -> Settings:
    return stack(storage={"lustre": {"deploymentType": deployment, "capacityGiB": gib, "zone": ZONE}})


def test_new_file_system_counts_towards_the_quota_of_its_type(cloud: Cloud) -> None:
    key = "trainyard:storage.lustre.capacityGiB"
    too_large = check(cloud, lustre("PERSISTENT_2", 103_200))
    only(too_large, key, "L-8F1B9C74", "100800 of 100800 are free")
    existing = ExistingVpc(cloud)
    allow(cloud, Quota("fsx", "L-AD2FC696", ""), 2400)
    made = cloud.client("fsx").create_file_system(
        FileSystemType="LUSTRE",
        StorageCapacity=1200,
        SubnetIds=[existing.private[ZONE]],
        SecurityGroupIds=[existing.make_group("lustre")],
        LustreConfiguration={"DeploymentType": "SCRATCH_2"},
    )["FileSystem"]
    assert check(cloud, lustre("SCRATCH_2", 1200)) == []
    only(check(cloud, lustre("SCRATCH_2", 2400)), key, "1200 of 2400 are free", "must be 3600")
    assert check(cloud, lustre("PERSISTENT_2", 2400)) == []
    cloud.client("fsx").tag_resource(ResourceARN=made["ResourceARN"], Tags=tagged(TAGS))
    assert check(cloud, lustre("SCRATCH_2", 2400)) == []


P5 = {"instanceType": "p5.48xlarge", "efa": "ip"}


def interfaces(cloud: Cloud, settings: Settings) -> list[str]:
    return findings(account(cloud), settings, "network interface quota")


def test_each_zone_needs_interfaces_for_its_nodes(cloud: Cloud) -> None:
    # A zone has one of two system nodes, and two more during a replacement: nine interfaces. A p5 has 33.
    assert interfaces(cloud, stack({**P5, "maxNodes": 151})) == []
    line = only(
        interfaces(cloud, stack({**P5, "maxNodes": 152})),
        f"{SYSTEM} and {MAX}",
        "3 m6i.large, 152 p5.48xlarge with 33 each need 5025 network interfaces",
        f"5000 of 5000 are free in {ZONE}",
    )
    assert line.endswith("--service-code vpc --quota-code L-DF5E4CA3 --desired-value 5025")
    allow(cloud, INTERFACES, 42)
    here = {**P5, "maxNodes": 1}
    assert interfaces(cloud, stack(here, {**here, "zone": OTHER})) == []
    two = stack(here, {**here, "zone": OTHER, "maxNodes": 2})
    only(interfaces(cloud, two), f"{SYSTEM} and trainyard:pools[1].maxNodes", "need 75", f"in {OTHER}")


def test_interfaces_of_others_count(cloud: Cloud) -> None:
    existing = ExistingVpc(cloud)  # its NAT gateway has one
    allow(cloud, INTERFACES, 43)
    settings = stack({**P5, "maxNodes": 1})
    assert interfaces(cloud, settings) == []
    ec2, key = cloud.client("ec2"), f"{SYSTEM} and {MAX}"
    node = ec2.run_instances(
        ImageId="ami-1", InstanceType="m6i.large", MinCount=1, MaxCount=1, SubnetId=existing.private[ZONE]
    )["Instances"][0]["InstanceId"]
    only(interfaces(cloud, settings), key, f"41 of 43 are free in {ZONE}")
    # The VPC CNI's interfaces do not have the stack's tags, but their instance has.
    existing.tag(node, **TAGS)
    assert interfaces(cloud, settings) == []
    made = ec2.create_network_interface(SubnetId=existing.private[ZONE])["NetworkInterface"]
    only(interfaces(cloud, settings), key, "41 of 43 are free")
    existing.tag(made["NetworkInterfaceId"], **TAGS)
    assert interfaces(cloud, settings) == []


def test_interfaces_of_a_pool_depend_on_efa_and_on_the_network_plugin() -> None:
    names = [({"instanceType": "p4d.24xlarge", "efa": "ip"}, 5, 6), ({**P5, "efa": "bandwidth"}, 40, 40)]
    for changes, own, others in names:
        (pool,) = stack(changes).pools
        assert (pool.network_interfaces(own_cni=True), pool.network_interfaces(own_cni=False)) == (
            own,
            others,
        )
