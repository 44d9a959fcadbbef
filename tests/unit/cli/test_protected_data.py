"""What `down` says and does where a stack protects its data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainyard.cli import aws_commands
from trainyard.cli.arguments import parser
from trainyard.cli.dispatch import EXPECTED
from trainyard.cli.errors import CommandError
from trainyard.cli.protected_data import (
    check,
    check_deletion,
    protected,
    with_deletion_allowed,
)

BUCKET, KEY = "aws:s3/bucket:Bucket", "aws:kms/key:Key"


def resource(kind: str, identity: str, *, protect: bool = True, name: str = "x") -> dict[str, Any]:
    return {"type": kind, "urn": f"urn:pulumi:s::p::{kind}::{name}", "id": identity, "protect": protect}


STATE = {
    "resources": [
        {"type": "pulumi:pulumi:Stack", "urn": "urn:pulumi:s::p::pulumi:pulumi:Stack::p-s"},
        resource(KEY, "0f1e2d3c", name="train-data"),
        resource("aws:fsx/lustreFileSystem:LustreFileSystem", "fs-1"),
        resource("aws:s3/bucketPolicy:BucketPolicy", "models-1"),
        resource(BUCKET, "models-1"),
        resource(BUCKET, "logs-1", protect=False),
        resource("aws:ecr/repository:Repository", "train/trainer"),
        resource("aws:eks/cluster:Cluster", "train", protect=False),
    ]
}
KEPT = {"resources": [each for each in STATE["resources"] if "eks" not in each["type"]]}
UNPROTECTED = {"resources": [{**each, "protect": False} for each in STATE["resources"]]}
THINGS = ["bucket models-1", "file system fs-1", "repository train/trainer", "key train-data"]


def test_a_person_reads_the_data_and_not_each_of_its_settings() -> None:
    assert protected(STATE) == THINGS
    assert protected(UNPROTECTED) == []
    assert protected({}) == []


def test_what_has_no_word_of_its_own_is_named_all_the_same() -> None:
    assert protected({"resources": [resource("aws:sqs/queue:Queue", "q-1")]}) == ["q-1"]


@pytest.mark.parametrize(("cloud", "where"), [("aws", "STACK=train"), ("local", "STACK=train CLOUD=local")])
def test_a_destroy_of_protected_data_is_refused_in_one_line_with_both_ways_on(cloud: str, where: str) -> None:
    with pytest.raises(CommandError) as refused:
        check(STATE, "train", cloud, keep_data=False)
    said = str(refused.value)
    assert "\n" not in said
    assert ", ".join(THINGS) in said
    assert f"`make down {where} KEEP_DATA=1`" in said
    assert f"protectData to false, then `make up {where}` and `make down {where}`" in said
    assert CommandError in EXPECTED


def test_data_is_kept_only_where_it_is_protected() -> None:
    assert check(STATE, "train", "aws", keep_data=True) == THINGS
    assert check(UNPROTECTED, "train", "aws", keep_data=False) == []
    with pytest.raises(CommandError, match="stack train protects no data") as refused:
        check(UNPROTECTED, "train", "aws", keep_data=True)
    assert "\n" not in str(refused.value)


@pytest.fixture
def pulumi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program named `pulumi` that has outputs and a state and notes each command; the file of its notes."""
    said, state = tmp_path / "said", tmp_path / "state.json"
    state.write_text(json.dumps({"version": 3, "deployment": STATE}))
    program = tmp_path / "pulumi"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {said}\n'
        f'case "$1 $2" in "stack output") echo "{{}}";; "stack export") cat {state};; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("PULUMI_SKIP_CONFIRMATIONS", "true")
    monkeypatch.setenv("TRAINYARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("trainyard.cli.sign_in.check", lambda _stack: None)
    return said


def test_on_aws_nothing_is_asked_of_the_engine_before_the_refusal(pulumi: Path) -> None:
    with pytest.raises(CommandError, match="KEEP_DATA=1"):
        aws_commands.down("train")
    assert "destroy" not in pulumi.read_text()


def test_on_aws_the_engine_leaves_what_is_protected(pulumi: Path) -> None:
    assert aws_commands.down("train", keep_data=True) == 0
    plan, destroy = pulumi.read_text().splitlines()[-2:]
    assert plan.startswith("destroy --preview-only --refresh --exclude-protected ")
    assert destroy.startswith("destroy --refresh --exclude-protected --yes ")


def test_the_command_line_says_so_for_down_alone() -> None:
    assert parser().parse_args(["down", "--keep-data"]).keep_data is True
    with pytest.raises(SystemExit):
        parser().parse_args(["up", "--keep-data"])


@pytest.mark.parametrize(
    ("state", "confirmed", "said"),
    [
        (KEPT, "", "bucket models-1"),
        (KEPT, "yes", "`make delete-data STACK=train CONFIRM=train`"),
        (STATE, "train", "is up"),
        (UNPROTECTED, "train", "keeps no data"),
        ({}, "train", "keeps no data"),
    ],
)
def test_kept_data_is_deleted_only_alone_and_confirmed(
    state: dict[str, Any], confirmed: str, said: str
) -> None:
    with pytest.raises(CommandError, match=said) as refused:
        check_deletion(state, "train", "aws", confirmed)
    assert "nothing was changed" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_kept_data_that_is_confirmed_is_named() -> None:
    assert check_deletion(KEPT, "train", "local", "train") == THINGS


def test_down_of_kept_data_names_the_way_to_delete_it() -> None:
    with pytest.raises(CommandError, match="`make delete-data STACK=train CONFIRM=train`"):
        check(KEPT, "train", "aws", keep_data=False)


def test_state_with_deletion_allowed_deletes_content() -> None:
    after = with_deletion_allowed({"version": 3, "deployment": KEPT})["deployment"]["resources"]
    assert not any(each["protect"] for each in after if "protect" in each)
    bucket = next(each for each in after if each["type"] == BUCKET)
    # The provider reads the outputs when it deletes.
    assert bucket["inputs"]["forceDestroy"]
    assert bucket["outputs"]["forceDestroy"]
    (repository,) = (each for each in after if "ecr" in each["type"])
    assert repository["outputs"]["forceDelete"]
    (files,) = (each for each in after if "fsx" in each["type"])
    assert files["outputs"]["skipFinalBackup"]


def test_on_aws_kept_data_is_destroyed(pulumi: Path) -> None:
    (pulumi.parent / "state.json").write_text(json.dumps({"version": 3, "deployment": KEPT}))
    assert aws_commands.delete_data("train", "train") == 0
    commands = [line.split()[:2] for line in pulumi.read_text().splitlines()]
    assert commands == [["stack", "export"], ["stack", "import"], ["destroy", "--yes"]]


def test_on_aws_unconfirmed_data_stays(pulumi: Path) -> None:
    (pulumi.parent / "state.json").write_text(json.dumps({"version": 3, "deployment": KEPT}))
    with pytest.raises(CommandError, match="CONFIRM=train"):
        aws_commands.delete_data("train", "")
    assert pulumi.read_text().splitlines() == ["stack export --stack train"]
