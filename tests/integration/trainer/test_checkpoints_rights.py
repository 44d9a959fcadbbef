"""What the trainer asks of S3 is what docs/checkpoints.md says, call by call; for a model the stack's role does it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import torch
import torch.distributed as dist

from components.documents import iam
from tests.integration.trainer.checkpoints import load, network, saver, trained
from tests.integration.trainer.s3_proxy import KEYS, Fault, S3Proxy, emulated
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


def documented() -> dict[str, tuple[str, bool, bool]]:
    """The table of the page: for each S3 call its right, and whether checkpoints and models need it."""
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


@pytest.fixture(scope="module")
def s3() -> Iterator[Any]:
    with emulated(BUCKET) as client:
        yield client


@pytest.fixture
def proxy(s3: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Proxy]:
    monkeypatch.setattr(module, "ATTEMPTS", 1)
    monkeypatch.setattr(module, "PART_BYTES", 5 * 2**20)
    with S3Proxy(s3.meta.endpoint_url) as proxy:
        for name, value in {**KEYS, "AWS_ENDPOINT_URL": proxy.url}.items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What every client is told to do: S3's name of the call, and the key or the prefix that it is for."""
    calls: list[tuple[str, str]] = []
    make = boto3.session.Session.client

    def watched(self: Any, *words: Any, **named: Any) -> Any:
        client = make(self, *words, **named)

        def note(params: dict[str, Any], model: Any, **_: Any) -> None:
            keys = params.get("Delete", {}).get("Objects", [params])
            calls.extend((model.name, each.get("Key") or each.get("Prefix", "")) for each in keys)

        client.meta.events.register("provide-client-params.s3.*", note)
        return client

    monkeypatch.setattr(boto3.session.Session, "client", watched)
    return calls


def test_checkpoints_make_exactly_the_calls_of_the_page_below_their_prefix(
    proxy: S3Proxy, called: list[tuple[str, str]], group: dist.ProcessGroup, tmp_path: Path
) -> None:
    """Claimed, saved (small, large, failed and again), kept to one, loaded, taken over, released."""
    store = Bucket(BUCKET, "runs/r1")
    owner = Owner(store, "token", "r1", log_line=lambda _line: None)
    owner.claim()
    own = saver(store, group, owner=owner, scratch=tmp_path, keep=1, log_line=lambda _line: None)
    own.save(state.gather(*trained(1)), 1, 16)
    assert own.finish()
    large, optimizer = trained(1, width=1024)  # a file of more than one part
    fault = Fault("PUT .*partNumber=2", times=1, status=403, code="AccessDenied")
    proxy.faults.append(fault)
    own.save(state.gather(large, optimizer), 2, 32)
    assert not own.finish()
    own.save(state.gather(large, optimizer), 3, 48)
    assert own.finish()
    own.close()
    owner.renew()
    found = load(store, group, network(width=1024), scratch=tmp_path)
    assert found is not None
    assert found.manifest.step == 3
    owner.release()
    Owner(store, "another", "r2").claim()
    assert {call for call, _ in called} == {call for call, (_, yes, _) in documented().items() if yes}
    assert all(key.startswith("runs/r1/") for _, key in called)


def test_a_model_makes_exactly_the_calls_of_the_page_below_its_prefix_and_the_stacks_role_may_do_them(
    proxy: S3Proxy, called: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Probed, saved small and large, and refused in the middle."""
    place = f"s3://{BUCKET}/models"
    probe(place, "r1")
    save(place, "r1", {"w": torch.zeros(3)}, METADATA, tmp_path)
    large = {"w": torch.zeros(2 * 2**20)}
    save(place, "r2", large, METADATA, tmp_path)
    proxy.faults.append(Fault("PUT .*partNumber=2", times=1, status=403, code="AccessDenied"))
    with pytest.raises(TrainerError, match="AccessDenied"):
        save(place, "r3", large, METADATA, tmp_path)
    table = documented()
    assert {call for call, _ in called} == {call for call, (_, _, yes) in table.items() if yes}
    assert all(key.startswith("models/") for _, key in called)
    (objects, *_) = iam.model_writer(bucket_arn="b", prefix="models", key_arn="k", checkpoints=None)[
        "Statement"
    ]
    assert objects["Resource"] == "b/models/*"
    assert {table[call][0] for call, _ in called} <= set(objects["Action"])


def test_the_example_of_a_policy_on_the_page_has_the_rights_of_its_table() -> None:
    section = PAGE.split("\n## Rights in S3\n")[1].split("\n## ")[0]
    (example,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    granted = set(re.findall(r"\bs3:[A-Z]\w+", example))
    assert granted == {right for right, checkpoints, _ in documented().values() if checkpoints}
