"""Arguments for helm, values, names of components' children and the order among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from local.plugins.kubernetes import objects
from local.plugins.kubernetes.documents import children, parse, read_files
from local.plugins.kubernetes.helm import merged_values, resource_names
from local.plugins.kubernetes.helm_command import VALUES, Helm, install_arguments
from local.plugins.kubernetes.kubeconfig import Connection
from local.plugins.provider import ProviderError
from local.plugins.values import ASSET, SIGNATURE

pytestmark = pytest.mark.unit

RELEASE = {"name": "k", "namespace": "kube-system", "chart": "./chart"}


def test_release_waits_by_default() -> None:
    arguments = install_arguments({**RELEASE, "waitForJobs": True, "timeout": 60}, upgrade=False)
    assert arguments[:3] == ["install", "k", "./chart"]
    assert {"--wait", "--wait-for-jobs"} <= set(arguments)
    assert arguments[-2:] == ["--timeout", "60s"]
    assert "--wait" not in install_arguments({**RELEASE, "skipAwait": True}, upgrade=False)
    assert "--wait" in install_arguments({**RELEASE, "skipAwait": True, "atomic": True}, upgrade=True)


def test_switches_and_options_become_flags() -> None:
    inputs = {
        **RELEASE,
        "skipCrds": True,
        "version": "1.2.3",
        "repositoryOpts": {"repo": "https://x"},
        "resetValues": True,
    }
    install = install_arguments(inputs, upgrade=False)
    assert "--skip-crds" in install
    assert install[install.index("--version") + 1] == "1.2.3"
    assert install[install.index("--repo") + 1] == "https://x"
    assert "--reset-values" not in install, "only an upgrade has values to reset"
    assert "--reset-values" in install_arguments(inputs, upgrade=True)


def test_values_lie_over_values_files_and_null_is_dropped_unless_allowed() -> None:
    asset = {SIGNATURE: ASSET, "text": "a: {b: 1, c: 2}\nd: 3"}
    inputs: dict[str, Any] = {"valueYamlFiles": [asset], "values": {"a": {"b": 9}, "n": None}}
    assert merged_values(inputs) == {"a": {"b": 9, "c": 2}, "d": 3}
    assert "n" in merged_values({**inputs, "allowNullValues": True})


def test_resource_names_are_grouped_by_kind() -> None:
    text = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: d, namespace: n}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: c}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: r}
"""
    assert resource_names(text, "home") == {
        "Deployment.apps/apps/v1": ["n/d"],
        "ConfigMap/v1": ["home/c"],
        "ClusterRole.rbac.authorization.k8s.io/rbac.authorization.k8s.io/v1": ["r"],
    }


DOCUMENTS = """
apiVersion: ex.dev/v1
kind: Foo
metadata: {name: foo}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Namespace
  metadata: {name: team, creationTimestamp: null}
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: settings, namespace: team}
  data: {since: 2024-01-01}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: foos.ex.dev}
spec: {group: ex.dev, scope: Cluster, names: {kind: Foo, plural: foos}}
---
"""


def made(**options: Any) -> dict[str, Any]:
    found = children(
        parse(DOCUMENTS, "x"), "to", "default", lambda _, kind: kind not in objects.CLUSTER_SCOPED, **options
    )
    return {child.name: child for child in found}


def test_children_are_named_by_component_namespace_and_name() -> None:
    assert list(made()) == ["to:foo", "to:team", "to:team/settings", "to:foos.ex.dev"]


def test_children_come_after_their_namespace_and_after_the_definition_of_their_kind() -> None:
    found = made()
    assert found["to:team/settings"].after == ("to:team",)
    assert found["to:foo"].after == ("to:foos.ex.dev",)
    assert found["to:team"].after == ()


def test_skip_await_becomes_an_annotation_and_dates_stay_texts() -> None:
    found = made(skip_await=True)["to:team/settings"].inputs
    assert found["metadata"]["annotations"] == {objects.SKIP_AWAIT: "true"}
    assert found["data"] == {"since": "2024-01-01"}


@pytest.mark.parametrize("text", ["a: [", "just: data", "- 1"])
def test_what_is_no_manifest_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ProviderError, match=r"things\.yaml"):
        parse(text, "things.yaml")


def test_a_pattern_without_a_file_and_a_url_are_refused(tmp_path: Any) -> None:
    with pytest.raises(ProviderError, match="no such manifest file"):
        read_files([str(tmp_path / "*.yaml")])
    with pytest.raises(ProviderError, match="not read here"):
        read_files(["https://example.org/x.yaml"])


def test_a_command_reads_the_cluster_and_the_values_and_no_file_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "bin"
    place.mkdir()
    program = place / "helm"
    program.write_text('#!/bin/sh\ncat "$KUBECONFIG" "$3"; cat "$3"; ls "$TMPDIR"\n')
    program.chmod(0o755)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    cluster = Connection("https://127.0.0.1:1", "default", None, False, {}, {"current-context": "here"})
    output = Helm(cluster, {}).run(["install", "name", VALUES], stdin="VALUES OF IT. ")
    assert output == '{"current-context": "here"}VALUES OF IT. VALUES OF IT. '
