"""A status that the API server takes, whatever a pod has said."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.operator import names as n
from trainyard.operator.api.fields import Field
from trainyard.operator.api.status import JOB_STATUS, QUEUE_STATUS, fit_status

pytestmark = pytest.mark.unit

NOW = "2027-01-15T08:00:00Z"
CONDITION = {"type": "Ready", "status": "True", "lastTransitionTime": NOW, "reason": "Ready", "message": ""}


@pytest.mark.parametrize(
    ("status", "fitted"),
    [
        ({"phase": "Running", "reason": "Running"}, {"phase": "Running", "reason": "Running"}),
        ({"phase": "Nonsense"}, {}),
        ({"message": "x" * 40_000}, {"message": "x" * 32_768}),
        ({"message": "exit \u202e0 edoc\u202c \u2066x\u2069"}, {"message": "exit 0 edoc x"}),
        ({"message": "\x1b[31mred\x1b[0m \x1b]0;title\x07\x9b2J\r\tone\ntwo\x00"}, {"message": "red 2J\tone\ntwo"}),
        ({"message": "log \ud800"}, {"message": "log ?"}),
        ({"conditions": [{**CONDITION, "reason": ""}, CONDITION]}, {"conditions": [CONDITION]}),
        ({"exitCode": 3_000_000}, {}),
        ({"exitCode": True}, {}),
        ({"restarts": "3"}, {}),
        ({"startTime": "yesterday", "completionTime": NOW}, {"completionTime": NOW}),
        ({"progress": {"loss": float("nan"), "step": 2**60}}, {"progress": {}}),
        ({"progress": {"loss": float("inf"), "step": 3}}, {"progress": {"step": 3}}),
        ({"progress": [1]}, {}),
        ({"firstFailure": {"attempt": 0, "pod": "a", "rank": 10**30}}, {"firstFailure": {"attempt": 0, "pod": "a"}}),
        ({"firstFailure": {"rank": 1}}, {}),
        ({"unknown": 1}, {}),
    ],
)  # fmt: skip
def test_fit_status_invalid_values_are_removed(status: dict[str, Any], fitted: dict[str, Any]) -> None:
    assert fit_status(n.JOB_KIND, status) == fitted


def valid(schema: dict[str, Any]) -> Any:
    """Return a value with every field of the schema."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "object":
        made = {key: valid(each) for key, each in schema.get("properties", {}).items()}
        others = schema.get("additionalProperties")
        return made | ({"nvidia.com/gpu": valid(others)} if others else {})
    if schema["type"] == "array":
        return [valid(schema["items"])]
    if schema["type"] == "string":
        return NOW if schema.get("format") == "date-time" else "a"
    return True if schema["type"] == "boolean" else schema.get("minimum", 1)


@pytest.mark.parametrize(("kind", "schema"), [(n.JOB_KIND, JOB_STATUS), (n.QUEUE_KIND, QUEUE_STATUS)])
def test_fit_status_every_field_stays(kind: str, schema: Field) -> None:
    status = valid(schema.schema())
    assert fit_status(kind, status) == status


def test_fit_status_large_map_is_truncated() -> None:
    limits = {f"example.com/{number}": "1" for number in range(65)}
    assert len(fit_status(n.QUEUE_KIND, {"pool": {"name": "a", "limits": limits}})["pool"]["limits"]) == 64
