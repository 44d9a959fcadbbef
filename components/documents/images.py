"""Names of container images. Pure: no Pulumi."""

from __future__ import annotations

# What Docker puts in front of a name without a registry, and without an owner
# (https://docs.docker.com/reference/cli/docker/image/tag/).
DEFAULT_REGISTRY = "docker.io"
OFFICIAL = "library"


def full_name(image: str) -> str:
    """An image's name with its registry: `alpine:3` is `docker.io/library/alpine:3`."""
    host, slash, _ = image.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return image
    return f"{DEFAULT_REGISTRY}/{image}" if slash else f"{DEFAULT_REGISTRY}/{OFFICIAL}/{image}"


def mirrored(image: str, mirror: str | None) -> str:
    """Where an image is pulled from: with a mirror from there, under its whole name; tag and digest stay.

    So registry.k8s.io/pause:3.9 is <mirror>/registry.k8s.io/pause:3.9. Without a mirror it stays as it is.
    """
    return image if mirror is None else f"{mirror}/{full_name(image)}"
