"""Snapshots with images: asked of the emulator, one thing spoilt at a time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.emulator import Cloud
from tests.unit.preflight.accounts import NOW, ZONE, account, checks, only, pool, wanted
from trainyard.preflight.run import examine

pytestmark = pytest.mark.unit
KEY = "trainyard:pools[0].dataSnapshotId"


def problems(cloud: Cloud, **change: Any) -> list[str]:
    report = examine(account(cloud), wanted(pools=(pool(**change),)), NOW, checks("snapshots"))
    assert report.not_checked == []
    return [str(problem) for problem in report.problems]


def snapshot(cloud: Cloud, *, encrypted: bool = True) -> str:
    ec2 = cloud.client("ec2")
    volume = ec2.create_volume(AvailabilityZone=ZONE, Size=100, Encrypted=encrypted)["VolumeId"]
    return str(ec2.create_snapshot(VolumeId=volume)["SnapshotId"])


def test_a_pool_without_a_snapshot_asks_for_none(cloud: Cloud) -> None:
    assert problems(cloud) == []


def test_a_whole_encrypted_snapshot_is_right_on_a_disk_of_its_size_and_above(cloud: Cloud) -> None:
    right = snapshot(cloud)
    assert problems(cloud, snapshot_id=right) == []
    assert problems(cloud, snapshot_id=right, data_volume_gib=100) == []
    line = only(problems(cloud, snapshot_id=right, data_volume_gib=99), "trainyard:pools[0].dataVolumeGiB")
    assert line.endswith(f"99 GiB is less than '{right}' has; it must be at least 100")


def test_one_that_is_not_there_or_not_encrypted_is_told(cloud: Cloud) -> None:
    line = only(problems(cloud, snapshot_id="snap-0123456789abcdef0"), KEY)
    assert "'snap-0123456789abcdef0' does not exist in" in line
    line = only(problems(cloud, snapshot_id=snapshot(cloud, encrypted=False)), KEY)
    assert line.endswith("is not encrypted; it must be, as every disk is")
