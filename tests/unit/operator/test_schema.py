"""The schema of TorchrunQueues and TorchrunJobs: its structure, its descriptions, and what it accepts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.torchrun_manifests import manifest
from tests.torchrun_numbers import Number, numbers
from tests.unit.components.crd import closed
from trainyard.operator import names as n
from trainyard.operator.api.crd import definitions
from trainyard.operator.api.fields import Field
from trainyard.operator.api.job import JOB, MAX_NODES, parse_job
from trainyard.operator.api.queue import QUEUE, parse_queue
from trainyard.operator.api.resolve import resolve
from trainyard.operator.api.status import JOB_STATUS, QUEUE_STATUS, fit_status
from trainyard.operator.context import read_status

DEFINITIONS = {each["spec"]["names"]["kind"]: each for each in definitions().values()}
SPECS = {n.QUEUE_KIND: QUEUE, n.JOB_KIND: JOB}
STATUSES = {n.QUEUE_KIND: QUEUE_STATUS, n.JOB_KIND: JOB_STATUS}
# `kubectl apply` keeps the whole object in an annotation, and all annotations together may have this many bytes
# (TotalAnnotationSizeLimitB in k8s.io/apimachinery v0.35.4, pkg/api/validation/objectmeta.go).
MOST_APPLIED = 256 * 1024


def schema(kind: str) -> dict[str, Any]:
    (version,) = DEFINITIONS[kind]["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def nodes(place: str, node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each schema below with its path."""
    yield place, node
    for name, each in node.get("properties", {}).items():
        yield from nodes(f"{place}.{name}", each)
    for below in ("items", "additionalProperties"):
        if below in node:
            yield from nodes(f"{place}[]", node[below])


def fields(place: str, parent: Field) -> Iterator[tuple[str, Field, bool]]:
    """Yield each field below with its path and whether it is required."""
    for name, each in parent.fields.items():
        yield f"{place}{name}", each, each.required
        yield from fields(f"{place}{name}.", each)
        if each.item is not None:
            yield from fields(f"{place}{name}[].", each.item)


EVERY = [(f"{kind}{path}", node) for kind in SPECS for path, node in nodes("", schema(kind))]


def test_schema_fields_have_description_and_maximum() -> None:
    assert EVERY
    for path, node in EVERY:
        if ".metadata" not in path.split(".spec")[0]:  # Kubernetes' own
            assert re.fullmatch(r".+[.]", node["description"], re.DOTALL), f"{path}: a sentence"
        if node.get("x-kubernetes-preserve-unknown-fields"):
            assert set(node) <= {"description", "x-kubernetes-preserve-unknown-fields"}, path
        elif node.get("x-kubernetes-int-or-string"):
            assert node["anyOf"] == [{"type": "integer"}, {"type": "string"}], path
            assert node["maxLength"] <= 64, path
        elif node["type"] == "string" and not path.endswith((".apiVersion", ".kind", ".metadata.name")):
            assert node["maxLength"] <= 65536, path
        elif node["type"] == "array":
            assert node["maxItems"] <= 1024, path
            assert node["x-kubernetes-list-type"] in {"atomic", "map"}, path
        elif "additionalProperties" in node:
            assert node["maxProperties"] <= 1024, path
            assert "properties" not in node, path


@pytest.mark.parametrize("kind", SPECS)
def test_schema_field_of_spec_is_required_or_has_default(kind: str) -> None:
    for path, each, required in fields("", SPECS[kind]):
        assert required != bool(each.default_text()), path


@pytest.mark.parametrize("part", [SPECS, STATUSES])
@pytest.mark.parametrize("kind", SPECS)
def test_schema_times_and_sizes_have_units(part: dict[str, Field], kind: str) -> None:
    for path, each, _ in fields("", part[kind]):
        name = path.rsplit(".", 1)[-1]
        if "Seconds" in name:
            assert each.unit == "seconds", path
        if "Bytes" in name or name == "memory" or re.fullmatch(r"size|.*[sS]izePerGPU", name):
            assert each.unit == "bytes", path


def test_schema_overrides_have_no_defaults() -> None:
    """A default would replace the value of the queue. Entries of lists are complete, because lists replace."""
    for path, node in nodes("", schema(n.JOB_KIND)["properties"]["spec"]["properties"]["overrides"]):
        assert "default" not in node, path
        assert "required" not in node or path.endswith("[]"), path


@pytest.mark.parametrize("name", definitions())
def test_definition_fits_the_annotation_of_kubectl(name: str) -> None:
    assert len(json.dumps(definitions()[name])) < MOST_APPLIED * 3 // 4


def problems(body: dict[str, Any]) -> list[str]:
    """Return the errors of the schema without its CEL rules, which a live test asks an API server for."""
    validator = jsonschema.Draft202012Validator(closed(schema(body["kind"])))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(body)]


def test_names_of_longest_job_fit() -> None:
    """Pods of an Indexed Job get its name, their index and five characters; host names are labels (63 characters)."""
    longest = "j" * n.JOB_NAME_MAX_LENGTH
    attempt = n.attempt_name(longest, 99_999)
    made = [f"{attempt}-{MAX_NODES - 1}-abcde", n.claim_name(longest, "workspace", MAX_NODES - 1)]
    made += [n.claim_name(longest, "datasets"), n.claim_name(longest, "checkpoints"), n.sync_pod(longest)]
    assert max(map(len, made)) <= 63


# --- numbers that the API server takes are read, and no others: an edit that was taken must not end a job
# Of a whole number it knows `minimum` and `maximum` alone: it drops the formats int32 and int64 (kubernetes 1.35.4,
# apiextensions-apiserver, pkg/apiserver/validation/formats.go: StripUnsupportedFormatsPostProcess).

# Ends of 32 and 64 bits, of what JSON has exactly, and a size that archives of workspaces have.
ALWAYS = (-(2**31), -1, 0, 1, 10**9 + 1, 2**31 - 1, 2**31, 2**53 - 1, 2**53, 2**63 - 1, 2**63)
NUMBERS = numbers()
WHOLE = [(path, node) for path, node in EVERY if node.get("type") == "integer"]
# What is read of a job's status.
REMEMBERED = {"attempt": "attempt", "restarts": "restarts", "capacity.tries": "tries"}


def limits(least: int, most: int) -> list[int]:
    return sorted({*ALWAYS, least - 1, least, most, most + 1})


def read(body: dict[str, Any]) -> tuple[str, ...]:
    """What the controller has against it."""
    if body["kind"] == n.QUEUE_KIND:
        return parse_queue(body["spec"])[1]
    spec, wrong = parse_job(body["spec"])
    return wrong if spec is None else resolve(manifest(n.QUEUE_KIND, "research")["spec"], spec)[1]


def test_schema_integers_have_bounds_of_their_format() -> None:
    assert WHOLE
    for path, node in WHOLE:
        bits = {"int32": 31, "int64": 53}[node["format"]]  # JSON's numbers are exact up to 53
        assert -(2**bits) < node["minimum"] + 1 <= node["maximum"] < 2**bits, path


@pytest.mark.parametrize("each", NUMBERS, ids=lambda each: f"{each.kind}.{each.path}")
def test_parse_accepts_the_numbers_of_the_schema(each: Number) -> None:
    seen = set()
    for value in limits(each.least, each.most):
        body = each.manifest(value)
        admits = not problems(body)
        assert admits == (not read(body)), (value, problems(body), read(body))
        seen.add(admits)
    assert seen == {True, False}


def test_numbers_include_all_integers_of_the_specs() -> None:
    names = {(each.kind, each.path.rsplit(".", 1)[-1]) for each in NUMBERS}
    assert {(n.JOB_KIND, "sizeBytes"), (n.JOB_KIND, "port"), (n.QUEUE_KIND, "gpus")} <= names
    specs = [path for path, _ in WHOLE if ".spec." in path]
    assert len(specs) == len(NUMBERS)


@pytest.mark.parametrize("path", REMEMBERED)
def test_read_status_accepts_the_numbers_of_the_schema(path: str) -> None:
    (field,) = [each for name, each, _ in fields("", STATUSES[n.JOB_KIND]) if name == path]
    least, most = int(field.checks["minimum"]), int(field.checks["maximum"])
    first = 1 if path == "capacity.tries" else 0  # a wait has at least one try
    for value in (least, most):
        wait = {"since": "2027-01-01T00:00:00Z", "tries": value}
        noted = read_status({"attempt": value, "restarts": value, "capacity": wait})
        found = noted.capacity if path.startswith("capacity.") else noted
        assert getattr(found, REMEMBERED[path]) == max(first, value)


@pytest.mark.parametrize("user", [1_000_650_000, 2**31 - 1])
def test_parse_queue_accepts_large_user_ids(user: int) -> None:
    """Some platforms give each namespace such a range."""
    context = {"runAsUser": user}
    containers = [{"name": n.WORKER_CONTAINER, "securityContext": context}]
    spec = {"podTemplate.spec": {"securityContext": context, "containers": containers}}
    assert parse_queue(manifest(n.QUEUE_KIND, "research", spec)["spec"])[1] == ()


# --- status

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


@pytest.mark.parametrize("kind", STATUSES)
def test_fit_status_every_field_stays(kind: str) -> None:
    status = valid(STATUSES[kind].schema())
    assert fit_status(kind, status) == status


def test_fit_status_large_map_is_truncated() -> None:
    limits = {f"example.com/{number}": "1" for number in range(65)}
    assert len(fit_status(n.QUEUE_KIND, {"pool": {"name": "a", "limits": limits}})["pool"]["limits"]) == 64
