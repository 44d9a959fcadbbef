"""The images' Dockerfiles, judged by hadolint and by what each target has to be."""

from __future__ import annotations

import mmap
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from local.nodes.dockerfile import instructions, parse
from trainer.contract import REVISION
from trainyard.k8s import names
from trainyard.operator.api.queue import WORKING_DIRECTORY

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "trainer" / "Dockerfile"
USER = names.POD_USER
GPU_TARGETS = ("cuda", "v100")


def test_hadolint_finds_nothing_in_our_dockerfiles(tmp_path: Path) -> None:
    """None of its rules is left out."""
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert hadolint, "hadolint is not in the environment: run make environment"
    settings = tmp_path / "hadolint.yaml"
    settings.write_text("{}")
    dockerfiles = [ROOT / image / "Dockerfile" for image in ("trainer", "launcher")]
    command = [hadolint, "--config", settings, "--disable-ignore-pragma", "--no-fail", *dockerfiles]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""


def stages(dockerfile: str) -> list[list[tuple[str, str]]]:
    """The instructions of each stage, FROM first."""
    found: list[list[tuple[str, str]]] = []
    for instruction in instructions(dockerfile):
        if instruction[0] == "FROM":
            found.append([])
        if found:
            found[-1].append(instruction)
    return found


def test_what_is_not_a_stage_has_a_digest() -> None:
    text = DOCKERFILE.read_text()
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", text.split("\nFROM ")[0], re.MULTILINE))
    names: set[str] = set()
    for stage in stages(text):
        base, _, name = stage[0][1].partition(" AS ")
        given = re.sub(r"\$\{(\w+)\}", lambda match: defaults[match[1]], base)
        assert base in names or re.fullmatch(r"\S+:[\w.-]+@sha256:[0-9a-f]{64}", given), base
        names.add(name)
    assert {"cpu", *GPU_TARGETS} <= names
    assert ":latest" not in text


def test_the_default_target_is_the_one_for_gpus() -> None:
    text = DOCKERFILE.read_text()
    assert stages(text)[-1][0][1] == "efa AS cuda"
    assert parse(text) == parse(text, "cuda")


@pytest.mark.parametrize("target", ["cpu", *GPU_TARGETS])
def test_each_target_has_the_pods_user_and_trains_by_default(target: str) -> None:
    text = DOCKERFILE.read_text()
    (stage,) = (stage for stage in stages(text) if stage[0][1].endswith(f" AS {target}"))
    assert stage[-1] == ("USER", f"{USER}:{USER}")
    image = parse(text, target)
    assert image.entrypoint == ("python", "-m", "trainer.entrypoint")
    assert image.command == (), "it would stand where a run has no arguments of its own"
    assert image.environment.get("TRAINYARD_DEVICE") == ("cpu" if target == "cpu" else None)


@pytest.mark.parametrize("target", ["cpu", *GPU_TARGETS])
def test_build_sets_its_revision_in_the_last_layer(target: str) -> None:
    """It is last, so that another revision rebuilds no layer of packages."""
    (stage,) = (stage for stage in stages(DOCKERFILE.read_text()) if stage[0][1].endswith(f" AS {target}"))
    assert stage[-3] == ("ARG", REVISION)
    assert parse(DOCKERFILE.read_text(), target).environment[REVISION] == "", (
        "without the argument it is empty"
    )
    text = DOCKERFILE.read_text().replace(f"ARG {REVISION}\n", f"ARG {REVISION}=0123abc\n")
    assert parse(text, target).environment[REVISION] == "0123abc"


@pytest.mark.parametrize(("target", "lock"), [("cpu", ""), ("cuda", ""), ("v100", "-v100")])
def test_each_target_has_its_lock(target: str, lock: str) -> None:
    (stage,) = (stage for stage in stages(DOCKERFILE.read_text()) if stage[0][1].endswith(f" AS {target}"))
    file = f"trainer/requirements{lock}.lock"
    assert ("RUN", f"pip install --no-cache-dir --require-hashes --requirement {file}") in stage
    assert ("COPY", f"{file} {file}") in stage
    assert ("ARG", "PIP_INDEX_URL") in stage


@pytest.mark.parametrize("target", ["cpu", *GPU_TARGETS])
def test_image_finds_trainer_from_any_directory(target: str) -> None:
    image = parse(DOCKERFILE.read_text(), target)
    assert image.environment["PYTHONPATH"] == image.workdir
    assert not f"{image.workdir}/".startswith(f"{WORKING_DIRECTORY}/")


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / "trainer" / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def test_the_image_for_v100_differs_in_torch_alone() -> None:
    usual, volta = pins("requirements.txt"), pins("requirements-v100.txt")
    assert volta.pop("torch") == "2.10.0", "another release needs another look at its kernels"
    usual.pop("torch")
    assert volta == usual
    lock = (ROOT / "trainer" / "requirements-v100.lock").read_text()
    for name, version in [*volta.items(), ("torch", "2.10.0")]:
        assert f"{name}=={version} \\\n    --hash=sha256:" in lock
    assert "nvidia-cuda-runtime-cu12==12.8." in lock


def test_nothing_is_set_that_the_plugin_chooses_by_machine() -> None:
    """With a current libfabric and plugin these do harm (the cheat sheet that the Dockerfile names)."""
    for target in GPU_TARGETS:
        names = set(parse(DOCKERFILE.read_text(), target).environment)
        assert not names & {
            "FI_PROVIDER",
            "FI_EFA_USE_DEVICE_RDMA",
            "FI_EFA_FORK_SAFE",
            "RDMAV_FORK_SAFE",
            "NCCL_PROTO",
            "NCCL_BUFFSIZE",
            "NCCL_MIN_CHANNELS",
            "NCCL_SHM_USE_CUDA_MEMCPY",
        }
        assert parse(DOCKERFILE.read_text(), target).environment["FI_EFA_USE_HUGE_PAGE"] == "0"


@pytest.mark.long
def test_pinned_torch_knows_each_of_its_variables() -> None:
    """It reads two gigabytes of libraries."""
    found = find_spec("torch")
    assert found is not None
    assert found.origin is not None
    libraries = Path(found.origin).parent / "lib"
    names = {
        name.encode()
        for name in parse(DOCKERFILE.read_text(), "cuda").environment
        if name.startswith(("TORCH_", "PYTORCH_"))
    }
    assert len(names) == 5
    for library in ("libc10_cuda.so", "libtorch_cpu.so", "libtorch_cuda.so"):
        if names and (libraries / library).exists():
            with (libraries / library).open("rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                names = {name for name in names if content.find(b"\0" + name + b"\0") < 0}
    assert names == set()
