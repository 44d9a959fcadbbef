"""docs/torchrun.md has every reason that a job gives, and every metric of the controller."""

from __future__ import annotations

import re

import pytest

from local.home import CHECKOUT
from trainyard.operator import names as n
from trainyard.operator.metrics import Metrics

pytestmark = pytest.mark.unit

PAGE = (CHECKOUT / "docs" / "torchrun.md").read_text()
# Of condition CapacityAvailable, whose message counts nodes.
CONDITIONS = {n.REASON_COUNTED}
REASONS = {value for name, value in vars(n).items() if name.startswith("REASON_")} - CONDITIONS


def test_each_reason_is_reported_with_what_to_do() -> None:
    table, _, rest = PAGE.partition("## Phases and reasons")[2].partition("\n\n`kubectl get tj`")
    reported = set(re.findall(r"`([A-Z][A-Za-z]+)`", table + rest)) | set(
        re.findall(r"^\| ([A-Z]\w+) \| \|", table, re.M)
    )
    assert REASONS - reported == set()


def test_the_page_has_each_metric_with_its_kind_and_labels() -> None:
    metrics = Metrics()
    metrics.count(dict, int)
    for kind in (n.JOB_KIND, n.QUEUE_KIND):
        with metrics.reconcile(kind):
            pass
    served = {
        family.name + ("_total" if family.type == "counter" else ""): (
            family.type,
            {label for sample in family.samples for label in sample.labels} - {"le"},
        )
        for family in metrics._registry.collect()
    }
    row = re.compile(r"^\| `(trainyard_torchrun_\w+)` \| (\w+) \|([^|]*)\|", re.MULTILINE)
    reported = {name: (kind, set(re.findall(r"\w+", labels))) for name, kind, labels in row.findall(PAGE)}
    assert reported == served
