"""The KAI Scheduler of a given cluster: which versions are told, and how they are found."""

from __future__ import annotations

from typing import Any

import pytest

from trainyard.preflight import gang_scheduler
from trainyard.preflight.account import Denied
from trainyard.preflight.gang_scheduler import Scheduler
from trainyard.preflight.run import CHECKS
from trainyard.preflight.wanted import WantedCluster

pytestmark = pytest.mark.unit

WANTED = WantedCluster(name="theirs", versions=("1.35",), definitions=(gang_scheduler.JOBS,))
IMAGE = "ghcr.io/kai-scheduler/kai-scheduler/scheduler"
DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{gang_scheduler.DEFINITION}"


def scheduler(version: str, *, never_stale: bool = False) -> Scheduler:
    return Scheduler(name="kai/one", image=f"{IMAGE}:{version}", never_stale=never_stale)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("v0.14.7", "it must be v0.15.0 or newer"),
        ("v0.15.0", ""),
        ("v0.16.1", ""),
        ("v0.16.2", "it must be v0.17.1 or newer"),
        ("v0.16.8-fips", "it must be v0.17.1 or newer"),
        ("v0.17.0", "it must be v0.17.1 or newer"),
        ("v0.17.1", ""),
        ("0.20.3", ""),
    ],
)
def test_affected_version_is_told_with_the_right_one(version: str, said: str) -> None:
    found = gang_scheduler.check(WANTED, (scheduler(version),))
    assert [each.key for each in found] == (["trainyard:cluster.existing.name"] if said else [])
    for each in found:
        assert said in each.message
        assert f"KAI Scheduler {version} (Deployment kai/one)" in each.message


def test_scheduler_that_evicts_no_stale_gang_is_right() -> None:
    assert gang_scheduler.check(WANTED, (scheduler("v0.16.4", never_stale=True),)) == []


def test_stack_without_torchrun_jobs_needs_no_scheduler() -> None:
    without = WantedCluster(name="theirs", versions=("1.35",))
    assert gang_scheduler.check(without, (scheduler("v0.16.4"),)) == []


def test_version_that_cant_be_read_is_not_checked() -> None:
    with pytest.raises(Denied, match="an image of KAI Scheduler with a version"):
        gang_scheduler.check(WANTED, (scheduler("latest"),))


def deployment(name: str, image: str, *args: str) -> dict[str, Any]:
    pod = {"containers": [{"image": image, "args": list(args)}]}
    return {"metadata": {"namespace": "kai", "name": name}, "spec": {"template": {"spec": pod}}}


def test_each_shard_is_found_whatever_its_registry() -> None:
    conf = "--scheduler-conf=/etc/config/config.yaml"
    there: dict[str, Any] = {
        DEFINITION: {"kind": "CustomResourceDefinition"},
        "/apis/apps/v1/deployments": {
            "items": [
                deployment("one", "mirror.local:5000/gang/scheduler:v0.16.4@sha256:1", conf),
                deployment("two", f"{IMAGE}:v0.17.0", conf, "--default-staleness-grace-period=-1s"),
                deployment("three", f"{IMAGE}:v0.17.0", conf, "--default-staleness-grace-period=60s"),
                deployment("binder", "ghcr.io/kai-scheduler/kai-scheduler/binder:v0.17.0", conf),
                deployment("other", "example.com/scheduler:v1.0.0"),
            ]
        },
    }
    found = gang_scheduler.read(there.get)
    assert [(each.name, each.never_stale) for each in found] == [
        ("kai/one", False),
        ("kai/two", True),
        ("kai/three", False),
    ]
    assert "v0.16.4" in gang_scheduler.check(WANTED, found)[0].message
    del there[DEFINITION]
    assert gang_scheduler.read(there.get) == ()
    assert "KAI Scheduler of the given cluster" in CHECKS
