"""Numbers that the API server takes are read, and no others: an edit that was taken must not end a job.

Of a whole number it knows `minimum` and `maximum` alone: it drops the formats int32 and int64 (kubernetes 1.35.4,
apiextensions-apiserver, pkg/apiserver/validation/formats.go: StripUnsupportedFormatsPostProcess).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.torchrun_manifests import manifest
from tests.torchrun_numbers import Number, numbers
from tests.unit.operator.test_schema import EVERY as NODES
from tests.unit.operator.test_schema import STATUSES, fields, problems
from trainyard.operator import names as n
from trainyard.operator.api.job import parse_job
from trainyard.operator.api.queue import parse_queue
from trainyard.operator.api.resolve import resolve
from trainyard.operator.context import read_status

pytestmark = pytest.mark.unit

# Ends of 32 and 64 bits, of what JSON has exactly, and a size that archives of workspaces have.
ALWAYS = (-(2**31), -1, 0, 1, 10**9 + 1, 2**31 - 1, 2**31, 2**53 - 1, 2**53, 2**63 - 1, 2**63)
EVERY = numbers()
WHOLE = [(path, node) for path, node in NODES if node.get("type") == "integer"]
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


@pytest.mark.parametrize("each", EVERY, ids=lambda each: f"{each.kind}.{each.path}")
def test_parse_accepts_the_numbers_of_the_schema(each: Number) -> None:
    seen = set()
    for value in limits(each.least, each.most):
        body = each.manifest(value)
        admits = not problems(body)
        assert admits == (not read(body)), (value, problems(body), read(body))
        seen.add(admits)
    assert seen == {True, False}


def test_numbers_include_all_integers_of_the_specs() -> None:
    names = {(each.kind, each.path.rsplit(".", 1)[-1]) for each in EVERY}
    assert {(n.JOB_KIND, "sizeBytes"), (n.JOB_KIND, "port"), (n.QUEUE_KIND, "gpus")} <= names
    specs = [path for path, _ in WHOLE if ".spec." in path]
    assert len(specs) == len(EVERY)


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
