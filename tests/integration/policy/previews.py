"""The resources that stack files will have, or have, as the rules judge them; objects of charts are among them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from local.home import Home
from local.tools import ensure
from tests import previews
from tests.integration.policy.rendering import with_charts
from trainyard.policies.model import Stack
from trainyard.policies.reading import of_preview, of_state


@cache
def preview(stack: str) -> Stack:
    """What a stack file's first `up` would make.

    Raises:
        ChartError: a chart can't be rendered.
        EngineError, StackFileError: as `previews.preview`.
    """
    return _with_charts(of_preview(previews.preview(stack)), Home(previews.HOME))


def foreseen(preview_document: Mapping[str, Any], home: Home) -> Stack:
    """What a preview, as the engine writes it down, would make.

    Raises:
        ChartError: a chart can't be rendered.
        ReadingError: this is no preview.
    """
    return _with_charts(of_preview(preview_document), home)


def made(state: Mapping[str, Any], home: Home) -> Stack:
    """What a stack has, from its state (`pulumi stack export`).

    Raises:
        ChartError: a chart can't be rendered.
        ReadingError: this is no state.
    """
    return _with_charts(of_state(state), home)


def charted(stack: Stack) -> Stack:
    """A stack with the objects of its charts, which are fetched where they are not on this machine.

    Raises:
        ChartError: a chart can't be rendered.
        ToolError: there is no Helm.
    """
    home = Home(previews.HOME)
    ensure(("helm",), home, quiet=True)
    return _with_charts(stack, home)


def _with_charts(stack: Stack, home: Home) -> Stack:
    return with_charts(stack, home.bin / "helm")
