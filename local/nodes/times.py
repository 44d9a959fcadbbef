"""Convert times from and to the formats of the Kubernetes API."""

from __future__ import annotations

from datetime import UTC, datetime


def timestamp(epoch: float) -> str:
    """Return seconds since 1970 as metav1.Time (whole seconds, UTC)."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_timestamp(epoch: float) -> str:
    """Return seconds since 1970 as metav1.MicroTime."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def nano_timestamp(epoch: float) -> str:
    """Return seconds since 1970 as RFC 3339 with fractions, as in container logs."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


def epoch(text: str) -> float:
    """Return a metav1.Time as seconds since 1970."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
