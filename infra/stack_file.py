"""The settings of a stack without the engine: its file is read as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

from infra import settings
from infra.model import Settings
from infra.reading import key_like

ROOT: Final = Path(__file__).resolve().parents[1]


class StackFileError(Exception):
    """A stack file that is missing, can't be read or is no YAML mapping; one line."""


def load(stack: str, file: Path | None = None, *, takes_ended: bool = False) -> Settings:
    """The checked settings of a stack: those of `file`, else of Pulumi.<stack>.yaml.

    `takes_ended`: a reservation that has ended is no mistake, for whoever deploys nothing.

    Raises:
        StackFileError: there is no such file, or it is no stack file.
        infra.settings.SettingsError: with every mistake in it.
    """
    path = file or ROOT / f"Pulumi.{stack}.yaml"
    try:
        # The subclass of SafeLoader makes nothing but what that makes.
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506
    except FileNotFoundError:
        known = sorted(each.name.split(".")[1] for each in ROOT.glob("Pulumi.*.yaml"))
        meant = key_like(stack, known)
        meant = f" Did you mean {meant}?" if meant else ""
        raise StackFileError(
            f"{path.name} does not exist.{meant} Stack files here: {', '.join(known)}"
        ) from None
    except OSError as error:
        raise StackFileError(f"{path.name} can't be read: {error.strerror}; it must be a file") from None
    except UnicodeDecodeError as error:
        raise StackFileError(f"{path.name} is not in UTF-8: {error}; it must be saved as UTF-8") from None
    # A date that is none is a ValueError.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise StackFileError(_not_yaml(path.name, error)) from None
    config = document.get("config") if isinstance(document, dict) else None
    if not isinstance(config, dict):
        raise StackFileError(f"{path.name} needs a mapping named 'config' with the stack's settings")
    # The engine reads none of these there, and would deploy the stack without them.
    if stray := [key for key in document if str(key).startswith(("trainyard:", "aws:"))]:
        raise StackFileError(f"{path.name}: {stray[0]} stands beside 'config'; it must be indented, below it")
    return settings.read(stack, config, takes_ended=takes_ended)


def _not_yaml(name: str, error: Exception) -> str:
    """Where YAML ends and why, in one line, the number of the line as editors count them."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"{name} is not valid YAML: {str(error).splitlines()[0]}"
    begun = error.context_mark
    since = f", {error.context} that begins in line {begun.line + 1}" if error.context and begun else ""
    return f"{name}:{error.problem_mark.line + 1}: is not valid YAML: {error.problem}{since}"


class _Loader(yaml.SafeLoader):
    """YAML without a key twice, of which the last one would silently win; the engine refuses it, too."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            # `<<` takes another mapping in and may stand several times.
            if isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge"):
                name = (key.tag, key.value)
                if name in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key '{key.value}' stands twice in one mapping", key.start_mark
                    )
                seen.add(name)
        return super().construct_mapping(node, deep=deep)
