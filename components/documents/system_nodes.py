"""What the system nodes are beside their type and number. Pure: no Pulumi."""

from __future__ import annotations

from typing import Final

# GiB of the one gp3 disk that each has.
VOLUME_GIB: Final = 50
# EKS replaces them by making new ones first, up to so many in each zone
# (https://docs.aws.amazon.com/eks/latest/userguide/managed-node-update-behavior.html, "Scale up phase").
SPARE_IN_A_ZONE: Final = 2
