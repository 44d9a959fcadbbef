"""What is written down of a resource, and where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.graph import recordings
from tests.integration.graph.model import UNKNOWN
from tests.integration.graph.recordings import Recording, load, recorded, save, stacks, versions
from tests.unit.graph.invented import (
    CONFIG_MAP,
    JOB,
    ROLE,
    SECRET,
    SUBNET,
    a_job,
    a_pod,
    an_object,
    one,
    previewed,
    state,
    urn,
)
from trainyard.policies.snapshot import HIDDEN_VALUE, SIGNATURE

pytestmark = pytest.mark.unit

PASSWORD = "correct horse"


def inputs_of(recording: Recording) -> dict[str, Any]:
    (only,) = recording.values()
    inputs: dict[str, Any] = only["inputs"]
    return inputs


@pytest.mark.parametrize("made", [a_job("i"), a_pod("i")])
def test_the_specification_of_a_job_and_of_a_pod_is_recorded(made: dict[str, Any]) -> None:
    assert inputs_of(previewed(made)) == made["inputs"]


def test_of_an_object_that_is_changed_in_place_its_identity_is_recorded() -> None:
    metadata = {"name": "x", "namespace": "n", "labels": {"a": "b"}}
    made = an_object(
        "kubernetes:networking.k8s.io/v1:NetworkPolicy", metadata=metadata, spec={"podSelector": {}}
    )
    assert inputs_of(previewed(made)) == {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "x", "namespace": "n"},
    }


def test_what_a_resource_ignores_changes_of_is_left_out_and_named() -> None:
    started = {**a_job("i", backoffLimit=3), "ignoreChanges": ["spec", "metadata"], "retainOnDelete": True}
    assert previewed(started)[urn(JOB)] == {
        "type": JOB,
        "inputs": {"apiVersion": "batch/v1", "kind": "Job"},
        "ignoreChanges": ["spec", "metadata"],
        "retainOnDelete": True,
    }


def test_data_of_a_config_map_is_recorded_and_of_a_secret_a_digest_of_each_value() -> None:
    assert inputs_of(previewed(an_object(CONFIG_MAP, data={"a": "b"})))["data"] == {"a": "b"}
    kept = [
        inputs_of(previewed(an_object(SECRET, stringData={"user": "u", "password": each})))["stringData"]
        for each in (PASSWORD, PASSWORD, "another")
    ]
    assert PASSWORD not in json.dumps(kept)
    assert kept[0] == kept[1]
    assert kept[0]["user"] == kept[2]["user"]
    assert kept[0]["password"] != kept[2]["password"]


@pytest.mark.parametrize("hidden", ["[secret]", {SIGNATURE: HIDDEN_VALUE, "ciphertext": "v1:abc"}])
def test_what_the_program_calls_secret_is_a_mark(hidden: Any) -> None:
    assert inputs_of(previewed(an_object(SECRET, data=hidden)))["data"] == UNKNOWN
    assert inputs_of(previewed(an_object(SECRET, data={"a": hidden})))["data"] == {"a": UNKNOWN}


def test_a_state_is_recorded_as_its_preview_is_and_without_what_waits_for_its_deletion() -> None:
    old = {**state(SUBNET, "old", inputs={"cidrBlock": "a"}), "delete": True}
    new = state(SUBNET, "new", inputs={"cidrBlock": "b"}, id="subnet-1", outputs={"arn": "arn:1"})
    component = {**state("trainyard:x:X"), "custom": False}
    for document in ({"resources": [component, old, new]}, {"deployment": {"resources": [old, new]}}):
        assert recorded(document) == one(SUBNET, "new", cidrBlock="b")


def test_a_name_that_the_provider_made_up_loses_its_end_wherever_it_stands() -> None:
    role = state(ROLE, "r", inputs={"__defaults": ["name"], "name": "r-0e38f43"})
    attachment = state("aws:iam/rolePolicyAttachment:RolePolicyAttachment", "a", inputs={"role": "r-0e38f43"})
    found = previewed(role, attachment)
    assert [each["inputs"] for each in found.values()] == [{"name": "r-*"}, {"role": "r-*"}]


def test_a_recording_is_written_beside_those_of_versions_that_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "STATES", tmp_path)
    recording = {**one(SUBNET, "b", cidrBlock="b"), **one(SUBNET, "a", cidrBlock="a")}
    released = tmp_path / "0.1.0" / "dev.json"
    released.parent.mkdir()
    released.write_text(json.dumps(one(SUBNET, "old", cidrBlock="o")))
    assert save("dev", recording, tmp_path) == tmp_path / "unreleased" / "dev.json"
    assert versions() == ["0.1.0", "unreleased"]
    assert stacks("unreleased") == ["dev"]
    assert load("unreleased", "dev") == recording
    assert load("0.1.0", "dev") == one(SUBNET, "old", cidrBlock="o")
    lines = (tmp_path / "unreleased" / "dev.json").read_text().splitlines()
    assert [line[:6] for line in lines] == ["{", '"urn:p', '"urn:p', "}"]
