"""Changed settings of a deployed stack: each setting is classified, and changes of fixed ones are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.documents.setting_changes import find_changes
from components.fixed_settings import _Record, _Run
from infra import check
from infra.changes import (
    CLUSTER_TYPE,
    FILE_SYSTEM_TYPE,
    FIXED_SETTINGS_TYPE,
    STARTED_RUN_TYPE,
    find_refused_changes,
    fixed_values,
    run_values,
)
from infra.settings import read
from infra.settings.fields import NEXT_RUN
from infra.settings.problems import extra_of
from infra.settings.reference import keys
from tests.unit.components.recording import Recorded
from tests.unit.infra.changing import (
    EXISTING_LUSTRE,
    GIVEN_VPC,
    NOW,
    changed,
    settings,
    with_,
    with_existing_cluster,
)
from tests.unit.infra.examples import MAKES_EVERYTHING
from tests.unit.infra.test_settings_arrive import MADE, OTHERWISE
from tests.unit.infra.whole import shipped

MARKS = ("in place", "replaces ", "fixed")


def state(base: dict[str, Any]) -> dict[str, Any]:
    """Return the state after `up` of a stack file, even if it failed at its second resource."""
    return {
        "resources": [
            {"type": FIXED_SETTINGS_TYPE, "inputs": {"values": fixed_values(read("test", base, NOW))}}
        ]
    }


CHANGES = {path: extra_of(info, "changedLater") for path, info in keys().items()}


GIVEN = with_({"network": GIVEN_VPC})
ON_GIVEN = with_existing_cluster()
MOUNTED = {**ON_GIVEN, "trainyard:storage": {"lustre": {"existing": EXISTING_LUSTRE}}}


def test_every_setting_is_classified_and_fixed_ones_have_a_value() -> None:
    assert [path for path, change in CHANGES.items() if not change.startswith(MARKS)] == []
    linked = {"lustre": {"deploymentType": "PERSISTENT_1", "s3": {}}}
    configs = (MADE, OTHERWISE, GIVEN, ON_GIVEN, MOUNTED, with_({"storage": linked}))
    found = {
        key.removeprefix("trainyard:") for each in configs for key in fixed_values(read("test", each, NOW))
    }
    # The keys describe the link.
    marked = {path for path, change in CHANGES.items() if "fixed" in change} - {"storage.lustre.s3"}
    assert found - {"aws:region"} == marked


@pytest.mark.parametrize(
    ("base", "path", "value"),
    [
        (MADE, "network.cidr", "10.129.0.0/16"),
        (MADE, "network.zones", ["us-west-2c", "us-west-2b"]),
        (MADE, "cluster.name", "other"),
        (GIVEN, "network.vpcId", "vpc-0123456789abcdef1"),
        (GIVEN, "network.privateSubnetIds.us-west-2a", "subnet-0a23456789abcdef1"),
        (OTHERWISE, "network.publicSubnetIds", None),
        (ON_GIVEN, "cluster.existing.endpoint", "https://CD.gr7.us-west-2.eks.amazonaws.com"),
        (ON_GIVEN, "cluster.existing.certificateAuthority", "LS0tLS1CRUdJTA=="),
        (ON_GIVEN, "cluster.existing.name", "other"),
        (MOUNTED, "storage.lustre.existing.mountName", "other"),
        (MADE, "storage.lustre.driveCache", "NONE"),
        (OTHERWISE, "storage.lustre.efa", False),
    ],
)
def test_changed_fixed_setting_is_refused_with_both_values(
    base: dict[str, Any], path: str, value: Any
) -> None:
    key = f"trainyard:{path}"
    if "SubnetIds." in path:
        key = key.rpartition(".")[0]
    now = read("test", changed(base, path, value), NOW)
    assert find_refused_changes(read("test", base, NOW), state(base)) == {}
    found = find_refused_changes(now, state(base))
    assert list(found) == [key]
    assert "fixed after the first up" in found[key]


def test_created_resources_cannot_become_existing_ones() -> None:
    given = find_refused_changes(settings(GIVEN), state(with_({})))
    assert {"trainyard:network.vpcId"} <= set(given)
    assert "trainyard:cluster.existing" in find_refused_changes(settings(ON_GIVEN), state(GIVEN))
    lustre = {**GIVEN, "trainyard:storage": {"lustre": {}}}
    mounted = {**GIVEN, "trainyard:storage": {"lustre": {"existing": EXISTING_LUSTRE}}}
    assert "trainyard:storage.lustre.existing" in find_refused_changes(settings(mounted), state(lustre))


def test_region_and_account_are_fixed() -> None:
    cluster = {"administrators": ["arn:aws:iam::210987654321:role/platform"]}
    pool = {"name": "a", "instanceType": "c5.xlarge", "zone": "eu-west-1a", "maxNodes": 1}
    moved = {**with_({"cluster": cluster, "pools": [pool]}), "aws:region": "eu-west-1"}
    found = find_refused_changes(settings(moved), state(with_({})))
    assert {"aws:region", "trainyard:cluster.accountId"} <= set(found)
    assert "'us-west-2'" in found["aws:region"]
    assert "'eu-west-1'" in found["aws:region"]


@pytest.mark.parametrize(
    "change",
    [
        {"network": {"natPerZone": True}},
        {"cluster": {"version": "1.34"}},
        {"pools": [{"name": "other", "instanceType": "c5.xlarge", "zone": "us-west-2a", "maxNodes": 1}]},
        {"storage": {"lustre": {}}},
        {"protectData": False},
    ],
)
def test_changed_setting_that_is_not_fixed_is_accepted(change: dict[str, Any]) -> None:
    assert find_refused_changes(settings(with_(change)), state(with_({}))) == {}


def test_setting_fixed_by_a_newer_program_is_not_compared() -> None:
    assert find_changes({"a": 1}, {"a": 1, "b": 2}) == {}
    assert find_changes({"a": 1, "b": 2}, {"a": 1.0}) == {}


@pytest.mark.parametrize(
    ("resource", "change", "key"),
    [
        (
            (FILE_SYSTEM_TYPE, {"storageCapacity": 4800}),
            {"storage": {"lustre": {"capacityGiB": 2400}}},
            "storage.lustre.capacityGiB",
        ),
        (
            (FILE_SYSTEM_TYPE, {"storageCapacity": 1200, "metadataConfiguration": {"iops": 6000}}),
            {"storage": {"lustre": {"capacityGiB": 2400, "metadataIops": 3000}}},
            "storage.lustre.metadataIops",
        ),
        ((FILE_SYSTEM_TYPE, {"storageCapacity": 1200}), {"storage": {"lustre": {"capacityGiB": 2400}}}, ""),
        ((CLUSTER_TYPE, {"version": "1.36"}), {"cluster": {"version": "1.35"}}, "cluster.version"),
        ((CLUSTER_TYPE, {"version": "1.33"}), {"cluster": {"version": "1.35"}}, "cluster.version"),
        ((CLUSTER_TYPE, {"version": "1.34"}), {"cluster": {"version": "1.35"}}, ""),
    ],
)
def test_smaller_value_than_in_the_state_is_refused(
    resource: tuple[str, dict[str, Any]], change: dict[str, Any], key: str
) -> None:
    there = {"resources": [{"type": resource[0], "inputs": resource[1]}]}
    assert [
        each.removeprefix("trainyard:") for each in find_refused_changes(settings(with_(change)), there)
    ] == ([key] if key else [])


@pytest.mark.parametrize(
    ("started", "run_id", "backend", "refused"),
    [
        ({"runId": "r1", "values": {}}, "r1", "trainjob", True),
        ({"runId": "r1", "values": {"trainyard:training.backend": "trainjob"}}, "r1", "pytorchjob", True),
        ({"runId": "r1", "values": {"trainyard:training.backend": "trainjob"}}, "r1", "trainjob", False),
        ({"runId": "r1", "values": {}}, "r1", "pytorchjob", False),
        ({"runId": "r1", "values": {}}, "r2", "trainjob", False),
        ({"runId": "r1", "values": {}}, None, "trainjob", False),
    ],
)
def test_changed_backend_of_a_started_run_is_refused(
    started: dict[str, Any], run_id: str | None, backend: str, refused: bool
) -> None:
    run = {"pool": "small", "minNodes": 1, "maxNodes": 1, "backend": backend}
    given = settings(with_({"training": {**run, **({"runId": run_id} if run_id else {})}}))
    there = {"resources": [{"type": STARTED_RUN_TYPE, "inputs": started}]}
    found = find_refused_changes(given, there)
    assert list(found) == (["trainyard:training.backend"] if refused else [])
    assert all("run r1 was started with" in text and "training.runId" in text for text in found.values())


def test_record_resource_in_engine_refuses_changed_settings() -> None:
    old = {"values": {"trainyard:network.cidr": "10.64.0.0/16"}}
    new = {"values": {"trainyard:network.cidr": "10.65.0.0/16"}}
    (failure,) = _Record().check(old, new).failures
    assert all(each in failure.reason for each in ("trainyard:network.cidr", "10.64.0.0/16", "10.65.0.0/16"))
    assert _Record().check({}, new).failures == []
    assert not _Record().diff("settings", old, old).changes


RUN = {"trainyard:training.args": ["--epochs", "1"], "trainyard:training.minNodes": 2}


def started(values: dict[str, Any], job: str = "uid-1") -> dict[str, Any]:
    return {"runId": "r1", "job": job, "values": values, "late": ""}


def test_settings_changed_after_run_start_are_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    changed = started({"trainyard:training.args": ["--epochs", "2"], "trainyard:training.minNodes": 2.0})
    inputs = started(RUN)
    for _ in range(2):
        inputs = _Run().check(inputs, changed).inputs
        (line,) = capsys.readouterr().out.splitlines()
        assert line == inputs["late"]
        assert all(each in line for each in ("run r1", "trainyard:training.args", "trainyard:training.runId"))
    assert inputs["values"] == RUN
    assert _Run().check(inputs, started(RUN)).inputs["late"] == ""


def test_run_with_a_new_job_has_the_new_settings() -> None:
    changed = started({**RUN, "trainyard:training.minNodes": 3}, job="uid-2")
    assert _Run().check(started(RUN), changed).inputs == changed
    assert _Run().check({}, changed).inputs == changed


def test_every_setting_for_the_next_run_is_recorded_at_run_start() -> None:
    """A setting marked "for the next runId" does not reach a started run, and `up` must report that."""
    found = read("test", {**MAKES_EVERYTHING}, NOW)
    assert found.training is not None
    recorded = {key.removeprefix("trainyard:") for key in run_values(found, found.training)}
    for path, change in CHANGES.items():
        whole = re.sub(r"\[\].*", "", path)  # all entries of a list are compared
        if NEXT_RUN in change and path not in BUILT:
            assert whole in recorded, f"{path} changes for the next run, and nobody says so"
    assert recorded <= set(CHANGES)


# They change the images, which are compared themselves.
BUILT = {
    *("images.build", "images.launcher", "images.trainer", "images.packageIndex", "images.debianMirror"),
    *("images.efaInstaller", "images.baseImages", "images.baseImages.launcher", "images.baseImages.trainer"),
}


def test_run_record_has_its_images() -> None:
    recorded: Recorded = shipped("dev")
    (run,) = (each for each in recorded.resources if each.type == STARTED_RUN_TYPE)
    for name in ("trainer", "launcher"):
        assert run.inputs["values"][f"the {name} image"]


def test_trainer_edited_after_run_start_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    before, after = ({**RUN, "the trainer image": f"repository@sha256:{digit}"} for digit in "12")
    _Run().check(started(before), started(after))
    assert "started before the trainer image changed" in capsys.readouterr().out
    # A state of an earlier version lacks it.
    assert _Run().check(started(RUN), started(after)).inputs["late"] == ""


@pytest.mark.parametrize("name", ["dev", "p4de-odcr-existing-vpc"])
def test_aws_and_kubernetes_resources_depend_on_the_record(name: str) -> None:
    recorded: Recorded = shipped(name)
    record = (FIXED_SETTINGS_TYPE, "settings")
    late = [
        each
        for each in recorded.resources
        if each.type.startswith(("aws:", "eks:", "kubernetes:", "docker-build:", "pulumi-python:"))
        and (each.type, each.name) != record
        and record not in recorded.needs(each.type, each.name)
    ]
    assert [f"{each.type} {each.name}" for each in late] == []


def test_check_of_changed_stack_file_names_both_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, saved = tmp_path / "Pulumi.test.yaml", tmp_path / "state.json"
    saved.write_text(json.dumps({"checkpoint": {"latest": state(with_({}))}}))
    words = ["check", "--stack", "test", "--file", str(file), "--state", str(saved)]
    monkeypatch.setattr("sys.argv", words)
    file.write_text(yaml.safe_dump({"config": with_({})}))
    assert check.main() == 0
    file.write_text(yaml.safe_dump({"config": with_({"network": {"cidr": "10.65.0.0/16"}})}))
    assert check.main() == 1
    error_output = capsys.readouterr().err
    assert all(each in error_output for each in ("trainyard:network.cidr", "10.64.0.0/16", "10.65.0.0/16"))
