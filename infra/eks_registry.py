"""The registry of EKS in each region, with the images of add-ons and device plugins.

https://docs.aws.amazon.com/eks/latest/userguide/add-ons-images.html, read 2026-11-21.
"""

from __future__ import annotations

from typing import Final

from components.documents import versions

ACCOUNT: Final = "602401143452"
# Newer regions and other partitions have separate accounts.
OWN_ACCOUNTS: Final = {
    "af-south-1": "877085696533",
    "ap-east-1": "800184023465",
    "ap-south-2": "900889452093",
    "ap-southeast-3": "296578399912",
    "ap-southeast-4": "491585149902",
    "ap-southeast-5": "151610086707",
    "ap-southeast-6": "333609536671",
    "ap-southeast-7": "121268973566",
    "ca-west-1": "761377655185",
    "cn-north-1": "918309763551",
    "cn-northwest-1": "961992271922",
    "eu-central-2": "900612956339",
    "eu-south-1": "590381155156",
    "eu-south-2": "455263428931",
    "il-central-1": "066635153087",
    "me-central-1": "759879836304",
    "me-south-1": "558608220178",
    "mx-central-1": "730335286997",
    "us-gov-east-1": "151742754352",
    "us-gov-west-1": "013241004608",
}


def efa_plugin(region: str) -> str:
    """Return the image of the EFA device plugin. A network without internet access can also pull from its registry."""
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    registry = f"{OWN_ACCOUNTS.get(region, ACCOUNT)}.dkr.ecr.{region}.{domain}"
    return f"{registry}/eks/aws-efa-k8s-device-plugin:{versions.EFA_PLUGIN_TAG}"
