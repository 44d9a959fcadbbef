"""Which AWS regions there are, as the pinned botocore knows them; part of `infra.settings`."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

from botocore.loaders import create_loader

from infra import formats

# Those for which `infra.foundation.partition_of` has the ARNs; the others are for few, and have other services.
PARTITIONS: Final = ("aws", "aws-cn", "aws-us-gov")


@cache
def known() -> tuple[str, ...]:
    """Names of the regions, from the file partitions.json (botocore@1.44.5 botocore/data).

    It is read by itself: a session of botocore would want the profile that the environment names.
    """
    found = create_loader().load_data("partitions")["partitions"]
    names = {name for each in found if each["id"] in PARTITIONS for name in each["regions"]}
    # Each partition has an entry for what is global, too.
    return tuple(sorted(name for name in names if re.fullmatch(formats.REGION, name)))
