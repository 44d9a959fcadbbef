"""The schema of TorchrunQueues and TorchrunJobs: its structure, its descriptions, and what it accepts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.unit.components.crd import closed
from trainyard.operator import names as n
from trainyard.operator.api.crd import definitions
from trainyard.operator.api.fields import Field
from trainyard.operator.api.job import JOB, MAX_NODES
from trainyard.operator.api.queue import QUEUE
from trainyard.operator.api.status import JOB_STATUS, QUEUE_STATUS

pytestmark = pytest.mark.unit

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
