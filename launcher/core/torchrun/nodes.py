"""The one place where the nodes of an attempt are chosen. Pure."""

from __future__ import annotations

from launcher.core.torchrun.distribution import Size
from launcher.core.torchrun.observe import Children
from launcher.core.torchrun.resolve import Settings


def choose(asked: Size, settings: Settings, seen: Children) -> Size | None:
    """The size that an attempt begins with, or None to wait.

    A queue without a pool takes what is asked for, and its pods wait for whatever nodes there are; so does one with a
    pool, whose pods ask for machines of it by their node selector.
    """
    del settings, seen
    return asked
