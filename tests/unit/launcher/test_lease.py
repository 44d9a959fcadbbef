"""The Lease of a run over HTTP: taken, renewed, lost, released, and read after a crash."""

from __future__ import annotations

import dataclasses

import pytest

from launcher.gateway import Gateway
from launcher.lease import RunLease
from launcher.manifests import Owner, stamp
from launcher.progress import initial_progress
from tests.unit.launcher.api_server import FakeApi
from tests.unit.launcher.cluster import stored_progress
from tests.unit.launcher.conftest import asked
from trainyard.k8s.client import ApiUnavailable, RetryPolicy
from trainyard.k8s.lease import Lost, Standing

LEASE = "/apis/coordination.k8s.io/v1/namespaces/training/leases/launch-r1"
OWNER = Owner(name="launch-r1", uid="job-uid")


@dataclasses.dataclass
class Clock:
    """Both clocks of a launcher, set by hand."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def run_lease(api: FakeApi, holder: str, clock: Clock, owner: Owner = OWNER) -> RunLease:
    gateway = Gateway(api.client(), clock)
    return RunLease(gateway, asked(), owner, holder, clock, clock)


def test_lease_has_owner_and_is_renewed(api: FakeApi) -> None:
    clock = Clock()
    mine = run_lease(api, "pod-a", clock)
    assert mine.take() is Standing.OURS
    made = api.objects[LEASE]
    assert made["metadata"]["ownerReferences"][0]["uid"] == "job-uid"
    assert made["spec"] == {
        "holderIdentity": "pod-a",
        "leaseDurationSeconds": 15,
        "acquireTime": "2027-01-15T08:00:00.000000Z",
        "renewTime": "2027-01-15T08:00:00.000000Z",
        "leaseTransitions": 0,
    }
    for later, renewed in ((4.9, "00.000000Z"), (5.0, "05.000000Z")):
        clock.now = 1_800_000_000.0 + later
        mine.keep(None)
        assert api.objects[LEASE]["spec"]["renewTime"].endswith(renewed)


def test_lease_of_dead_holder_is_taken_after_15_s(api: FakeApi) -> None:
    clock = Clock()
    run_lease(api, "pod-a", clock).take()
    other = run_lease(api, "pod-b", clock)
    # The stamp of the holder is no help: its clock may be anything.
    api.objects[LEASE]["spec"]["renewTime"] = stamp(0.0, "microseconds")
    for later, standing in ((0, "unsure"), (14.9, "unsure"), (15.0, "ours")):
        clock.now = 1_800_000_000.0 + later
        assert other.take().value == standing
    spec = api.objects[LEASE]["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("pod-b", 1)


def test_a_live_holder_is_seen_by_its_renewal(api: FakeApi) -> None:
    clock = Clock()
    one, other = run_lease(api, "pod-a", clock), run_lease(api, "pod-b", clock)
    one.take()
    assert other.take() is Standing.UNSURE
    clock.now += 5
    one.keep(None)
    assert (other.take(), other.other, other.is_holder) == (Standing.TAKEN, "pod-a", False)


def test_a_holder_whose_lease_was_taken_may_do_nothing(api: FakeApi) -> None:
    clock = Clock()
    one, other = run_lease(api, "pod-a", clock), run_lease(api, "pod-b", clock)
    one.take()
    other.take()
    clock.now += 15
    assert other.take() is Standing.OURS
    with pytest.raises(Lost):
        one.keep(initial_progress(clock.now))
    assert not one.is_holder
    with pytest.raises(Lost):
        one.write(initial_progress(clock.now))
    assert stored_progress(api.objects[LEASE]) == "", "nothing of the one that lost it is noted"


def test_lease_renewal_with_lost_answer_keeps_it(api: FakeApi) -> None:
    clock = Clock()
    mine = run_lease(api, "pod-a", clock)
    mine.take()
    api.faults, api.after = [None], True
    progress = initial_progress(clock.now)
    with pytest.raises(Lost):
        mine.write(progress)
    assert mine.take() is Standing.OURS
    assert mine.progress() == progress


def test_a_release_leaves_no_holder_and_keeps_the_progress(api: FakeApi) -> None:
    clock = Clock()
    mine = run_lease(api, "pod-a", clock)
    mine.take()
    mine.end(dataclasses.replace(initial_progress(clock.now), attempt=2))
    spec = api.objects[LEASE]["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == (None, 1)
    other = run_lease(api, "pod-b", clock)
    assert other.take() is Standing.OURS, "at once"
    found = other.progress()
    assert found is not None
    assert found.attempt == 2


def test_lease_of_earlier_job_is_replaced(api: FakeApi) -> None:
    clock = Clock()
    mine = run_lease(api, "pod-a", clock)
    mine.take()
    mine.end(initial_progress(clock.now))
    other = run_lease(api, "pod-b", clock, Owner(name="launch-r1", uid="another-job"))
    assert (other.take(), other.progress()) == (Standing.OURS, None)
    assert api.objects[LEASE]["metadata"]["ownerReferences"][0]["uid"] == "another-job"


def test_lease_unreadable_progress_warns_and_starts_again(
    api: FakeApi,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    mine = run_lease(api, "pod-a", clock)
    mine.take()
    mine.end(None)
    api.objects[LEASE]["metadata"]["annotations"]["trainyard.dev/attempt"] = "second"
    other = run_lease(api, "pod-b", clock)
    other.take()
    assert other.progress() is None
    assert "annotation trainyard.dev/attempt: 'second' is not the progress of a run" in caplog.text


def test_run_without_renewal_does_nothing(api: FakeApi) -> None:
    clock = Clock()
    gateway = Gateway(api.client(retry=RetryPolicy(timeout=0.05, initial_delay=0.01)), clock)
    mine = RunLease(gateway, asked(), OWNER, "pod-a", clock, clock)
    mine.take()
    clock.now += 16
    api.faults = [(503, {}, b"")] * 100
    with pytest.raises(ApiUnavailable):
        mine.keep(None)
    api.faults = []
    mine.keep(None)
    assert mine.is_holder, "nobody took it meanwhile: the version is the one that was written"
