"""Which Lustre file systems there are: the settings say so key by key, and the emulated FSx takes exactly these."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.documents import lustre
from infra.settings import SettingsError, read
from tests.unit.infra.changing import NOW, with_

pytestmark = pytest.mark.unit

# Written down a second time, from the API reference: (deployment, storage) -> throughput -> (least, step) in GiB.
OFFERED: dict[tuple[str, str], dict[int, tuple[int, int]]] = {
    ("SCRATCH_2", "SSD"): {200: (1200, 2400)},
    ("PERSISTENT_1", "SSD"): {50: (1200, 2400), 100: (1200, 2400), 200: (1200, 2400)},
    ("PERSISTENT_1", "HDD"): {12: (6000, 6000), 40: (1800, 1800)},
    ("PERSISTENT_2", "SSD"): {125: (1200, 2400), 250: (1200, 2400), 500: (1200, 2400), 1000: (1200, 2400)},
}
EFA = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
KEYS = ("storageType", "driveCache", "throughput", "capacityGiB", "metadataIops", "efa")

WANTED = st.fixed_dictionaries(
    {
        "deploymentType": st.sampled_from(["SCRATCH_2", "PERSISTENT_1", "PERSISTENT_2"]),
        "storageType": st.sampled_from(["SSD", "HDD"]),
        "driveCache": st.sampled_from(["NONE", "READ"]),
        "throughput": st.sampled_from([12, 40, 50, 100, 125, 200, 250, 300, 500, 1000, 2000]),
        "capacityGiB": st.sampled_from(
            [1, 1200, 1800, 2400, 3600, 4800, 6000, 9600, 12000, 14400, 19200, 38400, 40800, 76800]
        )
        | st.integers(1, 200000),
        "metadataIops": st.sampled_from([0, 1, 1500, 3000, 6000, 12000, 18000, 24000, 192000, 204000]),
        "efa": st.booleans(),
    }
)


def told(wanted: dict[str, Any]) -> list[str]:
    """The keys of the file system that are told to be wrong, each of which has its value in the message."""
    config = with_({"storage": {"lustre": wanted}})
    lines: list[str] = []
    try:
        read("test", config, NOW)
    except SettingsError as error:
        lines = error.lines
    prefix = "trainyard:storage.lustre."
    assert all(line.startswith(prefix) for line in lines), lines
    pairs = [line.removeprefix(prefix).split(": ", 2)[:2] for line in lines]
    for key, value in pairs:
        assert value == str(wanted[key]).replace("True", "true"), (key, value)
    return [key for key, _ in pairs]


def wrong(wanted: dict[str, Any]) -> bool:
    """Whether FSx would refuse it, by the tables above."""
    by_throughput = OFFERED.get((wanted["deploymentType"], wanted["storageType"]), {})
    if wanted["throughput"] not in by_throughput:
        return True
    least, step = by_throughput[wanted["throughput"]]
    iops, newest = wanted["metadataIops"], wanted["deploymentType"] == "PERSISTENT_2"
    known = (0, 1500, 3000, 6000, *range(12000, 192001, 12000))
    return not (
        (wanted["capacityGiB"] == least or wanted["capacityGiB"] % step == 0)
        and (wanted["driveCache"] == "NONE" or wanted["storageType"] == "HDD")
        and iops in known
        and (newest or iops == 0)
        and (not wanted["efa"] or (newest and wanted["capacityGiB"] % EFA[wanted["throughput"]] == 0))
    )


@settings(max_examples=150)
@given(WANTED)
def test_a_file_system_is_right_exactly_where_fsx_has_it_and_else_told_by_its_key(
    wanted: dict[str, Any],
) -> None:
    keys = told(wanted)
    assert bool(keys) == wrong(wanted), (wanted, keys)
    assert set(keys) <= set(KEYS)
    assert len(keys) == len(set(keys)), "one line a key"


@settings(max_examples=120)
@given(WANTED)
@pytest.mark.long
def test_the_emulated_fsx_takes_the_same_ones(wanted: dict[str, Any]) -> None:
    """What the component sends for the settings (`components.lustre`)."""
    from local.aws.fsx import limits  # it imports moto
    from local.aws.fsx.store import FsxError

    deployment, storage = wanted["deploymentType"], wanted["storageType"]
    sent: dict[str, Any] = {"DeploymentType": deployment}
    if deployment != "SCRATCH_2":
        sent["PerUnitStorageThroughput"] = wanted["throughput"]
    elif wanted["throughput"] != 200:
        return
    if storage == "HDD" or wanted["driveCache"] != "NONE":
        sent["DriveCacheType"] = wanted["driveCache"]
    if wanted["metadataIops"]:
        sent["MetadataConfiguration"] = {"Mode": "USER_PROVISIONED", "Iops": wanted["metadataIops"]}
    if wanted["efa"]:
        sent["EfaEnabled"] = True
        sent.setdefault("MetadataConfiguration", {"Mode": "AUTOMATIC"})
    request = {
        "FileSystemType": "LUSTRE",
        "StorageType": storage,
        "StorageCapacity": wanted["capacityGiB"],
        "SubnetIds": ["subnet-1"],
        "LustreConfiguration": sent,
    }
    try:
        limits.created(request)
        taken = True
    except FsxError:
        taken = False
    assert taken == (not wrong(wanted)), request


@pytest.mark.parametrize(("kind", "by_throughput"), OFFERED.items())
def test_every_kind_that_there_is_is_taken(
    kind: tuple[str, str], by_throughput: dict[int, tuple[int, int]]
) -> None:
    deployment, storage = kind
    assert lustre.THROUGHPUT[kind] == tuple(by_throughput)
    for throughput, (least, step) in by_throughput.items():
        for capacity in (least, step, 5 * step):
            wanted = {
                "deploymentType": deployment,
                "storageType": storage,
                "throughput": throughput,
                "capacityGiB": capacity,
            }
            assert told(wanted) == [], wanted
        below = {
            "deploymentType": deployment,
            "storageType": storage,
            "throughput": throughput,
            "capacityGiB": least - 600,
        }
        assert told(below) == ["capacityGiB"]
