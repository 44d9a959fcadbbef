"""The quota of network interfaces: each zone by itself, machines with EFA at their ceiling, and what others have."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.emulator import Cloud
from tests.unit.preflight.accounts import (
    NOW,
    OTHER,
    TAGS,
    ZONE,
    Given,
    account,
    checks,
    only,
    pool,
    tagged,
    wanted,
)
from trainyard.preflight.quotas import INTERFACES
from trainyard.preflight.run import examine
from trainyard.preflight.wanted import WantedSystem

pytestmark = pytest.mark.unit

P5 = {"instance_type": "p5.48xlarge", "vcpus": 192, "interfaces": 33}
SYSTEM = WantedSystem(instance_type="m6i.large", count=2, vcpus=2, spare=1, interfaces=2)


def problems(cloud: Cloud, **changes: Any) -> list[str]:
    report = examine(account(cloud), wanted(**changes), NOW, checks("network interfaces"))
    assert (report.not_checked, report.failed) == ([], [])
    return [str(problem) for problem in report.problems]


def allow(cloud: Cloud, value: int) -> None:
    cloud.client("service-quotas").request_service_quota_increase(
        ServiceCode=INTERFACES.service, QuotaCode=INTERFACES.code, DesiredValue=value
    )


def test_aws_gives_five_thousand_and_a_ceiling_of_machines_with_efa_may_be_above(cloud: Cloud) -> None:
    assert problems(cloud, system=None, pools=(pool(max_nodes=151, **P5),)) == []
    line = only(
        problems(cloud, system=None, pools=(pool(max_nodes=152, **P5),)),
        "trainyard:pools[0].maxNodes",
        "152 p5.48xlarge with 33 each need 5016 network interfaces of the quota 'Network interfaces per Region'",
        f"5000 of 5000 are left in {ZONE}; it must be 5016",
    )
    assert line.endswith("--service-code vpc --quota-code L-DF5E4CA3 --desired-value 5016")


def test_each_zone_is_judged_by_itself_with_its_system_nodes(cloud: Cloud) -> None:
    # In each zone one system node, and one more while they are replaced: four interfaces.
    allow(cloud, 37)
    here = pool(max_nodes=1, **P5)
    there = pool(key="trainyard:pools[1]", name="b", zone=OTHER, max_nodes=1, **P5)
    assert problems(cloud, system=SYSTEM, pools=(here, there)) == []
    two = pool(key="trainyard:pools[1]", name="b", zone=OTHER, max_nodes=2, **P5)
    only(
        problems(cloud, system=SYSTEM, pools=(here, two)),
        "trainyard:cluster.systemNodes and trainyard:pools[1].maxNodes",
        "2 m6i.large, 2 p5.48xlarge with 33 each need 70 network interfaces",
        f"37 of 37 are left in {OTHER}",
    )
    allow(cloud, 3)
    assert len(problems(cloud, system=SYSTEM, pools=())) == 2


def test_interfaces_of_others_count_and_those_of_the_stacks_machines_do_not(cloud: Cloud) -> None:
    given = Given(cloud)  # its NAT gateway has one
    allow(cloud, 34)
    asked = {"system": None, "pools": (pool(max_nodes=1, **P5),)}
    assert problems(cloud, **asked) == []
    ec2 = cloud.client("ec2")
    machine = ec2.run_instances(
        ImageId="ami-1", InstanceType="m6i.large", MinCount=1, MaxCount=1, SubnetId=given.private[ZONE]
    )["Instances"][0]["InstanceId"]
    only(problems(cloud, **asked), "trainyard:pools[0].maxNodes", f"32 of 34 are left in {ZONE}")
    # What the network plugin makes on a machine does not have the stack's tags; the machine has.
    ec2.create_tags(Resources=[machine], Tags=tagged(TAGS))
    assert problems(cloud, **asked) == []
    loose = ec2.create_network_interface(SubnetId=given.private[ZONE])["NetworkInterface"][
        "NetworkInterfaceId"
    ]
    ec2.create_network_interface(SubnetId=given.private[OTHER])
    only(problems(cloud, **asked), "trainyard:pools[0].maxNodes", "32 of 34 are left")
    ec2.create_tags(Resources=[loose], Tags=tagged(TAGS))
    assert problems(cloud, **asked) == []
