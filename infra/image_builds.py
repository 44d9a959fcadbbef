"""The build arguments and targets of the stack's own images, from the settings."""

from __future__ import annotations

from typing import Final

from components.documents.pool import GPU
from infra.settings import Images, Settings

# Arguments of both Dockerfiles, and those of the trainer's Dockerfile only.
BASE_IMAGE, PACKAGE_INDEX = "PYTHON_IMAGE", "PIP_INDEX_URL"
DEBIAN_MIRROR, EFA_INSTALLER = "DEBIAN_MIRROR", "EFA_URL"
# A target of the trainer's Dockerfile. A build without a target uses the last one, with CUDA and EFA.
CPU_TARGET: Final = "cpu"


def arguments(images: Images, name: str) -> dict[str, str]:
    """Return the build arguments of an image that the settings set. The Dockerfile has the defaults of the others."""
    arguments = {BASE_IMAGE: getattr(images.base_images, name), PACKAGE_INDEX: images.package_index}
    if name == "trainer":
        arguments |= {DEBIAN_MIRROR: images.debian_mirror, EFA_INSTALLER: images.efa_installer}
    return {key: value for key, value in arguments.items() if value is not None}


def targets(settings: Settings) -> dict[str, str]:
    """Return the build target of each image. A stack without GPUs does not need EFA's software for NCCL."""
    return {} if any(pool.resource == GPU for pool in settings.pools) else {"trainer": CPU_TARGET}
