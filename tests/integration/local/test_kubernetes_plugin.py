"""The Kubernetes plugin against what the official pulumi-kubernetes 4.34 was seen to do: names, ids, waits, errors.

A real engine and a real API server; the cluster has no machines, so that no Pod ever comes up.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.local.conftest import Command
from tests.integration.local.own_cloud import OwnCloud, Program, own_cloud

pytestmark = pytest.mark.local

CLUSTER = "contract"
GOOD = """
import os, pulumi, pulumi_kubernetes as k8s
cluster = k8s.Provider("cluster", kubeconfig=open(os.environ["KUBECONFIG"]).read())
on = pulumi.ResourceOptions(provider=cluster)
container = {"name": "c", "image": "registry.k8s.io/pause:3.10"}
k8s.batch.v1.Job("j", metadata={"annotations": {"pulumi.com/skipAwait": "true"}},
    spec={"template": {"spec": {"containers": [container], "restartPolicy": "Never"}}}, opts=on)
team = k8s.core.v1.Namespace("team", metadata={"name": "team"}, opts=on)
k8s.core.v1.ServiceAccountPatch("patch", metadata={"name": "default", "namespace": "team"},
    automount_service_account_token=False, opts=pulumi.ResourceOptions(provider=cluster, depends_on=[team]))
k8s.helm.v3.Release("web", name="web", namespace="kube-system", chart="./chart", values={"word": "one"}, opts=on)
"""
BAD = """
import os, pulumi, pulumi_kubernetes as k8s
cluster = k8s.Provider("cluster", kubeconfig=open(os.environ["KUBECONFIG"]).read())
on = pulumi.ResourceOptions(provider=cluster, custom_timeouts={"create": "6s"})
labels = {"app": "app"}
pods = {"metadata": {"labels": labels},
    "spec": {"containers": [{"name": "c", "image": "registry.k8s.io/pause:3.10"}]}}
k8s.apps.v1.Deployment("app", metadata={"name": "app"},
    spec={"selector": {"matchLabels": labels}, "template": pods}, opts=on)
k8s.core.v1.ConfigMap("taken", metadata={"name": "taken"}, data={"a": "mine"}, opts=on)
k8s.helm.v3.Release("grab", name="grab", namespace="default", chart="./chart", values={"word": "one"}, opts=on)
"""
CONFIG_MAP = """apiVersion: v1
kind: ConfigMap
metadata: {{name: {name}}}
data: {{word: "{{{{ .Values.word }}}}"}}
"""


def chart(directory: Path, name: str) -> None:
    (directory / "templates").mkdir(parents=True)
    (directory / "Chart.yaml").write_text("apiVersion: v2\nname: small\nversion: 1.2.3\n")
    (directory / "templates" / "map.yaml").write_text(CONFIG_MAP.format(name=name))


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnCloud]:
    with own_cloud(tmp_path_factory.mktemp("cloud")) as running:
        running.create_cluster(CLUSTER)
        yield running


@pytest.fixture(scope="module")
def good(cloud: OwnCloud, tmp_path_factory: pytest.TempPathFactory) -> Program:
    directory = tmp_path_factory.mktemp("programs") / "good"
    chart(directory / "chart", "word")
    program = Program(cloud, directory, GOOD)
    answer = program.up()
    assert answer.code == 0, answer.output
    return program


@pytest.fixture(scope="module")
def resources(good: Program) -> dict[str, dict[str, Any]]:
    return good.resources()


@pytest.fixture(scope="module")
def bad(cloud: OwnCloud, tmp_path_factory: pytest.TempPathFactory) -> tuple[Program, Command]:
    directory = tmp_path_factory.mktemp("programs") / "bad"
    chart(directory / "chart", "grabbed")
    for name in ("taken", "grabbed"):
        cloud.kubectl(CLUSTER, "create", "configmap", name, "--from-literal=a=theirs")
    program = Program(cloud, directory, BAD)
    # Each object has its own way to fail: the first failure must not keep the others from being tried.
    return program, program.up("--continue-on-error")


def test_a_job_without_a_name_gets_eight_digits_and_is_not_awaited_where_it_says_so(
    cloud: OwnCloud, resources: dict[str, dict[str, Any]]
) -> None:
    job = resources["kubernetes:batch/v1:Job j"]
    assert re.fullmatch(r"default/j-[0-9a-f]{8}", job["id"])
    name = job["id"].split("/")[1]
    assert cloud.kubectl(CLUSTER, "get", "job", name, "-o", "jsonpath={.status.succeeded}") == ""


def test_ids_are_those_of_the_official_plugin(resources: dict[str, dict[str, Any]]) -> None:
    ids = {name: each.get("id") for name, each in resources.items()}
    assert ids["kubernetes:core/v1:Namespace team"] == "team"
    assert ids["kubernetes:helm.sh/v3:Release web"] == "kube-system/web"
    uuid.UUID(ids["pulumi:providers:kubernetes cluster"])


def test_a_second_run_and_a_refresh_change_nothing(good: Program) -> None:
    again = good.up("--expect-no-changes")
    assert again.code == 0, again.output
    seen = good.pulumi("refresh", "--yes", "--skip-preview", "--stack", "test", "--expect-no-changes")
    assert seen.code == 0, seen.output


def test_a_patch_sets_a_field_of_an_object_that_it_did_not_make_and_gives_it_up(
    cloud: OwnCloud, good: Program, resources: dict[str, dict[str, Any]]
) -> None:
    patch = resources["kubernetes:core/v1:ServiceAccountPatch patch"]
    assert patch["id"] == "team/default"
    field = "jsonpath={.automountServiceAccountToken}"
    account = ("-n", "team", "get", "serviceaccount", "default", "-o", field)
    assert cloud.kubectl(CLUSTER, *account) == "false"
    answer = good.pulumi("destroy", "--yes", "--skip-preview", "--stack", "test", "--target", patch["urn"])
    assert answer.code == 0, answer.output
    assert cloud.kubectl(CLUSTER, *account) == ""


def test_deployment_that_fails_is_reported_and_stays_in_state(
    bad: tuple[Program, Command],
) -> None:
    program, answer = bad
    assert answer.code != 0
    assert "Waiting for app ReplicaSet to be available (0/1 Pods available)" in answer.output
    assert "[MinimumReplicasUnavailable]" in answer.output
    assert "failed to become ready" in answer.output
    left = program.resources()["kubernetes:apps/v1:Deployment app"]
    assert left["id"] == "default/app"
    assert left["initErrors"]


def test_an_object_that_exists_is_not_taken_over(cloud: OwnCloud, bad: tuple[Program, Command]) -> None:
    program, answer = bad
    assert "AlreadyExists" in answer.output
    assert "kubernetes:core/v1:ConfigMap taken" not in program.resources()
    live = cloud.kubectl(CLUSTER, "get", "configmap", "taken", "-o", "jsonpath={.data.a}")
    assert live == "theirs"


def test_a_release_does_not_take_over_what_lacks_helms_labels(bad: tuple[Program, Command]) -> None:
    _, answer = bad
    assert "cannot be imported into the current release: invalid ownership metadata" in answer.output
