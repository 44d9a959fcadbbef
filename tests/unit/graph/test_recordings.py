"""Recordings: which facts of a resource are stored, and in which file."""

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

PASSWORD = "correct horse"


def inputs_of(recording: Recording) -> dict[str, Any]:
    (only,) = recording.values()
    inputs: dict[str, Any] = only["inputs"]
    return inputs


@pytest.mark.parametrize("resource", [a_job("i"), a_pod("i")])
def test_recording_of_job_or_pod_has_its_spec(resource: dict[str, Any]) -> None:
    assert inputs_of(previewed(resource)) == resource["inputs"]


def test_recording_of_mutable_object_has_only_its_identity() -> None:
    metadata = {"name": "x", "namespace": "n", "labels": {"a": "b"}}
    resource = an_object(
        "kubernetes:networking.k8s.io/v1:NetworkPolicy", metadata=metadata, spec={"podSelector": {}}
    )
    assert inputs_of(previewed(resource)) == {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "x", "namespace": "n"},
    }


def test_recording_omits_and_lists_ignored_properties() -> None:
    started = {**a_job("i", backoffLimit=3), "ignoreChanges": ["spec", "metadata"], "retainOnDelete": True}
    assert previewed(started)[urn(JOB)] == {
        "type": JOB,
        "inputs": {"apiVersion": "batch/v1", "kind": "Job"},
        "ignoreChanges": ["spec", "metadata"],
        "retainOnDelete": True,
    }


def test_recording_has_config_map_data_and_secret_digests() -> None:
    assert inputs_of(previewed(an_object(CONFIG_MAP, data={"a": "b"})))["data"] == {"a": "b"}
    digests = [
        inputs_of(previewed(an_object(SECRET, stringData={"user": "u", "password": each})))["stringData"]
        for each in (PASSWORD, PASSWORD, "another")
    ]
    assert PASSWORD not in json.dumps(digests)
    assert digests[0] == digests[1]
    assert digests[0]["user"] == digests[2]["user"]
    assert digests[0]["password"] != digests[2]["password"]


@pytest.mark.parametrize("hidden", ["[secret]", {SIGNATURE: HIDDEN_VALUE, "ciphertext": "v1:abc"}])
def test_recording_secret_value_is_unknown(hidden: Any) -> None:
    assert inputs_of(previewed(an_object(SECRET, data=hidden)))["data"] == UNKNOWN
    assert inputs_of(previewed(an_object(SECRET, data={"a": hidden})))["data"] == {"a": UNKNOWN}


def test_recording_of_state_omits_pending_deletions() -> None:
    old = {**state(SUBNET, "old", inputs={"cidrBlock": "a"}), "delete": True}
    new = state(SUBNET, "new", inputs={"cidrBlock": "b"}, id="subnet-1", outputs={"arn": "arn:1"})
    component = {**state("trainyard:x:X"), "custom": False}
    for document in ({"resources": [component, old, new]}, {"deployment": {"resources": [old, new]}}):
        assert recorded(document) == one(SUBNET, "new", cidrBlock="b")


def test_recording_replaces_random_suffix_of_names() -> None:
    role = state(ROLE, "r", inputs={"__defaults": ["name"], "name": "r-0e38f43"})
    attachment = state("aws:iam/rolePolicyAttachment:RolePolicyAttachment", "a", inputs={"role": "r-0e38f43"})
    found = previewed(role, attachment)
    assert [each["inputs"] for each in found.values()] == [{"name": "r-*"}, {"role": "r-*"}]


def test_save_keeps_recordings_of_released_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
