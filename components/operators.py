"""What turns a PyTorchJob, and where it is asked for an MPIJob, into pods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi

from components import default_account
from components.documents import lookup
from components.documents.operator_manifests import (
    LOOKUP_DIRECTORY,
    MPI,
    OPERATOR,
    PYTORCH,
    definitions,
    scheme_arguments,
    token,
    waves,
)
from components.kustomization import render
from trainyard.k8s.names import OPERATOR_NAMESPACE


@dataclass(frozen=True, kw_only=True)
class OperatorsArgs:
    """`manifests` is the training operator's kustomization, a directory or an address; `image` replaces its image.

    `lookup_image` is what workers wait in until the master has a name: any image with python3; the trainer's is on the
    machine anyway. `kubectl_image` is given where MPIJobs are wanted: their launcher gets kubectl out of it.
    """

    manifests: str
    image: str | None
    lookup_image: pulumi.Input[str]
    kubectl_image: str | None = None
    after: list[pulumi.Resource]


class Operators(pulumi.ComponentResource):
    """Afterwards there is the training operator with its definitions, rights and webhook, in the namespace `kubeflow`.

    It serves PyTorchJobs, and MPIJobs where `kubectl_image` is given, and has no rights beyond those that they need.
    """

    def __init__(self, name: str, args: OperatorsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:operators:Operators", name, None, opts)
        kinds = (PYTORCH,) if args.kubectl_image is None else (PYTORCH, MPI)
        arguments: list[Any] = [
            *scheme_arguments(kinds),
            f"{lookup.TEMPLATE_ARGUMENT}{LOOKUP_DIRECTORY}/{lookup.TEMPLATE_FILE}",
            pulumi.Output.concat(lookup.IMAGE_ARGUMENT, args.lookup_image),
        ]
        if args.kubectl_image is not None:
            arguments.append(f"--mpi-kubectl-delivery-image={args.kubectl_image}")
        done: list[pulumi.Resource] = list(args.after)
        by_kind: dict[str, pulumi.Resource] = {}
        manifests = render(args.manifests, definitions(kinds))
        for wave in waves(manifests, args.image, arguments=arguments, kinds=kinds):
            made = [self._register(each, done) for each in wave]
            done = [*done, *made]
            by_kind |= {each["kind"]: resource for each, resource in zip(wave, made, strict=True)}
        default_account.without_token(OPERATOR_NAMESPACE, self, by_kind["Namespace"])
        self.training_operator = by_kind["Deployment"]
        self.register_outputs({"kinds": list(kinds)})

    def _register(self, manifest: dict[str, Any], after: list[pulumi.Resource]) -> pulumi.Resource:
        metadata = manifest["metadata"]
        scope = f"{metadata['namespace']}/" if "namespace" in metadata else ""
        return pulumi.CustomResource(
            token(manifest),
            f"{OPERATOR}:{scope}{metadata['name']}",
            manifest,
            pulumi.ResourceOptions(parent=self, depends_on=after),
        )
