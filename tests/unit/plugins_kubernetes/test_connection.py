"""The kubeconfig, credential plugins, the provider's settings, and what counts as ready."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from local.plugins.kubernetes import readiness
from local.plugins.kubernetes.client import ApiError, Client, Kind
from local.plugins.kubernetes.cluster import Cluster, Settings
from local.plugins.kubernetes.kubeconfig import Token, load
from local.plugins.provider import ProviderError


def kubeconfig(server: str = "https://127.0.0.1:6443", **context: str) -> str:
    return json.dumps(
        {
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", **context}}],
            "current-context": "x",
        }
    )


def test_kubeconfig_names_server_namespace_and_token() -> None:
    found = load(kubeconfig(namespace="team"))
    assert (found.server, found.namespace) == ("https://127.0.0.1:6443", "team")
    assert Token(found.user).get() == "t"


@pytest.mark.parametrize(
    "server",
    ["https://ABC.gr7.us-west-2.eks.amazonaws.com", "https://10.0.0.1:6443", "https://127.evil.example"],
)
def test_an_api_server_that_is_not_on_this_machine_is_refused(server: str) -> None:
    with pytest.raises(ProviderError, match="not on this machine"):
        load(kubeconfig(server))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no YAML"),
        ("", "no object"),
        ("/a/file", "not a path"),
        (kubeconfig().replace('"x"}', '"y"}'), "has no context 'y'"),
    ],
)
def test_a_kubeconfig_that_can_not_be_used_says_why(text: str, said: str) -> None:
    with pytest.raises(ProviderError, match=said):
        load(text)


def test_the_token_of_a_credential_plugin_is_kept_until_it_expires(tmp_path: Any) -> None:
    calls = tmp_path / "calls"
    program = tmp_path / "plugin.py"

    def plugin(expires: datetime) -> Token:
        credential = {
            "status": {"token": "k8s-aws-v1.x", "expirationTimestamp": expires.strftime("%Y-%m-%dT%H:%M:%SZ")}
        }
        program.write_text(f"open({str(calls)!r}, 'a').write('.')\nprint({json.dumps(credential)!r})")
        return Token({"exec": {"command": sys.executable, "args": ["-S", str(program)], "env": None}})

    fresh = plugin(datetime.now(UTC) + timedelta(minutes=14))
    assert [fresh.get(), fresh.get()] == ["k8s-aws-v1.x"] * 2
    assert calls.read_text() == "."
    stale = plugin(datetime.now(UTC) + timedelta(seconds=5))
    stale.get()
    stale.get()
    assert calls.read_text() == "..."


def test_a_credential_plugin_that_fails_is_named() -> None:
    token = Token({"exec": {"command": sys.executable, "args": ["-c", "raise SystemExit('no session')"]}})
    with pytest.raises(ProviderError, match="exited with 1: no session"):
        token.get()


def test_settings_that_are_not_served_are_refused_by_name() -> None:
    with pytest.raises(ProviderError, match="renderYamlToDirectory"):
        Settings.parse({"renderYamlToDirectory": "out"})
    with pytest.raises(ProviderError, match="enableServerSideApply: false"):
        Settings.parse({"enableServerSideApply": "false"})
    with pytest.raises(ProviderError, match="enableConfigMapMutable"):
        Settings.parse({"enableConfigMapMutable": "true"})
    found = Settings.parse({"kubeconfig": "{}", "deleteUnreachable": "true", "enablePatchForce": "false"})
    assert found == Settings(kubeconfig="{}", delete_unreachable=True)


class FakeClient:
    """Pods by label selector, Events by field selector."""

    def __init__(self, *pods: dict[str, Any], events: list[dict[str, Any]] | None = None) -> None:
        self.pods = list(pods)
        self.events = events
        self.asked: list[str] = []

    def kind(self, api_version: str, kind: str) -> Kind:
        return Kind(api_version, kind, kind.lower() + "s", True)

    def list(
        self, kind: Kind, _namespace: str | None, selector: str = "", fields: str = ""
    ) -> list[dict[str, Any]]:
        self.asked.append(selector or fields)
        if kind.kind != "Event":
            return self.pods
        if self.events is None:
            raise ApiError(403, {"message": "no events for you"}, "listing Events")
        return self.events

    def get(self, _kind: Kind, _namespace: str | None, _name: str) -> dict[str, Any]:
        return {"volumeBindingMode": "WaitForFirstConsumer"}


def judge(live: dict[str, Any], *pods: dict[str, Any]) -> readiness.Readiness:
    live.setdefault("metadata", {"name": "x", "namespace": "n", "generation": 2})
    return readiness.judge(cast(Client, FakeClient(*pods)), live)


def ready_pod(status: str = "True") -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "status": {"conditions": [{"type": "Ready", "status": status}]}}


def condition(kind: str, status: str = "True", **more: str) -> dict[str, Any]:
    return {"type": kind, "status": status, **more}


def test_a_deployment_is_ready_when_its_new_pods_are_all_available() -> None:
    def deployment(**status: Any) -> dict[str, Any]:
        spec = {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}}
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "spec": spec,
            "status": {"observedGeneration": 2, **status},
        }

    done = {"replicas": 2, "updatedReplicas": 2, "availableReplicas": 2}
    assert judge(deployment(**done)).ready
    assert not judge(deployment(**done, observedGeneration=1)).ready, "the status is of the old generation"
    assert not judge(deployment(**{**done, "updatedReplicas": 1})).ready, (
        "the old Pods are the available ones"
    )
    assert not judge(deployment(**{**done, "replicas": 3})).ready, "an old Pod is still there"
    waiting = {
        "containerStatuses": [
            {"name": "c", "state": {"waiting": {"reason": "ErrImagePull", "message": "no"}}}
        ]
    }
    stuck = judge(
        deployment(
            conditions=[condition("Progressing", "False", reason="ProgressDeadlineExceeded", message="m")]
        ),
        {"metadata": {"name": "p"}, "status": waiting},
    )
    assert stuck.failed
    assert stuck.text == "[ProgressDeadlineExceeded] m; Pod p, container c: ErrImagePull: no"


def test_a_job_is_ready_when_complete_and_failed_with_its_reason() -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {}}
    assert judge({**job, "status": {"conditions": [condition("Complete")]}}).ready
    failed = judge(
        {**job, "status": {"conditions": [condition("Failed", reason="BackoffLimitExceeded", message="m")]}}
    )
    assert failed.failed
    assert "[BackoffLimitExceeded] m" in failed.text
    assert judge({**job, "status": {}}).text.startswith("Waiting for Job to complete (0/1")


def warned(pod: dict[str, Any], *events: tuple[str, str, str]) -> tuple[readiness.Readiness, list[str]]:
    """What is said of a Pod with these Events (time, reason, message), and the fields that were asked for."""
    made = [{"lastTimestamp": when, "reason": why, "message": text} for when, why, text in events]
    client = FakeClient(events=made)
    return readiness.judge(cast(Client, client), pod), client.asked


def test_a_pod_whose_volume_can_not_be_mounted_says_why() -> None:
    """Its status says no more than ContainerCreating."""
    creating = [{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"nodeName": "node"},
        "status": {"phase": "Pending", "containerStatuses": creating},
    }
    old = ("2026-01-01T00:00:01Z", "FailedMount", "old")
    found, asked = warned(pod, old, ("2026-01-01T00:00:09Z", "FailedMount", "port 988"))
    assert not found.ready
    assert not found.failed
    assert found.text == "Waiting for Pod to be ready (phase Pending); [FailedMount] port 988"
    (fields,) = asked
    assert {"type=Warning", "involvedObject.uid=u"} <= set(fields.split(","))
    assert warned(pod)[0].text == "Waiting for Pod to be ready (phase Pending)"
    assert warned({**pod, "spec": {}}, old)[1] == [], (
        "without a machine the scheduler's word is in the status"
    )
    assert judge(dict(pod)).text == "Waiting for Pod to be ready (phase Pending)", "Events may not be read"


def test_a_pod_that_waits_for_an_init_container_says_which() -> None:
    looping = {"name": "prove", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"nodeName": "node"},
        "status": {"phase": "Pending", "initContainerStatuses": [looping]},
    }
    found, _ = warned(pod, ("2026-01-01T00:00:01Z", "BackOff", "of another time"))
    assert (
        found.text == "Waiting for Pod to be ready (phase Pending); Pod p, container prove: CrashLoopBackOff"
    )
    assert judge({**pod, "status": ready_pod()["status"]}).ready


def test_a_service_with_a_selector_waits_for_a_ready_pod_and_others_for_nothing() -> None:
    service = {"apiVersion": "v1", "kind": "Service"}
    selecting = {**service, "spec": {"selector": {"a": "b"}, "clusterIP": "10.0.0.1"}}
    assert judge(dict(selecting)).text.startswith("[1/3] Finding Pods to direct traffic to")
    assert not judge(dict(selecting), ready_pod("False")).ready
    assert judge(dict(selecting), ready_pod()).ready
    assert judge({**service, "spec": {"selector": {"a": "b"}, "clusterIP": "None"}}).ready
    assert judge({**service, "spec": {}}).ready
    assert not judge({**service, "spec": {**selecting["spec"], "type": "LoadBalancer"}}, ready_pod()).ready


def test_a_claim_is_ready_when_bound_or_when_its_class_binds_later() -> None:
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    assert judge({**claim, "status": {"phase": "Bound"}}).ready
    assert not judge({**claim, "spec": {}, "status": {"phase": "Pending"}}).ready
    assert judge({**claim, "spec": {"storageClassName": "fsx"}, "status": {"phase": "Pending"}}).ready


def test_kinds_without_a_rule_are_ready_at_once() -> None:
    assert judge({"apiVersion": "v1", "kind": "ConfigMap"}).ready


def test_provider_without_a_kubeconfig_says_so() -> None:
    with pytest.raises(ProviderError, match=r"kubeconfig: is not set\. Pass a k8s\.Provider"):
        Cluster().client()
