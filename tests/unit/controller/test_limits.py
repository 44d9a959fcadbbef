"""Numbers that the API server takes are read, and no others: an edit that was taken must not end a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from launcher.controller.schema.fields import Field
from launcher.core.torchrun import job_spec, queue_spec, resolve
from launcher.core.torchrun import names as n
from tests.torchrun_manifests import manifest
from tests.unit.controller.test_schema import SPECS, fields, problems

pytestmark = pytest.mark.unit

# Ends of 32 and 64 bits, of each field's own range, and a size that archives of workspaces have.
ALWAYS = (-(2**31), -1, 0, 1, 10**9 + 1, 2**31 - 1, 2**31, 2**63 - 1, 2**63)
# What has to be said beside a field, and what the CEL rules ask of it: tests/local has those.
BESIDE: dict[str, dict[str, Any]] = {
    "numNodes": {"numGPUs": 0},
    "workspace.sizeBytes": {"workspace.digest": "sha256:" + "a" * 64},
    "elastic.minNodes": {"numGPUs": 0, "elastic.maxNodes": 4096},
    "elastic.maxNodes": {"numGPUs": 0, "elastic.minNodes": 1},
}
# Of Kubernetes' own: it is handed on, and not read.
HANDED_ON = ("tolerationSeconds",)


def numbers() -> Iterator[tuple[str, str, Field]]:
    for kind, spec in SPECS.items():
        for path, each, _ in fields("", spec):
            if each.checks.get("type") == "integer" and not path.endswith(HANDED_ON):
                yield kind, path, each


def limits(each: Field) -> set[int]:
    wide = each.checks["format"] == "int64"
    least, most = each.checks["minimum"], each.checks.get("maximum", 2 ** (63 if wide else 31) - 1)
    return {*ALWAYS, least - 1, least, most, most + 1}


def admitted(body: dict[str, Any], each: Field, value: int) -> bool:
    """By the schema, and by the format's bits, which the API server checks and JSON schema does not."""
    bits = 63 if each.checks["format"] == "int64" else 31
    return not problems(body) and -(2**bits) <= value < 2**bits


def read(body: dict[str, Any]) -> tuple[str, ...]:
    """What the controller has against it."""
    if body["kind"] == n.QUEUE_KIND:
        return queue_spec.parse(body["spec"])[1]
    spec, wrong = job_spec.parse(body["spec"])
    return wrong if spec is None else resolve.resolve(manifest(n.QUEUE_KIND, "research")["spec"], spec)[1]


EVERY = list(numbers())


@pytest.mark.parametrize(("kind", "path", "each"), EVERY, ids=[f"{kind}.{path}" for kind, path, _ in EVERY])
def test_the_controller_reads_the_numbers_that_the_schema_admits(kind: str, path: str, each: Field) -> None:
    seen = set()
    for value in sorted(limits(each)):
        body = manifest(kind, "research", {**BESIDE.get(path, {}), path: value})
        admits = admitted(body, each, value)
        assert admits == (not read(body)), (value, problems(body), read(body))
        seen.add(admits)
    assert seen == {True, False}


def test_every_number_of_both_kinds_is_looked_at() -> None:
    names = {(kind, path.rsplit(".", 1)[-1]) for kind, path, _ in EVERY}
    assert {(n.JOB_KIND, "sizeBytes"), (n.JOB_KIND, "port"), (n.QUEUE_KIND, "gpus")} <= names


@pytest.mark.parametrize("user", [1_000_650_000, 2**31 - 1])
def test_users_of_pods_have_numbers_as_large_as_kubernetes_takes(user: int) -> None:
    """Some platforms give each namespace such a range."""
    context = {"runAsUser": user}
    containers = [{"name": n.WORKER_CONTAINER, "securityContext": context}]
    spec = {"podTemplate.spec": {"securityContext": context, "containers": containers}}
    assert queue_spec.parse(manifest(n.QUEUE_KIND, "research", spec)["spec"])[1] == ()
