"""Convert Kubernetes quantities to numbers, to compare a stack file with the resources of a node."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/;
# those that `formats.QUANTITY` accepts.
_FACTORS: Final[dict[str, Fraction]] = {
    "": Fraction(1),
    "m": Fraction(1, 1000),
    "k": Fraction(1000),
    "M": Fraction(1000**2),
    "G": Fraction(1000**3),
    "T": Fraction(1000**4),
    "Ki": Fraction(1024),
    "Mi": Fraction(1024**2),
    "Gi": Fraction(1024**3),
    "Ti": Fraction(1024**4),
}
GIB: Final = _FACTORS["Gi"]


def amount(text: str) -> Fraction:
    """Return the number of a quantity: cores or bytes.

    Raises:
        ValueError: The text is no quantity.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)", text)
    if found is None or found[2] not in _FACTORS:
        raise ValueError(f"{text!r} is no quantity")
    return Fraction(found[1]) * _FACTORS[found[2]]
