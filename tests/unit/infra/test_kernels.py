"""GPUs for which the trainer's torch has kernels; a stack with other GPUs is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from components.documents import instance_types
from infra.settings import read
from tests.unit.infra.changing import NOW, ROOT, mistakes, settings, stack_file, with_

TRAINER = f"registry.example/trainer@sha256:{'0' * 64}"
V100 = {"name": "old", "instanceType": "p3dn.24xlarge", "zone": "us-west-2b", "maxNodes": 4}
T4 = {"name": "old", "instanceType": "g4dn.metal", "zone": "us-west-2b", "maxNodes": 4}


def training(pool: dict[str, Any], **change: Any) -> dict[str, Any]:
    """Return a stack whose run uses this pool."""
    return with_({"pools": [pool], "training": {"pool": "old", "minNodes": 1, "maxNodes": 2, **change}})


def test_torch_version_of_the_table_is_the_pinned_one() -> None:
    """After an update of torch or CUDA, check again for which GPUs it is built."""
    lock = (ROOT / "trainer" / "requirements.lock").read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", lock, re.MULTILINE))
    assert pinned["torch"] == "2.15.0"
    assert pinned["cuda-toolkit"].split(".")[0] == str(instance_types.TORCH_CUDA)


def test_every_gpu_has_a_capability_and_only_v100_is_too_old() -> None:
    gpus = {t.accelerator for t in instance_types.TYPES.values() if t.resource == "nvidia.com/gpu"}
    assert gpus == set(instance_types.COMPUTE_CAPABILITY)
    refused = {t.name for t in instance_types.TYPES.values() if not instance_types.torch_serves(t)}
    assert refused == {"p3dn.24xlarge"}


def test_run_on_v100_with_the_built_image_is_refused() -> None:
    (line,) = mistakes(training(V100))
    assert line.startswith(
        "trainyard:images.trainer: is missing; the image that is built has a torch for CUDA 13"
    )
    assert "no kernels for the V100 of p3dn.24xlarge (pool 'old')" in line
    assert "it must be one that has, such as the target v100 of trainer/Dockerfile" in line
    assert settings(training(T4)).training is not None


def test_v100_with_own_image_or_cpu_or_no_run_is_accepted() -> None:
    config = training(V100)
    config["trainyard:images"] = {"trainer": TRAINER}
    assert settings(config).images.trainer == TRAINER
    cpu = settings(training(V100, device="cpu", processesPerNode=1)).training
    assert cpu is not None
    assert settings(with_({"pools": [V100]})).pools[0].accelerators == 8


def test_v100_with_base_image_is_refused() -> None:
    config = training(V100)
    config["trainyard:images"] = {"baseImages": {"trainer": TRAINER}}
    (line,) = mistakes(config)
    assert line.startswith("trainyard:images.trainer: is missing")


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ({"trainer": "mine:latest"}, "'mine:latest' is invalid"),
        ({"build": False, "launcher": TRAINER}, "is missing; build: false needs"),
    ],
)
def test_invalid_image_is_reported_once(images: dict[str, Any], message: str) -> None:
    (line,) = mistakes({**training(V100), "trainyard:images": images})
    assert line.startswith(f"trainyard:images.trainer: {message}")


def test_shipped_v100_stack_has_mpi_jobs_and_no_run() -> None:
    shipped = read("lustre-existing-vpc", stack_file("lustre-existing-vpc"), NOW)
    assert (shipped.pools[0].instance_type, shipped.training, shipped.mpi) == ("p3dn.24xlarge", None, True)
