"""Valid Lustre file systems: the settings and the emulated FSx accept exactly those that FSx offers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.documents import lustre
from tests.unit.infra.changing import error_lines, with_

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


def invalid_keys(lustre_settings: dict[str, Any]) -> list[str]:
    """Return the keys that are reported as invalid; each message contains the value."""
    lines = error_lines(with_({"storage": {"lustre": lustre_settings}}))
    prefix = "trainyard:storage.lustre."
    assert all(line.startswith(prefix) for line in lines), lines
    pairs = [line.removeprefix(prefix).split(": ", 2)[:2] for line in lines]
    for key, value in pairs:
        assert value == str(lustre_settings[key]).replace("True", "true"), (key, value)
    return [key for key, _ in pairs]


def is_refused(lustre_settings: dict[str, Any]) -> bool:
    """Return whether FSx refuses the file system, by the tables above."""
    by_throughput = OFFERED.get((lustre_settings["deploymentType"], lustre_settings["storageType"]), {})
    if lustre_settings["throughput"] not in by_throughput:
        return True
    least, step = by_throughput[lustre_settings["throughput"]]
    iops, newest = lustre_settings["metadataIops"], lustre_settings["deploymentType"] == "PERSISTENT_2"
    known = (0, 1500, 3000, 6000, *range(12000, 192001, 12000))
    return not (
        (lustre_settings["capacityGiB"] == least or lustre_settings["capacityGiB"] % step == 0)
        and (lustre_settings["driveCache"] == "NONE" or lustre_settings["storageType"] == "HDD")
        and iops in known
        and (newest or iops == 0)
        and (
            not lustre_settings["efa"]
            or (newest and lustre_settings["capacityGiB"] % EFA[lustre_settings["throughput"]] == 0)
        )
    )


@settings(max_examples=150)
@given(WANTED)
def test_file_system_that_fsx_refuses_is_reported_by_key(
    lustre_settings: dict[str, Any],
) -> None:
    keys = invalid_keys(lustre_settings)
    assert bool(keys) == is_refused(lustre_settings), (lustre_settings, keys)
    assert set(keys) <= set(KEYS)
    assert len(keys) == len(set(keys)), "one line a key"


@settings(max_examples=120)
@given(WANTED)
@pytest.mark.long
def test_emulated_fsx_accepts_the_same_file_systems(lustre_settings: dict[str, Any]) -> None:
    """The request is the one that `components.lustre` sends for the settings."""
    from local.aws.errors import ApiError  # it imports moto
    from local.aws.fsx import limits

    deployment, storage = lustre_settings["deploymentType"], lustre_settings["storageType"]
    sent: dict[str, Any] = {"DeploymentType": deployment}
    if deployment != "SCRATCH_2":
        sent["PerUnitStorageThroughput"] = lustre_settings["throughput"]
    elif lustre_settings["throughput"] != 200:
        return
    if storage == "HDD" or lustre_settings["driveCache"] != "NONE":
        sent["DriveCacheType"] = lustre_settings["driveCache"]
    if lustre_settings["metadataIops"]:
        sent["MetadataConfiguration"] = {"Mode": "USER_PROVISIONED", "Iops": lustre_settings["metadataIops"]}
    if lustre_settings["efa"]:
        sent["EfaEnabled"] = True
        sent.setdefault("MetadataConfiguration", {"Mode": "AUTOMATIC"})
    request = {
        "FileSystemType": "LUSTRE",
        "StorageType": storage,
        "StorageCapacity": lustre_settings["capacityGiB"],
        "SubnetIds": ["subnet-1"],
        "LustreConfiguration": sent,
    }
    try:
        limits.created(request)
        accepted = True
    except ApiError:
        accepted = False
    assert accepted == (not is_refused(lustre_settings)), request


@pytest.mark.parametrize(("kind", "by_throughput"), OFFERED.items())
def test_every_offered_file_system_is_accepted(
    kind: tuple[str, str], by_throughput: dict[int, tuple[int, int]]
) -> None:
    deployment, storage = kind
    assert lustre.THROUGHPUT[kind] == tuple(by_throughput)
    for throughput, (least, step) in by_throughput.items():
        for capacity in (least, step, 5 * step):
            lustre_settings = {
                "deploymentType": deployment,
                "storageType": storage,
                "throughput": throughput,
                "capacityGiB": capacity,
            }
            assert invalid_keys(lustre_settings) == [], lustre_settings
        below = {
            "deploymentType": deployment,
            "storageType": storage,
            "throughput": throughput,
            "capacityGiB": least - 600,
        }
        assert invalid_keys(below) == ["capacityGiB"]
