"""Jobs whose queue names a pool, through a real client: what is read, when, and what a kill at any write leaves."""

from __future__ import annotations

import pytest

from tests.unit.launcher.api_server import FakeApi, serving
from tests.unit.launcher.conftest import made_for
from tests.unit.operator.staged import (
    ATTEMPT,
    JOB,
    NOW,
    PODS,
    QUEUE,
    TEAM,
    Killed,
    Mortal,
    finish,
    outcome,
    phase,
    settle,
    stage,
    workers,
)
from trainyard.k8s import names
from trainyard.k8s.client import ApiError
from trainyard.operator import names as n
from trainyard.operator.cluster_reader import ClusterReader, PollPacer
from trainyard.operator.reconciler import Reconciler

pytestmark = pytest.mark.unit

NODES = "/api/v1/nodes"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
NODE_CLASS = "/apis/karpenter.k8s.aws/v1/ec2nodeclasses/p5"
POOL = "/apis/karpenter.sh/v1/nodepools/p5"
CLASS = f"/apis/scheduling.k8s.io/v1/priorityclasses/{names.PLACEHOLDER_PRIORITY_CLASS}"
EVENTS = f"/api/v1{TEAM}/events"
ALL_PODS = "/api/v1/pods"
READ_OF_A_POOL = {NODES, CLAIMS, POOL, ALL_PODS, EVENTS, "/api/v1/namespaces/default/events"}


def pooled(api: FakeApi, *, limit: int = 4) -> None:
    """A job of two nodes in a queue with a pool, which has none yet."""
    stage(api)
    item = api.objects[QUEUE]
    api.put(QUEUE, {**item, "spec": {**item["spec"], "scheduling": {"pool": "p5"}}})
    offers = [{"key": names.LABEL_CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]}]
    spec = {"limits": {"nvidia.com/gpu": str(8 * limit)}, "template": {"spec": {"requirements": offers}}}
    api.put(POOL, {"metadata": {"name": "p5"}, "spec": spec})
    api.put(CLASS, {"metadata": {"name": names.PLACEHOLDER_PRIORITY_CLASS}})


def reserve(api: FakeApi) -> None:
    """The pool buys reserved capacity alone, of which there is none."""
    pool = api.objects[POOL]
    bought = {"key": names.LABEL_CAPACITY_TYPE, "operator": "In", "values": ["reserved"]}
    named = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "p5"}
    template = {"spec": {"requirements": [bought], "nodeClassRef": named}}
    api.put(POOL, {**pool, "spec": {**pool["spec"], "template": template}})
    ready = {"conditions": [{"type": "CapacityReservationsReady", "status": "True"}]}
    api.put(NODE_CLASS, {"metadata": {"name": "p5"}, "status": ready})


def placeholder_names(api: FakeApi) -> list[str]:
    return [
        path
        for path, item in api.objects.items()
        if (item["metadata"].get("labels") or {}).get(names.LABEL_ROLE) == names.ROLE_PLACEHOLDER
    ]


def idle(api: FakeApi, name: str) -> None:
    """A machine that can take a worker."""
    labels = {names.LABEL_NODEPOOL: "p5", names.LABEL_INITIALIZED: "true"}
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "8"},
    }
    api.put(f"{NODES}/{name}", {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status})


def place(api: FakeApi, path: str, node: str) -> None:
    """What the scheduler does with a pod."""
    pod = api.objects[path]
    api.put(path, {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": {"phase": "Running"}})


def buy(api: FakeApi) -> None:
    """Karpenter buys a machine for every placeholder, and the scheduler puts it there."""
    for path in placeholder_names(api):
        name = f"node-{path[-1]}"
        idle(api, name)
        place(api, path, name)


def displace(api: FakeApi) -> None:
    """The workers come, and take the placeholders' places."""
    workers(api, "Running")
    for path in placeholder_names(api):
        api.remove(path)


def reads(api: FakeApi) -> list[tuple[str, str]]:
    """What was read of the pool since the last time, each with the version that was asked for."""
    found = [
        (path, query.get("resourceVersion", ""))
        for method, path, query in api.requests
        if method == "GET" and path in READ_OF_A_POOL
    ]
    api.requests.clear()
    return found


def test_job_starts_with_the_nodes_that_it_holds(api: FakeApi) -> None:
    pooled(api)
    settle(Mortal(api))
    assert (phase(api), api.objects[JOB]["status"]["reason"]) == ("Pending", n.REASON_WAITING_FOR_NODES)
    assert placeholder_names(api) == [f"{PODS}/vit-hold-0", f"{PODS}/vit-hold-1"]
    assert ATTEMPT not in api.objects
    settle(Mortal(api))  # that its placeholders wait is news
    requeue_after = Mortal(api)
    settle(requeue_after)
    assert requeue_after.writes == 0
    buy(api)
    settle(Mortal(api))
    assert phase(api) == n.PHASE_PROVISIONING
    assert api.objects[ATTEMPT]["spec"]["completions"] == 2
    displace(api)
    settle(Mortal(api))
    assert phase(api) == n.PHASE_RUNNING
    assert placeholder_names(api) == []


def test_two_jobs_with_the_same_idle_nodes_one_starts(api: FakeApi) -> None:
    pooled(api)
    for name in ("a", "b"):
        idle(api, name)
    item, second = api.objects[JOB], JOB.replace("/vit", "/other")
    meta = {key: value for key, value in item["metadata"].items() if key != "uid"}
    api.put(second, {**item, "metadata": {**meta, "name": "other"}})

    def reconcile_both() -> None:
        objects = Mortal(api)
        reconciler = Reconciler(objects, ClusterReader(objects, "tools@sha256:1"), now=lambda: NOW)
        for name in ("other", "vit"):
            reconciler.reconcile_job("team", name)

    reconcile_both()
    assert len(placeholder_names(api)) == 4
    for path, node in ((f"{PODS}/vit-hold-0", "a"), (f"{PODS}/vit-hold-1", "b")):  # the scheduler's choice
        place(api, path, node)
    for _ in range(3):
        reconcile_both()
    reported = api.objects[second]["status"]
    assert phase(api) == n.PHASE_PROVISIONING
    assert (reported["phase"], reported["reason"]) == ("Pending", n.REASON_WAITING_FOR_NODES)
    assert (
        "2 nodes: nvidia.com/gpu in use" in reported["message"]
        or "2 nodes: cpu in use" in reported["message"]
    )


def test_pool_is_read_only_for_jobs_that_wait(api: FakeApi) -> None:
    pooled(api)
    settle(Mortal(api))
    assert {path for path, _ in reads(api)} == READ_OF_A_POOL
    buy(api)
    settle(Mortal(api))
    last = reads(api)
    for path in (NODES, CLAIMS, ALL_PODS):  # what it begins with is of the store itself
        assert (path, "") in last
    displace(api)
    for change in (lambda: None, lambda: finish(api)):
        change()
        settle(Mortal(api))
        assert reads(api) == []


def test_pool_is_read_with_its_reservations(api: FakeApi) -> None:
    pooled(api)
    settle(Mortal(api))
    read = {path for _, path, _ in api.requests}
    assert NODE_CLASS not in read
    reserve(api)
    settle(Mortal(api))
    assert api.objects[JOB]["status"]["reason"] == n.REASON_CAPACITY_IMPOSSIBLE
    assert placeholder_names(api) == []
    Reconciler(
        objects := Mortal(api), ClusterReader(objects, "tools@sha256:1"), now=lambda: NOW
    ).reconcile_queue("team", "h100")
    assert api.objects[QUEUE]["status"]["pool"]["reservations"] == 0


def test_suspended_job_reads_no_pool(api: FakeApi) -> None:
    pooled(api)
    settle(Mortal(api))
    item = api.objects[JOB]
    api.put(JOB, {**item, "spec": {**item["spec"], "suspend": True}})
    reads(api)
    settle(Mortal(api))
    assert (phase(api), placeholder_names(api), reads(api)) == (n.PHASE_SUSPENDED, [], [])


def test_queue_without_pool_reads_none(api: FakeApi) -> None:
    stage(api)
    settle(Mortal(api))
    assert phase(api) == n.PHASE_PROVISIONING
    assert reads(api) == []


def test_missing_pool_reads_nothing_else(api: FakeApi) -> None:
    pooled(api)
    api.remove(POOL)
    objects = Mortal(api)
    requeue_after = Reconciler(
        objects, ClusterReader(objects, "tools@sha256:1"), now=lambda: NOW
    ).reconcile_job("team", "vit")
    assert api.objects[JOB]["status"]["reason"] == n.REASON_POOL_NOT_FOUND
    assert {path for path, _ in reads(api)} == {POOL}
    assert requeue_after == 30
    api.remove(CLASS)
    settle(Mortal(api))
    assert api.objects[JOB]["status"]["reason"] == n.REASON_PRIORITY_CLASS_NOT_FOUND


def test_refused_placeholder_is_reported_and_repeated(api: FakeApi) -> None:
    """A quota of the namespace, for instance."""
    pooled(api)
    api.refused = {("POST", PODS)}
    objects = Mortal(api)
    reconciler = Reconciler(objects, ClusterReader(objects, "tools@sha256:1"), now=lambda: NOW)
    assert reconciler.reconcile_job("team", "vit") == 30
    reported = api.objects[JOB]["status"]
    assert (reported["phase"], reported["reason"]) == ("Pending", n.REASON_PLACEHOLDER_REFUSED)
    assert "the pod that reserves a node: Forbidden" in reported["message"]
    assert reported["capacity"]["tries"] == 1
    version = api.objects[JOB]["metadata"]["resourceVersion"]
    assert reconciler.reconcile_job("team", "vit") == 30
    assert api.objects[JOB]["metadata"]["resourceVersion"] == version
    api.refused = set()
    settle(Mortal(api))
    assert len(placeholder_names(api)) == 2
    # Anything else that is refused is nothing to wait for.
    api.refused = {("POST", ATTEMPT.rpartition("/")[0])}
    buy(api)
    with pytest.raises(ApiError):
        settle(Mortal(api))


def test_waiting_jobs_share_reads_and_pace_themselves(api: FakeApi) -> None:
    pooled(api)
    for number in range(20):
        item = api.objects[JOB]
        name = f"job-{number}"
        meta = {key: value for key, value in item["metadata"].items() if key != "uid"}
        api.put(JOB.replace("/vit", f"/{name}"), {**item, "metadata": {**meta, "name": name}})
    objects = Mortal(api)
    reader = ClusterReader(objects, "tools@sha256:1", clock=lambda: 0.0)  # all within a second
    reconciler = Reconciler(objects, reader, now=lambda: NOW)
    pauses = [reconciler.reconcile_job("team", f"job-{number}") for number in range(20)]
    assert pauses[0] == 2
    assert pauses[-1] == 20 / PollPacer.READS_PER_SECOND
    assert sum(path == NODES for path, _ in reads(api)) == 1
    api.remove(JOB.replace("/vit", "/job-3"))
    reconciler.reconcile_job("team", "job-3")
    assert reconciler.reconcile_job("team", "job-4") == 19 / PollPacer.READS_PER_SECOND


def test_pacer_slows_only_frequent_jobs_within_a_limit() -> None:
    pace = PollPacer()
    assert [pace.pace("hopeless", each, waits=True) for each in (30.0, 0.0, None)] == [30.0, 0.0, None]
    assert pace.pace("running", 1.0) == 1.0
    assert [pace.pace(str(number), 2.0, waits=True) for number in range(500)][0::100] == [
        2.0,
        20.2,
        30,
        30,
        30,
    ]
    assert pace.pace("0", 0.2, waits=True) == 30


def test_list_is_cached_for_its_time(api: FakeApi) -> None:
    pooled(api)
    clock = [0.0]
    reader = ClusterReader(Mortal(api), "", clock=lambda: clock[0])
    for second, paths in ((0.0, {NODES, ALL_PODS}), (0.9, set()), (1.1, {NODES}), (10.5, {NODES, ALL_PODS})):
        clock[0] = second
        reader.pool("p5", "team", NOW)
        assert {path for path, _ in reads(api)} & {NODES, ALL_PODS} == paths, second
    reader.pool("p5", "team", NOW, fresh=True)
    assert {(path, version) for path, version in reads(api)} >= {(NODES, ""), (ALL_PODS, "")}
    assert reader.has_priority_class()
    api.remove(CLASS)
    assert reader.has_priority_class()
    clock[0] += 31
    assert not reader.has_priority_class()


def test_node_claim_names_each_listed_node(api: FakeApi) -> None:
    pooled(api)
    meta = {"name": "p5-1", "labels": {names.LABEL_NODEPOOL: "p5"}}
    asked: list[str] = []

    def register(method: str, path: str) -> None:
        if method == "GET" and path in (NODES, CLAIMS):
            asked.append(path)
            if len(asked) == 2:
                idle(api, "node-1")
                api.put(f"{CLAIMS}/p5-1", {"metadata": meta, "status": {"nodeName": "node-1"}})

    api.put(f"{CLAIMS}/p5-1", {"metadata": meta})
    api.on_request = register
    seen = ClusterReader(Mortal(api), "").pool("p5", "team", NOW, fresh=True)
    assert sorted(asked) == [NODES, CLAIMS]
    assert {node.name for node in seen.nodes} <= {claim.node for claim in seen.claims}


def test_event_of_karpenter_counts_and_no_other(api: FakeApi) -> None:
    pooled(api)
    settle(Mortal(api))
    event = {
        "metadata": {"name": "e", "namespace": "team"},
        "type": "Warning",
        "involvedObject": {"kind": "Pod", "name": "vit-hold-0"},
        "reason": "FailedScheduling",
        "message": "Failed to schedule pod, no instance type has enough resources, requirements=x, resources=y",
        "lastTimestamp": "2027-01-15T08:00:00Z",
    }
    api.put(f"{EVENTS}/e", {**event, "source": {"component": "default-scheduler"}})
    settle(Mortal(api))
    assert api.objects[JOB]["status"]["reason"] == n.REASON_WAITING_FOR_NODES
    api.put(f"{EVENTS}/e", {**event, "source": {"component": "karpenter"}})
    settle(Mortal(api))
    assert api.objects[JOB]["status"]["reason"] == n.REASON_CAPACITY_IMPOSSIBLE
    assert placeholder_names(api) == []


def test_unneeded_nodes_are_released(api: FakeApi) -> None:
    pooled(api)
    settle(Mortal(api))
    meta = {
        "name": "p5-1",
        "labels": {names.LABEL_NODEPOOL: "p5"},
        "creationTimestamp": "2027-01-15T08:10:00Z",
    }
    api.put(f"{CLAIMS}/p5-1", {"metadata": meta, "spec": made_for("torchrun.vit", "team")})
    objects = Mortal(api)
    later = Reconciler(objects, ClusterReader(objects, "tools@sha256:1"), now=lambda: NOW + 1200)
    later.reconcile_job("team", "vit")
    assert api.objects[JOB]["status"]["reason"] == n.REASON_INSUFFICIENT_CAPACITY
    assert (api.names(CLAIMS), placeholder_names(api)) == ([], [])
    assert later.reconcile_job("team", "vit") is not None
    assert reads(api)  # a pause asks little, and asks seldom


def whole(api: FakeApi, kill: int, *, after: bool) -> int:
    """A job's life with a controller that dies at its write of this number; returns the writes of all."""
    pooled(api)
    written = 0
    for change in (lambda: None, lambda: buy(api), lambda: displace(api), lambda: finish(api)):
        change()
        objects = Mortal(api, max(0, kill - written), after=after)
        try:
            settle(objects)
        except Killed:
            settle(Mortal(api))
        written += objects.writes
        assert len(placeholder_names(api)) <= 2
    return written


@pytest.mark.long
def test_controller_killed_at_any_write_ends_the_same() -> None:
    with serving(FakeApi()) as api:
        writes = whole(api, 0, after=False)
        undisturbed = outcome(api)
        assert phase(api) == n.PHASE_SUCCEEDED
    assert writes > 8
    # After one write is before the next one.
    for kill, after in ((1, False), *((kill, True) for kill in range(1, writes + 1))):
        with serving(FakeApi()) as api:
            whole(api, kill, after=after)
            assert outcome(api) == undisturbed, (kill, after)
