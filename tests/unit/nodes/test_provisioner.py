"""Volumes by claim: who gets one, with which rights it is made, and what goes with the claim."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from botocore.exceptions import EndpointConnectionError

from components.documents import iam
from components.documents.account import Account
from local.nodes import csi
from local.nodes.csi import Provisioner, Refused
from tests.unit.emulator import Cloud

CLASS = {
    "parameters": {"type": "gp3", "encrypted": "true"},
    "reclaimPolicy": "Delete",
    "volumeBindingMode": "WaitForFirstConsumer",
}
EXTRA = {iam.CLUSTER_TAG: "main", "trainyard:stack": "test"}


def claim(**annotations: str) -> dict[str, Any]:
    known = {csi.PROVISIONER: "ebs.csi.aws.com", csi.SELECTED_NODE: "node-b", **annotations}
    return {
        "metadata": {"name": "data", "namespace": "training", "uid": "u1", "annotations": known},
        "spec": {
            "storageClassName": "gp3",
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1500Mi"}},
        },
    }


class FakeApi:
    """Answers what the provisioner asks and keeps what it creates and deletes."""

    def __init__(self) -> None:
        self.created: dict[str, list[Any]] = {}
        self.deleted: list[str] = []

    async def get(self, path: str) -> Any:
        assert path.endswith("/storageclasses/gp3")
        return CLASS

    async def create(self, path: str, body: Any) -> Any:
        self.created.setdefault(path, []).append(body)
        return {"status": {"token": "t"}}

    async def delete(self, path: str) -> Any:
        self.deleted.append(path)
        return {}


class Site:
    """A provisioner whose role has the rights that the stack gives it."""

    def __init__(self, cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cloud, self.api = cloud, FakeApi()
        policy = iam.volumes(Account(id="123456789012", region="us-west-2"), "main")
        role = cloud.client("ec2", cloud.session("csi", *policy["Statement"]))
        monkeypatch.setattr(csi, "client_as", lambda *_: role)
        settings: Any = SimpleNamespace(
            home=SimpleNamespace(volumes=tmp_path), cluster="main", region="us-west-2", aws_endpoint=""
        )
        facts = {"addons": {"aws-ebs-csi-driver": "arn:role"}, "volumeTags": EXTRA}
        instances = {
            "node-a": {**facts, "zone": "us-west-2a"},
            "node-b": {**facts, "zone": "us-west-2b"},
        }
        self.work = Provisioner(settings, self.api, instances)  # type: ignore[arg-type]
        self.directory = tmp_path

    def disks(self) -> list[Any]:
        return list(self.cloud.client("ec2").describe_volumes()["Volumes"])


@pytest.fixture
def site(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(cloud, tmp_path, monkeypatch)


def test_provisioner_creates_a_tagged_volume_in_the_pods_zone(site: Site) -> None:
    asyncio.run(site.work._make(claim()))
    [disk] = site.disks()
    assert (disk["AvailabilityZone"], disk["Size"], disk["Encrypted"]) == ("us-west-2b", 2, True)
    tags = {t["Key"]: t["Value"] for t in disk["Tags"]}
    assert tags.items() >= {**EXTRA, "ebs.csi.aws.com/cluster": "true", "CSIVolumeName": "pvc-u1"}.items()
    [volume] = site.api.created[csi.VOLUMES]
    assert volume["spec"]["csi"]["volumeHandle"] == disk["VolumeId"]
    assert volume["spec"]["claimRef"]["uid"] == "u1"
    [term] = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert term["matchExpressions"][0]["values"] == ["us-west-2b"]


def test_provisioner_retry_finds_the_volume(site: Site) -> None:
    asyncio.run(site.work._make(claim()))
    asyncio.run(site.work._make(claim()))
    assert len(site.disks()) == 1


def test_provisioner_missing_cluster_tag_is_reported(site: Site) -> None:
    for instance in site.work.instances.values():
        instance["volumeTags"] = {}
    asyncio.run(site.work._try(claim(), site.work._make))
    [event] = site.api.created["/api/v1/namespaces/training/events"]
    assert event["reason"] == "ProvisioningFailed"
    assert "ec2:CreateVolume" in event["message"]
    assert site.disks() == []


def test_provisioner_without_role_creates_nothing(site: Site) -> None:
    for instance in site.work.instances.values():
        instance["addons"] = {"aws-ebs-csi-driver": ""}
    with pytest.raises(Refused, match="was given no role"):
        asyncio.run(site.work._make(claim()))


class Unreachable:
    """A client of AWS whose calls get no answer."""

    def __getattr__(self, _: str) -> Any:
        return Mock(side_effect=EndpointConnectionError(endpoint_url="http://ec2"))


@pytest.mark.parametrize(
    "call",
    [
        lambda ec2: csi.make_disk(ec2, {}, "pvc-u1", 1, "us-west-2a", {}),
        lambda ec2: csi.delete_disk(ec2, "vol-1"),
        lambda _: csi.client_as(Mock(region="us-west-2", aws_endpoint="http://sts"), "arn:role", "t"),
    ],
    ids=("make", "delete", "credentials"),
)
def test_provisioner_without_answer_of_aws_is_refused(
    call: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.session.Session.create_client", lambda *_, **__: Unreachable())
    with pytest.raises(Refused, match="Could not connect"):
        call(Unreachable())


def test_provisioner_removes_the_volume_of_a_deleted_claim(site: Site) -> None:
    asyncio.run(site.work._make(claim()))
    [volume] = site.api.created[csi.VOLUMES]
    files = site.directory / "main" / "pvc-u1"
    files.mkdir(parents=True)
    volume["status"] = {"phase": "Released"}
    assert csi.is_left(volume)
    asyncio.run(site.work._remove(volume))
    assert site.disks() == []
    assert not files.exists()
    assert site.api.deleted == [f"{csi.VOLUMES}/pvc-u1"]


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"persistentVolumeReclaimPolicy": "Retain"}},
        {"status": {"phase": "Bound"}},
        {"metadata": {"annotations": {}}},
    ],
)
def test_provisioner_keeps_used_retained_and_foreign_volumes(change: dict[str, Any]) -> None:
    volume: dict[str, Any] = {
        "metadata": {"name": "v", "annotations": {csi.PROVISIONED_BY: "ebs.csi.aws.com"}},
        "spec": {"persistentVolumeReclaimPolicy": "Delete"},
        "status": {"phase": "Released"},
    }
    assert csi.is_left(volume)
    for part, values in change.items():
        volume[part].update(values)
    assert not csi.is_left(volume)


def test_wants_volume_only_for_unbound_claims_of_the_driver() -> None:
    assert csi.wants_volume(claim())
    assert not csi.wants_volume(claim(**{csi.PROVISIONER: "other"}))
    bound = claim()
    bound["spec"]["volumeName"] = "v"
    assert not csi.wants_volume(bound)
    waiting = claim()
    del waiting["metadata"]["annotations"][csi.PROVISIONER]
    assert not csi.wants_volume(waiting)
