"""The published manifests of the training operator, of Kubeflow Trainer and of JobSet, and the changes to them.

Entry points: `training_operator` and `kubeflow_trainer`.

The training operator adds an init container to workers, which waits until DNS resolves the master's name. The
operator's default one runs `alpine:3.10` from Docker Hub and does not meet the restricted pod security standard. This
one does, and runs the worker's image, so that the node pulls no other. Its text is a Go template of the package
html/template with the values InitContainerImage, MasterAddr and MaxTries (github.com/kubeflow/training-operator
v1.9.4, pkg/controller.v1/pytorch/initcontainer.go), so it contains no `<`. Its requests equal its limits.
Otherwise the pod would lose the QoS class Guaranteed.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from trainyard.k8s.names import OPERATOR_NAMESPACE, POD_USER, TRAINER_NAMESPACE

from . import JsonObject, pods

OPERATOR: Final = "training-operator"
PYTORCH: Final = "pytorchjob"
MPI: Final = "mpijob"
# Several jobs in parallel: by default, the operator has one thread and creates pods one after another.
THREADS: Final = "--controller-threads=4"
WEBHOOK: Final = "validator.pytorchjob.training-operator.kubeflow.org"
LOOKUP: Final = "training-operator-lookup"
LOOKUP_DIRECTORY: Final = "/etc/config"
# The port of the managers' webhooks, and the label of the operator's pods, from their manifests.
WEBHOOK_PORT: Final = 9443
LABELS: Final = {"control-plane": "kubeflow-training-operator"}
# The managers keep every Job, pod and Service of the cluster in memory.
MANAGER_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
# The kinds of the second wave, after the namespace.
SECOND: Final = (
    "CustomResourceDefinition",
    "ServiceAccount",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "ConfigMap",
    "Secret",
)
# Permissions of the operator for MPIJobs only: their launcher gets a service account with `exec` into its workers.
FOR_MPI: Final = ("configmaps", "serviceaccounts", "pods/exec", "roles", "rolebindings")
TEMPLATE_FILE: Final = "initContainer.yaml"
IMAGE_ARGUMENT: Final = "--pytorch-init-container-image="
TEMPLATE_ARGUMENT: Final = "--pytorch-init-container-template-file="

TEMPLATE: Final = f"""\
- name: init-pytorch
  image: {{{{.InitContainerImage}}}}
  imagePullPolicy: IfNotPresent
  resources:
    limits: {{cpu: 100m, memory: 64Mi}}
    requests: {{cpu: 100m, memory: 64Mi}}
  securityContext:
    allowPrivilegeEscalation: false
    capabilities: {{drop: [ALL]}}
    readOnlyRootFilesystem: true
    runAsNonRoot: true
    runAsUser: {POD_USER}
    seccompProfile: {{type: RuntimeDefault}}
  command:
    - python3
    - -c
    - |
      import socket, sys, time
      for _ in range({{{{.MaxTries}}}}):
          try:
              socket.getaddrinfo("{{{{.MasterAddr}}}}", None)
              sys.exit(0)
          except socket.gaierror as error:
              print("waiting for {{{{.MasterAddr}}}}:", error, flush=True)
              time.sleep(2)
      sys.exit("{{{{.MasterAddr}}}} has no address")
"""

# Both managers run in a namespace of their own. So a stack can change its backend, or run MPIJobs beside TrainJobs,
# without a conflict with the training operator. Each manager keeps its webhooks' certificate in a Secret and writes the
# authority into its webhook configurations (github.com/open-policy-agent/cert-controller).
TRAINER: Final = "kubeflow-trainer-controller-manager"
JOBSET: Final = "jobset-controller-manager"
# Parts of Trainer's kustomization (manifests/base). Its overlay also downloads JobSet's manifests.
PARTS: Final = ("crds", "manager", "rbac", "webhook")
DEFINITIONS: Final = (
    "jobsets.jobset.x-k8s.io",
    "clustertrainingruntimes.trainer.kubeflow.org",
    "trainingruntimes.trainer.kubeflow.org",
    "trainjobs.trainer.kubeflow.org",
)
# The Secret of Trainer's certificate, which its overlay generates; Trainer fills it.
CERTIFICATE: Final = "kubeflow-trainer-webhook-cert"
# The version for Trainer's SDK, which everybody may read.
_PUBLIC: Final = "kubeflow-trainer-public"
# JobSet's metrics behind kube-rbac-proxy, which its Deployment does not have.
_UNUSED: Final = ("jobset-metrics-reader", "jobset-proxy")
_NAMESPACED: Final = ("ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Secret", "Service", "Deployment")


def definitions(kinds: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the CustomResourceDefinitions of these kinds of jobs."""
    return tuple(f"{kind}s.kubeflow.org" for kind in kinds)


def scheme_arguments(kinds: Sequence[str]) -> list[str]:
    """Return the operator's arguments for these kinds of jobs."""
    return [*(f"--enable-scheme={kind}" for kind in kinds), THREADS]


def training_operator(
    objects: list[JsonObject],
    image: str | None,
    *,
    arguments: Sequence[Any],
    kinds: Sequence[str] = (PYTORCH,),
) -> list[list[JsonObject]]:
    """Return the objects for these kinds of jobs, in waves. A wave only depends on the waves before it.

    If set, `image` replaces the operator's image. `arguments` are added to the operator's; they may be outputs of
    other resources.

    Raises:
        ValueError: The manifests lack the namespace, the operator, a definition or the webhook of PyTorchJobs.
    """
    names_of_kinds = definitions(kinds)
    served = [
        each
        for each in objects
        if each["kind"] != "CustomResourceDefinition" or each["metadata"]["name"] in names_of_kinds
    ]
    chosen = [_changed(each, image, arguments, kinds) for each in served]
    needed = [
        ("Namespace", OPERATOR_NAMESPACE),
        ("Deployment", OPERATOR),
        *(("CustomResourceDefinition", name) for name in names_of_kinds),
    ]
    require(chosen, needed, "the training operator's manifests")
    for each in chosen:
        lacks_webhook = each["kind"] == "ValidatingWebhookConfiguration" and not each["webhooks"]
        if lacks_webhook and PYTORCH in kinds:
            raise ValueError(f"the training operator's manifests hold no webhook {WEBHOOK}")
    chosen += [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": LOOKUP, "namespace": OPERATOR_NAMESPACE},
            "data": {TEMPLATE_FILE: TEMPLATE},
        },
        pods.policy("closed", OPERATOR_NAMESPACE, pods.deny_ingress()),
        pods.policy("webhook", OPERATOR_NAMESPACE, pods.port_open(LABELS, WEBHOOK_PORT)),
    ]
    return in_waves(chosen, SECOND)


def require(objects: Iterable[JsonObject], needed: Iterable[tuple[str, str]], source: str) -> None:
    """Check that these kinds and names are among the objects.

    Raises:
        ValueError: One is missing.
    """
    present = {(each["kind"], each["metadata"]["name"]) for each in objects}
    for kind, name in needed:
        if (kind, name) not in present:
            raise ValueError(f"{source} hold no {kind} {name}")


def in_waves(objects: list[JsonObject], second: Collection[str]) -> list[list[JsonObject]]:
    """Return the objects in waves, of which each only depends on the waves before it.

    The first wave has the namespace, the next one the kinds in `second`, the last one all others.
    """
    return [
        [each for each in objects if each["kind"] == "Namespace"],
        [each for each in objects if each["kind"] in second],
        [each for each in objects if each["kind"] not in ("Namespace", *second)],
    ]


def token(manifest: JsonObject) -> str:
    """Return Pulumi's type token of an object, such as kubernetes:core/v1:Service."""
    version = manifest["apiVersion"]
    return f"kubernetes:{version if '/' in version else 'core/' + version}:{manifest['kind']}"


def _changed(
    manifest: JsonObject, image: str | None, arguments: Sequence[Any], kinds: Sequence[str]
) -> JsonObject:
    result = copy.deepcopy(manifest)
    # A status belongs to the API server.
    result.pop("status", None)
    kind, name = result["kind"], result["metadata"]["name"]
    if (kind, name) == ("Deployment", OPERATOR):
        _change_operator(result["spec"]["template"], image, arguments)
    if kind == "Namespace":
        # The operator needs no privileges, so nothing in its namespace gets any.
        result["metadata"].setdefault("labels", {})["pod-security.kubernetes.io/enforce"] = "restricted"
    if kind == "ValidatingWebhookConfiguration":
        # MPIJobs have no webhook.
        webhooks = (WEBHOOK,) if PYTORCH in kinds else ()
        result["webhooks"] = [hook for hook in result["webhooks"] if hook["name"] in webhooks]
    if (kind, name) == ("ClusterRole", OPERATOR):
        result["rules"] = _needed(result.get("rules") or [], kinds)
    if kind == "CustomResourceDefinition" and name.startswith(MPI):
        # Descriptions are three quarters of its size, and the stack's state contains each definition twice.
        result["spec"] = without_descriptions(result.get("spec", {}))
    return result


def _change_operator(template: JsonObject, image: str | None, arguments: Sequence[Any]) -> None:
    # The operator reads the template once, at its start, so a changed template needs a new pod.
    digest = hashlib.sha256(TEMPLATE.encode()).hexdigest()[:16]
    template.setdefault("metadata", {}).setdefault("annotations", {})["trainyard.dev/lookup"] = digest
    spec = template["spec"]
    for container in spec["containers"]:
        if container["name"] == OPERATOR:
            container["args"] = [*(container.get("args") or []), *arguments]
            container["image"] = image or container["image"]
            mount = {"name": LOOKUP, "mountPath": LOOKUP_DIRECTORY, "readOnly": True}
            container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]
            # Its manifests set none of these. It writes no files: its certificates come from a Secret.
            container["securityContext"] = pods.container()
            container["resources"] = MANAGER_RESOURCES
    spec["securityContext"] = pods.pod()
    spec["volumes"] = [*(spec.get("volumes") or []), {"name": LOOKUP, "configMap": {"name": LOOKUP}}]


def _needed(rules: list[JsonObject], kinds: Sequence[str]) -> list[JsonObject]:
    """Return the operator's RBAC rules without those for unused kinds of jobs, gang schedulers and pods."""
    needed = []
    for rule in rules:
        resources = [each for each in rule.get("resources") or [] if _serves(rule, each, kinds)]
        if resources:
            needed.append({**rule, "resources": resources})
    return needed


def _serves(rule: Mapping[str, Any], resource: str, kinds: Sequence[str]) -> bool:
    groups = rule.get("apiGroups") or []
    if "kubeflow.org" in groups:
        return resource.partition("/")[0] in {f"{kind}s" for kind in kinds}
    if resource == "podgroups":
        return False
    return MPI in kinds or resource not in FOR_MPI


def without_descriptions(schema: Any) -> Any:
    """Return a copy without the texts named `description`. A property of that name stays."""
    if isinstance(schema, dict):
        return {
            key: without_descriptions(value)
            for key, value in schema.items()
            if not (key == "description" and isinstance(value, str))
        }
    if isinstance(schema, list):
        return [without_descriptions(value) for value in schema]
    return schema


def parts(base: str) -> list[str]:
    """Return the kustomizations in a directory or at an address such as `https://...//manifests/base?ref=<commit>`."""
    path, mark, query = base.partition("?")
    return [f"{path.rstrip('/')}/{part}{mark}{query}" for part in PARTS]


def kubeflow_trainer(objects: Sequence[JsonObject], images: Mapping[str, str]) -> list[list[JsonObject]]:
    """Return the objects of both, in waves. A wave only depends on the waves before it.

    Args:
        objects: JobSet's kustomization `config/default`, and `PARTS` of Trainer's.
        images: The image of each Deployment.

    Raises:
        ValueError: The objects are not those of these kustomizations.
    """
    for each in objects:
        _check_trainer(each, images)
    chosen = [_for_trainer(each, images) for each in objects if _is_needed(each)]
    needed = [
        *(("Deployment", name) for name in images),
        *(("CustomResourceDefinition", name) for name in DEFINITIONS),
    ]
    require(chosen, needed, "the manifests of Kubeflow Trainer and JobSet")
    pods_of = {
        each["metadata"]["name"]: each["spec"]["selector"]["matchLabels"]
        for each in chosen
        if each["kind"] == "Deployment"
    }
    chosen += [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": TRAINER_NAMESPACE,
                "labels": {"pod-security.kubernetes.io/enforce": "restricted"},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": CERTIFICATE, "namespace": TRAINER_NAMESPACE},
            "type": "Opaque",
        },
        pods.policy("closed", TRAINER_NAMESPACE, pods.deny_ingress()),
        *(
            pods.policy(f"webhook-{name}", TRAINER_NAMESPACE, pods.port_open(labels, WEBHOOK_PORT))
            for name, labels in pods_of.items()
        ),
    ]
    return in_waves(chosen, SECOND)


def _check_trainer(manifest: JsonObject, images: Mapping[str, str]) -> None:
    """Check what `_for_trainer` needs. Raises ValueError if this object belongs to another kustomization."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    if kind == "Deployment" and name not in images:
        raise ValueError(f"Deployment {name} belongs neither to Kubeflow Trainer nor to JobSet")
    if kind == "Deployment" and len(manifest["spec"]["template"]["spec"]["containers"]) != 1:
        raise ValueError(f"Deployment {name} must have one container")
    if any("service" not in hook["clientConfig"] for hook in manifest.get("webhooks") or ()):
        raise ValueError(f"{kind} {name} has a webhook without a Service")


def _is_needed(manifest: JsonObject) -> bool:
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    if kind == "CustomResourceDefinition":
        return name in DEFINITIONS
    return kind != "Namespace" and name != _PUBLIC and not name.startswith(_UNUSED)


def _for_trainer(manifest: JsonObject, images: Mapping[str, str]) -> JsonObject:
    result = copy.deepcopy(manifest)
    # A status belongs to the API server.
    result.pop("status", None)
    kind, name = result["kind"], result["metadata"]["name"]
    if kind in _NAMESPACED:
        result["metadata"]["namespace"] = TRAINER_NAMESPACE
    for subject in result.get("subjects") or ():
        subject["namespace"] = TRAINER_NAMESPACE
    for webhook in result.get("webhooks") or ():
        webhook["clientConfig"]["service"]["namespace"] = TRAINER_NAMESPACE
    if kind == "CustomResourceDefinition":
        # The descriptions are most of 1.3 MB, and the stack's state contains each definition twice.
        result["spec"] = without_descriptions(result["spec"])
    if kind == "Deployment":
        spec = result["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        container |= {"image": images[name], "resources": MANAGER_RESOURCES}
        spec["securityContext"] = pods.pod()
    return result
