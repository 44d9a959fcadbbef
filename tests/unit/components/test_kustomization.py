"""The objects of a kustomization, as `kubectl kustomize` writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.operators import render

DEFINITION = """apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  annotations:
    name: of-an-annotation
  name: {name}
spec:
  names:
    kind: Job
"""
TEXTS = """apiVersion: v1
data: |
  kind: CustomResourceDefinition
kind: ConfigMap
metadata:
  name: texts
"""


def test_render_leaves_out_definitions_that_are_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [
        DEFINITION.format(name=name) for name in ("jaxjobs.kubeflow.org", "pytorchjobs.kubeflow.org")
    ]
    (tmp_path / "manifests.yaml").write_text("---\n".join([*documents, TEXTS]))
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\n[ "$1 $2" = "kustomize overlay" ] && cat {tmp_path}/manifests.yaml\n')
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    rendered = render("overlay", ("pytorchjobs.kubeflow.org",))
    assert [each["metadata"]["name"] for each in rendered] == ["pytorchjobs.kubeflow.org", "texts"]


def test_render_reads_a_file_without_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "operator.yaml"
    file.write_text("---\n".join([DEFINITION.format(name="jaxjobs.kubeflow.org"), TEXTS]))
    monkeypatch.setenv("PATH", "")
    assert [each["metadata"]["name"] for each in render(str(file), ())] == ["texts"]
