"""Forms of the names and references in a request, as Kubernetes and registries have them."""

from __future__ import annotations

import re
from typing import Final

# The longest label, the longest name of an object and the longest name of an image without its tag.
LABEL_LENGTH: Final = 63
NAME_LENGTH: Final = 253
REPOSITORY_LENGTH: Final = 255

LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
ENV_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Keys of labels, and resources: a name of a domain and a slash may be before (validation.IsQualifiedName of
# k8s.io/apimachinery).
QUALIFIED: Final = re.compile(r"([a-z0-9][a-z0-9.-]*/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
# Types and zones of EC2 become values of labels.
CLOUD_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")

# A registry with or without a port, a repository, and a tag or a digest or both: without either a node runs whatever
# `latest` is on that day (github.com/distribution/reference v0.6.0, reference.go).
_PART = r"[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*"
_TAG, _DIGEST = r":[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", r"@sha256:[0-9a-f]{64}"
PINNED_IMAGE: Final = re.compile(
    rf"(?P<repository>([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?{_PART}(/{_PART})*)({_TAG}|({_TAG})?{_DIGEST})"
)

_OPERATORS: Final = ("Exists", "Equal")
_EFFECTS: Final = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")


def is_too_long(image: str) -> bool:
    """Whether this image's name, without tag and digest, is longer than a registry takes it."""
    parts = PINNED_IMAGE.fullmatch(image)
    return parts is not None and len(parts["repository"]) > REPOSITORY_LENGTH


def is_toleration(value: object) -> bool:
    """Whether a pod may have this toleration."""
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        return False
    return (
        value.keys() <= {"key", "operator", "value", "effect"}
        and value.get("operator", "Equal") in _OPERATORS
        and value.get("effect", "") in _EFFECTS
    )


def is_label(key: str, value: str) -> bool:
    """Whether a node may have this label."""
    _, _, name = key.rpartition("/")
    return bool(QUALIFIED.fullmatch(key) and len(name) <= LABEL_LENGTH and LABEL_VALUE.fullmatch(value))
