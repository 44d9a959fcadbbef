"""Pods that are made while the stack runs, or from manifests of others, keep to the rules of pods, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from components.debug_pod import spec as debug_spec
from components.shared.lustre_manifests import proof_spec
from components.shared.operator_manifests import waves
from components.shared.warm_nodes import beside
from infra.policies.judge import judge
from infra.policies.model import Stack
from infra.policies.pods import RULES
from tests.unit.components.pools import pool
from tests.unit.policies.building import made

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).parents[1] / "launcher" / "golden.yaml"
DIGEST = "registry.example/tools@sha256:" + "0" * 64
# What the launcher gives every pod: it has rights of its own, and its pods have none.
ACCOUNT = made(
    "kubernetes:core/v1:ServiceAccount",
    metadata={"name": "trainer", "namespace": "training"},
    automountServiceAccountToken=False,
)


def violations(manifest: dict[str, Any]) -> set[str]:
    version = manifest["apiVersion"]
    type_ = f"kubernetes:{version if '/' in version else 'core/' + version}:{manifest['kind']}"
    resource = made(type_, metadata=manifest["metadata"], spec=manifest["spec"])
    return {each.rule.name for each in judge(Stack([resource, ACCOUNT]), rules=RULES.all).violations}


def of_launcher(kind: str) -> dict[str, Any]:
    (found,) = (each for each in yaml.safe_load_all(GOLDEN.read_text()) if each["kind"] == kind)
    result: dict[str, Any] = found
    return result


def test_placeholders_keep_to_every_rule() -> None:
    assert violations(of_launcher("Pod")) <= {"pod-image-by-digest"}


def test_workers_keep_to_every_rule_but_that_of_the_read_only_root() -> None:
    """People's own training code writes where it likes: caches of libraries, temporary files."""
    assert violations(of_launcher("PyTorchJob")) <= {"pod-image-by-digest", "pod-read-only-root"}


def test_the_debug_pod_keeps_to_every_rule() -> None:
    metadata = {"name": "network-debug", "namespace": "training"}
    assert (
        violations({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": debug_spec(DIGEST)})
        == set()
    )


def test_the_pod_that_proves_the_mount_keeps_to_every_rule_but_that_of_its_first_container() -> None:
    """Only root opens what belongs to root."""
    metadata = {"name": "attach-pvc", "namespace": "training"}
    spec = proof_spec(image=DIGEST, claim="lustre", mount_path="/fsx", placement=beside(pool(warm_nodes=1)))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    assert violations(pod) == {"pod-not-root"}
    later = {**spec, "initContainers": spec["initContainers"][1:]}
    assert violations({**pod, "spec": later}) == set()


def test_the_training_operator_keeps_to_every_rule_though_its_manifests_do_not() -> None:
    metadata = {"name": "training-operator", "namespace": "kubeflow"}
    probe = {"httpGet": {"path": "/healthz", "port": 8081}}
    container = {
        "name": "training-operator",
        "image": "published",
        "livenessProbe": probe,
        "readinessProbe": probe,
    }
    template = {"spec": {"containers": [container], "automountServiceAccountToken": False}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {"template": template},
    }
    assert "pod-not-root" in violations(deployment)
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "pytorchjobs.kubeflow.org"},
    }
    changed = waves([deployment, definition], DIGEST, arguments=[])
    (operator,) = (each for wave in changed for each in wave if each["kind"] == "Deployment")
    assert violations(operator) == set()
