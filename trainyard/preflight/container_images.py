"""Images in the account's own registry: whether they are there. Of other registries AWS tells nothing.

A reference that leads nowhere else shows when the first pod with it waits for its image (ErrImagePull).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from trainyard.preflight.account import Account
from trainyard.preflight.wanted import Problem, Unasked, Wanted, WantedImage

KEY: Final = "trainyard:images"
# https://docs.aws.amazon.com/AmazonECR/latest/userguide/Registries.html and, for dual-stack names,
# https://docs.aws.amazon.com/AmazonECR/latest/userguide/ecr-requests.html
REGISTRY: Final = re.compile(
    r"(?P<account>[0-9]{12})\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.(?:amazonaws\.com(?:\.cn)?|on\.(?:aws|amazonwebservices\.com\.cn))"
)
# The shortest name of a repository (https://docs.aws.amazon.com/AmazonECR/latest/APIReference/API_CreateRepository.html);
# the SDK takes no shorter one.
SHORTEST: Final = 2
NO_IMAGE: Final = ("ImageNotFoundException", "RepositoryNotFoundException", "InvalidParameterException")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where an image of ECR is: the registry's account and region, the repository, and its digest or tag."""

    account: str
    region: str
    repository: str
    identity: tuple[str, str]

    @property
    def image_id(self) -> dict[str, str]:
        """As ECR takes it."""
        kind, value = self.identity
        return {kind: value}


def place_of(reference: str) -> Place | None:
    """Where an image is, by its reference; None where that names no registry of ECR. The digest goes before the tag."""
    host, _, path = reference.partition("/")
    registry = REGISTRY.fullmatch(host)
    if registry is None:
        return None
    named, _, digest = path.partition("@")
    repository, _, tag = named.partition(":")
    return Place(
        account=registry["account"],
        region=registry["region"],
        repository=repository,
        identity=("imageDigest", digest) if digest else ("imageTag", tag or "latest"),
    )


def own_place(image: WantedImage, account: str, region: str) -> Place | None:
    """Where an image is, if that is the account's registry of the region."""
    place = place_of(image.reference)
    return place if place is not None and (place.account, place.region) == (account, region) else None


def read(account: Account, wanted: Wanted, own: str) -> dict[str, bool]:
    """Whether each image of the registry of the account `own` in the stack's region is there, by its reference."""
    found = {}
    for image in wanted.images:
        place = own_place(image, own, wanted.region)
        if place is not None and image.reference not in found:
            found[image.reference] = len(place.repository) >= SHORTEST and _is_there(account, place)
    return found


def _is_there(account: Account, place: Place) -> bool:
    answer = account.items(
        "ecr",
        "describe_images",
        "imageDetails",
        missing=NO_IMAGE,
        registryId=place.account,
        repositoryName=place.repository,
        imageIds=[place.image_id],
    )
    return bool(answer)


def check(wanted: Wanted, found: Mapping[str, bool]) -> list[Problem | Unasked]:
    """Those of the own registry must be there; one line names those of others, which were not asked."""
    told: list[Problem | Unasked] = [
        Problem(
            key=image.key,
            message=f"'{image.reference}' is not in this account's registry in {wanted.region}; it must be pushed"
            " there first, or be another one",
        )
        for image in wanted.images
        if found.get(image.reference) is False
    ]
    others = [image for image in wanted.images if image.reference not in found]
    if others:
        names = ", ".join(f"{image.name} ({image.reference.partition('/')[0]})" for image in others)
        message = (
            "whether these are there can't be asked, since their registries are not this account's in"
            f" {wanted.region}: {names}"
        )
        told.append(Unasked(key=KEY, message=message))
    return told
