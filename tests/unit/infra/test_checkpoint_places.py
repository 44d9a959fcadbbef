"""Checkpoint locations: which ones the settings permit, and the trainer's arguments and permissions for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pulumi
import pytest

from components.storage import ModelBucket
from infra import access, stack, volumes
from infra.foundation import Foundation
from infra.settings import read
from tests.unit.components.recording import Recorded, deploy
from tests.unit.infra.changing import EXISTING_LUSTRE, GIVEN_VPC, NOW, POOL, mistakes, settings, with_
from tests.unit.infra.whole import in_a_small_checkout, whole
from trainer.config import Config

RUN = {"pool": "small", "minNodes": 1, "maxNodes": 4}
FILES = {"storage": {"lustre": {"mountPath": "/shared"}}}


@pytest.fixture(scope="module", autouse=True)
def checkout() -> Iterator[None]:
    with in_a_small_checkout():
        yield


@dataclass(frozen=True)
class Run:
    """What a stack passes to its run: checkpoint location, writable directories and trainer arguments."""

    checkpoints: str | None
    shared: str | None
    args: tuple[str, ...]
    deletes: list[str]


def run_of(**change: Any) -> Run:
    """Register only the trainer's identity."""
    found = read("test", with_(change), NOW)
    cluster = SimpleNamespace(oidc_provider_arn="arn:aws:iam::123456789012:oidc-provider/id")
    keys = SimpleNamespace(data_key_arn="arn:aws:kms:::key/data")
    foundation = cast(Foundation, SimpleNamespace(keys=keys, cluster=cluster))

    def program() -> dict[str, Any]:
        name = pulumi.Output.from_input("models")
        bucket = cast(ModelBucket, SimpleNamespace(bucket_name=name, bucket_arn="arn:aws:s3:::models"))
        access.trainer_identity(found, foundation, bucket, pulumi.ResourceOptions())
        return {"uri": found.training and stack.checkpoint_uri(found, found.training, bucket)}

    made = deploy(program)
    args = stack._run(found, found.training, volumes.Volumes()).args if found.training else ()
    return Run(made.result["uri"], volumes.shared_directory(found), args, deletable(made))


def deletable(made: Recorded) -> list[str]:
    """Return the objects that the trainer's role may delete."""
    (policy,) = (each for each in made.of("aws:iam/policy:Policy") if "-trainer-" in each.name)
    statements = json.loads(policy.inputs["policy"])["Statement"]
    return [each["Resource"] for each in statements if "s3:DeleteObject" in each["Action"]]


def test_checkpoints_by_default_are_in_the_stack_bucket() -> None:
    run = run_of(training=RUN)
    assert run.checkpoints == "s3://models/checkpoints"
    assert run.deletes == ["arn:aws:s3:::models/checkpoints/*"]


def test_checkpoints_on_lustre_need_no_deletion_in_the_bucket() -> None:
    run = run_of(training={**RUN, "checkpoints": "lustre"}, **FILES)
    assert (run.checkpoints, run.shared, run.deletes) == ("/shared/checkpoints", "/shared", [])


def test_metrics_directory_with_file_system_is_on_it() -> None:
    training = {**RUN, "args": ["--epochs", "1"]}
    own = ("--metrics-directory", "/shared/metrics", "--epochs", "1")
    assert run_of(training=training, **FILES).args == own
    assert run_of(training=training).args == own[2:], "a pod's own disk goes with it"
    # Another program may not have the option.
    given = {"trainer": "registry.example/trainer@sha256:" + "0" * 64}
    assert run_of(training=training, **FILES, images=given).args == own[2:]


def test_metrics_directory_of_the_settings_takes_precedence() -> None:
    args = run_of(training={**RUN, "args": ["--metrics-directory", "/shared/mine"]}, **FILES).args
    assert Config.read(args, {}).metrics_directory == "/shared/mine"


def test_existing_file_system_has_a_directory_per_stack() -> None:
    change = dict(
        network=GIVEN_VPC,
        pools=[{**POOL, "warmNodes": 1}],
        storage={"lustre": {"existing": EXISTING_LUSTRE, "mountPath": "/shared"}},
        training={**RUN, "runId": "r1", "checkpoints": "lustre"},
    )
    made = whole(read("test", with_(change), NOW))
    (job,) = made.of("kubernetes:batch/v1:Job")
    (container,) = job.inputs["spec"]["template"]["spec"]["containers"]
    (request,) = (each["value"] for each in container["env"] if each["name"] == "TRAINYARD_REQUEST")
    worker = json.loads(request)["worker"]
    own = "/shared/trainyard/test"
    assert worker["env"]["TRAINYARD_CHECKPOINT_URI"] == f"{own}/checkpoints"
    assert worker["writes"] == [own]
    assert worker["args"] == ["--metrics-directory", f"{own}/metrics"]
    assert worker["mounts"] == {"lustre": "/shared"}, "workers see all data on the file system"
    assert deletable(made) == []
    opening, _ = made.one("kubernetes:core/v1:Pod", "lustre-proof").inputs["spec"]["initContainers"]
    assert opening["command"][-1] == own


def test_disabled_checkpoints_have_no_location() -> None:
    run = run_of(training={**RUN, "checkpoints": "none"})
    assert (run.checkpoints, run.deletes) == (None, [])


def test_stack_without_run_may_not_delete_checkpoints() -> None:
    assert run_of().deletes == []


def test_checkpoints_on_lustre_without_file_system_are_refused() -> None:
    (line,) = mistakes(with_({"training": {**RUN, "checkpoints": "lustre"}}))
    assert line == (
        "trainyard:training.checkpoints: is lustre, and there is no file system; it must be s3 or none, or "
        "storage.lustre must be given"
    )
    assert settings(with_({"training": {**RUN, "checkpoints": "lustre"}, **FILES})).storage.lustre


def test_other_checkpoint_location_is_refused() -> None:
    (line,) = mistakes(with_({"training": {**RUN, "checkpoints": "ebs"}}))
    assert line.startswith("trainyard:training.checkpoints")
    assert "s3, lustre, none" in line or "s3, lustre or none" in line


@pytest.mark.parametrize("prefix", ["checkpoints", "checkpoints/models"])
def test_models_prefix_below_checkpoints_is_refused(prefix: str) -> None:
    (line,) = mistakes(with_({"storage": {"prefix": prefix}}))
    assert line == (
        f"trainyard:storage.prefix: '{prefix}' is where checkpoints go; it must be another one, such as models"
    )
    assert settings(with_({"storage": {"prefix": "checkpoints-of-models"}})).storage.prefix
