"""File system and service accounts of a stack file."""

from __future__ import annotations

from typing import Any

import pytest

from infra.settings import LustreLink, ServiceAccount
from tests.unit.infra.changing import EXISTING_LUSTRE, GIVEN_VPC, POOL, mistakes, settings, with_


def with_lustre(**values: Any) -> dict[str, Any]:
    return with_({"storage": {"lustre": values}})


def with_given(**values: Any) -> dict[str, Any]:
    return with_({"network": GIVEN_VPC, "storage": {"lustre": {"existing": EXISTING_LUSTRE, **values}}})


def test_file_system_defaults_to_smallest_persistent_ssd() -> None:
    found = settings(with_lustre()).storage.lustre
    assert found is not None
    assert (found.deployment_type, found.capacity_gib, found.throughput) == ("PERSISTENT_2", 1200, 125)
    assert (found.zone, found.mount_path, found.compression, found.efa) == (
        "us-west-2b",
        "/fsx",
        "LZ4",
        False,
    )
    assert found.s3 is None
    assert settings(with_({})).storage.lustre is None, "without the key there is none"


def test_hdd_file_system_defaults_to_smallest_and_slowest() -> None:
    found = settings(with_lustre(deploymentType="PERSISTENT_1", storageType="HDD")).storage.lustre
    assert found is not None
    assert (found.throughput, found.capacity_gib, found.drive_cache) == (12, 6000, "NONE")
    faster = settings(with_lustre(deploymentType="PERSISTENT_1", storageType="HDD", throughput=40))
    assert faster.storage.lustre is not None
    assert faster.storage.lustre.capacity_gib == 1800


def test_linked_bucket_is_the_stacks_own_or_existing() -> None:
    own = settings(with_lustre(s3={"bucket": "models", "prefix": "data", "path": "/data"})).storage.lustre
    assert own is not None
    assert own.s3 == LustreLink(bucket=None, prefix="data", path="/data")
    other = settings(with_lustre(s3={"bucket": "datasets"})).storage.lustre
    assert other is not None
    assert other.s3 == LustreLink(bucket="datasets", prefix="", path="/")


def test_existing_file_system_is_read() -> None:
    found = settings(with_given(mountPath="/data")).storage.lustre
    assert found is not None
    assert found.existing is not None
    assert found.existing.mount_name == "abcdefgh"
    assert found.mount_path == "/data"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"capacityGiB": 1000},
            "lustre.capacityGiB: 1000: no file system has it; it must be 1200 or a multiple of",
        ),
        ({"capacityGiB": 3600}, "such as 2400 or 4800"),
        ({"capacityGiB": 0}, "lustre.capacityGiB: 0 is out of range"),
        (
            {"throughput": 200},
            "lustre.throughput: 200: PERSISTENT_2 does not offer it; it must be one of 125, 250",
        ),
        ({"deploymentType": "PERSISTENT_1", "throughput": 125}, "PERSISTENT_1 does not offer it"),
        ({"deploymentType": "SCRATCH_2", "throughput": 100}, "SCRATCH_2 does not offer it"),
        ({"deploymentType": "SCRATCH_1"}, "lustre.deploymentType: 'SCRATCH_1' is not known"),
        ({"deploymentType": "SCRATCH_2", "backupDays": 7}, "lustre.backupDays: 7: SCRATCH_2 has no backups"),
        (
            {"backupDays": 7, "s3": {"bucket": "models"}},
            "lustre.backupDays: 7: a file system with a bucket behind",
        ),
        (
            {"deploymentType": "PERSISTENT_1", "s3": {"path": "/data"}},
            "lustre.s3.path: '/data': PERSISTENT_1 shows",
        ),
        (
            {"efa": True},
            "lustre.efa: true: EFA at 125 MB/s per TiB needs a capacityGiB that is a multiple of 38400",
        ),
        (
            {"efa": True, "capacityGiB": 12000, "throughput": 500},
            "lustre.efa: true: EFA at 500 MB/s per TiB needs a capacityGiB that is a multiple of 9600, such as 9600 or"
            " 19200, and it is 12000",
        ),
        ({"deploymentType": "PERSISTENT_1", "efa": True}, "lustre.efa: true: PERSISTENT_1 has no EFA"),
        (
            {"deploymentType": "PERSISTENT_1", "storageType": "HDD", "efa": True},
            "lustre.efa: true: PERSISTENT_1 on HDD has no EFA",
        ),
        ({"storageType": "HDD"}, "lustre.storageType: HDD: PERSISTENT_2 is available only on SSD"),
        ({"storageType": "NVME"}, "lustre.storageType: 'NVME' is not known"),
        (
            {"deploymentType": "PERSISTENT_1", "storageType": "HDD", "throughput": 50},
            "lustre.throughput: 50: PERSISTENT_1 on HDD does not offer it; it must be one of 12, 40",
        ),
        (
            {"deploymentType": "PERSISTENT_1", "storageType": "HDD", "throughput": 40, "capacityGiB": 2400},
            "lustre.capacityGiB: 2400: HDD with 40 MB/s per TiB does not offer it; it must be a multiple of 1800 GiB,"
            " such as 1800 or 3600",
        ),
        (
            {"driveCache": "READ"},
            "lustre.driveCache: READ: SSD has no drive cache; it must be NONE, or storageType HDD",
        ),
        ({"metadataIops": 2000}, "lustre.metadataIops: 2000: FSx does not offer it; it must be 1500, 3000"),
        ({"metadataIops": 204000}, "or a multiple of 12000 up to 192000"),
        (
            {"deploymentType": "SCRATCH_2", "metadataIops": 1500},
            "lustre.metadataIops: 1500: SCRATCH_2 has no such setting; it must be 0, or deploymentType PERSISTENT_2",
        ),
        ({"zone": "us-west-2d"}, "lustre.zone: 'us-west-2d' has no subnets here"),
        ({"zone": "us-west-2a"}, "lustre.zone: is 'us-west-2a', but pools are in us-west-2b"),
        ({"mountPath": "fsx"}, "lustre.mountPath: 'fsx' is invalid"),
        ({"compression": "ZSTD"}, "lustre.compression: 'ZSTD' is not known"),
        ({"s3": {"bucket": "No_Bucket"}}, "lustre.s3.bucket: 'No_Bucket' is invalid"),
        (
            {"mountPath": "/dev/shm"},
            "lustre.mountPath: '/dev/shm' lies in a directory that pods need for themselves; it must",
        ),
        ({"mountPath": "/proc"}, "lustre.mountPath: '/proc' lies in a directory that pods need"),
        ({"mountPath": "/tmp/x"}, "lustre.mountPath: '/tmp/x' lies in a directory"),
        ({"mountPath": "/usr/lib"}, "lustre.mountPath: '/usr/lib' lies in a directory"),
        ({"mountPath": "/app"}, "lustre.mountPath: '/app' lies in a directory"),
        ({"mountPath": "/opt"}, "lustre.mountPath: '/opt' lies in a directory"),
        ({"mountPath": "/opt/amazon"}, "lustre.mountPath: '/opt/amazon' lies in a directory"),
        ({"mountPath": "/opt/trainyard/data"}, "lustre.mountPath: '/opt/trainyard/data' lies in a directory"),
        ({"mountPath": "/.."}, "lustre.mountPath: '/..' is invalid"),
        ({"mountPath": "/fsx/../../etc"}, "lustre.mountPath: '/fsx/../../etc' is invalid"),
        ({"mountPath": "/./fsx"}, "lustre.mountPath: '/./fsx' is invalid"),
        ({"s3": {"path": "/.."}}, "lustre.s3.path: '/..' is invalid"),
        ({"s3": {"path": "/a/../b"}}, "lustre.s3.path: '/a/../b' is invalid"),
        ({"s3": {"bucket": "a..b"}}, "lustre.s3.bucket: 'a..b' is invalid"),
        ({"s3": {"bucket": "a.-b"}}, "lustre.s3.bucket: 'a.-b' is invalid"),
        ({"s3": {"bucket": "a-.b"}}, "lustre.s3.bucket: 'a-.b' is invalid"),
        ({"s3": {"bucket": "192.168.5.4"}}, "lustre.s3.bucket: '192.168.5.4' is invalid"),
        ({"s3": {"bucket": "xn--abc"}}, "lustre.s3.bucket: 'xn--abc' is invalid"),
        ({"s3": {"bucket": "abc-s3alias"}}, "lustre.s3.bucket: 'abc-s3alias' is invalid"),
        ({"s3": {"bucket": "abc--x-s3"}}, "lustre.s3.bucket: 'abc--x-s3' is invalid"),
    ],
)
def test_invalid_file_system_is_reported_once(values: dict[str, Any], message: str) -> None:
    lines = mistakes(with_lustre(**values))
    assert any(message in line for line in lines), lines
    assert len(lines) == 1, "one mistake, one line"


@pytest.mark.parametrize("path", ["/fsx", "/data.v1/..x", "/opt/data", "/home/fsx", "/devices"])
def test_mount_path_is_accepted(path: str) -> None:
    found = settings(with_lustre(mountPath=path, s3={"path": path})).storage.lustre
    assert found is not None
    assert found.s3 is not None
    assert (found.mount_path, found.s3.path) == (path, path)


@pytest.mark.parametrize(
    "bucket", ["datasets", "my.data.example", "a-b", "1.2.3.4.5", "1.2.3", "data-s3alias-1"]
)
def test_valid_s3_bucket_name_is_accepted(bucket: str) -> None:
    found = settings(with_lustre(s3={"bucket": bucket})).storage.lustre
    assert found is not None
    assert found.s3 is not None
    assert found.s3.bucket == bucket


@pytest.mark.parametrize(
    ("existing", "message"),
    [
        ({"fileSystemId": None}, "lustre.existing.fileSystemId: is missing"),
        (
            {"dnsName": "fs-0aaaaaaaaaaaaaaaa.fsx.us-west-2.amazonaws.com"},
            "lustre.existing.dnsName: 'fs-0aaaaaaaaaaaaaaaa.fsx.us-west-2.amazonaws.com' is not of this file system in"
            " us-west-2; it must begin with fs-0123456789abcdef0.fsx.us-west-2.",
        ),
        (
            {"dnsName": "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com"},
            "it must begin with fs-0123456789abcdef0.fsx",
        ),
        (
            {"dnsName": "files.example.com"},
            "lustre.existing.dnsName: 'files.example.com' is not of this file system",
        ),
    ],
)
def test_invalid_existing_file_system_is_reported_once(existing: dict[str, Any], message: str) -> None:
    (line,) = mistakes(with_given(existing={**EXISTING_LUSTRE, **existing}))
    assert message in line


def test_existing_file_system_refuses_settings_of_a_new_one() -> None:
    (line,) = mistakes(with_given(capacityGiB=1200))
    assert "lustre.capacityGiB: is for a file system that the stack makes" in line


def test_existing_file_system_needs_an_existing_vpc() -> None:
    (line,) = mistakes(with_lustre(existing=EXISTING_LUSTRE))
    assert line == (
        "trainyard:storage.lustre.existing: is given, and the stack makes a VPC of its own, from which it can't be"
        " reached; network.vpcId must be the VPC that it is in"
    )


def test_pools_in_two_zones_cannot_share_existing_file_system() -> None:
    config = with_given()
    config["trainyard:pools"] = [POOL, {**POOL, "name": "other", "zone": "us-west-2a"}]
    (line,) = mistakes(config)
    assert line == (
        "trainyard:storage.lustre.existing: is in one zone, but pools are in us-west-2a, us-west-2b; pools and file"
        " system must be in one zone"
    )


def test_pools_in_two_zones_cannot_share_a_file_system() -> None:
    config = with_lustre()
    config["trainyard:pools"] = [POOL, {**POOL, "name": "other", "zone": "us-west-2a"}]
    assert mistakes(config) == [
        "trainyard:storage.lustre: is in one zone, but pools are in us-west-2a, us-west-2b; pools and file system must"
        " be in one zone"
    ]


def test_service_account_has_read_access_by_default() -> None:
    config = with_(
        {
            "serviceAccounts": [
                {"name": "pytorch-training-sa", "access": "write"},
                {"name": "reader", "namespace": "training", "bucket": "datasets"},
            ]
        }
    )
    assert settings(config).service_accounts == (
        ServiceAccount(name="pytorch-training-sa", namespace="default", bucket=None, access="write"),
        ServiceAccount(name="reader", namespace="training", bucket="datasets", access="read"),
    )


@pytest.mark.parametrize(
    ("accounts", "message"),
    [
        ("pytorch", "serviceAccounts: 'pytorch' is a text; it must be a list of mappings"),
        ([{}], "serviceAccounts[0].name: is missing"),
        ([{"name": "a", "access": "all"}], "serviceAccounts[0].access: 'all' is not known"),
        ([{"name": "a", "namespace": "mine"}], "serviceAccounts[0].namespace: 'mine' is not known"),
        (
            [{"name": "trainer", "namespace": "training"}],
            "serviceAccounts[0].name: 'trainer' is the stack's own",
        ),
        ([{"name": "a"}, {"name": "a"}], "serviceAccounts[1].name: 'a' is also in default"),
        (
            [{"name": "a", "namespace": "training"}, {"name": "a"}],
            "serviceAccounts[1].name: 'a' is also in training; each needs its own name, in whatever",
        ),
        ([{"name": "default"}], "serviceAccounts[0].name: 'default' is in every namespace already"),
        (
            [{"name": "default", "namespace": "training"}],
            "serviceAccounts[0].name: 'default' is in every namespace already",
        ),
        ([{"name": "a", "bucket": "a..b"}], "serviceAccounts[0].bucket: 'a..b' is invalid"),
    ],
)
def test_invalid_service_account_is_reported(accounts: Any, message: str) -> None:
    (line,) = mistakes(with_({"serviceAccounts": accounts}))
    assert message in line
