"""What names and images have to look like. Pure.

https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

LABEL_LENGTH = 63
NAME_LENGTH = 253
# Longer names of repositories are refused where images are pulled (github.com/distribution/reference v0.6.0).
IMAGE_NAME_LENGTH = 255

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_QUALIFIED = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
LABEL_VALUE = re.compile(_QUALIFIED)
_LABEL_KEY = re.compile(rf"((?P<prefix>[^/]+)/)?{_QUALIFIED}")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESOURCE = re.compile(r"([a-z0-9][a-z0-9.-]*/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
# A registry with or without a port, a repository, and a tag or a digest or both: without either a node runs whatever
# `latest` is on that day (github.com/distribution/reference v0.6.0, reference.go).
_PART = r"[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*"
_TAG, _DIGEST = r":[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", r"@sha256:[0-9a-f]{64}"
_PINNED_IMAGE = re.compile(
    rf"(?P<name>([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?{_PART}(/{_PART})*)({_TAG}|({_TAG})?{_DIGEST})"
)
_OPERATORS = ("Equal", "Exists")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def is_pinned_image(text: str) -> bool:
    """Whether this names an image with a tag or a digest, or both."""
    match = _PINNED_IMAGE.fullmatch(text)
    return match is not None and len(match["name"]) <= IMAGE_NAME_LENGTH


def is_label_key(text: str) -> bool:
    """Whether this may be the key of a label, of a taint, or the name of a resource."""
    match = _LABEL_KEY.fullmatch(text)
    prefix = match["prefix"] if match else None
    return match is not None and (
        prefix is None or (len(prefix) <= NAME_LENGTH and NAME.fullmatch(prefix) is not None)
    )


def is_selector(labels: Mapping[str, str]) -> bool:
    """Whether these may be labels that a pod asks of its node."""
    return all(
        is_label_key(key) and (not value or LABEL_VALUE.fullmatch(value)) for key, value in labels.items()
    )


def is_toleration(value: Any) -> bool:
    """Whether a pod may have this toleration, with texts alone.

    https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    parts = ("key", "operator", "value", "effect")
    if not isinstance(value, dict) or not all(
        key in parts and isinstance(item, str) for key, item in value.items()
    ):
        return False
    key, operator, held = value.get("key", ""), value.get("operator") or "Equal", value.get("value", "")
    return (
        operator in _OPERATORS
        and value.get("effect", "") in ("", *_EFFECTS)
        and (is_label_key(key) if key else operator == "Exists")
        and (not held or (operator == "Equal" and LABEL_VALUE.fullmatch(held) is not None))
    )
