"""Kubernetes quantities ("500m", "2Gi") and times."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal

SUFFIXES = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50),
}  # fmt: skip


def parse(text: str | int | float) -> Decimal:
    """The number a quantity stands for. Raises ValueError for what is none."""
    value = str(text).strip()
    number = value.rstrip("numkKMGTPi")
    factor = SUFFIXES.get(value[len(number) :])
    if factor is None or not number:
        raise ValueError(
            f"{text!r} is not a quantity: a number with an optional suffix such as m, Ki, Mi, Gi"
        )
    return Decimal(number) * factor


def divided(quantity: str, divisor: str) -> str:
    """A quantity in units of `divisor`, rounded up, as resourceFieldRef gives it. A divisor of 0 means 1."""
    unit = parse(divisor or "1") or Decimal(1)
    return str(math.ceil(parse(quantity) / unit))


def timestamp(epoch: float) -> str:
    """Seconds since 1970 as metav1.Time (whole seconds, UTC)."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(epoch: float) -> str:
    """Seconds since 1970 as metav1.MicroTime."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def nano_timestamp(epoch: float) -> str:
    """Seconds since 1970 as RFC 3339 with fractions, as container logs show it."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def epoch(text: str) -> float:
    """Seconds since 1970 of a metav1.Time."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
