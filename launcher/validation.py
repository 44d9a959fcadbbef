"""Read typed values from a JSON object and collect all errors. Pure.

It also checks the form of names (https://kubernetes.io/docs/concepts/overview/working-with-objects/names/) and of
images, and the shared volumes of a worker.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeGuard

from trainyard.k8s import quantity

LABEL_LENGTH = 63
NAME_LENGTH = 253
# Container runtimes refuse longer names (github.com/distribution/reference v0.6.0).
IMAGE_NAME_LENGTH = 255

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_QUALIFIED = r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
LABEL_VALUE = re.compile(_QUALIFIED)
_LABEL_KEY = re.compile(rf"((?P<prefix>[^/]+)/)?{_QUALIFIED}")
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RESOURCE = re.compile(r"([a-z0-9][a-z0-9.-]*/)?[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
# A registry with or without a port, a repository, and a tag, a digest or both. Without them, a node would run `latest`
# (github.com/distribution/reference v0.6.0, reference.go).
_PART = r"[a-z0-9]+(([._]|__|-+)[a-z0-9]+)*"
_TAG, _DIGEST = r":[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", r"@sha256:[0-9a-f]{64}"
_PINNED_IMAGE = re.compile(
    rf"(?P<name>([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?{_PART}(/{_PART})*)({_TAG}|({_TAG})?{_DIGEST})"
)
_OPERATORS = ("Equal", "Exists")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def is_pinned_image(text: str) -> bool:
    """Return whether this is an image name with a tag, a digest or both."""
    match = _PINNED_IMAGE.fullmatch(text)
    return match is not None and len(match["name"]) <= IMAGE_NAME_LENGTH


def is_label_key(text: str) -> bool:
    """Return whether this can be the key of a label or a taint, or the name of a resource."""
    match = _LABEL_KEY.fullmatch(text)
    prefix = match["prefix"] if match else None
    return match is not None and (
        prefix is None or (len(prefix) <= NAME_LENGTH and NAME.fullmatch(prefix) is not None)
    )


def is_selector(labels: Mapping[str, str]) -> bool:
    """Return whether this can be a nodeSelector."""
    return all(
        is_label_key(key) and (not value or LABEL_VALUE.fullmatch(value)) for key, value in labels.items()
    )


def is_toleration(value: Any) -> bool:
    """Return whether this is a toleration of a pod, without tolerationSeconds.

    https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    parts = ("key", "operator", "value", "effect")
    if not isinstance(value, dict) or not all(
        key in parts and isinstance(item, str) for key, item in value.items()
    ):
        return False
    key, operator, text = value.get("key", ""), value.get("operator") or "Equal", value.get("value", "")
    return (
        operator in _OPERATORS
        and value.get("effect", "") in ("", *_EFFECTS)
        and (is_label_key(key) if key else operator == "Exists")
        and (not text or (operator == "Equal" and LABEL_VALUE.fullmatch(text) is not None))
    )


# The limit of all numbers.
MOST = 1_000_000_000
_WHOLE = " of whole characters, none of them NUL"


class Reader:
    """Read typed values from a JSON object, and add one line per error to `problems`."""

    def __init__(self, values: Any, place: str, problems: list[str]) -> None:
        self.place, self.problems = place, problems
        self.values: dict[str, Any] = values if isinstance(values, dict) else {}
        self.taken: set[str] = set()
        if not isinstance(values, dict):
            problems.append(f"{place} is {kind(values)}; it must be an object")

    def wrong(self, key: str, right: str) -> None:
        value = json.dumps(self.values[key]) if key in self.values else "missing"
        self.problems.append(f"{self.place}.{key} is {value}; it must be {right}")

    def raw(self, key: str) -> Any:
        self.taken.add(key)
        return self.values.get(key)

    def items(self, key: str) -> list[Reader]:
        """Return one reader for each object of a list."""
        value = self.raw(key)
        if not isinstance(value, list):
            self.wrong(key, "a list of objects, which may be empty")
            return []
        return [
            Reader(item, f"{self.place}.{key}[{index}]", self.problems) for index, item in enumerate(value)
        ]

    def text(
        self, key: str, right: str = "a text", pattern: re.Pattern[str] | None = None, maximum: int = 0
    ) -> str:
        """Return a string of this form, with at most `maximum` characters if it is set."""
        value = self.raw(key)
        if not _is_text(value) or not value or (pattern is not None and not pattern.fullmatch(value)):
            self.wrong(key, right)
            return ""
        if maximum and len(value) > maximum:
            self.wrong(key, f"{right} of at most {maximum} characters")
            return ""
        return value

    def name(self, key: str) -> str:
        """Return the name of a Kubernetes object."""
        return self.text(key, "a DNS name", NAME, NAME_LENGTH)

    def image(self, key: str) -> str:
        """Return the name of an image with a tag or a digest."""
        value = self.raw(key)
        if isinstance(value, str) and is_pinned_image(value):
            return value
        self.wrong(key, "an image with a tag or digest")
        return ""

    def number(self, key: str, minimum: int, optional: bool = False) -> int:
        value = self.raw(key)
        if value is None and optional:
            return minimum
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            self.wrong(key, f"a whole number of at least {minimum}")
            return minimum
        if value > MOST:
            self.wrong(key, f"a whole number of at most {MOST}")
            return minimum
        return value

    def amount(self, key: str) -> str:
        value = self.raw(key)
        try:
            if isinstance(value, (str, int)) and not isinstance(value, bool) and quantity.parse(value) > 0:
                return str(value)
        except ValueError:
            pass  # reported below, with the place
        self.wrong(key, "a quantity above 0, for instance 4, 1500m or 2Gi")
        return "1"

    def moment(self, key: str) -> float:
        """Return a time with its zone in seconds since the epoch."""
        value = self.raw(key)
        try:
            parsed = datetime.fromisoformat(value) if isinstance(value, str) else None
            if parsed is not None and parsed.tzinfo is not None:
                parsed = parsed.astimezone(UTC)
        except (ValueError, OverflowError):  # in some zones, the first and the last day of the calendar
            parsed = None
        if parsed is None or parsed.tzinfo is None or not 1970 <= parsed.year < 9999:
            self.wrong(key, "a time with its zone, for instance 2027-01-31T11:30:00Z")
            return 0.0
        return parsed.timestamp()

    def flag(self, key: str) -> bool:
        value = self.raw(key)
        if not isinstance(value, bool):
            self.wrong(key, "true or false")
        return value is True

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.raw(key)
        if not isinstance(value, list) or not all(map(_is_text, value)):
            self.wrong(key, "a list of texts" + _WHOLE)
            return ()
        return tuple(value)

    def table(self, key: str) -> dict[str, str]:
        value = self.raw(key)
        if not isinstance(value, dict) or not all(map(_is_text, value.values())):
            self.wrong(key, "an object of texts" + _WHOLE)
            return {}
        return dict(value)

    def section(self, key: str) -> Reader:
        return Reader(self.raw(key), f"{self.place}.{key}", self.problems)

    def finish(self) -> None:
        for key in sorted(set(self.values) - self.taken):
            self.problems.append(f"{self.place}.{key} is not known; it must be one of {sorted(self.taken)}")


def _is_text(value: Any) -> TypeGuard[str]:
    """Return whether this is a string that a process can get. JSON also allows NUL and single surrogates."""
    return isinstance(value, str) and not re.search("[\\0\ud800-\udfff]", value)


def kind(value: Any) -> str:
    return "missing" if value is None else f"{json.dumps(value)[:40]}"


SHARED_MEMORY = "/dev/shm"  # noqa: S108 (not a temporary file)
# The other volumes of a worker have the names of their claims.
SHARED_MEMORY_VOLUME = "shared-memory"


def read_mounts(reader: Reader) -> dict[str, str]:
    """Return the mount path of each PersistentVolumeClaim; {} if `mounts` is absent."""
    mounts = reader.table("mounts") if "mounts" in reader.values else {}
    for claim, path in mounts.items():
        named = LABEL.fullmatch(claim) and len(claim) <= LABEL_LENGTH
        if not named or claim == SHARED_MEMORY_VOLUME:
            reader.problems.append(
                f"{reader.place}.mounts has {claim!r}; it must be the name of a claim, a DNS label of at most"
                f" {LABEL_LENGTH} characters and not {SHARED_MEMORY_VOLUME}"
            )
        if (
            ":" in path
            or not path.startswith("/")
            or path == SHARED_MEMORY
            or list(mounts.values()).count(path) > 1
        ):
            reader.problems.append(
                f"{reader.place}.mounts.{claim} is {path!r}; it must be an absolute path of its own"
                f" without a colon and not {SHARED_MEMORY}"
            )
    return mounts


def read_writes(reader: Reader, mounts: Mapping[str, str]) -> tuple[str, ...]:
    """Return the directories in these volumes that workers write to; () if `writes` is absent."""
    writes = reader.texts("writes") if "writes" in reader.values else ()
    for path in writes:
        if not any(path == mounted or path.startswith(f"{mounted}/") for mounted in mounts.values()):
            reader.problems.append(
                f"{reader.place}.writes has {path!r}; it must be a directory of a mounted volume"
            )
    return writes
