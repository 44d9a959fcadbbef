"""The resources that run the drain when they are deleted, and their connection to a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from components.drain import AtDelete
from components.draining import entry
from components.draining.cluster_api import Cluster, DrainError, connect
from components.draining.kinds import NODES, PODS, QUEUES, Scope
from tests.unit.draining.test_account import Session, launch
from tests.unit.draining.test_steps import Time
from tests.unit.emulator import Cloud
from tests.unit.launcher.api_server import FakeApi, serving
from trainyard.k8s.client import ApiError, RetryPolicy

PROPS = {
    "task": "drain",
    "cluster": "main",
    "region": "us-west-2",
    "timeoutSeconds": 60,
    "__provider": "a",
    "interface": 1,
}


def diff(**change: Any) -> tuple[bool | None, list[str]]:
    result = AtDelete().diff("drain-main", PROPS, {**PROPS, **change})
    return result.changes, list(result.replaces or [])


def test_diff_of_cluster_region_or_vpc_replaces_the_resource() -> None:
    assert diff() == (False, [])
    assert diff(cluster="other") == (True, ["cluster"])
    assert diff(region="eu-west-1") == (True, ["region"])
    assert diff(vpc="vpc-1") == (True, ["vpc"])
    assert diff(timeoutSeconds=90) == (True, [])
    assert diff(pools=["small"]) == (True, [])


def test_diff_ignores_pickled_code_but_not_the_interface() -> None:
    assert diff(__provider="b") == (False, [])
    assert diff(interface=2) == (True, [])
    assert AtDelete().update("drain-main", PROPS, {**PROPS, "__provider": "b"}).outs["__provider"] == "b"


def test_drain_runs_only_at_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(entry, "at_delete", calls.append)
    created = AtDelete().create(dict(PROPS))
    assert (created.id, calls) == ("drain-main", [])
    AtDelete().delete("drain-main", PROPS)
    assert calls == [PROPS]


@pytest.mark.parametrize(
    "props", [{"lateLogSeconds": 1}, {}], ids=["with late logs", "of an earlier version"]
)
def test_delete_of_remains_removes_a_recreated_log_group(
    deployer: Cloud,
    props: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock, logs = Time(), deployer.client("logs")
    monkeypatch.setattr(entry.steps, "Clock", lambda: clock)
    logs.create_log_group(logGroupName="/aws/eks/main/cluster")
    AtDelete().delete("remains-main", {**PROPS, "task": "remains", **props})
    assert logs.describe_log_groups()["logGroups"] == []
    assert capsys.readouterr().out == "remains of main: 0 s: removed log group /aws/eks/main/cluster\n"
    assert clock.seconds == props.get("lateLogSeconds", 0)


def test_drain_of_existing_cluster_ends_only_nodes_of_own_pools(
    deployer: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, ec2 = Time(), deployer.client("ec2")
    monkeypatch.setattr(entry.steps, "Clock", lambda: clock)
    tags = {"eks:eks-cluster-name": "main"}
    own, foreign = (
        launch(deployer, {**tags, "karpenter.sh/nodepool": pool}) for pool in ("small", "foreign")
    )
    AtDelete().delete("drain-main", {**PROPS, "pools": ["small"]})
    reservations = ec2.describe_instances(InstanceIds=[own, foreign])["Reservations"]
    states = {
        each["InstanceId"]: each["State"]["Name"] for item in reservations for each in item["Instances"]
    }
    assert states == {own: "terminated", foreign: "running"}


@pytest.mark.parametrize(
    ("props", "scope"),
    [
        ({}, Scope()),
        ({"pools": ["small"]}, Scope(pools=frozenset({"small"}))),
        ({"pools": ["small"], "torchrun": True}, Scope(pools=frozenset({"small"}), torchrun=True)),
    ],
)
def test_drain_scope_follows_the_props_of_the_stack(
    deployer: Cloud, props: dict[str, Any], scope: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    scopes: list[Scope] = []
    monkeypatch.setattr(entry, "connect", lambda _session, _cluster, scope: scopes.append(scope))
    monkeypatch.setattr(entry.steps, "Clock", Time)
    AtDelete().delete("drain-main", {**PROPS, **props})
    assert scopes == [scope]


def test_connect_to_a_missing_cluster_returns_none(cloud: Cloud) -> None:
    assert connect(Session(cloud), "nobody", Scope()) is None


def test_cluster_requests_accept_missing_objects() -> None:
    with serving(FakeApi()) as api:
        cluster = Cluster(api.client(), "cluster main", Scope())
        assert cluster.names(QUEUES) == []
        assert cluster.controller_runs() is False
        cluster.delete(PODS, "p")
        cluster.remove_finalizers(NODES, "n1")
        api.refused = {("GET", "/api/v1/nodes")}
        with pytest.raises(ApiError, match="403"):
            cluster.names(NODES)


def test_drain_of_an_unreachable_api_server_names_its_url() -> None:
    api = FakeApi()
    api.url = "http://127.0.0.1:9"
    cluster = Cluster(api.client(retry=RetryPolicy(timeout=0.0)), f"cluster main at {api.url}", Scope())
    with pytest.raises(
        DrainError, match=r"cluster main at http://127.0.0.1:9: the API server does not answer"
    ):
        cluster.names(NODES)


def test_drain_keeps_pods_whose_deletion_a_webhook_blocks() -> None:
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
