"""The objects of Kubeflow Trainer and JobSet as a stack installs them."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from components.documents import operator_manifests
from components.documents.operator_manifests import DEFINITIONS, JOBSET, TRAINER, parts
from components.documents.operator_manifests import kubeflow_trainer as waves
from components.operators import KubeflowTrainer, KubeflowTrainerArgs
from tests.unit.components.recording import deploy
from trainyard.k8s.names import TRAINER_NAMESPACE

IMAGES = {TRAINER: "registry.example/trainer:v2.3.0", JOBSET: "registry.example/jobset:v0.12.0"}


def thing(kind: str, name: str, namespace: str = "", **more: Any) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, **more}


def manager(name: str, namespace: str = "", containers: int = 1) -> dict[str, Any]:
    labels = {"app": name}
    pod = {"containers": [{"name": "manager", "image": "published"}] * containers}
    spec = {"selector": {"matchLabels": labels}, "template": {"spec": pod}}
    return thing("Deployment", name, namespace, spec=spec)


def published() -> list[dict[str, Any]]:
    """The objects that matter, in the forms of the two kustomizations: JobSet's have a namespace, Trainer's none."""
    schema = {"description": "long", "properties": {"x": {"description": "long"}}}
    service = {"name": "w", "namespace": "system"}
    return [
        thing("Namespace", "jobset-system"),
        *(thing("CustomResourceDefinition", name, spec={"versions": [schema]}) for name in DEFINITIONS),
        thing("CustomResourceDefinition", "optimizationjobs.trainer.kubeflow.org", spec={}),
        manager(JOBSET, "jobset-system"),
        manager(TRAINER),
        thing("RoleBinding", "jobset-leader", "jobset-system", subjects=[{"namespace": "jobset-system"}]),
        thing("ClusterRoleBinding", TRAINER, subjects=[{"kind": "ServiceAccount", "name": TRAINER}]),
        thing("RoleBinding", "kubeflow-trainer-public", subjects=[{"kind": "Group"}]),
        thing("ClusterRole", "jobset-proxy-role"),
        thing("ValidatingWebhookConfiguration", "v", webhooks=[{"clientConfig": {"service": service}}]),
    ]


def made() -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (each["kind"], each["metadata"]["name"]): each for wave in waves(published(), IMAGES) for each in wave
    }


def test_waves_put_both_managers_into_one_namespace() -> None:
    objects = made()
    assert {name for kind, name in objects if kind == "Namespace"} == {TRAINER_NAMESPACE}
    for name, image in IMAGES.items():
        deployment = objects["Deployment", name]
        assert deployment["metadata"]["namespace"] == TRAINER_NAMESPACE
        assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == image
        opened = objects["NetworkPolicy", f"webhook-{name}"]["spec"]["podSelector"]["matchLabels"]
        assert opened == {"app": name}
    for binding in (objects["RoleBinding", "jobset-leader"], objects["ClusterRoleBinding", TRAINER]):
        assert binding["subjects"][0]["namespace"] == TRAINER_NAMESPACE
    (webhook,) = objects["ValidatingWebhookConfiguration", "v"]["webhooks"]
    assert webhook["clientConfig"]["service"]["namespace"] == TRAINER_NAMESPACE
    assert ("Secret", operator_manifests.CERTIFICATE) in objects


def test_waves_leave_out_rights_and_kinds_without_use() -> None:
    names = {name for _, name in made()}
    assert not {name for name in names if name.startswith(("kubeflow-trainer-public", "jobset-proxy"))}
    assert "optimizationjobs.trainer.kubeflow.org" not in names
    assert all(
        "description" not in str(each["spec"])
        for (kind, _), each in made().items()
        if kind == "CustomResourceDefinition"
    )


def test_waves_register_definitions_and_rights_before_managers() -> None:
    first, second, last = ({each["kind"] for each in wave} for wave in waves(published(), IMAGES))
    assert first == {"Namespace"}
    assert {"CustomResourceDefinition", "ClusterRoleBinding", "RoleBinding", "Secret"} <= second
    assert {"Deployment", "ValidatingWebhookConfiguration", "NetworkPolicy"} == last


@pytest.mark.parametrize("name", [JOBSET, "trainjobs.trainer.kubeflow.org"])
def test_manifests_without_a_needed_object_are_refused(name: str) -> None:
    lacking = [each for each in published() if each["metadata"]["name"] != name]
    with pytest.raises(ValueError, match=name):
        waves(lacking, IMAGES)


def test_parts_of_an_address_keep_its_commit() -> None:
    assert parts("https://git.example/trainer//manifests/base?ref=abc")[0] == (
        "https://git.example/trainer//manifests/base/crds?ref=abc"
    )
    assert parts("/modules/trainer/manifests/base")[-1] == "/modules/trainer/manifests/base/webhook"


WEBHOOK = {"clientConfig": {"url": "https://x"}}


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (thing("Deployment", "other", spec={}), "Deployment other belongs neither"),
        (thing("ValidatingWebhookConfiguration", "other", webhooks=[WEBHOOK]), "webhook without a Service"),
        (manager(JOBSET, containers=2), "must have one container"),
    ],
)
def test_other_kustomization_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], problem: str
) -> None:
    objects = [*published(), other]
    monkeypatch.setattr(
        "components.operators.render", lambda source, _: objects if source == "jobset" else []
    )
    args = KubeflowTrainerArgs(
        manifests="trainer", image="t:1", jobset_manifests="jobset", jobset_image="j:1", after=[]
    )
    with pytest.raises(pulumi.RunError, match=f"trainer and jobset: .*{problem}"):
        deploy(lambda: KubeflowTrainer("kubeflow-trainer", args))


def test_component_registers_both_managers_after_definitions_and_rights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rendered: list[str] = []

    def render(source: str, definitions: tuple[str, ...]) -> list[dict[str, Any]]:
        rendered.append(source)
        assert definitions == DEFINITIONS
        return published() if source == "jobset" else []

    monkeypatch.setattr("components.operators.render", render)
    args = KubeflowTrainerArgs(
        manifests="trainer?ref=1", image="t:1", jobset_manifests="jobset", jobset_image="j:1", after=[]
    )
    made = deploy(lambda: KubeflowTrainer("kubeflow-trainer", args))
    assert rendered == ["jobset", *(f"trainer/{part}?ref=1" for part in operator_manifests.PARTS)]
    images = {
        each.name: each.inputs["spec"]["template"]["spec"]["containers"][0]["image"]
        for each in made.of("kubernetes:core/v1:Deployment")
    }
    prefix = f"kubeflow-trainer:{TRAINER_NAMESPACE}"
    assert images == {f"{prefix}/{TRAINER}": "t:1", f"{prefix}/{JOBSET}": "j:1"}
    order = [each.type.rpartition(":")[2] for each in made.resources]
    assert order.index("Namespace") < order.index("CustomResourceDefinition") < order.index("Deployment")
    (account,) = made.of("kubernetes:core/v1:ServiceAccountPatch")
    assert account.inputs["metadata"]["namespace"] == TRAINER_NAMESPACE
