from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any
from urllib.parse import urlsplit

import pulumi
import pytest
import yaml

from components.documents import operator_manifests, versions
from components.documents.operator_manifests import scheme_arguments, token
from components.documents.operator_manifests import training_operator as waves
from components.operators import Operators, OperatorsArgs
from tests.unit.components.recording import Recorded, deploy
from trainyard.k8s.names import POD_USER

WEBHOOKS = (
    "validator.pytorchjob.training-operator.kubeflow.org",
    "validator.tfjob.training-operator.kubeflow.org",
)


SCHEMA = {
    "names": {"kind": "MPIJob"},
    "versions": [
        {
            "description": "long",
            "properties": {
                "description": {"description": "long", "type": "string"},
                "x": {"description": "long"},
            },
        }
    ],
}
RULES = [
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]},
    {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles"], "verbs": ["create"]},
    {"apiGroups": ["kubeflow.org"], "resources": ["pytorchjobs/status"], "verbs": ["get"]},
    {"apiGroups": ["kubeflow.org"], "resources": ["mpijobs"], "verbs": ["get"]},
    {"apiGroups": ["kubeflow.org"], "resources": ["tfjobs"], "verbs": ["get"]},
    {"apiGroups": ["scheduling.volcano.sh"], "resources": ["podgroups"], "verbs": ["get"]},
]


def thing(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **more}


def published() -> list[dict[str, Any]]:
    container = {"name": "training-operator", "image": "published"}
    return [
        thing("CustomResourceDefinition", "tfjobs.kubeflow.org"),
        thing("CustomResourceDefinition", "pytorchjobs.kubeflow.org", status={"conditions": []}),
        thing("CustomResourceDefinition", "mpijobs.kubeflow.org", spec=SCHEMA),
        thing("ClusterRole", "training-operator", rules=RULES),
        thing("Service", "training-operator"),
        thing("ServiceAccount", "training-operator"),
        thing("Deployment", "training-operator", spec={"template": {"spec": {"containers": [container]}}}),
        thing("ValidatingWebhookConfiguration", "v", webhooks=[{"name": name} for name in WEBHOOKS]),
        thing("Namespace", "kubeflow"),
    ]


def chosen(objects: list[dict[str, Any]] | None = None, *kinds: str) -> list[list[dict[str, Any]]]:
    return waves(objects or published(), None, arguments=[], kinds=kinds or ("pytorchjob",))


def find(kind: str, given: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return [each for wave in given for each in wave if each["kind"] == kind]


def test_only_what_pytorchjobs_need_is_kept() -> None:
    kept = chosen()
    assert [each["metadata"]["name"] for each in find("CustomResourceDefinition", kept)] == [
        "pytorchjobs.kubeflow.org"
    ]
    assert [hook["name"] for hook in find("ValidatingWebhookConfiguration", kept)[0]["webhooks"]] == [
        WEBHOOKS[0]
    ]
    assert "status" not in find("CustomResourceDefinition", kept)[0]


def test_the_namespace_comes_first_and_the_pods_with_their_service_last() -> None:
    first, second, last = chosen()
    assert [each["kind"] for each in first] == ["Namespace"]
    assert {each["kind"] for each in second} == {
        "CustomResourceDefinition",
        "ServiceAccount",
        "ClusterRole",
        "ConfigMap",
    }
    assert {each["kind"] for each in last} == {
        "Deployment",
        "NetworkPolicy",
        "Service",
        "ValidatingWebhookConfiguration",
    }


@pytest.mark.parametrize(("image", "expected"), [(None, "published"), ("ours", "ours")])
def test_the_operator_gets_our_arguments_and_image(image: str | None, expected: str) -> None:
    given = published()
    before = copy.deepcopy(given)
    arguments = scheme_arguments(["pytorchjob"])
    deployment = find("Deployment", waves(given, image, arguments=arguments))[0]
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == ["--enable-scheme=pytorchjob", "--controller-threads=4"]
    assert container["image"] == expected
    assert given == before, "the given manifests were changed"


def test_the_operators_namespace_keeps_to_the_restricted_standard() -> None:
    (namespace,) = find("Namespace", chosen())
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "restricted"}


def test_only_the_operators_webhook_is_reached() -> None:
    closed, webhook = find("NetworkPolicy", chosen())
    assert closed["spec"] == {"podSelector": {}, "policyTypes": ["Ingress"]}
    # The label that its manifests give the operator's pods.
    assert webhook["spec"]["podSelector"] == {"matchLabels": {"control-plane": "kubeflow-training-operator"}}
    assert webhook["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 9443}]}]


def test_manifests_without_the_webhook_are_refused() -> None:
    objects = published()
    find("ValidatingWebhookConfiguration", [objects])[0]["webhooks"].pop(0)
    with pytest.raises(ValueError, match=r"no webhook validator\.pytorchjob"):
        chosen(objects)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("Deployment", "training-operator"), ("CustomResourceDefinition", "mpijobs.kubeflow.org")],
)
def test_manifests_without_a_needed_object_are_refused(kind: str, name: str) -> None:
    objects = [each for each in published() if (each["kind"], each["metadata"]["name"]) != (kind, name)]
    with pytest.raises(ValueError, match=f"no {kind} {name}"):
        chosen(objects, "pytorchjob", "mpijob")


def test_the_published_manifests_are_named_as_kubectl_takes_them() -> None:
    """`kubectl kustomize` reads the default branch where the commit stands in the path and not in `ref`."""
    address = urlsplit(versions.TRAINING_OPERATOR_MANIFESTS)
    repository, _, directory = address.path.partition("//")
    assert (repository, directory) == ("/kubeflow/training-operator", "manifests/overlays/standalone")
    assert address.query == f"ref={versions.TRAINING_OPERATOR_COMMIT}"


def test_tokens_name_group_version_and_kind() -> None:
    assert token({"apiVersion": "v1", "kind": "Service"}) == "kubernetes:core/v1:Service"
    assert token({"apiVersion": "apps/v1", "kind": "Deployment"}) == "kubernetes:apps/v1:Deployment"


def test_mpijobs_come_only_where_they_are_asked_for_and_without_their_descriptions() -> None:
    definitions = find("CustomResourceDefinition", chosen(None, "pytorchjob", "mpijob"))
    assert [each["metadata"]["name"] for each in definitions] == [
        "pytorchjobs.kubeflow.org",
        "mpijobs.kubeflow.org",
    ]
    assert definitions[1]["spec"]["versions"] == [
        {"properties": {"description": {"type": "string"}, "x": {}}}
    ]


def test_the_operator_has_no_rights_for_jobs_that_it_does_not_serve() -> None:
    def resources(*kinds: str) -> list[str]:
        (role,) = find("ClusterRole", chosen(None, *kinds))
        return [resource for rule in role["rules"] for resource in rule["resources"]]

    assert resources("pytorchjob") == ["pods", "pytorchjobs/status"]
    assert resources("pytorchjob", "mpijob") == [
        "pods",
        "pods/exec",
        "roles",
        "pytorchjobs/status",
        "mpijobs",
    ]


def operators(objects: list[dict[str, Any]] | None = None, **changes: Any) -> Recorded:
    rendered = published() if objects is None else objects
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("components.operators.render", lambda source, definitions: rendered)
        args = OperatorsArgs(
            **{"manifests": "m", "image": None, "lookup_image": "trainer@sha256:1", "after": [], **changes}
        )
        return deploy(lambda: Operators("operators", args))


def container_of(recorded: Recorded) -> dict[str, Any]:
    pod = recorded.one("kubernetes:core/v1:Deployment").inputs["spec"]["template"]["spec"]
    container: dict[str, Any] = pod["containers"][0]
    return container


def test_workers_wait_in_the_image_that_is_given_by_the_template_of_ours() -> None:
    recorded = operators()
    assert container_of(recorded)["args"] == [
        "--enable-scheme=pytorchjob",
        "--controller-threads=4",
        "--pytorch-init-container-template-file=/etc/config/initContainer.yaml",
        "--pytorch-init-container-image=trainer@sha256:1",
    ]
    config = recorded.one("kubernetes:core/v1:ConfigMap").inputs
    assert config["metadata"]["namespace"] == "kubeflow"
    assert config["data"] == {"initContainer.yaml": operator_manifests.TEMPLATE}
    mounts = container_of(recorded)["volumeMounts"]
    assert mounts[-1] == {"name": config["metadata"]["name"], "mountPath": "/etc/config", "readOnly": True}


def test_mpi_brings_its_scheme_and_the_image_with_kubectl() -> None:
    arguments = container_of(operators(kubectl_image="kubectl@sha256:2"))["args"]
    assert "--enable-scheme=mpijob" in arguments
    assert arguments[-1] == "--mpi-kubectl-delivery-image=kubectl@sha256:2"


def test_mpijobs_without_pytorchjobs_have_one_definition() -> None:
    recorded = operators(kubectl_image="kubectl@sha256:2", pytorch_jobs=False)
    definitions = [
        each.name for each in recorded.resources if each.type.endswith(":CustomResourceDefinition")
    ]
    assert definitions == ["training-operator:mpijobs.kubeflow.org"]
    assert "--enable-scheme=pytorchjob" not in container_of(recorded)["args"]
    (webhooks,) = (
        each for each in recorded.resources if each.type.endswith(":ValidatingWebhookConfiguration")
    )
    # The operator writes its certificate into this object, and waits until it has done so.
    assert webhooks.inputs["webhooks"] == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pytorch_jobs": False}, "operators: kubectl_image must be set if pytorch_jobs is false"),
        ({"objects": []}, "m: the training operator's manifests hold no Namespace kubeflow"),
    ],
)
def test_operators_without_jobs_or_manifests_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(pulumi.RunError, match=message):
        operators(**wrong)


def init_container(tries: int, master: str) -> dict[str, Any]:
    """What the operator makes of the template, but for what Go's package escapes in a web page."""
    text = operator_manifests.TEMPLATE
    for name, value in (
        ("MaxTries", tries),
        ("MasterAddr", master),
        ("InitContainerImage", "image@sha256:1"),
    ):
        text = text.replace("{{." + name + "}}", str(value))
    (container,) = yaml.safe_load(text)
    assert isinstance(container, dict)
    return container


def test_the_init_container_keeps_to_the_restricted_standard_and_to_the_class_of_its_pod() -> None:
    container = init_container(3, "train-r1-master-0")
    assert (container["name"], container["image"]) == ("init-pytorch", "image@sha256:1")
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": POD_USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["resources"]["limits"] == container["resources"]["requests"]


@pytest.mark.parametrize(("master", "code"), [("localhost", 0), ("nowhere.invalid", 1)])
def test_the_init_container_ends_well_exactly_when_the_master_has_an_address(master: str, code: int) -> None:
    _, *arguments = init_container(1, master)["command"]
    script = arguments[-1].replace("time.sleep(2)", "time.sleep(0)")
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert ended.returncode == code, ended.stderr
    assert (f"{master} has no address" in ended.stderr) == (code == 1)


def test_the_template_holds_nothing_that_a_web_page_would_change() -> None:
    assert not set("<>&") & set(operator_manifests.TEMPLATE)
