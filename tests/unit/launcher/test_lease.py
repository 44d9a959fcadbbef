"""One launcher at a time acts for a run: the Lease over HTTP, taken, renewed, lost, left, and read after a crash."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from launcher.capacity.loop import Launcher
from launcher.capacity.tenure import Lost, Tenure
from launcher.core import contract as c
from launcher.core import lease
from launcher.core.lease import Record, Standing, Watched
from launcher.core.manifests import Owner, stamp
from launcher.core.progress import Progress, begun, loads
from launcher.core.request import Request
from launcher.kube.gateway import KubernetesGateway
from launcher.kube.rest import ApiUnavailable, Patience
from tests.unit.launcher.api_server import FakeApi
from tests.unit.launcher.conftest import asked, fallback
from tests.unit.launcher.test_capacity import node
from tests.unit.launcher.test_gateway import PODS, states

pytestmark = pytest.mark.unit

LEASE = "/apis/coordination.k8s.io/v1/namespaces/training/leases/launch-r1"
CLAIMS = "/apis/karpenter.sh/v1/nodeclaims"
EVENTS = "/api/v1/namespaces/training/events"
OWNER = Owner(name="launch-r1", uid="job-uid")


@dataclasses.dataclass
class Clock:
    """Both clocks of a launcher, set by hand."""

    now: float = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def tenure(api: FakeApi, holder: str, clock: Clock, owner: Owner = OWNER) -> Tenure:
    gateway = KubernetesGateway(api.rest(), clock)
    return Tenure(gateway, asked(), owner, holder, clock, clock)


def test_a_lease_is_made_with_its_owner_and_renewed_every_five_seconds(api: FakeApi) -> None:
    clock = Clock()
    mine = tenure(api, "pod-a", clock)
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


def test_a_dead_holders_lease_is_taken_after_fifteen_seconds_without_a_change(api: FakeApi) -> None:
    clock = Clock()
    tenure(api, "pod-a", clock).take()
    other = tenure(api, "pod-b", clock)
    # The stamp of the holder is no help: its clock may be anything.
    api.objects[LEASE]["spec"]["renewTime"] = stamp(0.0, "microseconds")
    for later, standing in ((0, "unsure"), (14.9, "unsure"), (15.0, "ours")):
        clock.now = 1_800_000_000.0 + later
        assert other.take().value == standing
    spec = api.objects[LEASE]["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("pod-b", 1)


def test_a_live_holder_is_seen_by_its_renewal(api: FakeApi) -> None:
    clock = Clock()
    one, other = tenure(api, "pod-a", clock), tenure(api, "pod-b", clock)
    one.take()
    assert other.take() is Standing.UNSURE
    clock.now += 5
    one.keep(None)
    assert (other.take(), other.other, other.held) == (Standing.TAKEN, "pod-a", False)


def test_a_holder_whose_lease_was_taken_may_do_nothing(api: FakeApi) -> None:
    clock = Clock()
    one, other = tenure(api, "pod-a", clock), tenure(api, "pod-b", clock)
    one.take()
    other.take()
    clock.now += 15
    assert other.take() is Standing.OURS
    with pytest.raises(Lost):
        one.keep(begun(clock.now))
    assert not one.held
    with pytest.raises(Lost):
        one.write(begun(clock.now))
    assert lease.noted(api.objects[LEASE]) == "", "nothing of the one that lost it is noted"


def test_a_renewal_whose_answer_is_lost_is_no_loss_of_the_lease(api: FakeApi) -> None:
    clock = Clock()
    mine = tenure(api, "pod-a", clock)
    mine.take()
    api.faults, api.after = [None], True
    progress = begun(clock.now)
    with pytest.raises(Lost):
        mine.write(progress)
    assert mine.take() is Standing.OURS
    assert mine.progress() == progress


def test_a_release_leaves_no_holder_and_keeps_the_progress(api: FakeApi) -> None:
    clock = Clock()
    mine = tenure(api, "pod-a", clock)
    mine.take()
    mine.release(dataclasses.replace(begun(clock.now), attempt=2))
    spec = api.objects[LEASE]["spec"]
    assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == (None, 1)
    other = tenure(api, "pod-b", clock)
    assert other.take() is Standing.OURS, "at once"
    found = other.progress()
    assert found is not None
    assert found.attempt == 2


def test_a_new_job_of_the_same_name_begins_anew(api: FakeApi) -> None:
    clock = Clock()
    mine = tenure(api, "pod-a", clock)
    mine.take()
    mine.release(begun(clock.now))
    other = tenure(api, "pod-b", clock, Owner(name="launch-r1", uid="another-job"))
    assert (other.take(), other.progress()) == (Standing.OURS, None)
    assert api.objects[LEASE]["metadata"]["ownerReferences"][0]["uid"] == "another-job"


def test_progress_that_can_not_be_read_is_told_and_begun_anew(
    api: FakeApi,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    mine = tenure(api, "pod-a", clock)
    mine.take()
    mine.release(None)
    api.objects[LEASE]["metadata"]["annotations"]["trainyard.dev/attempt"] = "second"
    other = tenure(api, "pod-b", clock)
    other.take()
    assert other.progress() is None
    assert "annotation trainyard.dev/attempt: 'second' is no progress of a run; right would be" in caplog.text


@pytest.mark.parametrize(
    ("found", "before", "later", "standing"),
    [
        (None, None, 0, Standing.FREE),
        (Record(holder="", renewed="1", transitions=3), None, 0, Standing.FREE),
        (Record(holder="me", renewed="1", transitions=0), None, 0, Standing.OURS),
        (Record(holder="x", renewed="1", transitions=0), None, 0, Standing.UNSURE),
        (Record(holder="x", renewed="1", transitions=0), "1", 14, Standing.UNSURE),
        (Record(holder="x", renewed="1", transitions=0), "1", 15, Standing.FREE),
        (Record(holder="x", renewed="2", transitions=0), "1", 99, Standing.TAKEN),
        (Record(holder="y", renewed="1", transitions=1), "1", 1, Standing.TAKEN),
    ],
)
def test_whose_a_lease_is(found: Record | None, before: str | None, later: float, standing: Standing) -> None:
    seen_before = (
        Watched(record=Record(holder="x", renewed=before, transitions=0), since=0) if before else None
    )
    assert lease.standing(found, "me", seen_before, later)[0] is standing


# -- whole launchers


def launcher(
    api: FakeApi, request: Request, holder: str = "pod-a", **options: Any
) -> tuple[Launcher, list[str]]:
    said: list[str] = []
    gateway = KubernetesGateway(api.rest(), options.pop("gateway_clock", time.time))
    options = {"say": said.append, "poll_seconds": 0.02, "holder": holder, **options}
    return Launcher(request, "launch-r1", gateway, **options), said


class Hurried(threading.Event):
    """A wait that is over at once, after four seconds of the clock."""

    def __init__(self, clock: Clock, then: Callable[[float], None] = lambda _now: None) -> None:
        super().__init__()
        self.fast, self.then = clock, then

    def wait(self, timeout: float | None = None) -> bool:
        self.fast.now += 4.0
        self.then(self.fast.now)
        return self.is_set()


def hurried(
    api: FakeApi,
    request: Request,
    then: Callable[[float], None] = lambda _now: None,
    clock: Clock | None = None,
    holder: str = "pod-a",
) -> tuple[Launcher, list[str]]:
    clock = clock or Clock()
    return launcher(
        api,
        request,
        holder,
        gateway_clock=clock,
        clock=clock,
        wall_clock=clock,
        stopping=Hurried(clock, then),
        draw=lambda: 0.0,
    )


def test_a_second_launcher_beside_a_live_one_names_it_and_leaves(api: FakeApi) -> None:
    clock = Clock()
    first = tenure(api, "pod-a", clock)
    first.take()

    def renew(now: float) -> None:
        first.keep(begun(now))

    runner, said = hurried(api, asked(), renew, clock, "pod-b")
    assert runner.run() == c.EXIT_ALREADY_RUNNING
    assert clock.now - 1_800_000_000.0 <= 2 * c.LEASE_SECONDS
    (line,) = said
    assert "another launcher, pod-a, launches run r1: it holds and renews Lease training/launch-r1" in line
    assert api.names(PODS) == api.names(EVENTS) == []
    assert api.objects[LEASE]["spec"]["holderIdentity"] == "pod-a"


def test_a_pod_that_follows_a_dead_one_goes_on_where_that_one_was(api: FakeApi) -> None:
    clock = Clock()
    dead = tenure(api, "pod-a", clock, Owner(name="launch-r1", uid=api.objects[JOB]["metadata"]["uid"]))
    dead.take()
    dead.write(Progress(attempt=2, candidate=0, since=clock.now - 900, began=clock.now - 100))
    request = asked(attempts=2)
    runner, said = hurried(api, request, clock=clock, holder="pod-b")
    assert runner.run() == c.EXIT_BELOW_MINIMUM
    waited = clock.now - 1_800_000_000.0
    assert 200 <= waited <= 206, "the deadline is the first one's"
    assert "after 2 of 2 attempts" in said[-1]
    assert api.objects[LEASE]["spec"]["holderIdentity"] is None
    first_pod = next(n for n, (m, p, _) in enumerate(api.requests) if (m, p) == ("POST", PODS))
    assert first_pod > 15, "nothing is done before the Lease is held"


JOB = "/apis/batch/v1/namespaces/training/jobs/launch-r1"


def test_attempts_and_pools_are_tried_in_turn_over_a_real_connection(api: FakeApi) -> None:
    pool = {"metadata": {"name": "large"}, "spec": {"limits": {"nvidia.com/gpu": "32"}}}
    api.put("/apis/karpenter.sh/v1/nodepools/large", pool)
    clock = Clock()
    labels: list[tuple[float, str, str]] = []

    def look(_method: str, _path: str) -> None:
        for name in api.names(PODS):
            meta = api.objects[f"{PODS}/{name}"]
            label = meta["metadata"]["labels"]["trainyard.dev/attempt"]
            pool = meta["spec"]["nodeSelector"]["karpenter.sh/nodepool"]
            if (label, pool) not in [entry[1:] for entry in labels]:
                labels.append((clock.now - 1_800_000_000.0, label, pool))

    api.on_request = look
    runner, said = hurried(
        api, asked(attempts=2, fallbacks=[fallback()], capacityDeadlineSeconds=40), clock=clock
    )
    assert runner.run() == c.EXIT_BELOW_MINIMUM
    moments = [moment for moment, _, _ in labels]
    assert [entry[1:] for entry in labels] == [
        ("1-0", "small"),
        ("1-1", "large"),
        ("2-0", "small"),
        ("2-1", "large"),
    ]
    assert moments == pytest.approx([0, 40, 40 + 120 + 240, 40 + 120 + 240 + 40], abs=8)
    assert states(said) == ["waiting", "pausing", "failed"]
    assert "after 2 of 2 attempts: pool small: 0 of at least 2 nodes after 40 s" in said[-1]
    assert "; pool large: 0 of at least 2 nodes after 120 s" in said[-1]
    reasons = [event["reason"] for path, event in api.objects.items() if path.startswith(EVENTS)]
    assert sorted(reasons).count("PoolGivenUp") == 2
    assert "AttemptFailed" in reasons
    assert api.names(PODS) == []


def test_a_machine_is_given_back_with_a_warning_on_the_launchers_job(api: FakeApi) -> None:
    clock = Clock()

    def come(now: float) -> None:
        if not api.names(CLAIMS) and now > clock_began + 1:
            api.put("/api/v1/nodes/n", node("n", status__allocatable={"cpu": "47", "memory": "180Gi"}))
            meta = {
                "name": "small-x",
                "labels": {"karpenter.sh/nodepool": "small"},
                "creationTimestamp": stamp(now),
            }
            status = {"nodeName": "n", "providerID": "aws:///us-west-2b/i-0abc"}
            api.put(f"{CLAIMS}/small-x", {"metadata": meta, "status": status})

    clock_began = clock.now
    runner, said = hurried(api, asked(nodeStartSeconds=60, capacityDeadlineSeconds=75), come, clock)
    assert runner.run() == c.EXIT_BELOW_MINIMUM
    told = "i-0abc / NodeClaim small-x: 0 of 4 nvidia.com/gpu after 60 s"
    assert f"; 1 machine given back: {told}" in said[-1]
    warned = [event for path, event in api.objects.items() if path.startswith(EVENTS)]
    (event,) = (event for event in warned if event["reason"] == "MachineGivenBack")
    assert (event["type"], event["message"]) == ("Warning", told)
    kept = loads(lease.noted(api.objects[LEASE]), 1)
    assert [loss.told for loss in kept.given_back] == [told]


def test_progress_is_written_before_anything_rests_on_it(api: FakeApi) -> None:
    """Killed right after any request, a launcher leaves no placeholder of a wait that the Lease does not know."""
    wrong: list[str] = []

    def look(_method: str, _path: str) -> None:
        known = lease.noted(api.objects[LEASE]) if LEASE in api.objects else ""
        for name in api.names(PODS):
            label = api.objects[f"{PODS}/{name}"]["metadata"]["labels"]["trainyard.dev/attempt"]
            if not known or label > loads(known, 1).label:
                wrong.append(f"{name} of {label}, {known or 'nothing'} known")

    api.on_request = look
    runner, _ = hurried(api, asked(attempts=3, retrySeconds=180, capacityDeadlineSeconds=20))
    assert runner.run() == c.EXIT_BELOW_MINIMUM
    assert wrong == []


def test_a_lost_race_is_seen_and_nothing_is_done(api: FakeApi) -> None:
    """Another launcher took the Lease in between: the write of a new attempt is refused, and so is all that follows."""
    clock = Clock()

    def take(now: float) -> None:
        if now >= 1_800_000_000.0 + 38:
            item = json.loads(json.dumps(api.objects[LEASE]))
            item["spec"] |= {"holderIdentity": "pod-b", "renewTime": str(now), "leaseTransitions": 1}
            api.put(LEASE, item)
            api.requests.clear()

    runner, said = hurried(api, asked(attempts=2, capacityDeadlineSeconds=40), take, clock)
    assert runner.run() == c.EXIT_ALREADY_RUNNING
    assert "another launcher, pod-b" in said[-1]
    made = [(method, path) for method, path, _ in api.requests if method in ("POST", "DELETE")]
    assert made == []
    assert api.objects[LEASE]["spec"]["holderIdentity"] == "pod-b"


def test_a_launcher_that_can_not_renew_does_nothing_until_it_can(api: FakeApi) -> None:
    clock = Clock()
    gateway = KubernetesGateway(api.rest(patience=Patience(total=0.05, first=0.01)), clock)
    mine = Tenure(gateway, asked(), OWNER, "pod-a", clock, clock)
    mine.take()
    clock.now += 16
    api.faults = [(503, {}, b"")] * 100
    with pytest.raises(ApiUnavailable):
        mine.keep(None)
    api.faults = []
    mine.keep(None)
    assert mine.held, "nobody took it meanwhile: the version is the one that was written"


def test_a_signal_while_another_holds_the_lease_leaves_its_placeholders(api: FakeApi) -> None:
    clock = Clock()
    tenure(api, "pod-a", clock).take()
    meta = {"name": "hold-r1-0", "labels": {"trainyard.dev/run": "r1", "trainyard.dev/role": "placeholder"}}
    api.put(f"{PODS}/hold-r1-0", {"metadata": meta})
    runner, _ = hurried(api, asked(), lambda _now: runner.stopping.set(), clock, "pod-b")
    assert runner.run() == c.EXIT_STOPPED
    assert api.names(PODS) == ["hold-r1-0"]
    assert api.objects[LEASE]["spec"]["holderIdentity"] == "pod-a"


def test_a_signal_releases_the_lease_and_the_next_pod_has_the_rest_of_the_time(api: FakeApi) -> None:
    clock = Clock()

    def stop(now: float) -> None:
        if now >= 1_800_000_000.0 + 100:
            runner.stopping.set()

    runner, _ = hurried(api, asked(), stop, clock)
    assert runner.run() == c.EXIT_STOPPED
    assert api.objects[LEASE]["spec"]["holderIdentity"] is None
    assert api.names(PODS) == []
    following, said = hurried(api, asked(), clock=clock, holder="pod-b")
    assert following.run() == c.EXIT_BELOW_MINIMUM
    assert clock.now - 1_800_000_000.0 == pytest.approx(300, abs=6)
    assert "0 of at least 2 nodes after 300 s" in said[-1]
