"""Torchrun queues, and the controller of their jobs: the files in crd/ and config/, with a stack's changes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pulumi
import pulumi_kubernetes as k8s
import yaml

from trainyard.k8s import names

from . import identity
from .documents import pods
from .documents.operator_manifests import in_waves, require
from .documents.pool import outside_pools_affinity
from .documents.torchrun_queue import Queue, QueueContext, spec, workspaces
from .operators import register_waves

# The files that `make manifests` writes. Users without a stack apply the same files with kubectl.
CHECKOUT: Final = Path(__file__).resolve().parents[1]
# The files of the checkout, in the order in which users apply them.
FILES: Final = (
    "crd/torchrunqueues.torchrun.ai.yaml",
    "crd/torchrunjobs.torchrun.ai.yaml",
    "config/deployment.yaml",
    "config/admission.yaml",
    "config/network.yaml",
)
JOB_NAMESPACE_FILE: Final = "config/network-jobs.yaml"
RBAC_FILE: Final = "config/rbac/role.yaml"
# As for EKS's add-ons and Karpenter: it is evicted from a full node last
# (https://kubernetes.io/docs/tasks/administer-cluster/guaranteed-scheduling-critical-addon-pods/).
PRIORITY_CLASS: Final = "system-cluster-critical"


@dataclass(frozen=True, kw_only=True)
class TorchrunArgs:
    """The queues, and what their jobs use."""

    queues: tuple[Queue, ...]
    """The queues (`documents.torchrun_queue.Queue`). Without queues, there is no controller."""
    launcher_image: pulumi.Input[str]
    """The controller's image, with its digest."""
    trainer_image: pulumi.Input[str]
    """The image of workers of queues without their own image."""
    bucket_name: pulumi.Input[str]
    """The bucket of the stack."""
    model_uri: pulumi.Input[str]
    """Where models are stored, such as s3://bucket/models."""
    region: str
    mounts: Mapping[str, str]
    """The directories of volumes in pods, by claim."""
    writes: tuple[str, ...]
    """The directories in `mounts` that workers can write to."""
    after: list[pulumi.Resource]
    """Resources that must exist first, among them the training namespace."""
    before_jobs: list[pulumi.Resource]
    """Resources that must exist as long as there are workers, such as pools, service accounts and claims."""


class Torchrun(pulumi.ComponentResource):
    """The torchrun controller and its queues.

    Creates, if `queues` is not empty:

    - the custom resource definitions of TorchrunQueues and TorchrunJobs, their permissions in the default roles of
      Kubernetes, and the admission policies. With these, a job can't create a pod that its author may not create;
    - the controller in the namespace `torchrun-system`, on a system node, with the RBAC of config/rbac/role.yaml.
      Network policies allow it to reach the API server, the DNS and the metrics of workers and of Karpenter. Only
      namespaces with a label reach the controller, and only its metrics;
    - network policies of the training namespace: pods of torchrun jobs reach each other, and their metrics can be
      read;
    - the queues.

    `destroy` deletes the queues before the controller: the controller removes the finalizers of queues, and needs
    its permissions to do so.
    """

    def __init__(self, name: str, args: TorchrunArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:torchrun:Torchrun", name, None, opts)
        if args.queues:
            self._queues(args, self._controller(args))
        self.register_outputs({"queues": [f"{queue.namespace}/{queue.name}" for queue in args.queues]})

    def _controller(self, args: TorchrunArgs) -> list[pulumi.Resource]:
        """Create the controller. Return everything that queues depend on."""
        controller = register_waves(
            self,
            names.TORCHRUN_CONTROLLER,
            waves(read_documents(*FILES, RBAC_FILE), args.launcher_image),
            args.after,
        )
        identity.disable_default_token(names.TORCHRUN_NAMESPACE, self, controller[0])
        in_jobs_namespace = [
            {**each, "metadata": {**each["metadata"], "namespace": names.TRAINING_NAMESPACE}}
            for each in read_documents(JOB_NAMESPACE_FILE)
        ]
        policies = register_waves(self, names.TORCHRUN_CONTROLLER, [in_jobs_namespace], args.after)
        return [*args.after, *controller, *policies]

    def _queues(self, args: TorchrunArgs, controller: list[pulumi.Resource]) -> None:
        context = QueueContext(
            trainer_image=args.trainer_image,
            tools_image=args.launcher_image,
            workspaces=pulumi.Output.from_input(args.bucket_name).apply(workspaces),
            model_uri=args.model_uri,
            region=args.region,
            mounts=args.mounts,
            writes=args.writes,
        )
        for queue in args.queues:
            k8s.apiextensions.CustomResource(
                f"{queue.namespace}-{queue.name}",
                api_version=f"{names.TORCHRUN_GROUP}/{names.TORCHRUN_VERSION}",
                kind=names.TORCHRUN_QUEUE_KIND,
                # The next `up` overwrites manual changes instead of reporting a conflict between two field managers.
                metadata={
                    "name": queue.name,
                    "namespace": queue.namespace,
                    "annotations": {"pulumi.com/patchForce": "true"},
                },
                spec=spec(queue, context),
                opts=pulumi.ResourceOptions(parent=self, depends_on=[*controller, *args.before_jobs]),
            )


@cache
def read_documents(*files: str) -> list[dict[str, Any]]:
    """Return the objects in these files of the checkout.

    Raises:
        pulumi.RunError: A file can't be read.
    """
    objects: list[dict[str, Any]] = []
    for name in files:
        try:
            text = (CHECKOUT / name).read_text()
            objects += [each for each in yaml.safe_load_all(text) if each]
        except (OSError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            raise pulumi.RunError(f"{name}: can't be read; run `make manifests`: {reason}") from None
    return objects


def waves(documents: Iterable[dict[str, Any]], image: Any) -> list[list[dict[str, Any]]]:
    """Return the objects, in waves. A wave only depends on the waves before it.

    `image` replaces the image of the Deployment; it may be an output of another resource. There is no
    PodDisruptionBudget: with one replica, it would block the drain of every system node, and a controller that
    starts on another node continues the work of the old one.

    Raises:
        ValueError: The namespace or Deployment of the controller, or the definition of queues or of jobs, is missing.
    """
    objects = [copy.deepcopy(each) for each in documents]
    require(
        objects,
        [
            ("Namespace", names.TORCHRUN_NAMESPACE),
            ("Deployment", names.TORCHRUN_CONTROLLER),
            ("CustomResourceDefinition", f"{names.TORCHRUN_QUEUES}.{names.TORCHRUN_GROUP}"),
            ("CustomResourceDefinition", f"{names.TORCHRUN_JOBS}.{names.TORCHRUN_GROUP}"),
        ],
        "the files of the torchrun controller",
    )
    changed = [_deployment(each, image) if each["kind"] == "Deployment" else each for each in objects]
    return in_waves(changed, {each["kind"] for each in changed} - {"Namespace", "Deployment"})


def _deployment(manifest: dict[str, Any], image: Any) -> dict[str, Any]:
    template = manifest["spec"]["template"]
    pod = template["spec"]
    published = {container["image"] for container in pod["containers"]}
    metadata = template.setdefault("metadata", {})
    metadata["annotations"] = {
        **pods.scrape_annotations(names.METRICS_PORT),
        **(metadata.get("annotations") or {}),
    }
    # It creates pods that wait for nodes of the pools, so it does not run on these nodes.
    pod.setdefault("affinity", outside_pools_affinity())
    pod.setdefault("priorityClassName", PRIORITY_CLASS)
    for container in pod["containers"]:
        # `up` continues when the controller is ready, not when it was started.
        container.setdefault("readinessProbe", {**container["livenessProbe"], "initialDelaySeconds": 1})
    # Also in its argument with its own image, which contains the tools of the jobs.
    manifest["spec"]["template"] = _with_image(template, published, image)
    return manifest


def _with_image(value: Any, published: set[str], image: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_image(entry, published, image) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_image(entry, published, image) for entry in value]
    return image if isinstance(value, str) and value in published else value
