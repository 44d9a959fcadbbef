"""Kubernetes versions of EKS and their support periods.

A cluster can be created with every version in standard or extended support
(https://docs.aws.amazon.com/eks/latest/userguide/kubernetes-versions.html, whose calendar these days are from).
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any, Final

from moto.core.utils import utcnow

# Version -> the days (UTC) on which standard and extended support end; newest first. Those of 1.36 are unknown here.
SUPPORT_ENDS: Final[dict[str, tuple[date, date] | None]] = {
    "1.36": None,
    "1.35": (date(2027, 3, 27), date(2028, 3, 27)),
    "1.34": (date(2026, 12, 2), date(2027, 12, 2)),
    "1.33": (date(2026, 7, 29), date(2027, 7, 29)),
    "1.32": (date(2026, 3, 23), date(2027, 3, 23)),
    "1.31": (date(2025, 11, 26), date(2026, 11, 26)),
}
DEFAULT: Final = "1.35"
STANDARD, EXTENDED, UNSUPPORTED = "STANDARD_SUPPORT", "EXTENDED_SUPPORT", "UNSUPPORTED"


def status(version: str, today: date) -> str:
    """Return the support status of a version, as EKS names it; also UNSUPPORTED for one that EKS never had."""
    if version not in SUPPORT_ENDS:
        return UNSUPPORTED
    ends = SUPPORT_ENDS[version]
    if ends is None or today < ends[0]:
        return STANDARD
    return EXTENDED if today < ends[1] else UNSUPPORTED


def offered(today: date | None = None) -> list[str]:
    """Return the versions for new clusters, newest first. `today` is the current date by default."""
    day = today or utcnow().date()
    return [version for version in SUPPORT_ENDS if status(version, day) != UNSUPPORTED]


def described() -> list[dict[str, Any]]:
    """Answer DescribeClusterVersions: the offered versions."""
    return [_described(each) for each in offered()]


def _described(version: str) -> dict[str, Any]:
    support = status(version, utcnow().date())
    found: dict[str, Any] = {
        "clusterVersion": version,
        "defaultVersion": version == DEFAULT,
        "versionStatus": support,
    }
    ends = SUPPORT_ENDS[version]
    if ends is not None:
        names = ("endOfStandardSupportDate", "endOfExtendedSupportDate")
        found |= {
            name: datetime(*day.timetuple()[:3], tzinfo=UTC) for name, day in zip(names, ends, strict=True)
        }
    return found
