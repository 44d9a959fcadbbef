from __future__ import annotations

from typing import Any

import pytest

from local.nodes import network


def pod(name: str, ip: str, ready: bool = True, phase: str = "Running", **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "n", "uid": f"uid-{name}", "labels": {"app": "web", "x": "y"}},
        "spec": {"containers": [{"name": "c", "ports": [{"name": "http", "containerPort": 8080}]}], **spec},
        "status": {
            "podIP": ip, "phase": phase, "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }  # fmt: skip


def service(name: str, address: str, **spec: Any) -> dict[str, Any]:
    selector = {"app": "web"}
    return {
        "metadata": {"name": name, "namespace": "n"}, "spec": {"clusterIP": address, "selector": selector, **spec}
    }  # fmt: skip


def test_behind_has_only_ready_pods_that_stay() -> None:
    leaving = pod("c", "127.96.0.4")
    leaving["metadata"]["deletionTimestamp"] = "now"
    done = pod("d", "127.96.0.5", phase="Succeeded")
    every = [pod("b", "127.96.0.3", ready=False), pod("a", "127.96.0.2"), leaving, done]
    assert [p["metadata"]["name"] for p in network.behind(service("s", "127.64.0.9"), every)] == ["a"]
    all_of_them = network.behind(service("s", "127.64.0.9", publishNotReadyAddresses=True), every)
    assert [p["metadata"]["name"] for p in all_of_them] == ["a", "b", "c"]


def test_behind_excludes_other_namespaces_and_labels() -> None:
    other = pod("a", "127.96.0.2")
    other["metadata"]["namespace"] = "m"
    assert network.behind(service("s", "127.64.0.9"), [other]) == []
    assert network.behind(service("s", "127.64.0.9", selector={"app": "db"}), [pod("a", "127.96.0.2")]) == []
    assert network.behind(service("s", "127.64.0.9", selector=None), [pod("a", "127.96.0.2")]) == []


@pytest.mark.parametrize("target", ["http", 8080, "8080"])
def test_targets_find_the_port_by_name_or_number(target: str | int) -> None:
    one = pod("a", "127.96.0.2")
    port = {"port": 80, "targetPort": target}
    assert network.targets(service("s", "127.64.0.9"), port, [one], {}) == [("127.96.0.2", 8080)]
    moved = {"uid-a": {8080: 23456}}
    assert network.targets(service("s", "127.64.0.9"), port, [one], moved) == [("127.96.0.2", 23456)]


def test_targets_of_unknown_port_name_are_empty() -> None:
    port = {"port": 80, "targetPort": "nothing"}
    assert network.targets(service("s", "127.64.0.9"), port, [pod("a", "127.96.0.2")], {}) == []


def test_records_of_headless_service_are_its_pods() -> None:
    pods = [pod("a", "127.96.0.2"), pod("b", "127.96.0.3", hostname="h", subdomain="headless")]
    services = [service("normal", "127.64.0.9"), service("headless", "None")]
    assert network.records(services, pods) == [
        ("127.64.0.9", "normal", "n"),
        ("127.96.0.2", "headless", "n"),
        ("127.96.0.3", "h.headless", "n"),
        ("127.96.0.3", "headless", "n"),
    ]


def test_hosts_file_has_bare_names_of_its_namespace_only() -> None:
    records = [("127.64.0.9", "web", "n")]
    inside = network.hosts_file(records, "n", "me", "127.96.0.2").splitlines()
    assert "127.96.0.2 me" in inside
    assert inside[-1] == "127.64.0.9 web.n.svc.cluster.local web.n.svc web.n web"
    assert network.hosts_file(records, "m", "me", "127.96.0.2").splitlines()[-1].endswith("web.n")


def test_host_name_of_long_pod_name_is_cut() -> None:
    long = pod("a" * 62 + "-b", "127.96.0.2")
    assert network.host_name(long) == "a" * 62


def test_own_names_with_subdomain_begin_with_the_full_name() -> None:
    """What asks for a machine's full name gets one that others can look up: torchrun tells it to the other workers."""
    pod = {"metadata": {"name": "vit-0-0-abcde", "namespace": "team"}, "spec": {"hostname": "vit-0-0"}}
    assert network.own_names(pod) == "vit-0-0"
    pod["spec"]["subdomain"] = "vit"
    assert network.own_names(pod) == "vit-0-0.vit.team.svc.cluster.local vit-0-0"
    lines = network.hosts_file([], "team", network.own_names(pod), "127.96.0.2").splitlines()
    assert lines[-1] == "127.96.0.2 vit-0-0.vit.team.svc.cluster.local vit-0-0"
