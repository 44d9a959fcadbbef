"""How long EKS supports a Kubernetes version."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from infra import support, versions

pytestmark = pytest.mark.unit


def test_every_version_of_the_settings_is_in_the_calendar() -> None:
    assert tuple(support.STANDARD_SUPPORT_ENDS) == versions.KUBERNETES_SUPPORTED


@pytest.mark.parametrize(
    ("version", "today", "told"),
    [
        ("1.35", date(2026, 12, 26), None),
        ("1.35", date(2026, 12, 27), "support ends on 2027-03-27, in 90 days"),
        ("1.35", date(2027, 3, 26), "support ends on 2027-03-27, in 1 days"),
        ("1.35", date(2027, 3, 27), "support ended on 2027-03-27: EKS upgrades"),
        (
            "1.34",
            date(2026, 11, 21),
            "set trainyard:cluster.version to 1.35 or 1.36, one minor version at a time",
        ),
        ("1.36", date(2026, 11, 21), None),
        ("1.99", date(2026, 11, 21), None),
    ],
)
def test_a_version_is_warned_of_ninety_days_before_its_end(
    version: str, today: date, told: str | None
) -> None:
    lines = support.warnings(version, today)
    assert len(lines) == (told is not None)
    assert told is None or told in lines[0]


def test_the_default_version_is_supported_for_months_after_the_calendar_was_read() -> None:
    end = support.STANDARD_SUPPORT_ENDS[versions.KUBERNETES]
    assert end is None or end > date(2026, 11, 21) + timedelta(days=90)
