"""Write docs/settings.md and the JSON schema of stack files: `python -m infra.settings.reference`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, get_origin

import yaml
from pydantic.fields import FieldInfo

from infra.settings import PROJECT
from infra.settings.fields import Model
from infra.settings.model import StackConfig
from infra.settings.problems import describe, extra_of, model_in
from infra.settings.provider import PREFIX, ProviderSection

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PAGE: Final = DOCS / "settings.md"
SCHEMA: Final = DOCS / "settings.schema.json"
HEAD: Final = """\
# Settings of a stack file

<!-- Written by `make reference` from the models in infra/settings; edits here are lost. -->

A stack file is `Pulumi.<stack>.yaml`, or an example in [examples/stacks](../examples/stacks/README.md).
All keys are below `config:`. They begin with `trainyard:`, except for three `aws:` keys, and for
`pulumi:disable-default-providers: [aws, kubernetes]` of Pulumi, by which every resource must name its provider.
Unknown keys are errors. All errors in a stack file are reported together, before any resource is registered.

Editors with a YAML language server complete and check the keys: the first line of a stack file names the schema,
[settings.schema.json](settings.schema.json). Rules of several settings are checked by `make up`, `make preview` and
`make preflight` only.

The column "Changed later" describes the effect of another value on a running stack:

- *in place*: the next `up` updates the resource.
- *replaces*: the next `up` creates another resource and deletes the first.
- *fixed*: `make up`, `make preview`, `make preflight`, `pulumi preview` and `pulumi up` refuse another value. The stack
  keeps the value of its first `up`, even if that failed (docs/upgrading.md). `aws:region` is fixed, too.

Three keys of the AWS provider are supported, in all commands. Its other keys are refused, with an alternative:

| Key | Meaning | Changed later |
|---|---|---|
"""
TABLE: Final = (
    "| Key | Type | Default | Unit | Meaning | Changed later | Example |\n|---|---|---|---|---|---|---|\n"
)


def keys() -> dict[str, FieldInfo]:
    """Return every setting by its path; an entry of a list has `[]` for its number."""
    return {
        path: info
        for path, info in _walk(StackConfig, "")
        if "." in path or model_in(info.annotation) is None
    }


def _walk(model: type[Model], prefix: str) -> Iterator[tuple[str, FieldInfo]]:
    for info in model.model_fields.values():
        path, inner = f"{prefix}{info.alias}", model_in(info.annotation)
        yield path, info
        if inner is not None:
            yield from _walk(inner, f"{path}{'[]' if is_list(info) else ''}.")


def is_list(info: FieldInfo) -> bool:
    """Return whether a field holds a list."""
    return get_origin(info.annotation) is tuple


def render() -> str:
    """Return the page."""
    parts = [HEAD]
    for info in ProviderSection.model_fields.values():
        cells = (f"`{PREFIX}{info.alias}`", _description(info), extra_of(info, "changedLater"))
        parts.append(f"| {' | '.join(cells)} |\n")
    switches = []
    for info in StackConfig.model_fields.values():
        inner = model_in(info.annotation)
        if inner is None:
            switches.append(_row(str(info.alias), info))
            continue
        prefix = f"{info.alias}{'[]' if is_list(info) else ''}."
        rows = [_row(path, each) for path, each in _walk(inner, prefix)]
        parts.append(f"\n## {info.alias}\n\n{_description(info)}\n\n{TABLE}{''.join(rows)}")
    parts.append(f"\n## Switches\n\nSettings without a section.\n\n{TABLE}{''.join(switches)}")
    return "".join(parts)


def _description(info: FieldInfo) -> str:
    return " ".join((info.description or "").split())


def _row(path: str, info: FieldInfo) -> str:
    kind = describe(info)[0]
    default = extra_of(info, "defaultText") or _default(info)
    # The keys of a mapping have their own examples.
    example = f"`{_yaml(info.examples[0])}`" if info.examples else ""
    cells = (
        *(f"`{path}`", kind, default, extra_of(info, "unit"), _description(info)),
        *(extra_of(info, "changedLater"), example),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _default(info: FieldInfo) -> str:
    value = "required" if info.is_required() else info.default
    if isinstance(value, bool):
        return str(value).lower()
    if value == ():
        return "[]"
    return "none" if isinstance(value, Model) or value in (None, "", {}) else str(value)


def _yaml(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, str) and yaml.safe_load(value) == value:
        return value
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_yaml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_yaml(entry) for entry in value) + "]"
    return json.dumps(value)


def schema() -> dict[str, Any]:
    """Return the JSON schema of a stack file. It can't express the rules of several settings."""
    properties: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for prefix, model in ((PREFIX, ProviderSection), (f"{PROJECT}:", StackConfig)):
        found = model.model_json_schema()
        definitions |= found.pop("$defs", {})
        properties |= {f"{prefix}{key}": value for key, value in found["properties"].items()}
    config = {
        "type": "object",
        "properties": properties,
        # Pulumi and other providers have further keys.
        "patternProperties": {"^(?!aws:|trainyard:)[^:]+:": {}},
        "additionalProperties": False,
        "required": [f"{PREFIX}region", f"{PROJECT}:pools"],
    }
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Stack file of Trainyard",
        "type": "object",
        "properties": {"config": config},
        "required": ["config"],
        "$defs": definitions,
    }
    _tidy(document)
    for each in (config, *definitions.values()):
        _accept_empty_sections(each, definitions)
    return document


def _accept_empty_sections(model: dict[str, Any], definitions: dict[str, Any]) -> None:
    """Accept null for optional mappings and lists: YAML reads a section whose keys are all comments as null."""
    for key, part in model.get("properties", {}).items():
        target = definitions[part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        if key not in model.get("required", ()) and target.get("type") in ("object", "array"):
            target["type"] = [target["type"], "null"]


def _tidy(part: Any) -> None:
    """Add the effect of a change to the description that editors show, and remove keys that nobody reads."""
    if isinstance(part, list):
        for each in part:
            _tidy(each)
    if not isinstance(part, dict):
        return
    # A key without a value counts as absent, but a stack file need not have one.
    options = [each for each in part.get("anyOf", []) if each != {"type": "null"}]
    if len(options) == 1:
        part |= {**options[0], **part}
        del part["anyOf"]
    change = part.pop("changedLater", "")
    for name, text in (
        ("Unit", part.pop("unit", "")),
        ("Default", part.pop("defaultText", "")),
        ("Change", change),
    ):
        if text:
            part["description"] = f"{part.get('description', '')} {name}: {text}.".strip()
    if isinstance(part.get("description"), str):
        part["description"] = " ".join(part["description"].split())
    if part.get("default") in (None, {}, "") or isinstance(part.get("default"), dict):
        part.pop("default", None)
    if isinstance(part.get("title"), str) and "$schema" not in part:
        del part["title"]
    # The keys of a mapping of texts have a pattern.
    if "patternProperties" in part:
        part["additionalProperties"] = False
    for each in part.values():
        _tidy(each)


def render_schema() -> str:
    """Return the text of the JSON schema."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for file, text in ((PAGE, render()), (SCHEMA, render_schema())):
        file.write_text(text)
        sys.stdout.write(f"wrote {file}\n")
