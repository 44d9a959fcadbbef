"""Which GPUs the trainer's torch has kernels for, and that a stack that needs others is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from components.documents import instance_types
from infra.settings import read
from tests.unit.infra.changing import NOW, ROOT, mistakes, settings, stack_file, with_

pytestmark = pytest.mark.unit

TRAINER = f"registry.example/trainer@sha256:{'0' * 64}"
V100 = {"name": "old", "instanceType": "p3dn.24xlarge", "zone": "us-west-2b", "maxNodes": 4}
T4 = {"name": "old", "instanceType": "g4dn.metal", "zone": "us-west-2b", "maxNodes": 4}


def training(pool: dict[str, Any], **change: Any) -> dict[str, Any]:
    """A stack that trains on a pool."""
    return with_({"pools": [pool], "training": {"pool": "old", "minNodes": 1, "maxNodes": 2, **change}})


def test_the_known_torch_is_the_one_that_is_pinned() -> None:
    """Another torch, or one for another CUDA, needs another look at what it is built for."""
    lock = (ROOT / "trainer" / "requirements.lock").read_text()
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", lock, re.MULTILINE))
    assert pinned["torch"] == "2.15.0"
    assert pinned["cuda-toolkit"].split(".")[0] == str(instance_types.TORCH_CUDA)


def test_the_capability_of_every_gpu_is_known_and_only_v100_are_too_old() -> None:
    gpus = {t.accelerator for t in instance_types.TYPES.values() if t.resource == "nvidia.com/gpu"}
    assert gpus == set(instance_types.COMPUTE_CAPABILITY)
    refused = {t.name for t in instance_types.TYPES.values() if not instance_types.torch_serves(t)}
    assert refused == {"p3dn.24xlarge"}


def test_training_on_v100_with_the_image_that_the_stack_builds_is_refused() -> None:
    (line,) = mistakes(training(V100))
    assert line.startswith(
        "trainyard:images.trainer: is missing; the image that is built has a torch for CUDA 13"
    )
    assert "no kernels for the V100 of p3dn.24xlarge (pool 'old')" in line
    assert "it must be one that has, such as the target v100 of trainer/Dockerfile" in line
    assert settings(training(T4)).training is not None


def test_whoever_brings_an_image_or_trains_on_the_cpu_or_not_at_all_has_v100() -> None:
    config = training(V100)
    config["trainyard:images"] = {"trainer": TRAINER}
    assert settings(config).images.trainer == TRAINER
    cpu = settings(training(V100, device="cpu", processesPerNode=1)).training
    assert cpu is not None
    assert settings(with_({"pools": [V100]})).pools[0].accelerators == 8


def test_a_base_image_is_no_way_out_since_the_pinned_torch_is_installed_on_it() -> None:
    config = training(V100)
    config["trainyard:images"] = {"baseImages": {"trainer": TRAINER}}
    (line,) = mistakes(config)
    assert line.startswith("trainyard:images.trainer: is missing")


@pytest.mark.parametrize(
    ("images", "told"),
    [
        ({"trainer": "mine:latest"}, "'mine:latest' is invalid"),
        ({"build": False, "launcher": TRAINER}, "is missing; build: false needs"),
    ],
)
def test_one_mistake_in_the_image_is_one_line(images: dict[str, Any], told: str) -> None:
    (line,) = mistakes({**training(V100), "trainyard:images": images})
    assert line.startswith(f"trainyard:images.trainer: {told}")


def test_the_shipped_stack_with_v100_starts_no_run_of_its_own_and_serves_mpi_jobs() -> None:
    shipped = read("lustre-existing-vpc", stack_file("lustre-existing-vpc"), NOW)
    assert (shipped.pools[0].instance_type, shipped.training, shipped.mpi) == ("p3dn.24xlarge", None, True)
