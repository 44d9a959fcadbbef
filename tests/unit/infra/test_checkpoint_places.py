"""Where the settings let a run keep its checkpoints, what the trainer is told of it, and what it may do there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from infra.settings import read
from tests.unit.components.recording import Recorded
from tests.unit.infra.changing import GIVEN_VPC, NOW, POOL, mistakes, settings, with_
from tests.unit.infra.whole import in_a_small_checkout, whole
from trainer.config import Config

pytestmark = [
    pytest.mark.unit,
    # The SDK imports the old names of what it exports.
    pytest.mark.filterwarnings("ignore:.*has been deprecated in favor:DeprecationWarning"),
]

RUN = {"pool": "small", "minNodes": 1, "maxNodes": 4}
FILES = {"storage": {"lustre": {"mountPath": "/shared"}}}


@pytest.fixture(scope="module", autouse=True)
def checkout() -> Iterator[None]:
    with in_a_small_checkout():
        yield


def deployed(**change: Any) -> Recorded:
    return whole(read("test", with_(change), NOW))


def worker(made: Recorded) -> dict[str, Any]:
    """What the launcher is told of workers."""
    (job,) = made.of("kubernetes:batch/v1:Job")
    (container,) = job.inputs["spec"]["template"]["spec"]["containers"]
    (request,) = (each["value"] for each in container["env"] if each["name"] == "TRAINYARD_REQUEST")
    found: dict[str, Any] = json.loads(request)["worker"]
    return found


def told(made: Recorded) -> dict[str, str]:
    """The environment that the launcher gives to workers."""
    env: dict[str, str] = worker(made)["env"]
    return env


def may_delete(made: Recorded) -> list[str]:
    """What the trainer's role lets it delete."""
    (policy,) = (each for each in made.of("aws:iam/policy:Policy") if "-trainer-" in each.name)
    statements = json.loads(policy.inputs["policy"])["Statement"]
    return [each["Resource"] for each in statements if "s3:DeleteObject" in each["Action"]]


def test_checkpoints_go_to_the_stacks_bucket_if_nothing_is_said() -> None:
    made = deployed(training={**RUN, "runId": "r1"})
    bucket = made.result["modelBucket"]
    assert told(made)["TRAINYARD_CHECKPOINT_URI"] == f"s3://{bucket}/checkpoints"
    assert may_delete(made) == [f"arn:aws:s3:::{bucket}/checkpoints/*"]


def test_checkpoints_go_to_the_file_system_and_the_trainer_deletes_nothing_in_the_bucket() -> None:
    made = deployed(training={**RUN, "runId": "r1", "checkpoints": "lustre"}, **FILES)
    assert told(made)["TRAINYARD_CHECKPOINT_URI"] == "/shared/checkpoints"
    assert worker(made)["writes"] == ["/shared"]
    assert may_delete(made) == []


def test_metrics_and_hangs_are_written_to_the_file_system_wherever_checkpoints_go() -> None:
    more = {"training": {**RUN, "runId": "r1", "args": ["--epochs", "1"]}, **FILES}
    own = ["--metrics-directory", "/shared/metrics", "--epochs", "1"]
    assert worker(deployed(**more))["args"] == own
    assert worker(deployed(training=more["training"]))["args"] == own[2:], "a pod's own disk goes with it"
    # Of another program nobody knows whether it has the option.
    given = {"trainer": "registry.example/trainer@sha256:" + "0" * 64}
    assert worker(deployed(**more, images=given))["args"] == own[2:]


def test_where_the_settings_say_another_directory_for_metrics_that_one_counts() -> None:
    args = ["--metrics-directory", "/shared/mine"]
    made = deployed(training={**RUN, "runId": "r1", "args": args}, **FILES)
    assert Config.read(worker(made)["args"], {}).metrics_directory == "/shared/mine"


def test_of_a_file_system_that_is_given_runs_and_the_proof_write_to_a_directory_of_the_stacks_own() -> None:
    existing = {
        "fileSystemId": "fs-0123456789abcdef0",
        "dnsName": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
        "mountName": "abcdefgh",
    }
    made = deployed(
        network=GIVEN_VPC,
        pools=[{**POOL, "warmNodes": 1}],
        storage={"lustre": {"existing": existing, "mountPath": "/shared"}},
        training={**RUN, "runId": "r1", "checkpoints": "lustre"},
    )
    own = "/shared/trainyard/test"
    assert told(made)["TRAINYARD_CHECKPOINT_URI"] == f"{own}/checkpoints"
    assert worker(made)["writes"] == [own]
    assert worker(made)["args"] == ["--metrics-directory", f"{own}/metrics"]
    assert worker(made)["mounts"] == {"lustre": "/shared"}, "whoever has data there sees them all"
    opening, _ = made.one("kubernetes:core/v1:Pod", "lustre-proof").inputs["spec"]["initContainers"]
    assert opening["command"][-1] == own


def test_a_run_without_checkpoints_knows_no_place_and_may_delete_nothing() -> None:
    made = deployed(training={**RUN, "runId": "r1", "checkpoints": "none"})
    assert "TRAINYARD_CHECKPOINT_URI" not in told(made)
    assert may_delete(made) == []


def test_a_stack_that_trains_nothing_lets_the_trainer_delete_nothing() -> None:
    assert may_delete(deployed()) == []


def test_checkpoints_on_a_file_system_need_one() -> None:
    (line,) = mistakes(with_({"training": {**RUN, "checkpoints": "lustre"}}))
    assert line == (
        "trainyard:training.checkpoints: is lustre, and there is no file system; it must be s3 or none, or "
        "storage.lustre must be given"
    )
    assert settings(with_({"training": {**RUN, "checkpoints": "lustre"}, **FILES})).storage.lustre


def test_another_place_is_refused() -> None:
    (line,) = mistakes(with_({"training": {**RUN, "checkpoints": "ebs"}}))
    assert line.startswith("trainyard:training.checkpoints")
    assert "s3, lustre, none" in line or "s3, lustre or none" in line


@pytest.mark.parametrize("prefix", ["checkpoints", "checkpoints/models"])
def test_models_do_not_go_where_checkpoints_are_deleted(prefix: str) -> None:
    (line,) = mistakes(with_({"storage": {"prefix": prefix}}))
    assert line == (
        f"trainyard:storage.prefix: '{prefix}' is where checkpoints go; it must be another one, such as models"
    )
    assert settings(with_({"storage": {"prefix": "checkpoints-of-models"}})).storage.prefix
