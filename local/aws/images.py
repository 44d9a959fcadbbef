"""AMIs for EKS nodes: SSM's public parameters and their images, which are created at first use.

Names are those of https://docs.aws.amazon.com/eks/latest/userguide/retrieve-ami-id.html, for Amazon Linux 2023.
"""

from __future__ import annotations

import hashlib
import re
from datetime import date
from typing import Any

from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ssm.models import Parameter, ParameterDict

# Minor version of Kubernetes -> the first release that has images for it, newest first
# (github.com/awslabs/amazon-eks-ami at 81fec2e, CHANGELOG.md).
FIRST_RELEASE = {
    "1.36": "v20260610",
    "1.35": "v20260114",
    "1.34": "v20250915",
    "1.33": "v20250519",
    "1.32": "v20241225",
    "1.31": "v20241024",
}
# Days of the releases since 2025, newest first. They are the tags of that repository, without those that its
# CHANGELOG calls abandoned.
_DAYS = """
20260724 20260714 20260709 20260707 20260625 20260618 20260610 20260529 20260527 20260523 20260520
20260512 20260505 20260423 20260415 20260409 20260403 20260318 20260310 20260304 20260224 20260209
20260129 20260120 20260116 20260114 20260107 20251217 20251209 20251120 20251112 20251108 20251103
20251029 20251023 20251016 20251007 20251002 20250920 20250915 20250904 20250829 20250821 20250819
20250813 20250807 20250804 20250801 20250715 20250704 20250627 20250620 20250610 20250519 20250514
20250505 20250501 20250419 20250410 20250403 20250317 20250304 20250228 20250224 20250212 20250203
20250123 20250116 20250103
"""
RELEASES = tuple(f"v{day}" for day in _DAYS.split())
RECOMMENDED = RELEASES[0]
# The account that owns the images of EKS in the commercial regions.
EKS_IMAGES_OWNER = "602401143452"
VARIANTS = {"x86_64": ("standard", "nvidia", "neuron"), "arm64": ("standard", "nvidia")}

_PATH = re.compile(
    r"/aws/service/eks/optimized-ami/(?P<version>\d\.\d+)/amazon-linux-2023/(?P<arch>x86_64|arm64)/"
    r"(?P<variant>standard|nvidia|neuron)/(?P<release>[^/]+)/(?P<what>image_id|release_version)"
)


def image_name(version: str, architecture: str, variant: str, release: str = RECOMMENDED) -> str:
    """Return the name of an EKS image, such as amazon-eks-node-al2023-x86_64-nvidia-1.35-v20260724."""
    return f"amazon-eks-node-al2023-{architecture}-{variant}-{version}-{release}"


def release_version(version: str, release: str = RECOMMENDED) -> str:
    """Return a release's version of a node group, such as 1.35.0-20260724."""
    return f"{version}.0-{release.removeprefix('v')}"


def image(region: str, account: str, name: str) -> str:
    """Return the id of the image with this name in a region. Create the image if it does not exist."""
    image_id = "ami-" + hashlib.sha256(f"{region}/{name}".encode()).hexdigest()[:17]
    backend = ec2_backends[account][region]
    if image_id not in backend.amis:
        backend.amis[image_id] = Ami(
            backend,
            image_id,
            name=name,
            description=f"EKS Kubernetes worker node: {name}",
            owner_id=EKS_IMAGES_OWNER,
            owner_alias="amazon",
            public=True,
            virtualization_type="hvm",
            architecture="arm64" if "-arm64-" in name else "x86_64",
            hypervisor="xen",
            root_device_type="ebs",
            root_device_name="/dev/xvda",
            creation_date=utcnow(),
            region_name=region + "a",
        )
    return image_id


def is_published(version: str, release: str, today: date) -> bool:
    """Return whether a release (`v20260724`) has images for a Kubernetes version.

    A release between the newest in the list and today counts as published: the list gets old, and stack files do not
    wait for it.
    """
    first = FIRST_RELEASE.get(version)
    if first is None or release < first or not re.fullmatch(r"v\d{8}", release):
        return False
    return release in RELEASES or RELEASES[0] < release <= f"v{today:%Y%m%d}"


def parameter_value(region: str, account: str, path: str) -> str | None:
    """Return the value of a public parameter about EKS images; None if EKS has none of this name."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    version, architecture, variant = found["version"], found["arch"], found["variant"]
    if version not in FIRST_RELEASE or variant not in VARIANTS[architecture]:
        return None
    release = RECOMMENDED
    if found["release"] != "recommended":
        prefix = image_name(version, architecture, variant, "")
        release = found["release"].removeprefix(prefix)
        if not found["release"].startswith(prefix) or not is_published(version, release, utcnow().date()):
            return None
    if found["what"] == "release_version":
        return release_version(version, release)
    return image(region, account, image_name(version, architecture, variant, release))


def install() -> None:
    """Serve the parameters from moto's SSM. Clients can't put a name under /aws."""
    check = ParameterDict._check_loading_status

    def load(self: Any, key: str) -> None:
        check(self, key)
        path = str(key or "")
        if not path.startswith("/aws/service/eks/optimized-ami/") or dict.__contains__(self, path):
            return
        value = parameter_value(self.region_name, self.account_id, path)
        if value is None:
            return
        parameter = Parameter(
            account_id=self.account_id,
            name=path,
            value=value,
            parameter_type="String",
            description=None,
            allowed_pattern=None,
            keyid=None,
            last_modified_date=utcnow(),
            version=1,
            data_type="text",
        )
        dict.__setitem__(self, path, [parameter])

    ParameterDict._check_loading_status = load
