"""Parse Kubernetes quantities as exact numbers. Entry point: `parse`.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

# Whole numbers stay int: most are, and int arithmetic is ten times faster.
Amount = int | Fraction

_KEPT: Final = 4096
_SHOWN: Final = 80

_SUFFIXES: Final = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}
# Kubernetes stores amounts in 64 bits. Python accepts any number of digits but prints at most 4,300.
_PATTERN: Final = re.compile(
    r"(?P<number>\d{1,30}(\.\d{0,30})?|\.\d{1,30})(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,2})?",
    re.ASCII,
)


@lru_cache(_KEPT)  # a cluster repeats the same few quantities
def parse(text: str | int | float) -> Amount:
    """Return the value of a quantity such as `1500m`, `2Gi`, `1e3` or `4`, in units of its resource.

    Raises ValueError with the text for anything else, negative quantities included.
    """
    match = _PATTERN.fullmatch(str(text))
    if match is None:
        shown = repr(text)
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]}..."
        raise ValueError(f"{shown} is no quantity; it must be for instance 4, 1500m or 2Gi")
    number, suffix = Fraction(match["number"]), match["suffix"] or ""
    factor = _SUFFIXES[suffix] if suffix in _SUFFIXES else Fraction(10) ** int(suffix[1:])
    value = number * factor
    return value.numerator if value.denominator == 1 else value


@lru_cache(_KEPT)
def in_words(size: int) -> str:
    """Return a number of bytes as a quantity with the suffix that makes it shortest."""
    whole = ((factor, suffix) for suffix, factor in _SUFFIXES.items() if factor >= 1 and size % factor == 0)
    return min((f"{size // factor}{suffix}" for factor, suffix in whole), key=len)
