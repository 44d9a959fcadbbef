"""The names that there are, told where the one that was given is not among them."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

SHOWN: Final = 5


def nearest(name: str, there: Sequence[str]) -> str:
    """Those that are most like it first, and how many more there are; `none` of none."""
    named = list(dict.fromkeys([*get_close_matches(name, there, SHOWN), *there]))[:SHOWN]
    more = f" and {len(there) - len(named)} more" if len(there) > len(named) else ""
    return f"{', '.join(named) or 'none'}{more}"
