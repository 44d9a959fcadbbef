"""The torchrun kinds on a real API server: defaults, subresources, what `kubectl get` and `kubectl explain` show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.local.own_api_server import Answer, ApiServer
from tests.torchrun_manifests import SEED, manifest
from trainyard.operator import names as n

pytestmark = pytest.mark.local

NAMESPACE = f"/apis/{n.API_VERSION}/namespaces/default"
PLURALS = {n.QUEUE_KIND: n.QUEUE_PLURAL, n.JOB_KIND: n.JOB_PLURAL}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
TIME = "2026-11-23T01:02:03Z"
STATUS: dict[str, Any] = {
    "observedGeneration": 1,
    "phase": "Running",
    "reason": "WorkersReady",
    "message": "",
    "conditions": [
        {"type": each, "status": "True", "reason": "Because", "message": "", "lastTransitionTime": TIME,
         "observedGeneration": 1}
        for each in n.JOB_CONDITIONS
    ],
    "attempt": 2,
    "restarts": 1,
    "lastRestart": {"attempt": 1, "time": TIME, "message": "is lost; restart 1 of 3"},
    "nodes": 2,
    "gpusPerNode": 8,
    "gpus": 16,
    "selector": f"{n.LABEL_JOB}=j",
    "workers": {"active": 2, "ready": 2, "succeeded": 0, "failed": 0},
    "progress": {"step": 9_000_000_000, "loss": 2.5, "throughput": 1200.5, "unit": "tokens/s",
                 "checkpointStep": 100, "checkpointTime": TIME},
    "cost": {"nodeHours": 25.6, "idleNodeHours": 1.0, "unpricedNodeHours": 0.5, "usd": 838.9},
    "startTime": TIME,
    "completionTime": TIME,
    "exitCode": 255,
    "workspaceDigest": "sha256:" + "0" * 64,
}  # fmt: skip


def post(server: ApiServer, body: dict[str, Any]) -> Answer:
    answer = server.request("POST", f"{NAMESPACE}/{PLURALS[body['kind']]}?fieldValidation=Strict", body)
    assert answer.status == 201, answer.message
    return answer


@pytest.fixture
def server(torchrun_api: ApiServer) -> Iterator[ApiServer]:
    """What a test leaves is removed."""
    yield torchrun_api
    for plural in PLURALS.values():
        assert torchrun_api.request("DELETE", f"{NAMESPACE}/{plural}").status == 200


@pytest.mark.parametrize("body", SEED, ids=lambda body: body["metadata"]["name"])
def test_the_manifests_of_the_requirement_are_taken_unchanged(
    server: ApiServer, body: dict[str, Any]
) -> None:
    kept = post(server, body).body["spec"]
    assert kept == kept | {key: value for key, value in body["spec"].items() if not isinstance(value, dict)}


def test_a_queue_gets_its_defaults(server: ApiServer) -> None:
    volumes = {f"storage.{each}": {} for each in ("workspace", "datasets", "checkpoints")}
    queue = manifest(n.QUEUE_KIND, "q", {"nodeResources.gpus": None, **volumes})
    off = {"enabled": False, "retain": False}
    assert post(server, queue).body["spec"] == queue["spec"] | {
        "nodeResources": {"gpus": 0, "cpus": 96, "memory": "512Gi"},
        "parentKaiQueue": "default-parent-queue",
        "workingDir": "/app",
        "networking": {"port": 29500},
        "jobDefaults": {"restartPolicy": "OnFailure", "maxRestarts": 3},
        "storage": {
            "workspace": off,
            "datasets": {**off, "mountPath": "/datasets"},
            "checkpoints": {**off, "mountPath": "/checkpoints"},
        },
    }


def test_a_job_gets_its_defaults_and_none_below_overrides(server: ApiServer) -> None:
    parts = {"storage": {"workspace": {}}, "networking": {}, "jobDefaults": {}, "nodeResources": {}}
    workspace = {"digest": "sha256:" + "0" * 64, "sizeBytes": 1}
    job = manifest(n.JOB_KIND, "j", {"overrides": parts, "workspace": workspace})
    assert post(server, job).body["spec"] == job["spec"] | {
        "workspace": {**workspace, "restartOnSync": False},
        "distributed": {"rdzvBackend": "c10d"},
        "suspend": False,
        "persistCheckpoints": False,
    }


def test_an_unknown_field_is_refused_where_it_is(server: ApiServer) -> None:
    job = manifest(n.JOB_KIND, "j", {"gpus": 8, "overrides.nodeResources": {"gpu": 1}})
    answer = server.request("POST", f"{NAMESPACE}/{n.JOB_PLURAL}?fieldValidation=Strict", job)
    assert answer.status == 400
    for path in ("spec.gpus", "spec.overrides.nodeResources.gpu"):
        assert f'unknown field "{path}"' in answer.message


@pytest.mark.parametrize("missing", ["jobQueue", "numGPUs", "command"])
def test_a_missing_field_is_named(server: ApiServer, missing: str) -> None:
    job = manifest(n.JOB_KIND, "j", {missing: None})
    answer = server.request("POST", f"{NAMESPACE}/{n.JOB_PLURAL}", job)
    assert (answer.status, answer.message.count(f"spec.{missing}: Required value")) == (422, 1)


# Other values with which some of these fields are checked, because the limit itself must be valid.
RANGE = {"numGPUs": 4096, "elastic": {"minNodes": 1, "maxNodes": 4096}}
BESIDE: dict[str, dict[str, Any]] = {
    "numNodes": {"numGPUs": 4096},
    "elastic.minNodes": RANGE,
    "elastic.maxNodes": RANGE,
    "workspace.sizeBytes": {"workspace.digest": f"sha256:{'0' * 64}"},
}


@pytest.mark.parametrize(
    ("kind", "path", "wrong", "edge"),
    [
        (n.QUEUE_KIND, "nodeResources.gpus", 65, 64),
        (n.QUEUE_KIND, "nodeResources.gpus", -1, 0),
        (n.QUEUE_KIND, "networking.port", 1023, 1024),
        (n.QUEUE_KIND, "networking.port", 65536, 65535),
        (n.QUEUE_KIND, "jobDefaults.maxRestarts", 101, 100),
        (n.QUEUE_KIND, "jobDefaults.activeDeadlineSeconds", 0, 1),
        (n.QUEUE_KIND, "jobDefaults.ttlSecondsAfterFinished", -1, 0),
        (n.QUEUE_KIND, "jobDefaults.restartPolicy", "Always", "Never"),
        (n.QUEUE_KIND, "storage.datasets.accessMode", "ReadWriteOncePod", "ReadOnlyMany"),
        (n.JOB_KIND, "numGPUs", -1, 0),
        (n.JOB_KIND, "numNodes", 0, 1),
        (n.JOB_KIND, "maxRestarts", -1, 0),
        (n.JOB_KIND, "maxRestarts", 101, 100),
        (n.JOB_KIND, "numGPUs", 65537, 65536),
        (n.JOB_KIND, "numNodes", 4097, 4096),
        (n.JOB_KIND, "ttlSecondsAfterFinished", -1, 0),
        (n.JOB_KIND, "activeDeadlineSeconds", 0, 1),
        (n.JOB_KIND, "restartPolicy", "Always", "OnFailure"),
        (n.JOB_KIND, "elastic.minNodes", 0, 1),
        (n.JOB_KIND, "elastic.maxNodes", 4097, 4096),
        (n.JOB_KIND, "workspace.sizeBytes", 0, 1),
        (n.JOB_KIND, "distributed.backend", "mpi", "gloo"),
        (n.JOB_KIND, "distributed.rdzvBackend", "zeus", "etcd-v2"),
        (n.JOB_KIND, "distributed.port", 80, 29501),
        (n.JOB_KIND, "overrides.nodeResources.gpus", 65, 64),
    ],
)
def test_a_range_holds_to_its_edge(server: ApiServer, kind: str, path: str, wrong: Any, edge: Any) -> None:
    path_of = f"{NAMESPACE}/{PLURALS[kind]}?dryRun=All"
    beside = BESIDE.get(path, {})
    answer = server.request("POST", path_of, manifest(kind, "a", {**beside, path: wrong}))
    assert answer.status == 422
    assert f"spec.{path}:" in answer.message
    whole = server.request("POST", path_of, manifest(kind, "a", {**beside, path: edge}))
    assert whole.status == 201, whole.message


def test_two_variables_of_one_name_are_refused(server: ApiServer) -> None:
    job = manifest(n.JOB_KIND, "j", {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]})
    answer = server.request("POST", f"{NAMESPACE}/{n.JOB_PLURAL}", job)
    assert answer.status == 422
    assert "spec.env[1]: Duplicate value" in answer.message


def test_status_is_written_by_its_subresource_alone(server: ApiServer) -> None:
    job = post(server, manifest(n.JOB_KIND, "j") | {"status": STATUS}).body
    assert "status" not in job
    place = f"{NAMESPACE}/{n.JOB_PLURAL}/j/status?fieldValidation=Strict"
    written = server.request(
        "PUT", place, {**job, "status": STATUS, "spec": {**job["spec"], "suspend": True}}
    )
    assert written.status == 200, written.message
    assert written.body["status"] == STATUS
    assert written.body["spec"]["suspend"] is False
    assert written.body["metadata"]["generation"] == 1
    unknown = server.request("PUT", place, {**written.body, "status": {**STATUS, "phase": "Lost"}})
    assert unknown.status == 422
    assert "status.phase" in unknown.message


def test_a_queues_status_is_taken(server: ApiServer) -> None:
    queue = post(server, manifest(n.QUEUE_KIND, "q")).body
    conditions = [{**STATUS["conditions"][0], "type": each} for each in n.QUEUE_CONDITIONS]
    queue["status"] = {"observedGeneration": 1, "conditions": conditions, "jobs": {"active": 1, "pending": 2}}
    written = server.request("PUT", f"{NAMESPACE}/{n.QUEUE_PLURAL}/q/status?fieldValidation=Strict", queue)
    assert (written.status, written.body.get("status")) == (200, queue["status"])


def test_two_conditions_of_one_type_are_refused(server: ApiServer) -> None:
    job = post(server, manifest(n.JOB_KIND, "j")).body
    job["status"] = {"conditions": [STATUS["conditions"][0]] * 2}
    answer = server.request("PUT", f"{NAMESPACE}/{n.JOB_PLURAL}/j/status", job)
    assert answer.status == 422
    assert "status.conditions[1]: Duplicate value" in answer.message


def test_scaling_sets_the_nodes_and_is_held_to_the_rules(server: ApiServer) -> None:
    job = post(server, manifest(n.JOB_KIND, "j", {"numNodes": 2})).body
    server.request("PUT", f"{NAMESPACE}/{n.JOB_PLURAL}/j/status", {**job, "status": STATUS})
    scale = server.request("GET", f"{NAMESPACE}/{n.JOB_PLURAL}/j/scale").body
    assert (scale["kind"], scale["spec"]) == ("Scale", {"replicas": 2})
    assert scale["status"] == {"replicas": STATUS["nodes"], "selector": STATUS["selector"]}
    assert server.kubectl("scale", "torchrunjob/j", "--replicas=4").returncode == 0
    assert server.request("GET", f"{NAMESPACE}/{n.JOB_PLURAL}/j").body["spec"]["numNodes"] == 4
    uneven = server.kubectl("scale", "torchrunjob/j", "--replicas=3")
    assert uneven.returncode == 1
    assert "numNodes must divide numGPUs" in uneven.stderr


def test_an_elastic_job_is_not_scaled_to_a_fixed_size(server: ApiServer) -> None:
    post(server, manifest(n.JOB_KIND, "j", {"elastic": {"minNodes": 1, "maxNodes": 2}}))
    scaled = server.kubectl("scale", "torchrunjob/j", "--replicas=2")
    assert scaled.returncode == 1
    assert "numNodes and elastic exclude each other" in scaled.stderr


def table(server: ApiServer, plural: str) -> tuple[list[tuple[str, int]], list[Any]]:
    """The columns with their priorities, and the first row."""
    answer = server.request("GET", f"{NAMESPACE}/{plural}", accept=TABLE).body
    columns = [(each["name"], each["priority"]) for each in answer["columnDefinitions"]]
    return columns, answer["rows"][0]["cells"]


def test_the_columns_of_a_job(server: ApiServer) -> None:
    job = post(server, manifest(n.JOB_KIND, "j")).body
    server.request("PUT", f"{NAMESPACE}/{n.JOB_PLURAL}/j/status", {**job, "status": STATUS})
    columns, cells = table(server, n.JOB_PLURAL)
    shown = ["Name", "Queue", "Phase", "Nodes", "GPUs", "Step", "Loss", "Restarts", "Age"]
    wide = ["Throughput", "Checkpoint", "USD", "Reason"]
    assert columns == [*((each, 0) for each in shown), *((each, 1) for each in wide)]
    age = cells.pop(shown.index("Age"))
    assert age.endswith("s")
    assert cells[:8] == ["j", "research", "Running", 2, 16, 9_000_000_000, 2.5, 1]
    assert cells[8:] == [1200.5, 100, 838.9, "WorkersReady"]


def test_the_columns_of_a_queue(server: ApiServer) -> None:
    queue = post(server, manifest(n.QUEUE_KIND, "q", {"kaiQueue": "k"})).body
    ready = [{**STATUS["conditions"][0], "type": "Ready"}]
    queue["status"] = {"conditions": ready, "jobs": {"active": 1, "pending": 2}}
    server.request("PUT", f"{NAMESPACE}/{n.QUEUE_PLURAL}/q/status", queue)
    columns, cells = table(server, n.QUEUE_PLURAL)
    shown = ["Name", "GPUs", "CPUs", "Memory", "KAI Queue", "Ready", "Active", "Pending", "Age"]
    assert columns == [*((each, 0) for each in shown), ("Image", 1)]
    assert cells[:8] == ["q", 8, "96", "512Gi", "k", "True", 1, 2]
    assert cells[-1] == "example.com/pytorch:2.9"


def test_short_names_and_the_category_find_both_kinds(server: ApiServer) -> None:
    post(server, manifest(n.QUEUE_KIND, "q"))
    post(server, manifest(n.JOB_KIND, "j"))
    for word, found in (("tq", "q"), ("tj", "j"), ("torchrunqueue", "q"), ("torchrunjob", "j")):
        assert server.kubectl("get", word, "-o", "name").stdout.split("/")[-1].strip() == found
    both = server.kubectl("get", "torchrun", "-o", "name").stdout.split()
    assert both == [f"{n.JOB_SINGULAR}.{n.GROUP}/j", f"{n.QUEUE_SINGULAR}.{n.GROUP}/q"]


def test_explain_says_what_a_field_is_its_unit_and_its_default(server: ApiServer) -> None:
    text = server.kubectl("explain", "torchrunqueue.spec.jobDefaults").stdout
    words = " ".join(text.split())
    assert "before the job is Failed. Default: 3." in words
    assert "Unit: seconds. Default: a finished job is never deleted." in words
