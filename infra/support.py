"""How long EKS supports a Kubernetes version. Pure: the clock is passed in."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Final

# Version -> the day that standard support ends, UTC. EKS user guide, latest/ug/versioning/kubernetes-versions.adoc;
# `aws eks describe-cluster-versions` tells it live. 1.36's day is not known here yet (2026-11-21): it gets no warning.
STANDARD_SUPPORT_ENDS: Final[dict[str, date | None]] = {
    "1.34": date(2026, 12, 2),
    "1.35": date(2027, 3, 27),
    "1.36": None,
}
WARN_BEFORE: Final = timedelta(days=90)


def warnings(version: str, today: date) -> list[str]:
    """Lines to tell whoever deploys a cluster of a version; empty while its support lasts for long.

    The clusters here have the upgrade policy STANDARD, so that EKS itself upgrades them at the end
    (https://docs.aws.amazon.com/eks/latest/userguide/disable-extended-support.html).
    """
    end = STANDARD_SUPPORT_ENDS.get(version)
    if end is None or today < end - WARN_BEFORE:
        return []
    newer = [known for known in STANDARD_SUPPORT_ENDS if _number(known) > _number(version)]
    said = (
        f"ended on {end}: EKS upgrades this cluster's control plane at a time of its own choice"
        if today >= end
        else f"ends on {end}, in {(end - today).days} days; EKS then upgrades the control plane by itself"
    )
    advice = (
        f"; set trainyard:cluster.version to {' or '.join(newer)}, one minor version at a time"
        if newer
        else ""
    )
    return [f"Kubernetes {version}: standard support {said}{advice}"]


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
