"""The locks hold what the requirements ask for, each package with its hashes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PARTS = (".", "launcher", "trainer", "local", "tests")


def pins(part: str) -> list[str]:
    """`name==version` of each line; extras are other packages of a lock."""
    lines = (ROOT / part / "requirements.txt").read_text().splitlines()
    return [re.sub(r"\[.*?\]", "", line) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("part", PARTS)
def test_what_a_part_needs_is_pinned_and_locked(part: str) -> None:
    locked = (ROOT / "requirements.lock").read_text().lower()
    for pin in pins(part):
        assert re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", pin), f"{pin} is no exact version"
        assert f"\n{pin.lower()} \\\n    --hash=sha256:" in f"\n{locked}", f"{pin}: run make locks"


@pytest.mark.parametrize("lock", [ROOT / "requirements.lock", *ROOT.glob("*/requirements*.lock")])
def test_every_locked_package_has_a_hash(lock: Path) -> None:
    for package in re.split(r"\n(?=[a-z0-9])", lock.read_text().strip()):
        assert "--hash=sha256:" in package, package.splitlines()[0]


def test_the_makefile_resolves_every_part() -> None:
    recipe = re.search(r"^locks:.*?\n\n", (ROOT / "Makefile").read_text(), re.DOTALL | re.MULTILINE)
    assert recipe is not None
    assert "--exclude-newer" in recipe[0]
    for part in (
        "requirements.txt",
        "local/requirements.txt",
        "tests/requirements.txt",
        "trainer/requirements-v100.txt",
    ):
        assert f" {part}" in recipe[0]
