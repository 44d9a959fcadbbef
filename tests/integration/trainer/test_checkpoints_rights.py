"""The trainer's S3 calls are those of docs/checkpoints.md, and the stack's role allows those for a model."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import boto3
import pytest
import torch
import torch.distributed as dist

from components.documents import iam
from tests.integration.trainer.checkpoints import create_saver, create_trained_model, load, network
from tests.integration.trainer.s3_proxy import Fault, S3Proxy
from trainer import stores as module
from trainer.checkpoint import state
from trainer.checkpoint.owner import Owner
from trainer.contract import TrainerError
from trainer.save import probe, save
from trainer.stores import Bucket

pytestmark = pytest.mark.trainer

PAGE = (Path(__file__).parents[3] / "docs" / "checkpoints.md").read_text()
METADATA = {
    "createdAt": "2026-08-05T12:00:00+00:00",
    "worldSize": 1,
    "steps": 1,
    "data": {"sha256": "d" * 64},
}
BUCKET = "of-rights"


def documented_calls() -> dict[str, tuple[str, bool, bool]]:
    """Return the page's table: S3 call -> its permission, and whether checkpoints and models need it."""
    section = PAGE.split("\n## Rights in S3\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    return {
        call.strip("`"): (right.strip("`"), checkpoints == "yes", model == "yes")
        for call, right, checkpoints, model, _ in rows
    }


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    monkeypatch.setattr(module, "PART_BYTES", 5 * 2**20)


@pytest.fixture
def s3_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record the calls of every client: the S3 operation, and its key or prefix."""
    calls: list[tuple[str, str]] = []
    make = boto3.session.Session.client

    def create_client(self: Any, *words: Any, **named: Any) -> Any:
        client = make(self, *words, **named)

        def record(params: dict[str, Any], model: Any, **_: Any) -> None:
            keys = params.get("Delete", {}).get("Objects", [params])
            calls.extend((model.name, each.get("Key") or each.get("Prefix", "")) for each in keys)

        client.meta.events.register("provide-client-params.s3.*", record)
        return client

    monkeypatch.setattr(boto3.session.Session, "client", create_client)
    return calls


def test_checkpoints_make_exactly_the_documented_calls(
    proxy: S3Proxy, s3_calls: list[tuple[str, str]], group: dist.ProcessGroup, tmp_path: Path
) -> None:
    """Claim, save (small, large, failed, repeated), delete old checkpoints, load, release and take over."""
    store = Bucket(BUCKET, "runs/r1")
    owner = Owner(store, "token", "r1", log_line=lambda _line: None)
    owner.claim()
    saver = create_saver(store, group, owner=owner, scratch=tmp_path, keep=1, log_line=lambda _line: None)
    saver.save(state.gather(*create_trained_model(1)), 1, 16)
    assert saver.finish()
    large, optimizer = create_trained_model(1, width=1024)  # a file of more than one part
    fault = Fault("PUT .*partNumber=2", times=1, status=403, code="AccessDenied")
    proxy.faults.append(fault)
    saver.save(state.gather(large, optimizer), 2, 32)
    assert not saver.finish()
    saver.save(state.gather(large, optimizer), 3, 48)
    assert saver.finish()
    saver.close()
    owner.renew()
    found = load(store, group, network(width=1024), scratch=tmp_path)
    assert found is not None
    assert found.manifest.step == 3
    owner.release()
    Owner(store, "another", "r2").claim()
    assert {call for call, _ in s3_calls} == {call for call, (_, yes, _) in documented_calls().items() if yes}
    assert all(key.startswith("runs/r1/") for _, key in s3_calls)


def test_model_makes_the_documented_calls_and_the_role_may(
    proxy: S3Proxy, s3_calls: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Probe, save a small and a large model, and fail in the middle of an upload."""
    place = f"s3://{BUCKET}/models"
    probe(place, "r1")
    save(place, "r1", {"w": torch.zeros(3)}, METADATA, tmp_path)
    large = {"w": torch.zeros(2 * 2**20)}
    save(place, "r2", large, METADATA, tmp_path)
    proxy.faults.append(Fault("PUT .*partNumber=2", times=1, status=403, code="AccessDenied"))
    with pytest.raises(TrainerError, match="AccessDenied"):
        save(place, "r3", large, METADATA, tmp_path)
    table = documented_calls()
    assert {call for call, _ in s3_calls} == {call for call, (_, _, yes) in table.items() if yes}
    assert all(key.startswith("models/") for _, key in s3_calls)
    (objects, *_) = iam.model_writer(bucket_arn="b", prefix="models", key_arn="k", checkpoints=None)[
        "Statement"
    ]
    assert objects["Resource"] == "b/models/*"
    assert {table[call][0] for call, _ in s3_calls} <= set(objects["Action"])


def test_documented_policy_has_the_permissions_of_the_table() -> None:
    section = PAGE.split("\n## Rights in S3\n")[1].split("\n## ")[0]
    (example,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    granted = set(re.findall(r"\bs3:[A-Z]\w+", example))
    assert granted == {right for right, checkpoints, _ in documented_calls().values() if checkpoints}
