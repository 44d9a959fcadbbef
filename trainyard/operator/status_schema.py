"""Fit a status to the schema of its resource, because text from a pod may exceed it. Pure.

The entry point is `fit_status`. If the API server refuses a status, it refuses it at each later reconcile, too. Then
the controller can't record a deadline, a suspension or the end of the job.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, Final

from launcher.errors import strip_control_characters
from trainyard.operator import names as n
from trainyard.operator.api import progress, queue
from trainyard.operator.core.reading import JsonObject, parse_time

Schema = dict[str, Any]

_SCHEMAS: Final[dict[str, Schema]] = {
    n.JOB_KIND: progress.status().schema(),
    n.QUEUE_KIND: queue.status().schema(),
}
_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def fit_status(kind: str, status: JsonObject) -> JsonObject:
    """Return the status of a job or queue without values that its schema does not allow. Long strings are truncated."""
    fitted = _fit(status, _SCHEMAS[kind])
    return fitted if isinstance(fitted, dict) else {}


def _fit(value: Any, schema: Schema) -> Any:
    """Return the value as the schema allows it; None if it is invalid."""
    kind = str(schema.get("type"))
    if not isinstance(value, _TYPES.get(kind, (object,))) or (isinstance(value, bool) and kind != "boolean"):
        return None
    if isinstance(value, dict):
        return _fit_object(value, schema)
    if isinstance(value, list):
        entries = [each for each in (_fit(entry, schema["items"]) for entry in value) if each is not None]
        return entries[-schema["maxItems"] :] if "maxItems" in schema else entries
    if isinstance(value, str):
        return _fit_text(value, schema)
    if not isinstance(value, int | float):
        return value
    inside = schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf)
    return value if math.isfinite(value) and inside else None


def _fit_object(value: JsonObject, schema: Schema) -> JsonObject | None:
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    fitted = {
        key: _fit(each, known.get(key, others)) for key, each in value.items() if key in known or others
    }
    fitted = {key: each for key, each in fitted.items() if each is not None}
    if not set(schema.get("required", ())) <= set(fitted):
        return None
    return dict(itertools.islice(fitted.items(), schema.get("maxProperties")))


def _fit_text(value: str, schema: Schema) -> str | None:
    if schema.get("format") == "date-time":
        return value if parse_time(value) is not None else None
    if "enum" in schema:
        return value if value in schema["enum"] else None
    return strip_control_characters(value)[: schema.get("maxLength")]
