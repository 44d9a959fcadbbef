"""Write the reference page of the fields, docs/torchrun-fields.md. The entry point is `render`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trainyard.operator import names as n
from trainyard.operator.api.crd import QUEUE_NAME_MAX_LENGTH
from trainyard.operator.api.fields import FORBIDDEN, Field
from trainyard.operator.api.job import JOB
from trainyard.operator.api.queue import QUEUE
from trainyard.operator.api.status import JOB_STATUS, QUEUE_STATUS

HEAD: Final = f"""\
# Fields of torchrun queues and jobs

<!-- Written by `make manifests` from trainyard/operator/api; edits here are lost. -->

`{n.API_VERSION}`; both kinds are namespaced. `kubectl explain {n.JOB_SINGULAR}.spec` shows the same. The API server
refuses an invalid value with the field and what it must be. A quantity is one of Kubernetes, above 0.
"""
QUEUE_HEAD: Final = f"""
## {n.QUEUE_KIND}

How jobs are created (`{n.QUEUE_SINGULAR}`, `{n.QUEUE_PLURAL}`, `{n.QUEUE_SHORT}`; category `{n.CATEGORY}`). \
Its name has at most {QUEUE_NAME_MAX_LENGTH} characters.
"""
JOB_HEAD: Final = f"""
## {n.JOB_KIND}

One training (`{n.JOB_SINGULAR}`, `{n.JOB_PLURAL}`, `{n.JOB_SHORT}`; category `{n.CATEGORY}`). Its name has at most \
{n.JOB_NAME_MAX_LENGTH} characters and begins with a letter.
`kubectl scale --replicas` sets `spec.numNodes`; the API server shows the scale only of jobs that have numNodes.
"""
OVERRIDES: Final = """
`spec.overrides` has all fields of the queue's `spec` except `parentKaiQueue`. Each is optional and has no default. \
The rules apply there, too, except those that need the complete queue. Some fields need further permissions: \
[torchrun.md](torchrun.md#what-a-job-may-ask-for).
"""


def render() -> str:
    """Return the page."""
    parts = [HEAD, QUEUE_HEAD, *_kind(QUEUE, QUEUE_STATUS)]
    parts += [JOB_HEAD, *_kind(JOB, JOB_STATUS)]
    return "".join(parts)


def _kind(spec: Field, status: Field) -> Iterator[str]:
    yield "\n### spec\n\n| Field | Type | Default | Unit | Description |\n|---|---|---|---|---|\n"
    yield from (_row(path, each) for path, each in _below("", spec))
    if "overrides" in spec.fields:
        yield OVERRIDES
    yield "\nRules:\n\n"
    yield from (f"- {each}\n" for each in _rules(spec))
    yield "\n### status\n\n| Field | Type | Unit | Description |\n|---|---|---|---|\n"
    for path, each in _below("", status):
        yield _line(f"`{path}`", each.holds, each.unit, each.description)


def _below(place: str, parent: Field) -> Iterator[tuple[str, Field]]:
    """Yield each field below with its path, without those of `overrides`, which are the queue's."""
    for name, each in parent.fields.items():
        path = f"{place}{name}"
        yield path, each
        if path != "overrides":
            yield from _below(f"{path}.", each)
        if each.item is not None:
            yield from _below(f"{path}[].", each.item)


def _row(path: str, each: Field) -> str:
    default = "required" if each.required else each.default_text()
    shown = f"`{default}`" if each.default not in (None, {}) else default
    return _line(f"`{path}`", each.holds, shown, each.unit, each.description)


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _rules(spec: Field) -> Iterator[str]:
    """Yield the rules for several fields. All fields that can't be changed are in one line."""
    fixed = [each.path.removeprefix(".") for each in spec.rules if each.reason == FORBIDDEN]
    if fixed:
        yield f"These can't be changed: {', '.join(fixed)}."
    objects = [spec, *(each for path, each in _below("", spec) if path != "overrides")]
    objects += [each.item for each in objects if each.item is not None]
    for each in objects:
        if each.fields:
            yield from (f"{rule.message}." for rule in each.rules if rule.reason != FORBIDDEN)
