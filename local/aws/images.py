"""Machine images for EKS nodes: SSM's public parameters, and the images they name, made when first asked for.

Names as in https://docs.aws.amazon.com/eks/latest/userguide/retrieve-ami-id.html, for Amazon Linux 2023.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ssm.models import Parameter, ParameterDict

# Minor versions that EKS offers, newest first; the add-on and cluster version calls use the same list.
KUBERNETES_VERSIONS = ("1.35", "1.34", "1.33", "1.32", "1.31")
RECOMMENDED = "v20260515"
# Account that owns the images of EKS in the commercial regions.
EKS_IMAGES_OWNER = "602401143452"
VARIANTS = {"x86_64": ("standard", "nvidia", "neuron"), "arm64": ("standard", "nvidia")}

_PATH = re.compile(
    r"/aws/service/eks/optimized-ami/(?P<version>\d\.\d+)/amazon-linux-2023/(?P<arch>x86_64|arm64)/"
    r"(?P<variant>standard|nvidia|neuron)/(?P<release>[^/]+)/(?P<what>image_id|image_name|release_version)"
)


def image_name(version: str, architecture: str, variant: str, release: str = RECOMMENDED) -> str:
    """Name of an EKS image, such as amazon-eks-node-al2023-x86_64-nvidia-1.35-v20260515."""
    return f"amazon-eks-node-al2023-{architecture}-{variant}-{version}-{release}"


def image(region: str, account: str, name: str) -> str:
    """Id of the image with this name in a region; makes the image where it is not there yet."""
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


def parameter_value(region: str, account: str, path: str) -> str | None:
    """Value of a public parameter about EKS images, or None where EKS has none of this name."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    version, architecture, variant = found["version"], found["arch"], found["variant"]
    if version not in KUBERNETES_VERSIONS or variant not in VARIANTS[architecture]:
        return None
    release = RECOMMENDED
    if found["release"] != "recommended":
        prefix = image_name(version, architecture, variant, "")
        release = found["release"].removeprefix(prefix)
        if not found["release"].startswith(prefix) or not re.fullmatch(r"v\d{8}", release):
            return None
    name = image_name(version, architecture, variant, release)
    if found["what"] == "image_id":
        return image(region, account, name)
    return name if found["what"] == "image_name" else f"{version}.0-{release.removeprefix('v')}"


def install() -> None:
    """Serve the parameters from moto's SSM: a name under /aws cannot be put from outside."""
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
