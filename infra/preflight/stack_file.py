"""The settings of a stack without the engine: its file is read as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import yaml

from infra import settings
from infra.model import Settings

ROOT: Final = Path(__file__).resolve().parents[2]


class StackFileError(Exception):
    """A stack file that is missing or is no YAML mapping; one line."""


def load(stack: str, file: Path | None = None) -> Settings:
    """The checked settings of a stack: those of `file`, else of Pulumi.<stack>.yaml.

    Raises:
        StackFileError: there is no such file, or it is no stack file.
        infra.settings.SettingsError: with every mistake in it.
    """
    path = file or ROOT / f"Pulumi.{stack}.yaml"
    try:
        document = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        known = sorted(each.name.split(".")[1] for each in ROOT.glob("Pulumi.*.yaml"))
        raise StackFileError(f"{path.name} does not exist; stack files here: {', '.join(known)}") from None
    except yaml.YAMLError as error:
        raise StackFileError(f"{path.name} is not valid YAML: {' '.join(str(error).split())}") from None
    config = document.get("config") if isinstance(document, dict) else None
    if not isinstance(config, dict):
        raise StackFileError(f"{path.name} needs a mapping named 'config' with the stack's settings")
    return settings.read(stack, config)
