"""The names of a resource's outputs in the official SDK, read from its source, as `local.plugins.sdk` does."""

from __future__ import annotations

import functools
import re

from local.plugins import sdk

_GETTER = re.compile(r'@pulumi\.getter(?:\(name="(\w+)"\))?\s+def (\w+)\(self\) -> pulumi\.Output')


@functools.cache
def output_names(token: str) -> tuple[str, ...]:
    """Return the output names (camelCase) of a resource such as `aws:ec2/vpc:Vpc`.

    Raises:
        sdk.UnknownTokenError: The SDK lacks the resource.
    """
    text = sdk.resource(token).path.read_text(encoding="utf-8")
    found = [wire or name for wire, name in _GETTER.findall(text)]
    return tuple(sorted(set(found)))
