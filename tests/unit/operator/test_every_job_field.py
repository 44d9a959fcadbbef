"""Every field of a job has an effect: on what is made for it, on its life, or on what a person is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest

from tests.torchrun_manifests import manifest
from tests.unit.launcher.api_server import FakeApi, serving
from tests.unit.operator.life import Life
from tests.unit.operator.made import DIGEST, attempt_spec, container
from tests.unit.operator.test_overrides import leaves
from trainyard.k8s.objects import Objects
from trainyard.kubectl import output
from trainyard.operator import names as n
from trainyard.operator.api.job import JOB
from trainyard.operator.children import build_claim, build_jobs, build_service
from trainyard.operator.cluster_reader import ClusterReader
from trainyard.operator.gang import build_pod_group
from trainyard.operator.reconciler import Reconciler

pytestmark = pytest.mark.unit

Effect = Callable[[dict[str, Any], dict[str, Any]], Any]
SENT = {"url": "s3://aaa/b", "digest": DIGEST, "sizeBytes": 5}
ANOTHER = "sha256:" + "b" * 64
ELASTIC = {"elastic": {"minNodes": 1, "maxNodes": 2}}
ETCD = {"distributed.rdzvBackend": "etcd"}
KEPT = {"storage.checkpoints": {"enabled": True, "size": "1Gi", "storageClass": "fsx"}}


def children_and_life(of_job: dict[str, Any], of_queue: dict[str, Any]) -> Any:
    """All that is made for a job, and what becomes of it when it gets new files, loses a worker and succeeds."""
    made = attempt_spec(of_job, of_queue)
    claims = [build_claim(made, each) for each in made.storage.claims]
    return (
        [build_service(made), build_pod_group(made), *build_jobs(made)],
        claims,
        _life(of_job, of_queue),
    )


def _life(of_job: dict[str, Any], of_queue: dict[str, Any]) -> list[Any]:
    life, seen = Life(of_job, of_queue), []

    def note() -> None:
        life.reconcile()
        there = life.api.get(n.JOB_KIND, "vit") is not None
        shown = [life.status.get(key) for key in ("phase", "attempt", "restarts")] if there else []
        seen.append((shown, life.names("Job")))

    note()
    workspace = life.api.objects[n.JOB_KIND, "vit"]["spec"].get("workspace")
    if workspace is not None:
        life.api.edit(n.JOB_KIND, "vit", workspace={**workspace, "digest": ANOTHER})
        note()
    life.api.run_pods("Running")
    note()
    life.api.run_pods("Failed", exit_code=1, only=0)
    note()
    life.api.now += 10
    note()
    life.api.run_pods("Succeeded", exit_code=0)
    note()
    life.api.now += 10
    note()
    return seen


def queue_that_is_read(of_job: dict[str, Any], _: dict[str, Any]) -> Any:
    """The image of the workers, where each queue has its own."""
    place = f"/apis/{n.API_VERSION}/namespaces/team"
    meta = {"namespace": "team", "generation": 1}
    with serving(FakeApi()) as api:
        for name in ("research", "other"):
            queue = manifest(n.QUEUE_KIND, name, {"image": f"example.com/{name}"})
            api.put(f"{place}/torchrunqueues/{name}", {**queue, "metadata": {**meta, "name": name}})
        made = manifest(n.JOB_KIND, "vit", of_job)
        api.put(f"{place}/torchrunjobs/vit", {**made, "metadata": {**meta, "name": "vit"}})
        objects = Objects(api.client(), n.FIELD_MANAGER)
        Reconciler(objects, ClusterReader(objects, "tools@sha256:1")).reconcile_job("team", "vit")
        job = api.objects["/apis/batch/v1/namespaces/team/jobs/vit-0"]
    return [each["image"] for each in job["spec"]["template"]["spec"]["containers"]]


def shown(of_job: dict[str, Any], _: dict[str, Any]) -> Any:
    """What `kubectl torchrun status` says."""
    return output.status(manifest(n.JOB_KIND, "vit", of_job), datetime(2026, 1, 1, tzinfo=UTC))


# Each with what the job and its queue say context, on which the field's effect depends.
FIELDS: list[tuple[str, Any, dict[str, Any], dict[str, Any], Effect]] = [
    ("jobQueue", "other", {}, {}, queue_that_is_read),
    ("numGPUs", 8, {}, {}, children_and_life),
    ("numNodes", 4, {}, {}, children_and_life),
    ("command", "python other.py", {}, {}, children_and_life),
    ("args", ["--x"], {}, {}, children_and_life),
    ("launcher", "none", {}, {}, children_and_life),
    ("env", [{"name": "A", "value": "1"}], {}, {}, children_and_life),
    ("workspace.digest", ANOTHER, {"workspace": SENT}, {}, children_and_life),
    # No worker needs it: the digest says whether the archive is whole.
    ("workspace.sizeBytes", 7, {"workspace": SENT}, {}, shown),
    ("workspace.url", "s3://aaa/other", {"workspace": SENT}, {}, children_and_life),
    ("workspace.restartOnSync", True, {"workspace": SENT}, {}, children_and_life),
    ("distributed.backend", "gloo", {}, {}, children_and_life),
    ("distributed.rdzvBackend", "static", {}, {}, children_and_life),
    ("distributed.rdzvEndpoint", "etcd.svc:2379", ETCD, {}, children_and_life),
    ("distributed.port", 31000, {}, {}, children_and_life),
    ("elastic.minNodes", 2, ELASTIC, {}, children_and_life),
    ("elastic.maxNodes", 4, ELASTIC, {}, children_and_life),
    ("suspend", True, {}, {}, children_and_life),
    ("ttlSecondsAfterFinished", 9, {}, {}, children_and_life),
    ("activeDeadlineSeconds", 9, {}, {}, children_and_life),
    ("restartPolicy", "Never", {}, {}, children_and_life),
    ("maxRestarts", 0, {}, {}, children_and_life),
    ("persistCheckpoints", True, {}, KEPT, children_and_life),
]


def test_cases_cover_every_field_of_a_job() -> None:
    """What it may override of its queue has cases of its own (test_overrides.py)."""
    fields = {path for path in leaves("", JOB) if not path.startswith("overrides.")}
    assert {path for path, *_ in FIELDS} == fields


@pytest.mark.parametrize(
    ("path", "value", "context", "of_queue", "effect"), FIELDS, ids=[each[0] for each in FIELDS]
)
def test_job_field_has_an_effect(
    path: str, value: Any, context: dict[str, Any], of_queue: dict[str, Any], effect: Effect
) -> None:
    assert effect({**context, path: value}, of_queue) != undisturbed(
        effect, json.dumps(context), json.dumps(of_queue)
    )


@cache
def undisturbed(effect: Effect, context: str, of_queue: str) -> Any:
    """Return the effect without the field: many fields have the same."""
    return effect(json.loads(context), json.loads(of_queue))


VARIABLES: list[dict[str, Any]] = [
    {"name": "A", "value": "1"},
    {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k", "optional": True}}},
    {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": True}}},
    {"name": "D", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}}},
    {
        "name": "E",
        "valueFrom": {"resourceFieldRef": {"containerName": "x", "resource": "limits.cpu", "divisor": 1}},
    },
]


def test_env_field_reaches_the_worker_unchanged() -> None:
    variable = JOB.fields["env"].item
    assert variable is not None
    assert {path for each in VARIABLES for path in _paths(each)} == set(leaves("", variable))
    found = {each["name"]: each for each in container({"env": VARIABLES})["env"]}
    assert [found[each["name"]] for each in VARIABLES] == VARIABLES


def _paths(value: Any, place: str = "") -> Iterator[str]:
    if not isinstance(value, dict):
        yield place
        return
    for name, each in value.items():
        yield from _paths(each, f"{place}.{name}".removeprefix("."))
