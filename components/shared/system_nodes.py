"""What the system nodes are beside their type and number. Pure: no Pulumi."""

from __future__ import annotations

from typing import Final

# GiB of the one gp3 disk that each has.
VOLUME_GIB: Final = 50
# EKS replaces them by making new ones first; their group may have so many more.
SPARE: Final = 1
