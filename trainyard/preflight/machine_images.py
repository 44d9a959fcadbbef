"""The machines' image: whether the pinned release has one for the cluster's Kubernetes version and the pools' devices.

Karpenter reads the parameters below by `cluster.ami` and takes those that there are; where the one for a pool's devices
is missing, that pool never gets a machine (github.com/aws/karpenter-provider-aws v1.14.1,
pkg/providers/amifamily/al2023.go; https://docs.aws.amazon.com/eks/latest/userguide/retrieve-ami-id.html).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from components.documents.pool import GPU, NEURON
from trainyard.preflight.account import Account
from trainyard.preflight.wanted import Problem, Wanted

KEY: Final = "trainyard:cluster.ami"
# Resource that a pool's machines offer -> variant of the image. All types of `infra.accelerators` are x86_64.
VARIANTS: Final = {GPU: "nvidia", NEURON: "neuron"}
STANDARD: Final = "standard"
ARCHITECTURE: Final = "x86_64"
NO_PARAMETER: Final = ("ParameterNotFound",)


@dataclass(frozen=True, kw_only=True)
class Image:
    """One variant of the image: whether the release has it, and which release EKS recommends (None: it has none)."""

    there: bool
    recommended: str | None = None


def variants(wanted: Wanted) -> list[str]:
    """The variants of the image that the pools' machines start with."""
    return sorted({VARIANTS.get(pool.resource, STANDARD) for pool in wanted.pools})


def path(kubernetes: str, variant: str, release: str, what: str = "image_id") -> str:
    """The name of the public parameter for a release (`v20260724`), or for the one that is `recommended`."""
    name = release
    if release != "recommended":
        name = f"amazon-eks-node-al2023-{ARCHITECTURE}-{variant}-{kubernetes}-{release}"
    return f"/aws/service/eks/optimized-ami/{kubernetes}/amazon-linux-2023/{ARCHITECTURE}/{variant}/{name}/{what}"


def read(account: Account, wanted: Wanted, kubernetes: str) -> dict[str, Image]:
    """What there is of each variant for a Kubernetes version."""
    release = wanted.ami.partition("@")[2]
    found = {}
    for variant in variants(wanted):
        there = _value(account, path(kubernetes, variant, release)) is not None
        newest = (
            None if there else _value(account, path(kubernetes, variant, "recommended", "release_version"))
        )
        # A release version is 1.35.3-20260724.
        alias = f"al2023@v{newest.rpartition('-')[2]}" if newest else None
        found[variant] = Image(there=there, recommended=alias)
    return found


def _value(account: Account, name: str) -> str | None:
    answer = account.call("ssm", "get_parameter", missing=NO_PARAMETER, Name=name)
    return None if answer is None else str(answer["Parameter"]["Value"])


def check(wanted: Wanted, kubernetes: str, found: Mapping[str, Image]) -> list[Problem]:
    """Each variant that a pool needs must be in the release."""
    problems = []
    for variant, image in found.items():
        if not image.there:
            right = (
                f"such as {image.recommended}, which EKS recommends"
                if image.recommended
                else "if there is one"
            )
            message = (
                f"'{wanted.ami}' has no {variant} image for Kubernetes {kubernetes} in {wanted.region}; it must be a"
                f" release that has one, {right}"
            )
            problems.append(Problem(key=KEY, message=message))
    return problems
