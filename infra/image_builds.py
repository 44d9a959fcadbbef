"""How the stack's own images are built: arguments and target of their Dockerfiles, from the settings. Pure."""

from __future__ import annotations

from typing import Final

from components.documents.pool import GPU
from infra.settings import Images, Settings

# Arguments of both Dockerfiles, and those of the trainer's alone.
BASE_IMAGE, PACKAGE_INDEX = "PYTHON_IMAGE", "PIP_INDEX_URL"
DEBIAN_MIRROR, EFA_INSTALLER = "DEBIAN_MIRROR", "EFA_URL"
# Of the trainer's Dockerfile; the last one, with CUDA and EFA, is what a build without a target makes.
CPU_TARGET: Final = "cpu"


def arguments(images: Images, name: str) -> dict[str, str]:
    """The arguments that the settings give for an image; what they do not give is the Dockerfile's."""
    given = {BASE_IMAGE: images.base_images.get(name), PACKAGE_INDEX: images.package_index}
    if name == "trainer":
        given |= {DEBIAN_MIRROR: images.debian_mirror, EFA_INSTALLER: images.efa_installer}
    return {key: value for key, value in given.items() if value is not None}


def targets(settings: Settings) -> dict[str, str]:
    """A stack without GPUs needs none of EFA's software for NCCL."""
    return {} if any(pool.resource == GPU for pool in settings.pools) else {"trainer": CPU_TARGET}
