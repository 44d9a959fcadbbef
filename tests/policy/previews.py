"""The resources that the shipped stack files will have, as the rules judge them."""

from __future__ import annotations

from functools import cache

from infra.policies.model import Stack
from infra.policies.reading import of_preview
from tests import previews


@cache
def preview(stack: str) -> Stack:
    """What a stack file's first `up` would make; raises what `previews.preview` does."""
    return of_preview(previews.preview(stack))
