"""The resources that do something when they are deleted, and their way to a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from components.drain import AtDelete
from components.draining import entry
from components.draining.cluster_api import Cluster, DrainError, _path, connect
from components.draining.kinds import ALL_PODS, GANGS, NODES, PODS, QUEUES, SERVICES, Scope
from tests.unit.draining.test_account import launch
from tests.unit.draining.test_steps import Time
from tests.unit.emulator import Cloud
from tests.unit.launcher.api_server import FakeApi, serving
from trainyard.k8s.client import ApiError, RetryPolicy

pytestmark = pytest.mark.unit

PROPS = {
    "task": "drain",
    "cluster": "main",
    "region": "us-west-2",
    "timeoutSeconds": 60,
    "__provider": "a",
    "interface": 1,
}


def changed(**change: Any) -> tuple[bool | None, list[str]]:
    result = AtDelete().diff("drain-main", PROPS, {**PROPS, **change})
    return result.changes, list(result.replaces or [])


def test_only_another_cluster_is_another_resource() -> None:
    assert changed() == (False, [])
    assert changed(cluster="other") == (True, ["cluster"])
    assert changed(region="eu-west-1") == (True, ["region"])
    assert changed(vpc="vpc-1") == (True, ["vpc"])
    assert changed(timeoutSeconds=90) == (True, [])
    assert changed(pools=["small"]) == (True, [])


def test_the_pickled_code_is_not_compared_but_a_new_way_to_the_drain_is_taken_over() -> None:
    assert changed(__provider="b") == (False, [])
    assert changed(interface=2) == (True, [])
    assert AtDelete().update("drain-main", PROPS, {**PROPS, "__provider": "b"}).outs["__provider"] == "b"


def test_nothing_happens_before_the_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(entry, "at_delete", asked.append)
    made = AtDelete().create(dict(PROPS))
    assert (made.id, asked) == ("drain-main", [])
    AtDelete().delete("drain-main", PROPS)
    assert asked == [PROPS]


class Session:
    """A boto3 session with the emulator's clients."""

    region_name = "us-west-2"

    def __init__(self, cloud: Cloud) -> None:
        self.client = cloud.client


@pytest.mark.parametrize("noted", [{"lateLogSeconds": 1}, {}], ids=["noted", "of an earlier program"])
def test_the_log_group_of_a_cluster_that_is_gone_is_removed_when_it_comes_back(
    deployer: Cloud,
    noted: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock, logs = Time(), deployer.client("logs")
    monkeypatch.setattr(entry.steps, "Clock", lambda: clock)
    logs.create_log_group(logGroupName="/aws/eks/main/cluster")
    AtDelete().delete("remains-main", {**PROPS, "task": "remains", **noted})
    assert logs.describe_log_groups()["logGroups"] == []
    assert capsys.readouterr().out == "remains of main: 0 s: removed log group /aws/eks/main/cluster\n"
    assert clock.seconds == noted.get("lateLogSeconds", 0)


def test_a_drain_of_a_given_cluster_ends_machines_of_the_stacks_own_pools_alone(
    deployer: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, ec2 = Time(), deployer.client("ec2")
    monkeypatch.setattr(entry.steps, "Clock", lambda: clock)
    tags = {"eks:eks-cluster-name": "main"}
    ours, theirs = (launch(deployer, {**tags, "karpenter.sh/nodepool": pool}) for pool in ("small", "theirs"))
    AtDelete().delete("drain-main", {**PROPS, "pools": ["small"]})
    shown = ec2.describe_instances(InstanceIds=[ours, theirs])["Reservations"]
    states = {each["InstanceId"]: each["State"]["Name"] for item in shown for each in item["Instances"]}
    assert states == {ours: "terminated", theirs: "running"}


@pytest.mark.parametrize(
    ("noted", "scope"),
    [
        ({}, Scope()),
        ({"pools": ["small"]}, Scope(pools=frozenset({"small"}))),
        ({"pools": ["small"], "torchrun": True}, Scope(pools=frozenset({"small"}), torchrun=True)),
    ],
)
def test_a_drain_looks_at_what_its_stack_has(
    deployer: Cloud, noted: dict[str, Any], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Scope] = []
    monkeypatch.setattr(entry, "connect", lambda _session, _cluster, given: asked.append(given))
    monkeypatch.setattr(entry.steps, "Clock", Time)
    AtDelete().delete("drain-main", {**PROPS, **noted})
    assert asked == [scope]


def test_a_cluster_that_eks_does_not_know_is_gone(cloud: Cloud) -> None:
    assert connect(Session(cloud), "nobody", Scope()) is None


@pytest.mark.parametrize(
    ("kind", "name", "path"),
    [
        (NODES, "", "/api/v1/nodes"),
        (NODES, "n1", "/api/v1/nodes/n1"),
        (PODS, "", "/api/v1/namespaces/training/pods"),
        (PODS, "p", "/api/v1/namespaces/training/pods/p"),
        (ALL_PODS, "", "/api/v1/pods"),
        (SERVICES, "web/front", "/api/v1/namespaces/web/services/front"),
        (GANGS, "", "/apis/torchrun.ai/v1alpha1/torchrunjobs"),
        (QUEUES, "team/q", "/apis/torchrun.ai/v1alpha1/namespaces/team/torchrunqueues/q"),
    ],
)
def test_an_object_is_found_where_its_kind_is_served(kind: Any, name: str, path: str) -> None:
    assert _path(kind, name) == path


def test_requests_of_the_drain_give_nothing_for_what_does_not_exist() -> None:
    with serving(FakeApi()) as api:
        cluster = Cluster(api.client(), "cluster main", Scope())
        assert cluster.names(QUEUES) == []
        assert cluster.controller_runs() is False
        cluster.delete(PODS, "p")
        cluster.remove_finalizers(NODES, "n1")
        api.refused = {("GET", "/api/v1/nodes")}
        with pytest.raises(ApiError, match="403"):
            cluster.names(NODES)


def test_drain_of_an_unreachable_api_server_fails_and_says_where_it_is() -> None:
    api = FakeApi()
    api.url = "http://127.0.0.1:9"
    cluster = Cluster(api.client(retry=RetryPolicy(timeout=0.0)), f"cluster main at {api.url}", Scope())
    with pytest.raises(
        DrainError, match=r"cluster main at http://127.0.0.1:9: the API server does not answer"
    ):
        cluster.names(NODES)


def test_drain_leaves_pods_whose_deletion_a_webhook_breaks() -> None:
    with serving(FakeApi()) as api:
        api.put(
            "/api/v1/namespaces/web/pods/p",
            {"metadata": {"name": "p", "namespace": "web"}, "spec": {"nodeName": "gone"}},
        )
        answer = api.answer

        def fail(method: str, target: str, body: dict[str, Any]) -> Any:
            return (
                (500, {"message": "failed calling webhook"})
                if method == "DELETE"
                else answer(method, target, body)
            )

        api.answer = fail  # type: ignore[method-assign]
        cluster = Cluster(api.client(retry=RetryPolicy(timeout=0.0)), "cluster main", Scope())
        assert cluster.forget_pods_of(frozenset({"gone"})) == []
        with pytest.raises(DrainError, match="failed calling webhook"):
            cluster.delete(PODS, "p")
