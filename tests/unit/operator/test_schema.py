"""The schema of the torchrun kinds: its structure, its words, what jobs may override, what it takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.torchrun_manifests import SEED, manifest
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
# As the requirement lists them.
NAMED = {
    n.QUEUE_KIND: (
        "kaiQueue parentKaiQueue image workingDir podTemplate storage.shmSizePerGPU",
        "nodeResources. gpus cpus memory gpuType",
        "storage.workspace. enabled size sizePerGPU storageClass existingClaim retain",
        "storage.datasets. enabled size sizePerGPU storageClass existingClaim retain",
        "storage.checkpoints. enabled size sizePerGPU storageClass existingClaim retain",
        "scheduling. scheduler priorityClassName nodeSelector affinity tolerations pool",
        "networking. port interface",
        "jobDefaults. ttlSecondsAfterFinished activeDeadlineSeconds restartPolicy maxRestarts",
    ),
    n.JOB_KIND: (
        "jobQueue numGPUs numNodes command args env workspace suspend overrides persistCheckpoints",
        "ttlSecondsAfterFinished activeDeadlineSeconds restartPolicy maxRestarts",
        "distributed. backend rdzvBackend rdzvEndpoint port",
        "elastic. minNodes maxNodes",
    ),
}


def schema(kind: str) -> dict[str, Any]:
    (version,) = DEFINITIONS[kind]["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


def nodes(place: str, node: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema below, with its path."""
    yield place, node
    for name, each in node.get("properties", {}).items():
        yield from nodes(f"{place}.{name}", each)
    for below in ("items", "additionalProperties"):
        if below in node:
            yield from nodes(f"{place}[]", node[below])


def fields(place: str, parent: Field) -> Iterator[tuple[str, Field, bool]]:
    """Every field below, with its path and whether it has to be given."""
    for name, each in parent.fields.items():
        yield f"{place}{name}", each, each.required
        yield from fields(f"{place}{name}.", each)
        if each.item is not None:
            yield from fields(f"{place}{name}[].", each.item)


EVERY = [(f"{kind}{path}", node) for kind in SPECS for path, node in nodes("", schema(kind))]


def test_every_field_is_described_and_has_a_largest_size() -> None:
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
def test_every_field_of_a_spec_must_be_given_or_says_what_is_so_without_it(kind: str) -> None:
    for path, each, required in fields("", SPECS[kind]):
        assert required != bool(each.default_text()), path


@pytest.mark.parametrize("part", [SPECS, STATUSES])
@pytest.mark.parametrize("kind", SPECS)
def test_every_time_and_size_has_a_unit(part: dict[str, Field], kind: str) -> None:
    for path, each, _ in fields("", part[kind]):
        name = path.rsplit(".", 1)[-1]
        if "Seconds" in name:
            assert each.unit == "seconds", path
        if "Bytes" in name or name == "memory" or re.fullmatch(r"size|.*[sS]izePerGPU", name):
            assert each.unit == "bytes", path


@pytest.mark.parametrize("kind", NAMED)
def test_the_fields_of_the_requirement_have_its_names(kind: str) -> None:
    known = {path for path, _, _ in fields("", SPECS[kind])}
    for line in NAMED[kind]:
        first, *others = line.split()
        names = [f"{first}{each}" for each in others] if first.endswith(".") else [first, *others]
        assert set(names) <= known


def test_a_job_may_override_every_field_of_its_queue_and_nothing_else() -> None:
    overrides = SPECS[n.JOB_KIND].fields["overrides"]
    assert [path for path, _, _ in fields("", overrides)] == [
        path for path, _, _ in fields("", SPECS[n.QUEUE_KIND])
    ]


def test_nothing_below_overrides_has_a_default_or_must_be_given() -> None:
    """A default there would put itself in the place of the queue's value. Entries of lists replace: they are whole."""
    for path, node in nodes("", schema(n.JOB_KIND)["properties"]["spec"]["properties"]["overrides"]):
        assert "default" not in node, path
        assert "required" not in node or path.endswith("[]"), path


def test_what_an_override_may_be_is_what_the_queues_field_may_be() -> None:
    def bounds(spec: Field) -> dict[str, Any]:
        return {
            path: (dict(each.checks), list(each.rules)[:1])
            for path, each, _ in fields("", spec)
            if not each.fields
        }

    assert bounds(SPECS[n.JOB_KIND].fields["overrides"]) == bounds(SPECS[n.QUEUE_KIND])


@pytest.mark.parametrize("name", definitions())
def test_a_definition_is_small_enough_to_be_applied(name: str) -> None:
    assert len(json.dumps(definitions()[name])) < MOST_APPLIED * 3 // 4


def problems(body: dict[str, Any]) -> list[str]:
    """What the schema has against an object, its CEL rules aside, which live tests ask an API server for."""
    validator = jsonschema.Draft202012Validator(closed(schema(body["kind"])))
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(body)]


@pytest.mark.parametrize("body", SEED, ids=lambda body: body["metadata"]["name"])
def test_the_manifests_of_the_requirement_are_taken(body: dict[str, Any]) -> None:
    assert problems(body) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"numGpus": 8}, "$.spec: Additional properties are not allowed ('numGpus' was unexpected)"),
        ({"numGPUs": "8"}, "$.spec.numGPUs: '8' is not of type 'integer'"),
        (
            {"overrides.storage.scratch": {}},
            "$.spec.overrides.storage: Additional properties are not allowed",
        ),
        ({"command": None}, "$.spec: 'command' is a required property"),
    ],
)
def test_a_wrong_manifest_is_refused(changes: dict[str, Any], told: str) -> None:
    (problem,) = problems(manifest(n.JOB_KIND, "a", changes))
    assert problem.startswith(told)


def test_the_longest_names_of_what_is_made_for_a_job_fit() -> None:
    """Pods of an Indexed Job get its name, their index and five characters; host names are labels (63 characters)."""
    longest = "j" * n.JOB_NAME_MAX_LENGTH
    attempt = n.attempt_name(longest, 99_999)
    made = [f"{attempt}-{MAX_NODES - 1}-abcde", n.workspace_claim(longest, MAX_NODES - 1)]
    made += [n.datasets_claim(longest), n.checkpoints_claim(longest), n.sync_pod(longest)]
    assert max(map(len, made)) <= 63


def test_the_names_of_volumes_are_the_documented_ones() -> None:
    assert [n.workspace_claim("j"), n.workspace_claim("j", 2)] == ["j-workspace", "j-workspace-2"]
    assert (n.sync_pod("j"), n.attempt_name("j", 3)) == ("j-sync-0", "j-3")
