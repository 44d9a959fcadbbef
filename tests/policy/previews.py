"""The resources that the shipped stack files will have, as the rules judge them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from infra.policies.model import Stack
from infra.policies.reading import of_preview
from local.home import Home
from tests import previews


@cache
def preview(stack: str) -> Stack:
    """What a stack file's first `up` would make; raises what `previews.preview` does."""
    return of_preview(previews.preview(stack))


def preview_of(stack: str, document: Mapping[str, Any], home: Home) -> Stack:
    """The same of a stack file's content; raises what `previews.preview_of` does."""
    return of_preview(previews.preview_of(stack, document, home))
