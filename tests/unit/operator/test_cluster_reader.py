"""What is read of the cluster and of pools, and when, through a real client."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.launcher.api_server import FakeApi
from tests.unit.operator.staged import (
    ATTEMPT,
    JOB,
    NOW,
    PODS,
    QUEUE,
    TEAM,
    Mortal,
    edit,
    finish,
    phase,
    reconciler,
    settle,
    stage,
    thing,
    workers,
)
from trainyard.k8s import names
from trainyard.k8s.client import ApiError
from trainyard.operator import names as n
from trainyard.operator.cluster_reader import PODS_SECONDS, ClusterReader
from trainyard.operator.reconciler import READS_PER_SECOND

NODES = "/api/v1/nodes"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
NODE_CLASS = "/apis/karpenter.k8s.aws/v1/ec2nodeclasses/p5"
POOL = "/apis/karpenter.sh/v1/nodepools/p5"
CLASS = f"/apis/scheduling.k8s.io/v1/priorityclasses/{names.PLACEHOLDER_PRIORITY_CLASS}"
EVENTS = f"/api/v1{TEAM}/events"
ALL_PODS = "/api/v1/pods"
READ_OF_A_POOL = {NODES, CLAIMS, POOL, ALL_PODS, EVENTS, "/api/v1/namespaces/default/events"}


def pooled(api: FakeApi, *, limit: int = 4) -> None:
    """Create a job of two nodes in a queue with a pool without nodes."""
    stage(api)
    edit(api, QUEUE, scheduling={"pool": "p5"})
    offers = [{"key": names.LABEL_CAPACITY_TYPE, "operator": "In", "values": ["on-demand"]}]
    spec = {"limits": {"nvidia.com/gpu": str(8 * limit)}, "template": {"spec": {"requirements": offers}}}
    api.put(POOL, {"metadata": {"name": "p5"}, "spec": spec})
    api.put(CLASS, {"metadata": {"name": names.PLACEHOLDER_PRIORITY_CLASS}})


def reserve(api: FakeApi) -> None:
    """Let the pool use only reserved capacity, of which there is none."""
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
    """Add a node that can run a worker."""
    labels = {names.LABEL_NODEPOOL: "p5", names.LABEL_INITIALIZED: "true"}
    status = {
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": "8"},
    }
    api.put(f"{NODES}/{name}", {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status})


def place(api: FakeApi, path: str, node: str) -> None:
    """Bind a pod to a node, as the scheduler does."""
    pod = api.objects[path]
    api.put(path, {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": {"phase": "Running"}})


def buy(api: FakeApi) -> None:
    """Launch a node for each placeholder, and bind it there."""
    for path in placeholder_names(api):
        name = f"node-{path[-1]}"
        idle(api, name)
        place(api, path, name)


def displace(api: FakeApi) -> None:
    """Create the workers, which preempt the placeholders."""
    workers(api, "Running")
    for path in placeholder_names(api):
        api.remove(path)


def reads(api: FakeApi) -> list[tuple[str, str]]:
    """Return the reads of the pool since the last call, each with the requested version."""
    found = [
        (path, query.get("resourceVersion", ""))
        for method, path, query in api.requests
        if method == "GET" and path in READ_OF_A_POOL
    ]
    api.requests.clear()
    return found


def reason(api: FakeApi, path: str = JOB) -> str:
    return str(api.objects[path]["status"]["reason"])


def copy_job(api: FakeApi, name: str) -> str:
    item, path = api.objects[JOB], JOB.replace("/vit", f"/{name}")
    meta = {key: value for key, value in item["metadata"].items() if key != "uid"}
    api.put(path, {**item, "metadata": {**meta, "name": name}})
    return path


def test_pool_is_read_only_for_jobs_that_wait(api: FakeApi) -> None:
    pooled(api)
    settle(Mortal(api))
    assert {path for path, _ in reads(api)} == READ_OF_A_POOL
    edit(api, JOB, suspend=True)
    settle(Mortal(api))
    assert (phase(api), placeholder_names(api), reads(api)) == (n.PHASE_SUSPENDED, [], [])
    edit(api, JOB, suspend=False)
    settle(Mortal(api))
    buy(api)
    settle(Mortal(api))
    last = reads(api)
    for path in (NODES, CLAIMS, ALL_PODS):  # an attempt starts by a read without caches
        assert (path, "") in last
    displace(api)
    for change in (lambda: None, lambda: finish(api)):
        change()
        settle(Mortal(api))
        assert set(reads(api)) <= {(NODES, "0")}, "only what its nodes are, for the cost"


def test_missing_pool_reads_nothing_else(api: FakeApi) -> None:
    pooled(api)
    api.remove(POOL)
    assert reconciler(Mortal(api)).reconcile_job("team", "vit") == 30
    assert reason(api) == n.REASON_POOL_NOT_FOUND
    assert {path for path, _ in reads(api)} == {POOL}
    api.remove(CLASS)
    settle(Mortal(api))
    assert reason(api) == n.REASON_PRIORITY_CLASS_NOT_FOUND


def test_refused_placeholder_is_reported_and_repeated(api: FakeApi) -> None:
    """A quota of the namespace, for instance."""
    pooled(api)
    api.refused = {("POST", PODS)}
    refused = reconciler(Mortal(api))
    assert refused.reconcile_job("team", "vit") == 30
    reported = api.objects[JOB]["status"]
    assert (reported["phase"], reported["reason"]) == ("Pending", n.REASON_PLACEHOLDER_REFUSED)
    assert "the pod that reserves a node: Forbidden" in reported["message"]
    assert reported["capacity"]["tries"] == 1
    version = api.objects[JOB]["metadata"]["resourceVersion"]
    assert refused.reconcile_job("team", "vit") == 30
    assert api.objects[JOB]["metadata"]["resourceVersion"] == version
    api.refused = set()
    settle(Mortal(api))
    assert len(placeholder_names(api)) == 2
    # No wait helps against any other refusal.
    api.refused = {("POST", ATTEMPT.rpartition("/")[0])}
    buy(api)
    with pytest.raises(ApiError):
        settle(Mortal(api))


def test_waiting_jobs_share_reads_and_pace_themselves(api: FakeApi) -> None:
    pooled(api)
    paths = [copy_job(api, f"job-{number}") for number in range(20)]
    shared = reconciler(Mortal(api), lambda: 0.0)  # all within a second
    pauses = [shared.reconcile_job("team", f"job-{number}") for number in range(20)]
    assert (pauses[0], pauses[-1]) == (2, 20 / READS_PER_SECOND)
    assert sum(path == NODES for path, _ in reads(api)) == 1
    api.remove(paths[3])
    shared.reconcile_job("team", "job-3")
    assert shared.reconcile_job("team", "job-4") == 19 / READS_PER_SECOND


def test_pace_slows_only_frequent_jobs_within_a_limit(api: FakeApi) -> None:
    pace = reconciler(Mortal(api))._pace
    assert [pace("hopeless", each, waits=True) for each in (30.0, 0.0, None)] == [30.0, 0.0, None]
    assert pace("running", 1.0, waits=False) == 1.0
    pauses = [pace(str(number), 2.0, waits=True) for number in range(500)]
    assert pauses[0::100] == [2.0, 20.2, 30, 30, 30]
    assert pace("0", 0.2, waits=True) == 30


def test_list_is_cached_for_its_time(api: FakeApi) -> None:
    pooled(api)
    clock = [0.0]
    reader = ClusterReader(Mortal(api), "", clock=lambda: clock[0])
    for second, paths in ((0.0, {NODES, ALL_PODS}), (0.9, set()), (1.1, {NODES}), (10.5, {NODES, ALL_PODS})):
        clock[0] = second
        reader.pool("p5", "team", NOW)
        assert {path for path, _ in reads(api)} & {NODES, ALL_PODS} == paths, second
    reader.pool("p5", "team", NOW, fresh=True)
    assert {*reads(api)} >= {(NODES, ""), (ALL_PODS, "")}
    assert reader.has_priority_class()
    api.remove(CLASS)
    assert reader.has_priority_class()
    clock[0] += 31
    assert not reader.has_priority_class()


def test_node_claim_names_each_listed_node(api: FakeApi) -> None:
    pooled(api)
    meta = {"name": "p5-1", "labels": {names.LABEL_NODEPOOL: "p5"}}
    lists: list[str] = []

    def register(method: str, path: str) -> None:
        if method == "GET" and path in (NODES, CLAIMS):
            lists.append(path)
            if len(lists) == 2:
                idle(api, "node-1")
                api.put(f"{CLAIMS}/p5-1", {"metadata": meta, "status": {"nodeName": "node-1"}})

    api.put(f"{CLAIMS}/p5-1", {"metadata": meta})
    api.on_request = register
    seen = ClusterReader(Mortal(api), "").pool("p5", "team", NOW, fresh=True)
    assert sorted(lists) == [NODES, CLAIMS]
    assert {node.name for node in seen.nodes} <= {claim.node for claim in seen.claims}


def test_only_events_of_karpenter_count(api: FakeApi) -> None:
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
    for component, reported in (
        ("default-scheduler", n.REASON_WAITING_FOR_NODES),
        ("karpenter", n.REASON_CAPACITY_IMPOSSIBLE),
    ):
        api.put(f"{EVENTS}/e", {**event, "source": {"component": component}})
        settle(Mortal(api))
        assert reason(api) == reported
    assert placeholder_names(api) == []


# --- new storage classes

CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
VOLUME_CLAIMS = f"/api/v1{TEAM}/persistentvolumeclaims"
JOBS = ATTEMPT.removesuffix("/vit-0")
DEFAULT = "storageclass.kubernetes.io/is-default-class"


class Operator:
    """A reconciler that has read the cluster. Its clock stands still, so that no read is too old."""

    def __init__(self, api: FakeApi, **workspace: Any) -> None:
        api.objects[QUEUE]["spec"]["storage"] = {"workspace": {"enabled": True, "size": "1Gi", **workspace}}
        self.clock = NOW
        self.reconciler = reconciler(Mortal(api), lambda: self.clock)
        self.reconciler.reconcile_queue("team", "h100")

    def reconcile(self) -> None:
        for _ in range(5):
            self.reconciler.reconcile_job("team", "vit")


def put_class(api: FakeApi, *, default: bool = False) -> None:
    made = {**thing("storage.k8s.io/v1", "StorageClass", "shared", {}), "provisioner": "fsx.csi.aws.com"}
    made["metadata"]["annotations"] = {DEFAULT: "true"} if default else {}
    api.put(f"{CLASSES}/shared", made)


@pytest.mark.parametrize("workspace", [{"storageClass": "shared"}, {}])
def test_new_storage_class_decides_on_the_claims(api: FakeApi, workspace: dict[str, str]) -> None:
    stage(api)
    operator = Operator(api, **workspace)
    put_class(api, default=not workspace)
    operator.reconcile()
    assert (api.names(VOLUME_CLAIMS), api.names(JOBS)) == (["vit-workspace"], ["vit-0"])
    assert api.objects[f"{VOLUME_CLAIMS}/vit-workspace"]["spec"]["accessModes"] == ["ReadWriteMany"]


def test_new_storage_class_is_read_with_a_pool(api: FakeApi) -> None:
    pooled(api)
    operator = Operator(api)
    operator.reconcile()
    buy(api)
    put_class(api, default=True)
    operator.clock += PODS_SECONDS + 1  # the pool is read again, the cluster not yet
    operator.reconcile()
    assert (api.names(VOLUME_CLAIMS), api.names(JOBS)) == (["vit-workspace"], ["vit-0"])


def test_missing_storage_class_is_read_until_claims_exist(api: FakeApi) -> None:
    def reads() -> int:
        return sum(path == CLASSES for _, path, _ in api.requests)

    stage(api)
    operator = Operator(api)
    operator.reconcile()
    before = reads()
    assert before > 1
    for _ in range(2):  # a later class does not change existing claims
        assert api.names(VOLUME_CLAIMS) == ["vit-workspace", "vit-workspace-1"]
        operator.reconcile()
        assert reads() == before
        put_class(api, default=True)
