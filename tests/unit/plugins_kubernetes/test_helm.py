"""Arguments for helm, and the names of a release's objects."""

from __future__ import annotations

from pathlib import Path

import pytest

from local.plugins.kubernetes.helm import resource_names
from local.plugins.kubernetes.helm_command import VALUES, Helm, install_arguments
from local.plugins.kubernetes.kubeconfig import Connection

RELEASE = {"name": "k", "namespace": "kube-system", "chart": "./chart"}


def test_inputs_of_a_release_become_flags() -> None:
    inputs = {**RELEASE, "atomic": True, "skipCrds": True, "version": "1.2.3", "timeout": 60}
    install = install_arguments(inputs, upgrade=False)
    assert install[:3] == ["install", "k", "./chart"]
    assert {"--wait", "--atomic", "--skip-crds"} <= set(install)
    assert install[install.index("--version") + 1] == "1.2.3"
    assert install[-2:] == ["--timeout", "60s"]
    upgrade = install_arguments(RELEASE, upgrade=True)
    assert upgrade[:4] == ["upgrade", "k", "./chart", "--install"]
    assert "--wait" in upgrade
    assert not {"--atomic", "--skip-crds", "--version"} & set(upgrade)


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
    cluster = Connection("https://127.0.0.1:1", "default", None, {}, {"current-context": "here"})
    output = Helm(cluster).run(["install", "name", VALUES], stdin="VALUES OF IT. ")
    assert output == '{"current-context": "here"}VALUES OF IT. VALUES OF IT. '
