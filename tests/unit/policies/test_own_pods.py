"""Pods that are made while the stack runs, or from manifests of others, keep to the rules of pods, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from components.debug_pod import spec as debug_spec
from components.documents import torchrun_manifests
from components.documents.lustre import proof_spec
from components.documents.operator_manifests import waves
from components.documents.torchrun_manifests import FILES, RIGHTS
from components.documents.torchrun_queue import Surroundings
from components.documents.torchrun_queue import spec as queue_spec
from components.documents.warm_nodes import beside
from components.torchrun import read_documents
from tests.unit.components.pools import TRAINIUM, pool
from tests.unit.components.queues import queue
from tests.unit.policies.building import made
from trainyard.policies.judge import judge
from trainyard.policies.model import UNKNOWN, Resource, Stack
from trainyard.policies.pods import BINDINGS, RULES, TORCHRUN_QUEUE

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


def test_the_torchrun_controller_keeps_to_every_rule() -> None:
    changed = [
        each for wave in torchrun_manifests.waves(read_documents(*FILES, RIGHTS), DIGEST) for each in wave
    ]
    (deployment,) = (each for each in changed if each["kind"] == "Deployment")
    (binding,) = (each for each in changed if each["kind"] == "ClusterRoleBinding")
    resource = made("kubernetes:apps/v1:Deployment", metadata=deployment["metadata"], spec=deployment["spec"])
    bound = made(BINDINGS[1], "bound", subjects=binding["subjects"], roleRef=binding["roleRef"])
    assert judged(resource, bound) == set()
    assert judged(resource) == {"pod-token-where-needed"}, "without rights it needs no token"


def judged(*resources: Resource) -> set[str]:
    """The rules that the first of these violates."""
    found = judge(Stack(resources), rules=RULES.all)
    return {each.rule.name for each in found.violations if each.resource is resources[0]}


def of_queue(**change: Any) -> Resource:
    """A queue as the program makes it, with some fields of its spec changed."""
    around = Surroundings(
        trainer_image=DIGEST,
        tools_image=DIGEST,
        workspaces="s3://b/torchrun",
        model_uri="s3://b/m",
        region="r",
        mounts={"lustre": "/fsx"},
        writes=("/fsx",),
    )
    spec = queue_spec(queue(pool=TRAINIUM, gpus=0), around)
    return made(TORCHRUN_QUEUE, metadata={"name": "q", "namespace": "training"}, spec={**spec, **change})


def test_the_workers_of_a_queue_keep_to_every_rule() -> None:
    assert judged(of_queue(), ACCOUNT) == set()


def in_template(**pod: Any) -> dict[str, Any]:
    """A pod template with something changed in its `spec`."""
    template: dict[str, Any] = of_queue().at("spec", "podTemplate")
    return {"podTemplate": {**template, "spec": {**template["spec"], **pod}}}


@pytest.mark.parametrize(
    ("change", "violated"),
    [
        ({"image": "pytorch:latest"}, {"pod-image-by-digest"}),
        ({"nodeResources": {"cpus": "1"}}, {"pod-resources"}),
        (in_template(hostNetwork=True), {"pod-off-the-host"}),
        (in_template(securityContext={}), {"pod-not-root", "pod-seccomp"}),
        (
            in_template(initContainers=[{"name": "first", "securityContext": {"runAsUser": 0}}]),
            {"pod-not-root"},
        ),
        (
            in_template(initContainers=[{"name": "open-volumes", "securityContext": {"privileged": True}}]),
            {"pod-no-escalation", "pod-no-capabilities"},
        ),
        (in_template(automountServiceAccountToken=True), {"pod-token-where-needed"}),
        (
            in_template(initContainers=[{"name": "a", "image": "b"}]),
            {"pod-image-by-digest", "pod-no-escalation"},
        ),
        # What the controller makes of nothing runs as whoever the image says.
        ({"podTemplate": None}, {"pod-not-root", "pod-no-escalation", "pod-no-capabilities", "pod-seccomp"}),
    ],
)
def test_a_queue_is_judged_by_the_workers_that_become_of_it(
    change: dict[str, Any], violated: set[str]
) -> None:
    assert violated <= judged(of_queue(**change), ACCOUNT)


def test_of_an_image_that_is_not_built_yet_nothing_is_said() -> None:
    found = judge(Stack([of_queue(image=UNKNOWN), ACCOUNT]), rules=RULES.all)
    assert [str(each) for each in found.violations] == []
    assert {each.rule.name for each in found.undecided} == {"pod-image-by-digest"}
