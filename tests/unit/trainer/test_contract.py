"""The trainer's copy of names has the values of trainyard/k8s/names.py."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from trainer import contract
from trainer.config import Config
from trainyard.k8s import names

ROOT = Path(__file__).parents[3]


def test_names_are_those_of_the_shared_table() -> None:
    copies = {name: value for name, value in vars(contract).items() if name.isupper()}
    table = vars(names)
    assert copies == {name: table[f"ENV_{name}" if f"ENV_{name}" in table else name] for name in copies}


def test_exit_codes_are_those_of_the_shared_table() -> None:
    prefix = "WORKER_EXIT_"
    shared = {
        name.removeprefix(prefix): code for name, code in vars(names).items() if name.startswith(prefix)
    }
    assert shared == {name: int(contract.Exit[name]) for name in shared}


def test_only_settings_and_world_size_are_final_exit_codes() -> None:
    final = {code for code in contract.Exit if code in names.WORKER_FINAL_EXIT_CODES}
    assert final == {contract.Exit.CONFIGURATION, contract.Exit.WORLD_SIZE}


def test_options_are_the_shared_ones() -> None:
    assert tuple(f"--{each.name.replace('_', '-')}" for each in fields(Config)) == names.TRAINER_OPTIONS


@pytest.mark.parametrize("image", ["trainer", "launcher"])
def test_image_has_shared_user_pinned_base_and_checked_packages(image: str) -> None:
    text = (ROOT / image / "Dockerfile").read_text()
    user = names.POD_USER
    assert f"\nUSER {user}:{user}\n" in text
    assert "ARG PYTHON_IMAGE=python:3.11.15-slim-bookworm@sha256:" in text
    assert "--require-hashes" in text
    assert ":latest" not in text
    lock = (ROOT / image / "requirements.lock").read_text()
    for pin in (ROOT / image / "requirements.txt").read_text().split():
        assert f"{pin} \\\n    --hash=sha256:" in lock, f"{image}/requirements.lock does not hold {pin}"
    everything = (ROOT / "requirements.lock").read_text()
    for line in lock.splitlines():
        if "==" in line:
            assert line.split()[0] in everything, f"{line}: the tests run with another version"
