"""The resources of stack files and of states, with the objects of charts, as the rules read them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from local.home import Home
from local.tools import ensure
from tests import previews
from tests.integration.policy.rendering import with_charts
from trainyard.policies.model import Stack
from trainyard.policies.snapshot import stack_of


@cache
def preview(stack: str) -> Stack:
    """Return what the first `up` of a stack file would create.

    Raises:
        ChartError: a chart can't be rendered.
        EngineError, StackFileError: as `previews.preview`.
    """
    return resources(previews.preview(stack), Home(previews.HOME))


def resources(document: Mapping[str, Any], home: Home) -> Stack:
    """Return what a preview would create, or what a state (`pulumi stack export`) has.

    Raises:
        ChartError: a chart can't be rendered.
        SnapshotError: the document is neither.
    """
    return _with_charts(stack_of(document), home)


def charted(stack: Stack) -> Stack:
    """Return a stack with the objects of its charts; charts that are not on this machine are downloaded.

    Raises:
        ChartError: a chart can't be rendered.
        ToolError: Helm can't be installed.
    """
    home = Home(previews.HOME)
    ensure(("helm",), home, quiet=True)
    return _with_charts(stack, home)


def _with_charts(stack: Stack, home: Home) -> Stack:
    return with_charts(stack, home.bin / "helm")
