"""docs/trainer.md has every option of the trainer, every exit code, and no others."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from trainer.config import Config
from trainer.contract import Exit

PAGE = (Path(__file__).parents[3] / "docs" / "trainer.md").read_text()


def rows(title: str) -> list[list[str]]:
    """The table under this title: its rows' cells."""
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_page_has_every_option_once() -> None:
    named = [option for row in rows("Options") for option in re.findall(r"`(--[a-z-]+)`", row[0])]
    assert sorted(named) == sorted(f"--{each.name.replace('_', '-')}" for each in fields(Config))


def test_the_page_has_the_defaults() -> None:
    for row in rows("Options"):
        options = re.findall(r"`--([a-z-]+)`", row[0])
        values = [getattr(Config(), option.replace("-", "_")) for option in options]
        for value in values:
            if value is not None:
                text = f"{value:g}" if isinstance(value, float) else str(value)
                assert text in row[1], f"{options}: {text}"


def test_the_page_has_every_exit_code() -> None:
    assert [int(row[0]) for row in rows("Exit codes")] == [int(code) for code in Exit]


@pytest.mark.long
def test_the_page_shows_the_world_as_the_trainer_does() -> None:
    """The example is of one laptop that nobody promised anything."""
    from trainer.consistency import ProcessInfo, table  # it imports torch

    versions = {"python": "3.11.7", "torch": "2.15.0+cu132", "cuda": "none", "nccl": "none", "driver": "none"}
    laptop = [
        ProcessInfo(rank=rank, node=0, host="laptop", device="CPU x86_64", **versions) for rank in (0, 1)
    ]
    shown = "\n".join(table(laptop))
    assert f"\n{shown}\n" in PAGE, shown
