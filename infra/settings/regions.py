"""The AWS regions that the pinned botocore knows."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from botocore.loaders import create_loader

from infra.settings.formats import REGION

# `infra.foundation.partition_of` knows these partitions. The others have other services.
PARTITIONS: Final = ("aws", "aws-cn", "aws-us-gov")


@cache
def names() -> tuple[str, ...]:
    """Return the names of the regions, from the file partitions.json (botocore@1.44.5 botocore/data).

    A session of botocore would need the profile in the environment's variables.
    """
    partitions = create_loader().load_data("partitions")["partitions"]
    found = {name for each in partitions if each["id"] in PARTITIONS for name in each["regions"]}
    # Each partition also has an entry for global services.
    return tuple(sorted(name for name in found if re.fullmatch(REGION, name)))
