"""Checks of a pool's machines: which Job each gets, and what its pod means."""

from __future__ import annotations

from typing import Any

import pytest

from components.node_check import cron_spec, name_of
from tests.unit.components.pools import pool
from trainyard.cli.pool_checks import BUSY_SECONDS, PATIENCE_SECONDS, Verdict, evaluate, lacking, node_job

P4D = pool(name="p4d", instance_type="p4d.24xlarge", accelerators=8, efa=4)
CRON: dict[str, Any] = {
    "metadata": {"name": name_of(P4D)},
    "spec": cron_spec(P4D, "trainer@sha256:0", {}),
}
NOW = BUSY_SECONDS


def node(**allocatable: str) -> dict[str, Any]:
    return {"metadata": {"name": "n1"}, "status": {"allocatable": allocatable}}


def pod(phase: str, *, refused: str = "", **status: str) -> dict[str, Any]:
    conditions = [{"type": "PodScheduled", "status": "False", "message": refused}] if refused else []
    return {"status": {"phase": phase, "conditions": conditions, **status}}


def test_a_job_is_bound_to_its_machine_and_else_the_cron_jobs_own() -> None:
    job = node_job(CRON, "n1", "ip-10-0-0-1")
    selector = job["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {
        "karpenter.sh/nodepool": "p4d",
        "karpenter.sh/initialized": "true",
        "kubernetes.io/hostname": "ip-10-0-0-1",
    }
    assert job["metadata"]["generateName"] == "check-p4d-"
    del selector["kubernetes.io/hostname"]
    assert job["spec"] == CRON["spec"]["jobTemplate"]["spec"]
    assert "kubernetes.io/hostname" not in str(CRON), "the next machine's Job comes from the same CronJob"


def test_a_node_that_offers_too_few_devices_is_unfit_and_not_in_use() -> None:
    whole = {"nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "4", "memory": "1Gi"}
    assert lacking(CRON, node(**whole)) == []
    assert lacking(CRON, node(**{**whole, "vpc.amazonaws.com/efa": "3"})) == [
        "n1: the Node offers 3 vpc.amazonaws.com/efa; it must be 4: look at the log of its device plugin"
    ]
    assert len(lacking(CRON, node())) == 2


@pytest.mark.parametrize(("phase", "fit"), [("Succeeded", True), ("Failed", False)])
def test_what_the_check_printed_is_what_a_person_reads(phase: str, fit: bool) -> None:
    assert evaluate("n1", pod(phase), log="a\nb\n", waited=1) == Verdict(fit=fit, lines=("a", "b"))


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({"pod": pod("Pending", refused="0/3 nodes: 1 Insufficient nvidia.com/gpu")}, "it is in use"),
        (
            {"pod": pod("Pending", refused="1 node(s) had untolerated taint {x}")},
            "1 node(s) had untolerated taint {x}",
        ),
        ({"pod": pod("Failed", message="Pod was evicted")}, "Pod was evicted"),
        ({"pod": pod("Failed")}, "its pod ended without a word"),
        (
            {"pod": None, "ended": "BackoffLimitExceeded"},
            "its pod was removed (BackoffLimitExceeded)",
        ),
    ],
)
def test_unchecked_node_is_neither_fit_nor_unfit(seen: dict[str, Any], reason: str) -> None:
    assert evaluate("n1", **seen, waited=NOW) == Verdict(fit=None, lines=(f"n1 was not checked: {reason}",))


def test_a_check_is_waited_for() -> None:
    full = pod("Pending", refused="1 Insufficient nvidia.com/gpu")
    assert evaluate("n1", full, waited=BUSY_SECONDS - 1) is None
    assert evaluate("n1", None, waited=BUSY_SECONDS) is None, "its pod is not made yet"
    assert evaluate("n1", pod("Running"), waited=BUSY_SECONDS) is None
    assert evaluate("n1", pod("Pending"), waited=PATIENCE_SECONDS - 1) is None
    late = evaluate("n1", pod("Pending"), warning="MountVolume.SetUp failed", waited=PATIENCE_SECONDS)
    assert late is not None
    assert late.fit is False
    assert late.lines == ("n1: its check did not start in 600 s: MountVolume.SetUp failed",)
