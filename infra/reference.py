"""The reference page of the settings: `python -m infra.reference` writes docs/settings.md."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from infra.changes import CHANGES
from infra.examples import BOTH
from infra.meanings import DEFAULTS, MEANINGS, SECTIONS
from infra.reading import Asked
from infra.settings import PROJECT, asked

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "settings.md"
HEAD: Final = """\
# Settings of a stack file

<!-- Written by `make reference` from what infra/ reads; edits here are lost. -->

A stack file is `Pulumi.<stack>.yaml`, or an example in [examples/stacks](../examples/stacks/README.md).
All keys are below `config:`. They begin with `trainyard:`, except for three `aws:` keys.
Unknown keys are errors. All errors in a stack file are reported together, before any resource is registered.

The column "Changed later" describes the effect of another value on a running stack:

- *in place*: the next `up` updates the resource.
- *replaces*: the next `up` creates another resource and deletes the first.
- *fixed*: `make up`, `make preview`, `make preflight`, `pulumi preview` and `pulumi up` refuse another value. The stack
  keeps the value of its first `up`, even if that failed (docs/upgrading.md). `aws:region` is fixed, too.

Three keys of the AWS provider are supported, in all commands. Its other keys are refused, with an alternative:

| Key | Meaning | Changed later |
|---|---|---|
| `aws:region` | The region; required. | fixed |
| `aws:profile` | A profile of `~/.aws/config`. It overrides keys in the environment. | in place, in one account |
| `aws:defaultTags` | `tags:` with tags for all resources, nodes and disks. | new nodes; replaces system nodes |
"""


def keys() -> dict[str, Asked]:
    """Every key that the readers know, without its `trainyard:`."""
    found: dict[str, Asked] = {}
    for config in BOTH:
        for path, each in asked("example", config).items():
            found.setdefault(path.removeprefix(f"{PROJECT}:"), each)
    return found


def example(path: str) -> Any:
    """A value of the key in `infra.examples`; None where neither has one."""
    section, *rest = path.split(".")
    for config in BOTH:
        value = config.get(f"{PROJECT}:{section.removesuffix('[]')}")
        values = list(value or []) if section.endswith("[]") else [value]
        for name in rest:
            key = name.removesuffix("[]")
            values = [each[key] for each in values if isinstance(each, Mapping) and key in each]
            if key != name:
                values = [entry for each in values for entry in each or []]
        known = [each for each in values if each is not None]
        if known:
            return known[0]
    return None


def render() -> str:
    """The page."""
    known = keys()
    parts = [HEAD]
    for section, purpose in SECTIONS.items():
        rows = {
            path: each for path, each in known.items() if path.partition(".")[0].removesuffix("[]") == section
        }
        parts.append(f"\n## {section}\n\n{purpose}\n\n")
        parts.append(
            "| Key | Type | Default | Unit | Meaning | Changed later | Example |\n|---|---|---|---|---|---|---|\n"
        )
        parts += [_row(path, each) for path, each in rows.items() if path in MEANINGS]
    return "".join(parts)


def _row(path: str, each: Asked) -> str:
    default = DEFAULTS.get(path) or each.default or "none"
    # An example of a mapping stands with its keys.
    shown = "" if each.kind == "mapping" else f"`{_shown(example(path))}`"
    cells = (f"`{path}`", each.kind, default, each.unit, MEANINGS[path], CHANGES[path].text, shown)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _shown(value: Any) -> str:
    """A value on one line, as YAML takes it."""
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, str) and yaml.safe_load(value) == value:
        return value
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_shown(entry) for entry in value) + "]"
    return json.dumps(value)


if __name__ == "__main__":
    PAGE.write_text(render())
    sys.stdout.write(f"wrote {PAGE}\n")
