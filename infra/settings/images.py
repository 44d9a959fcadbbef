"""Sections `images` and `sources` of a stack file: container images, charts and manifests."""

from __future__ import annotations

import re
from pathlib import Path

from components.documents import versions
from components.documents.device_plugins import refused_release
from components.documents.images import mirrored
from components.documents.pool import GPU, NEURON
from infra import eks_registry
from infra.settings.fields import IN_PLACE, NEXT_RUN, Model, setting
from infra.settings.formats import (
    CHART,
    CHART_MUST_BE,
    IMAGE_MUST_BE,
    DebianMirror,
    EfaInstaller,
    Image,
    Line,
    Mirror,
    PackageIndex,
)
from infra.settings.problems import Section
from trainyard.k8s import names

DIGEST = "@sha256:" + "0" * 64


class BaseImages(Model):
    """The base images of the stack's own images."""

    launcher: Image | None = setting(None, NEXT_RUN, example=f"registry.example/python{DIGEST}")
    """The launcher's base image, with its digest."""
    trainer: Image | None = setting(None, NEXT_RUN, example=f"registry.example/python{DIGEST}")
    """The trainer's base image, with its digest."""


class Images(Model):
    """Container images of the stack and of third parties."""

    build: bool = setting(True, NEXT_RUN, example=True)
    """Build the launcher's and the trainer's image with Docker and push them to ECR."""
    launcher: Image | None = setting(None, NEXT_RUN, example=f"registry.example/launcher{DIGEST}")
    """A ready launcher image, with its digest."""
    trainer: Image | None = setting(None, NEXT_RUN, example=f"registry.example/trainer{DIGEST}")
    """A ready trainer image, with its digest. Training on V100 needs one of the target v100: docs/images.md."""
    mirror: Mirror | None = setting(
        None, IN_PLACE, example="123456789012.dkr.ecr.us-west-2.amazonaws.com/mirror"
    )
    """A registry and prefix with copies of third-party images, for networks without internet access."""
    placeholder: Image = setting(
        versions.PLACEHOLDER_IMAGE, NEXT_RUN, example=f"registry.example/pause{DIGEST}"
    )
    """The image of placeholder pods."""
    training_operator: Image | None = setting(
        None, IN_PLACE, example=f"registry.example/training-operator{DIGEST}"
    )
    """The training operator's image, instead of that in its manifests."""
    kubeflow_trainer: Image = setting(
        versions.KUBEFLOW_TRAINER_IMAGE,
        IN_PLACE,
        example=f"registry.example/trainer-controller-manager{DIGEST}",
    )
    """The image of Kubeflow Trainer, with `training.backend: trainjob`."""
    jobset: Image = setting(versions.JOBSET_IMAGE, IN_PLACE, example=f"registry.example/jobset{DIGEST}")
    """The image of JobSet, with `training.backend: trainjob`."""
    device_plugin: Image = setting(
        versions.DEVICE_PLUGIN_IMAGE, IN_PLACE, example=f"registry.example/k8s-device-plugin{DIGEST}"
    )
    """NVIDIA's device plugin."""
    efa_device_plugin: Image = setting(
        "",
        IN_PLACE,
        example=f"registry.example/aws-efa-k8s-device-plugin{DIGEST}",
        default_text="EKS's, in its registry of the region",
    )
    """The EFA device plugin."""
    neuron_device_plugin: Image = setting(
        versions.NEURON_PLUGIN_IMAGE, IN_PLACE, example=f"registry.example/neuron-device-plugin{DIGEST}"
    )
    """The Neuron device plugin."""
    kubectl_delivery: Image = setting(
        versions.KUBECTL_DELIVERY_IMAGE, IN_PLACE, example=f"registry.example/kubectl-delivery{DIGEST}"
    )
    """The image that provides kubectl to the launchers of MPIJobs."""
    debug: Image = setting(
        versions.DEBUG_IMAGE, "replaces the pod", example=f"registry.example/agnhost{DIGEST}"
    )
    """The image of the debug pod."""
    base_images: BaseImages = setting(BaseImages(), NEXT_RUN)
    """The base images of the two images, instead of those in their Dockerfiles."""
    package_index: PackageIndex | None = setting(None, NEXT_RUN, example="https://pypi.example/simple")
    """The package index for pip in both images, instead of PyPI. Packages are verified by their hashes. It must not
    contain credentials, because build arguments stay in the history of an image.
    """
    debian_mirror: DebianMirror | None = setting(None, NEXT_RUN, example="http://debian.example")
    """The mirror of Debian's packages for the trainer's image, instead of deb.debian.org. Packages are signed by
    Debian.
    """
    efa_installer: EfaInstaller | None = setting(None, NEXT_RUN, example="https://files.example/efa")
    """The source of AWS's EFA installer for the trainer's image, instead of efa-installer.amazonaws.com. Its
    signature is verified (docs/images.md).
    """


class Sources(Model):
    """The sources of charts and manifests."""

    karpenter_chart: Line = setting(
        versions.KARPENTER_CHART, IN_PLACE, example=f"oci://registry.example/charts/karpenter{DIGEST}"
    )
    """Karpenter's chart. With `@sha256:<digest>` after a registry's address, Helm refuses other content."""
    karpenter_crd_chart: Line = setting(
        versions.KARPENTER_CRD_CHART, IN_PLACE, example="oci://registry.example/charts/karpenter-crd"
    )
    """The chart of Karpenter's definitions. It must be published if the other chart is."""
    training_operator: Line = setting(
        versions.TRAINING_OPERATOR_MANIFESTS,
        IN_PLACE,
        example="https://git.example/training-operator//manifests/overlays/standalone?ref=v1.9.4",
    )
    """The training operator's kustomization, or a file with what `kubectl kustomize` prints for it."""
    kubeflow_trainer: Line = setting(
        versions.KUBEFLOW_TRAINER_MANIFESTS,
        IN_PLACE,
        example="https://git.example/trainer//manifests/base?ref=v2.3.0",
    )
    """The directory of Kubeflow Trainer's kustomizations `crds`, `manager`, `rbac` and `webhook`."""
    jobset: Line = setting(
        versions.JOBSET_MANIFESTS,
        IN_PLACE,
        example="https://git.example/jobset//config/default?ref=v0.12.0",
    )
    """JobSet's kustomization, or a file with what `kubectl kustomize` prints for it."""

    @property
    def karpenter_version(self) -> str | None:
        """The version of a published chart. A chart in a directory has the version in its Chart.yaml."""
        return versions.KARPENTER if self.karpenter_chart.startswith("oci://") else None


def check_images(section: Section[Images], region: str) -> Images:
    """Check the images, and replace the registry of third-party images by the mirror, if there is one.

    `launcher` and `trainer` stay None if the stack builds them.
    """
    values, mirror = section.values, section.values.mirror
    _check_builds(section)

    def third_party(key: str, image: str) -> str:
        return image if section.has(key) else mirrored(image, mirror)

    found = values.model_copy(
        update={
            "placeholder": third_party("placeholder", values.placeholder),
            "training_operator": values.training_operator
            or (mirrored(versions.TRAINING_OPERATOR_IMAGE, mirror) if mirror else None),
            "kubeflow_trainer": third_party("kubeflowTrainer", values.kubeflow_trainer),
            "jobset": third_party("jobset", values.jobset),
            "device_plugin": third_party("devicePlugin", values.device_plugin),
            "efa_device_plugin": values.efa_device_plugin or eks_registry.efa_plugin(region or "us-west-2"),
            "neuron_device_plugin": third_party("neuronDevicePlugin", values.neuron_device_plugin),
            "kubectl_delivery": third_party("kubectlDelivery", values.kubectl_delivery),
            "debug": third_party("debug", values.debug),
        }
    )
    for key, resource, image in (
        ("devicePlugin", GPU, found.device_plugin),
        ("efaDevicePlugin", names.EFA_RESOURCE, found.efa_device_plugin),
        ("neuronDevicePlugin", NEURON, found.neuron_device_plugin),
    ):
        # Releases with known harmful defects.
        if problem := refused_release(resource, image):
            section.reject(key, problem)
    return found


def _check_builds(section: Section[Images]) -> None:
    """Check the builds: without them both images must be set, and a set image excludes the settings of its build."""
    values = section.values
    given = {key: section.has(key) for key in ("launcher", "trainer")}
    for key in given:
        if not values.build and not given[key]:
            section.reject(key, f"is missing; build: false needs {IMAGE_MUST_BE}")
        if given[key]:
            section.part("baseImages", values.base_images).reject_given(
                (key,), f"is given, but images.{key} is, too, so that nothing is built; leave one out"
            )
    if given["trainer"]:
        section.reject_given(
            ("debianMirror", "efaInstaller"),
            "is given, but images.trainer is, too, so that nothing is built; leave it out",
        )
    if all(given.values()):
        section.reject_given(
            ("packageIndex",),
            "is given, but images.launcher and images.trainer are, too, so that nothing is built; leave it out",
        )


def check_sources(section: Section[Sources]) -> Sources:
    """Check the sources: published ones, or directories, which must exist."""
    values = section.values
    chart, crds = values.karpenter_chart, values.karpenter_crd_chart
    if chart.startswith("oci://") != crds.startswith("oci://"):
        section.reject(
            "karpenterCrdChart",
            f"'{crds}' does not go with karpenterChart '{chart}'; both must be published charts or both directories",
        )
    for key, source in (("karpenterChart", chart), ("karpenterCrdChart", crds)):
        if source.startswith("oci://") and not re.fullmatch(CHART, source):
            section.reject(key, f"'{source}' is invalid; it must be {CHART_MUST_BE}")
        _check_directory(section, key, source, "Chart.yaml")
    for key, source, file in (
        ("trainingOperator", values.training_operator, "kustomization.yaml"),
        ("kubeflowTrainer", values.kubeflow_trainer, "crds/kustomization.yaml"),
        ("jobset", values.jobset, "kustomization.yaml"),
    ):
        # The objects of Kubeflow Trainer come from several kustomizations.
        _check_directory(section, key, source, file, or_file=key != "kubeflowTrainer")
    return values


def _check_directory(
    section: Section[Sources], key: str, source: str, file: str, *, or_file: bool = False
) -> None:
    """Check that a source without a scheme is an existing directory on this computer, or a file."""
    if "://" in source or source.startswith(("github.com/", "git@")):
        return
    path = Path(source)
    try:
        exists = (path / file).is_file() or (or_file and path.is_file())
    except (OSError, ValueError):
        exists = False
    if not exists:
        also = ", a file with its objects" if or_file else ""
        section.reject(
            key, f"'{source}' is no directory with a {file} here; it must be one{also}, or an address"
        )
