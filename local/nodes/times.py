"""Times as the Kubernetes API writes them."""

from __future__ import annotations

from datetime import UTC, datetime


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
