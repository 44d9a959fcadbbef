"""Requests to the API: what is tried again, what counts as done, and whole runs of the launcher over HTTP."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from components.training import launcher_rules
from launcher import backends, node_release
from launcher.backends import trainjob
from launcher.gateway import AT_ONCE, Gateway
from launcher.lease import RunLease
from launcher.loop import POLL_SECONDS, UNAVAILABLE_SECONDS, Launcher
from launcher.manifests import Owner
from launcher.request import Request
from launcher.submit import create_job
from tests.unit.launcher.api_server import FakeApi, until
from tests.unit.launcher.cluster import CLAIMS, JOBS, NODES, PODS, POOLS, put_claim, put_node
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, ApiUnavailable, RetryPolicy

POOL = f"{POOLS}/small"
BUSY = (503, {}, b"not json")


def built(request: Request) -> dict[str, Any]:
    return backends.of(request).build(request, 2, "", 0)


@pytest.fixture
def gateway(api: FakeApi) -> Iterator[Gateway]:
    with closing(Gateway(api.client(), time.time)) as made:
        yield made


def named(name: str, kind: str = "Pod", **meta: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": "training", **meta}}


def test_client_403_of_starting_server_is_retried(api: FakeApi) -> None:
    api.put(POOL, {"metadata": {"name": "small"}})
    api.unready = 3
    assert api.client().request("GET", POOL)["metadata"]["name"] == "small"
    api.unready = 2
    body = {"metadata": {"generateName": "launch-", "namespace": "training"}}
    create_job(api.client(), body)
    assert len(api.names("/apis/batch/v1/namespaces/training/jobs")) == 2  # beside that of every test
    api.unready = 1_000_000
    with pytest.raises(ApiUnavailable, match="403 Forbidden"):
        api.client(retry=RetryPolicy(timeout=0.03, initial_delay=0.01, max_delay=0.01)).request("GET", POOL)


def test_create_with_lost_answer_creates_one_object(api: FakeApi, request_: Request) -> None:
    gateway = Gateway(api.client(), time.time)
    api.faults, api.after = [None], True
    assert gateway.create_training(request_, built(request_)) is False
    assert api.names(JOBS) == ["train-r1"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("NotFound: specified trainingRuntime must be created before the TrainJob is created", 409),
        ("spec.trainer.numNodes: must be positive", 403),
    ],
)
def test_trainjob_before_its_runtime_is_seen_is_a_conflict(
    api: FakeApi, gateway: Gateway, request_: Request, message: str, expected: int
) -> None:
    request_ = dataclasses.replace(request_, backend="trainjob")
    refusal = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": message}
    # The client asks whether the server is ready, and then once more.
    api.faults = [(403, {}, json.dumps(refusal).encode())] * 3
    with pytest.raises(ApiError, match=message) as caught:
        gateway.create_training(request_, built(request_))
    assert caught.value.status == expected
    assert gateway.create_training(request_, built(request_)) is True


def test_a_job_without_a_name_is_never_created_twice(api: FakeApi) -> None:
    api.faults, api.after = [BUSY], True
    with pytest.raises(ApiUnavailable):
        create_job(api.client(), {"metadata": {"generateName": "launch-", "namespace": "training"}})
    assert len(api.names("/apis/batch/v1/namespaces/training/jobs")) == 2
    api.faults, api.after = [(429, {}, b"{}")], False
    create_job(api.client(), {"metadata": {"generateName": "launch-", "namespace": "training"}})
    assert len(api.names("/apis/batch/v1/namespaces/training/jobs")) == 3


def test_a_deletion_takes_exactly_the_pod_that_was_meant(api: FakeApi, request_: Request) -> None:
    gateway = Gateway(api.client(), time.time)
    api.put(f"{PODS}/hold-r1-0", {"metadata": {"name": "hold-r1-0", "uid": "new"}})
    gateway.delete_pods(request_, [("hold-r1-0", "old")])
    assert api.names(PODS) == ["hold-r1-0"]
    gateway.delete_pods(request_, [("hold-r1-0", "new")])
    gateway.delete_pods(request_, [("hold-r1-0", "new")])
    assert api.names(PODS) == []


@pytest.mark.parametrize("number", [AT_ONCE, 5 * AT_ONCE])
def test_pods_are_made_and_deleted_many_at_a_time(
    api: FakeApi, gateway: Gateway, request_: Request, number: int
) -> None:
    threads = set()
    api.on_request = lambda _method, _path: threads.add(threading.get_ident())
    names = [f"hold-r1-{index}" for index in range(number)]
    gateway.create_pods([named(name, uid=f"uid of {name}") for name in names])
    assert api.names(PODS) == sorted(names)
    assert 1 <= len(threads) <= AT_ONCE
    assert (len(threads) > 1) == (number > AT_ONCE), "few are done one after another, many are not"
    gateway.delete_pods(request_, [(name, f"uid of {name}") for name in names])
    assert api.names(PODS) == []


def test_refusal_of_one_of_many_pods_is_reported(api: FakeApi, gateway: Gateway, request_: Request) -> None:
    names = [f"hold-r1-{index}" for index in range(3 * AT_ONCE)]
    api.refused = {("DELETE", f"{PODS}/hold-r1-0")}
    gateway.create_pods([named(name, uid=name) for name in names])
    with pytest.raises(ApiError, match="403 Forbidden"):
        gateway.delete_pods(request_, [(name, name) for name in names])
    assert "hold-r1-0" in api.names(PODS)


@pytest.mark.parametrize(
    ("backend", "propagation"), [("pytorchjob", "Foreground"), ("trainjob", "Background")]
)
def test_delete_training_uses_uid_and_propagation(
    api: FakeApi, gateway: Gateway, request_: Request, backend: str, propagation: str
) -> None:
    request_ = dataclasses.replace(request_, backend=backend)
    jobs = backends.of(request_).path(request_.namespace)
    api.put(f"{jobs}/train-r1", {"metadata": {"name": "train-r1", "uid": "new"}})
    gateway.delete_training(request_, "old")
    assert api.names(jobs) == ["train-r1"]
    gateway.delete_training(request_, "new")
    gateway.delete_training(request_, "new")
    assert api.names(jobs) == []
    assert [body.get("propagationPolicy") for body in api.deletions] == [propagation] * 3


def asked(method: str, path: str, query: dict[str, str]) -> tuple[str | None, str, str, str]:
    """(namespace, API group, resource, verb) of a request, as RBAC sees it."""
    parts = path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    namespace = rest[1] if rest[0] == "namespaces" else None
    resource, *name = rest[2:] if namespace else rest
    read = "get" if name else "watch" if "watch" in query else "list"
    verbs = {"GET": read, "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
    return namespace, group, resource, verbs[method]


@pytest.mark.parametrize("backend", ["pytorchjob", "trainjob"])
def test_the_launcher_may_do_exactly_what_it_asks_for(
    api: FakeApi, gateway: Gateway, request_: Request, backend: str
) -> None:
    request_ = dataclasses.replace(request_, backend=backend)
    gateway.owner(request_, "launch-r1")
    gateway.lacking(request_)
    gateway.observe(request_, fresh=True)
    gateway.observe(request_, fresh=False)
    until(lambda: len(api.asked("watch")) == 7)
    gateway.create_pods([named("hold-r1-0")])
    gateway.delete_pods(request_, [("hold-r1-0", "uid")])
    owner = Owner(name="launch-r1", uid="u")
    if backend == "trainjob":
        gateway.apply_runtime(trainjob.runtime(request_, 2, 0, owner))
    gateway.create_training(request_, built(request_))
    gateway.annotate_training(request_, "uid", {})
    gateway.delete_training(request_, "uid")
    gateway.delete_claim("small-x", "uid")
    lease = RunLease(gateway, request_, owner, "pod", time.time, time.time)
    lease.take()
    lease.write(None)
    gateway.record(named("event", "Event"))
    granted = {
        (namespace or None, group, resource, verb)
        for namespace, rules in launcher_rules(backend).items()
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    # The apply of an object that does not exist needs the right to create it, too.
    created = {("training", "trainer.kubeflow.org", "trainingruntimes", "create")} & granted
    assert {asked(method, path, query) for method, path, query in api.requests} | created == granted


def launcher(gateway: Gateway, request: Request) -> tuple[Launcher, list[str]]:
    said: list[str] = []
    return Launcher(request, "launch-r1", gateway, log_line=said.append, poll_seconds=0.02), said


def states(said: list[str]) -> list[str]:
    seen = [line.split("state=")[1].split()[0] for line in said]
    return [state for index, state in enumerate(seen) if state not in seen[:index]]


@pytest.mark.parametrize("has_job", [False, True])
@pytest.mark.parametrize(("tolerations", "released"), [([], ["small-1"]), ([{"operator": "Exists"}], [])])
def test_unneeded_in_fresh_lists_knows_the_pools_taints(
    api: FakeApi,
    gateway: Gateway,
    request_: Request,
    has_job: bool,
    tolerations: list[dict[str, str]],
    released: list[str],
) -> None:
    taints = {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]}
    api.put(POOL, {"metadata": {"name": "small"}, "spec": {"template": {"spec": taints}}})
    put_claim(api, "small-1", "")
    api.put("/api/v1/namespaces/default/pods/other", {**named("other"), "spec": {"tolerations": tolerations}})
    if has_job:
        api.put(f"{JOBS}/train-r1", named("train-r1"))
    observation = gateway.observe(request_, fresh=True)
    unneeded = node_release.unneeded(request_, observation, since=0.0)
    assert [each.claim for each in unneeded] == released


def test_fresh_lists_read_nodeclaims_after_nodes(api: FakeApi, gateway: Gateway, request_: Request) -> None:
    asked: list[str] = []

    def register(method: str, path: str) -> None:
        if method == "GET" and path in (NODES, CLAIMS):
            asked.append(path)
            if len(asked) == 2:
                put_node(api, "a")
                put_claim(api, "small-1", "a")

    put_claim(api, "small-1", "")
    api.on_request = register
    seen = gateway.observe(request_, fresh=True)
    assert sorted(asked) == [NODES, CLAIMS]
    assert {node.name for node in seen.nodes} <= {claim.node for claim in seen.claims}


def test_run_submits_existing_nodes_and_cleans_up(api: FakeApi, gateway: Gateway, request_: Request) -> None:
    def react(method: str, path: str) -> None:
        if method == "POST" and path == PODS:
            for name in "abcd":
                put_node(api, name)
        if method == "GET" and path == f"{JOBS}/train-r1" and path in api.objects:
            done = {"conditions": [{"type": "Succeeded", "status": "True"}]}
            api.put(path, {**api.objects[path], "status": done})

    api.on_request = react
    runner, said = launcher(gateway, request_)
    assert runner.run() == names.EXIT_SUCCEEDED
    assert states(said) == ["waiting", "submitting", "succeeded"]
    assert said[-1].startswith(
        'launcher state=succeeded nodes=4/4 claims=0 reason="trained on 4 nodes" elapsed='
    )
    job = api.objects[f"{JOBS}/train-r1"]
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 3
    assert api.names(PODS) == []
    # The count that the submit rests on was read from the store, not from a cache.
    reads = [query for _, path, query in api.requests if path == "/api/v1/nodes" and "watch" not in query]
    assert "resourceVersion" in reads[0]
    assert "resourceVersion" not in reads[-1]
    events = api.names("/api/v1/namespaces/training/events")
    assert len(events) == 3


def test_a_refused_training_leaves_no_placeholder(api: FakeApi, gateway: Gateway, request_: Request) -> None:
    def react(method: str, path: str) -> None:
        if method == "POST" and path == PODS:
            for name in "abcd":
                put_node(api, name)
        for index, pod_name in enumerate(api.names(PODS)):
            item = api.objects[f"{PODS}/{pod_name}"]
            if "nodeName" not in item["spec"]:
                api.put(f"{PODS}/{pod_name}", {**item, "spec": {**item["spec"], "nodeName": "abcd"[index]}})

    api.on_request = react
    api.refused = {("POST", JOBS)}
    runner, said = launcher(gateway, request_)
    assert runner.run() == names.EXIT_API_ERROR
    assert "403 Forbidden" in said[-1]
    assert sum(path == PODS for method, path, _ in api.requests if method == "POST") == 4
    assert api.names(PODS) == []


def test_a_second_launcher_adopts_the_first_ones_training(
    api: FakeApi, gateway: Gateway, request_: Request
) -> None:
    labels = {"trainyard.dev/run": "r1", "app.kubernetes.io/managed-by": "trainyard-launcher"}
    job = {"metadata": {"name": "train-r1", "labels": labels}, "spec": {}}
    api.put(f"{JOBS}/train-r1", {**job, "status": {"conditions": [{"type": "Succeeded", "status": "True"}]}})
    runner, _ = launcher(gateway, request_)
    assert runner.run() == names.EXIT_SUCCEEDED
    made = {path for method, path, _ in api.requests if method == "POST"}
    assert {path.rpartition("/")[2] for path in made} == {"events", "leases"}


def test_an_outage_is_waited_out(api: FakeApi, request_: Request) -> None:
    impatient = Gateway(api.client(retry=RetryPolicy(timeout=0.02, initial_delay=0.01)), time.time)
    runner = Launcher(request_, "launch-r1", impatient, log_line=lambda _: None, poll_seconds=0.01)
    api.faults = [BUSY] * 12
    api.on_request = lambda method, path: runner.stopping.set() if api.names(PODS) else None
    with closing(impatient):
        assert runner.run() == names.EXIT_STOPPED
    assert len(api.names(PODS)) == 0
    assert any(path == PODS for method, path, _ in api.requests if method == "POST")


@pytest.mark.parametrize(("said", "kept"), [("30", 30.0), ("86400", UNAVAILABLE_SECONDS)])
def test_run_obeys_retry_after(api: FakeApi, request_: Request, said: str, kept: float) -> None:
    now = 0.0

    class Woken(Gateway):
        """Something changes every seven seconds."""

        def wait(self, timeout: float) -> None:
            nonlocal now
            now += min(timeout, 7.0)

    asked: list[float] = []

    def note(_method: str, _path: str) -> None:
        asked.append(now)
        if api.names(PODS):
            runner.stopping.set()

    api.on_request = note
    api.faults = [(429, {"Retry-After": said}, b"{}")]
    with closing(Woken(api.client(retry=RetryPolicy()), time.time)) as gateway:
        runner = Launcher(request_, "launch-r1", gateway, log_line=lambda _: None, clock=lambda: now)
        assert runner.run() == names.EXIT_STOPPED
    assert kept <= asked[0] <= kept + POLL_SECONDS
