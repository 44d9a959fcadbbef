"""The place of a run's checkpoints."""

from __future__ import annotations

from typing import Final

# In the stack's bucket and on its file system. Each run has its own directory below it.
PREFIX: Final = "checkpoints"
S3, LUSTRE, NONE = "s3", "lustre", "none"
PLACES: Final = (S3, LUSTRE, NONE)


def uri(place: str, bucket: str, shared: str | None) -> str | None:
    """Return the trainer's checkpoint URI; None without checkpoints. `lustre` needs the `shared` directory."""
    if place == S3:
        return f"s3://{bucket}/{PREFIX}"
    return f"{shared}/{PREFIX}" if place == LUSTRE else None
