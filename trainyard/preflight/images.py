"""Check the release of the node image (AMI), and container images in the account's own registry.

Karpenter reads the parameters of `cluster.ami` and uses those that exist. Without the one for a pool's devices the
pool never gets a node (github.com/aws/karpenter-provider-aws v1.14.1, pkg/providers/amifamily/al2023.go;
https://docs.aws.amazon.com/eks/latest/userguide/retrieve-ami-id.html).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from components.documents.device_plugins import where
from components.documents.pool import GPU, NEURON
from infra.settings import Settings
from trainyard.k8s import names
from trainyard.preflight.aws import Aws, account_id
from trainyard.preflight.cluster import existing_cluster
from trainyard.preflight.findings import SKIPPED, Finding

# The image's variant by the resource of a pool's nodes. All types of `components.documents.instance_types` are x86_64.
VARIANTS: Final = {GPU: "nvidia", NEURON: "neuron"}
PARAMETER: Final = "/aws/service/eks/optimized-ami/{kubernetes}/amazon-linux-2023/x86_64/{variant}/{name}"
# https://docs.aws.amazon.com/AmazonECR/latest/userguide/Registries.html and, for dual-stack names,
# https://docs.aws.amazon.com/AmazonECR/latest/userguide/ecr-requests.html
ECR: Final = re.compile(
    r"(?P<account>[0-9]{12})\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\."
    r"(?:amazonaws\.com(?:\.cn)?|on\.(?:aws|amazonwebservices\.com\.cn))"
)
# The minimum length of a repository's name
# (https://docs.aws.amazon.com/AmazonECR/latest/APIReference/API_CreateRepository.html). The SDK refuses a shorter one.
MINIMUM_NAME: Final = 2
NO_IMAGE: Final = ("ImageNotFoundException", "RepositoryNotFoundException", "InvalidParameterException")


def check_ami(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that `cluster.ami` has an image for the Kubernetes version and the devices of each pool."""
    cluster = settings.cluster
    kubernetes: str | None = cluster.version
    if cluster.existing:
        kubernetes = (existing_cluster(settings, aws) or {}).get("version")
    if kubernetes is None:
        return []
    findings, release = [], cluster.ami.partition("@")[2]
    for variant in sorted({VARIANTS.get(pool.resource, "standard") for pool in settings.pools}):
        name = f"amazon-eks-node-al2023-x86_64-{variant}-{kubernetes}-{release}/image_id"
        if _parameter(aws, kubernetes, variant, name):
            continue
        newest = _parameter(aws, kubernetes, variant, "recommended/release_version")
        # A release version is 1.35.3-20260724.
        action = (
            f", such as al2023@v{newest.rpartition('-')[2]}, which EKS recommends" if newest else ", if any"
        )
        message = (
            f"'{cluster.ami}' has no {variant} image for Kubernetes {kubernetes} in {settings.region}. It must be a"
            f" release that has one{action}"
        )
        findings.append(Finding("trainyard:cluster.ami", message))
    return findings


def _parameter(aws: Aws, kubernetes: str, variant: str, name: str) -> str | None:
    path = PARAMETER.format(kubernetes=kubernetes, variant=variant, name=name)
    answer = aws.call("ssm", "get_parameter", missing=("ParameterNotFound",), Name=path)
    return None if answer is None else str(answer["Parameter"]["Value"])


def used_images(settings: Settings) -> Iterator[tuple[str, str, str]]:
    """Yield key, name and reference of each container image that the stack pulls or builds on."""
    images, devices = settings.images, where(settings.pools)
    used = {
        "launcher": images.launcher,
        "trainer": images.trainer,
        "placeholder": images.placeholder,
        "trainingOperator": images.training_operator if settings.training_operator else None,
        "kubeflowTrainer": images.kubeflow_trainer if settings.kubeflow_trainer else None,
        "jobset": images.jobset if settings.kubeflow_trainer else None,
        "devicePlugin": images.device_plugin if GPU in devices else None,
        "efaDevicePlugin": images.efa_device_plugin if names.EFA_RESOURCE in devices else None,
        "neuronDevicePlugin": images.neuron_device_plugin if NEURON in devices else None,
        "kubectlDelivery": images.kubectl_delivery if settings.mpi else None,
        "debug": images.debug if settings.debug_pod else None,
        "baseImages.launcher": images.base_images.launcher,
        "baseImages.trainer": images.base_images.trainer,
    }
    for name, reference in used.items():
        if reference is not None:
            setting = "mirror" if reference.startswith(f"{images.mirror}/") else name
            yield f"trainyard:images.{setting}", name, reference
    for index, queue in enumerate(settings.queues):
        if queue.image is not None:
            yield f"trainyard:queues[{index}].image", queue.name, queue.image


def split_reference(reference: str) -> tuple[str, str, str, dict[str, str]] | None:
    """Return account, region, repository and image id of an image in ECR; None for another registry."""
    host, _, path = reference.partition("/")
    registry = ECR.fullmatch(host)
    if registry is None:
        return None
    name, _, digest = path.partition("@")
    repository, _, tag = name.partition(":")
    identity = {"imageDigest": digest} if digest else {"imageTag": tag or "latest"}
    return registry["account"], registry["region"], repository, identity


def check_container_images(settings: Settings, aws: Aws) -> list[Finding]:
    """Check that images in this account's registry exist. One line names all others: AWS has no API for those."""
    findings, others, own = [], [], (account_id(aws), settings.region)
    for key, name, reference in used_images(settings):
        place = split_reference(reference)
        if place is None or place[:2] != own:
            others.append(f"{name} ({reference.partition('/')[0]})")
        elif len(place[2]) < MINIMUM_NAME or not aws.items(
            "ecr",
            "describe_images",
            "imageDetails",
            missing=NO_IMAGE,
            registryId=place[0],
            repositoryName=place[2],
            imageIds=[place[3]],
        ):
            message = (
                f"'{reference}' is not in this account's registry in {settings.region}. Push it first, or use another"
                " image"
            )
            findings.append(Finding(key, message))
    if others:
        message = f"images of other registries than this account's in {settings.region} can't be checked: "
        findings.append(Finding("trainyard:images", message + ", ".join(others), SKIPPED))
    return findings
