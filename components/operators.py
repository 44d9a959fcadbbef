"""The operators of training jobs, from their kustomizations.

`Operators` is the training operator for PyTorchJobs, MPIJobs or both. `KubeflowTrainer` is Kubeflow Trainer
with JobSet for TrainJobs.

`kubectl kustomize` renders a kustomization while the program runs. It takes seconds: `start_rendering` starts it early,
while other resources are registered. A file with what it printed is read at once. `kustomize.v2.Directory` of
pulumi-kubernetes needs the cluster, so that the first preview would not show the objects.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import pulumi
import yaml

from trainyard.k8s.names import OPERATOR_NAMESPACE, TRAINER_NAMESPACE

from . import identity
from .documents import operator_manifests as published
from .documents.operator_manifests import MPI, OPERATOR, PYTORCH, token

# With the parser in Python, the operator's manifests took half of the time of a preview.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# kustomize reads an address by git, which has no time limit of its own.
_RENDER_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class OperatorsArgs:
    """The training operator's manifests and images."""

    manifests: str
    """The training operator's kustomization: a directory, an address, or a file with its objects."""
    image: str | None
    """An image that replaces the one in the manifests."""
    lookup_image: pulumi.Input[str]
    """An image with python3, in which workers wait until the master has a DNS name."""
    after: list[pulumi.Resource]
    kubectl_image: str | None = None
    """An image with kubectl, which enables MPIJobs."""
    pytorch_jobs: bool = True
    """Whether it serves PyTorchJobs."""


class Operators(pulumi.ComponentResource):
    """The Kubeflow training operator.

    Creates the training operator with its custom resource definitions, RBAC and webhook, in the namespace
    `kubeflow`.

    It serves PyTorchJobs unless `pytorch_jobs` is false and, with `kubectl_image`, MPIJobs. It has only the
    permissions that these need.
    """

    def __init__(self, name: str, args: OperatorsArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:operators:Operators", name, None, opts)
        served = {PYTORCH: args.pytorch_jobs, MPI: args.kubectl_image is not None}
        kinds = tuple(kind for kind, is_served in served.items() if is_served)
        if not kinds:
            # Without --enable-scheme the operator serves all of its kinds, also those without a definition.
            raise pulumi.RunError(
                f"{name}: kubectl_image must be set if pytorch_jobs is false. Set one of them"
            )
        arguments: list[Any] = [
            *published.scheme_arguments(kinds),
            f"{published.TEMPLATE_ARGUMENT}{published.LOOKUP_DIRECTORY}/{published.TEMPLATE_FILE}",
            pulumi.Output.concat(published.IMAGE_ARGUMENT, args.lookup_image),
        ]
        if args.kubectl_image is not None:
            arguments.append(f"--mpi-kubectl-delivery-image={args.kubectl_image}")
        manifests = render(args.manifests, published.definitions(kinds))
        with _refusal_of(args.manifests):
            changed = published.training_operator(manifests, args.image, arguments=arguments, kinds=kinds)
        namespace, *_ = register_waves(self, OPERATOR, changed, args.after)
        identity.disable_default_token(OPERATOR_NAMESPACE, self, namespace)
        self.register_outputs({"kinds": list(kinds)})


@dataclass(frozen=True, kw_only=True)
class KubeflowTrainerArgs:
    """The manifests and images of Kubeflow Trainer and JobSet."""

    manifests: str
    """The directory of Trainer's kustomizations (`manifests/base` of its repository): a directory or an address."""
    image: str
    """The image of Trainer's manager, instead of the one in its manifests."""
    jobset_manifests: str
    """JobSet's kustomization: a directory, an address, or a file with its objects."""
    jobset_image: str
    """The image of JobSet's manager, instead of the one in its manifests."""
    after: list[pulumi.Resource]


class KubeflowTrainer(pulumi.ComponentResource):
    """Kubeflow Trainer and JobSet.

    Creates both managers with their custom resource definitions, RBAC and webhooks, in the namespace
    `kubeflow-system`.

    They serve TrainJobs. A TrainJob creates a JobSet, and the JobSet creates a Job with a pod per node.
    """

    def __init__(
        self, name: str, args: KubeflowTrainerArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("trainyard:operators:KubeflowTrainer", name, None, opts)
        sources = [args.jobset_manifests, *published.parts(args.manifests)]
        manifests = [each for source in sources for each in render(source, published.DEFINITIONS)]
        images = {published.TRAINER: args.image, published.JOBSET: args.jobset_image}
        with _refusal_of(args.manifests, args.jobset_manifests):
            changed = published.kubeflow_trainer(manifests, images)
        namespace, *_ = register_waves(self, "kubeflow-trainer", changed, args.after)
        identity.disable_default_token(TRAINER_NAMESPACE, self, namespace)
        self.register_outputs({"kinds": list(published.DEFINITIONS)})


@contextmanager
def _refusal_of(*sources: str) -> Iterator[None]:
    """Raise a pulumi.RunError, which the engine prints as one line, for manifests that are not the expected ones."""
    try:
        yield
    except ValueError as error:
        raise pulumi.RunError(
            f"{' and '.join(sources)}: {error}. Use the manifests of the pinned versions"
        ) from error


def register_waves(
    parent: pulumi.Resource,
    prefix: str,
    waves: Iterable[list[dict[str, Any]]],
    after: list[pulumi.Resource],
) -> list[pulumi.Resource]:
    """Register the objects of the waves, each wave after all earlier ones. Return them in this order."""
    registered: list[pulumi.Resource] = []
    for wave in waves:
        options = pulumi.ResourceOptions(parent=parent, depends_on=[*after, *registered])
        for manifest in wave:
            metadata = manifest["metadata"]
            scope = f"{metadata['namespace']}/" if "namespace" in metadata else ""
            name = f"{prefix}:{scope}{metadata['name']}"
            registered.append(pulumi.CustomResource(token(manifest), name, manifest, options))
    return registered


class _Rendering(NamedTuple):
    """A process of `kubectl kustomize`. It writes to files, because it would wait for the reader of a pipe."""

    process: subprocess.Popen[str]
    output: IO[str]
    errors: IO[str]


@cache
def start_rendering(source: str) -> _Rendering | None:
    """Start `kubectl kustomize` of a directory or an address. `render` waits for the result. A file needs none.

    Raises:
        pulumi.RunError: kubectl is missing.
    """
    if Path(source).is_file():
        return None
    if shutil.which("kubectl") is None:
        raise pulumi.RunError(f"kubectl: is not on PATH; it renders the manifests of {source}")
    output, errors = (tempfile.TemporaryFile("w+") for _ in range(2))  # noqa: SIM115 (`render` reads them)
    process = subprocess.Popen(["kubectl", "kustomize", source], stdout=output, stderr=errors, text=True)
    return _Rendering(process, output, errors)


@cache
def render(source: str, definitions: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the objects of a kustomization, without the CustomResourceDefinitions that are not in `definitions`.

    The training operator has six definitions of 600 kB each: the C parser reads them in a second.

    Args:
        source: A directory or an address (https://github.com/kubernetes-sigs/kustomize, remote targets), or a file
            with the output of `kubectl kustomize`.
        definitions: Names such as `pytorchjobs.kubeflow.org`.

    Raises:
        pulumi.RunError: kubectl is missing, or the kustomization can't be read.
    """
    documents = "\n---\n".join(_without_definitions(_rendered(source), definitions))
    return [each for each in yaml.load_all(documents, Loader=_Loader) if each]


def _rendered(source: str) -> str:
    """Return the objects of a kustomization as YAML. Raises as `render` does."""
    rendering = start_rendering(source)
    if rendering is None:
        return Path(source).read_text()
    try:
        code = rendering.process.wait(_RENDER_SECONDS)
    except subprocess.TimeoutExpired:
        rendering.process.kill()
        raise pulumi.RunError(
            f"{source}: can't render the manifests: kubectl kustomize takes more than {_RENDER_SECONDS:.0f} s"
        ) from None
    for each in (rendering.output, rendering.errors):
        each.seek(0)
    if code != 0:
        reason = " ".join(rendering.errors.read().split())
        raise pulumi.RunError(f"{source}: can't render the manifests: {reason}")
    return rendering.output.read()


def _without_definitions(manifests: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the YAML documents, as kustomize writes them, but for definitions of other names."""
    for document in manifests.split("\n---\n"):
        if re.search(r"^kind: CustomResourceDefinition$", document, re.MULTILINE):
            name = re.search(r"^metadata:\n(?:  .*\n)*?  name: (\S+)$", document, re.MULTILINE)
            if name and name[1] not in names:
                continue
        yield document
