"""Pods that are no resources of a stack file's preview, or that are made from manifests of others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from components.debug_pod import spec as debug_spec
from components.documents.lustre import proof_spec
from components.documents.operator_manifests import training_operator as operator_waves
from components.documents.torchrun_queue import QueueContext
from components.documents.torchrun_queue import spec as queue_spec
from components.torchrun import FILES, RBAC_FILE, read_documents, waves
from components.warm_nodes import warm_pod_affinity
from tests.unit.components.pools import TRAINIUM, pool
from tests.unit.components.queues import queue
from tests.unit.policies.building import made
from trainyard.policies.model import Resource
from trainyard.policies.pods import TORCHRUN_QUEUE

GOLDEN = Path(__file__).parents[1] / "launcher" / "golden.yaml"
DIGEST = "registry.example/tools@sha256:" + "0" * 64
# The service account of the trainer: the launcher's pods have no rights in the cluster.
ACCOUNT = made(
    "kubernetes:core/v1:ServiceAccount",
    metadata={"name": "trainer", "namespace": "training"},
    automountServiceAccountToken=False,
)


def of_manifest(name: str, manifest: dict[str, Any]) -> Resource:
    version = manifest["apiVersion"]
    type_ = f"kubernetes:{version if '/' in version else 'core/' + version}:{manifest['kind']}"
    return made(
        type_, name, **{key: manifest[key] for key in manifest if key not in ("apiVersion", "kind", "status")}
    )


def pod(name: str, spec: dict[str, Any]) -> Resource:
    return made("kubernetes:core/v1:Pod", name, metadata={"name": name, "namespace": "training"}, spec=spec)


def launcher_pods() -> list[Resource]:
    """The placeholder and the PyTorchJob that the launcher creates."""
    found = {each["kind"]: each for each in yaml.safe_load_all(GOLDEN.read_text())}
    return [of_manifest("placeholder", found["Pod"]), of_manifest("training", found["PyTorchJob"])]


def debug_pods() -> list[Resource]:
    """The debug pod, and the one that proves the mount of a file system."""
    proof = proof_spec(
        image=DIGEST, claim="lustre", mount_path="/fsx", placement=warm_pod_affinity(pool(warm_nodes=1))
    )
    return [pod("network-debug", debug_spec(DIGEST)), pod("lustre-proof", proof)]


def torchrun_queue(**change: Any) -> Resource:
    """A queue as the program creates it, with changes to its spec."""
    around = QueueContext(
        trainer_image=DIGEST,
        tools_image=DIGEST,
        workspaces="s3://b/torchrun",
        model_uri="s3://b/m",
        region="r",
        mounts={"lustre": "/fsx"},
        writes=("/fsx",),
    )
    spec = queue_spec(queue(pool=TRAINIUM, gpus=0), around)
    return made(
        TORCHRUN_QUEUE, "queue", metadata={"name": "q", "namespace": "training"}, spec={**spec, **change}
    )


def training_operator() -> Resource:
    """The training operator as the program changes it; its publisher's manifest has no security context."""
    probe = {"httpGet": {"path": "/healthz", "port": 8081}}
    container = {
        "name": "training-operator",
        "image": "published",
        "livenessProbe": probe,
        "readinessProbe": probe,
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "training-operator", "namespace": "kubeflow"},
        "spec": {"template": {"spec": {"containers": [container], "automountServiceAccountToken": False}}},
    }
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "pytorchjobs.kubeflow.org"},
    }
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kubeflow"}}
    waves = operator_waves([namespace, deployment, definition], DIGEST, arguments=[])
    changed = [each for wave in waves for each in wave]
    return of_manifest("operator", next(each for each in changed if each["kind"] == "Deployment"))


def torchrun_controller() -> list[Resource]:
    """The controller's Deployment and its binding."""
    changed = [each for wave in waves(read_documents(*FILES, RBAC_FILE), DIGEST) for each in wave]
    return [
        next(of_manifest(kind, each) for each in changed if each["kind"] == kind)
        for kind in ("Deployment", "ClusterRoleBinding")
    ]
