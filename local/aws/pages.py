"""Pages of a list, with tokens that only this module writes."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from local.aws.errors import ApiError

MAXIMUM = 100


def page(
    items: Sequence[Any],
    token: str | None,
    size: Any,
    *,
    key: str,
    maximum: int = MAXIMUM,
    codes: tuple[str, str],
) -> tuple[list[Any], str | None]:
    """Return a page of a list, and the token of the next page if there is one.

    Args:
        items: The whole list.
        token: The request's token; None for the first page.
        size: The requested number of items; None for the maximum.
        key: The list's name. A token of another list is not valid.
        maximum: The largest size.
        codes: The error codes of the service for a token and for a size that are not valid.

    Raises:
        ApiError: The token or the size is not valid.
    """
    start = 0 if token is None else _start(key, token)
    if start is None:
        raise ApiError(codes[0], f"Value ({token}) for parameter nextToken is invalid.")
    number = maximum if size is None else int(size)
    if not 1 <= number <= maximum:
        raise ApiError(
            codes[1], f"Value ({number}) for parameter maxResults is invalid. Valid: 1 to {maximum}."
        )
    end = start + number
    return list(items[start:end]), _token(key, end) if end < len(items) else None


def _token(key: str, start: int) -> str:
    return base64.b64encode(f"{key}/{start}".encode()).decode()


def _start(key: str, token: str) -> int | None:
    """Return the position in a token of this list; None for any other text."""
    try:
        number = int(base64.b64decode(token).decode().rpartition("/")[2])
    except ValueError:
        return None
    return number if number > 0 and token == _token(key, number) else None
