"""Pages of a list. A token is the position of the next page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

MAXIMUM = 100


def page(
    items: Sequence[Any], token: str | None, size: int | None, maximum: int = MAXIMUM
) -> tuple[list[Any], str | None]:
    """Return a page of a list, and the token of the next page if there is one.

    Args:
        items: The whole list.
        token: The request's token; None for the first page.
        size: The requested number of items; None for the maximum.
        maximum: The largest size.
    """
    start = int(token or 0)
    end = start + min(int(size or maximum), maximum)
    return list(items[start:end]), str(end) if end < len(items) else None
