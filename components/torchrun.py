"""Torchrun queues, and the controller of their jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pulumi
import pulumi_kubernetes as k8s
import yaml

from trainyard.k8s import names

from . import service_accounts
from .documents.operator_manifests import token
from .documents.torchrun_manifests import FILES, JOB_NAMESPACE_FILE, RIGHTS, waves, with_namespace
from .documents.torchrun_queue import Queue, Surroundings, spec, workspaces

# The files that `make manifests` writes. Users without a stack apply the same files with kubectl.
CHECKOUT: Final = Path(__file__).resolve().parents[1]


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
    region: str
    mounts: Mapping[str, str]
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
      Network policies allow it to reach the API server, the DNS and the metrics of workers. Only namespaces with a
      label reach the controller, and only its metrics;
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
        done: list[pulumi.Resource] = list(args.after)
        namespace: pulumi.Resource | None = None
        for wave in waves(read_documents(*FILES, RIGHTS), args.launcher_image):
            made = [self._register(each, done) for each in wave]
            done = [*done, *made]
            namespace = namespace or made[0]
        if namespace is not None:
            service_accounts.without_token(names.TORCHRUN_NAMESPACE, self, namespace)
        policies = with_namespace(read_documents(JOB_NAMESPACE_FILE), names.TRAINING_NAMESPACE)
        return [*done, *(self._register(each, args.after) for each in policies)]

    def _register(self, manifest: dict[str, Any], after: list[pulumi.Resource]) -> pulumi.Resource:
        metadata = manifest["metadata"]
        scope = f"{metadata['namespace']}/" if "namespace" in metadata else ""
        return pulumi.CustomResource(
            token(manifest),
            f"{names.TORCHRUN_CONTROLLER}:{scope}{metadata['name']}",
            manifest,
            pulumi.ResourceOptions(parent=self, depends_on=after),
        )

    def _queues(self, args: TorchrunArgs, controller: list[pulumi.Resource]) -> None:
        around = Surroundings(
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
                spec=spec(queue, around),
                opts=pulumi.ResourceOptions(parent=self, depends_on=[*controller, *args.before_jobs]),
            )


@cache
def read_documents(*files: str) -> list[dict[str, Any]]:
    """Return the objects in these files of the checkout.

    Raises:
        pulumi.RunError: A file can't be read.
    """
    found: list[dict[str, Any]] = []
    for name in files:
        try:
            text = (CHECKOUT / name).read_text()
            found += [each for each in yaml.safe_load_all(text) if each]
        except (OSError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            raise pulumi.RunError(
                f"{name} of the checkout can't be read, run `make manifests`: {reason}"
            ) from None
    return found
