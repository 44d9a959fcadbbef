"""Whole runs of the launcher over HTTP: one after a dead one, beside a live one, through attempts and pools."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from launcher import __main__ as entry
from launcher.gateway import Gateway
from launcher.loop import UNAVAILABLE_SECONDS, Launcher
from launcher.manifests import Owner, stamp
from launcher.progress import Progress, initial_progress, loads
from launcher.request import Request
from tests.unit.launcher.api_server import QUICK, FakeApi, until
from tests.unit.launcher.cluster import CLAIMS, JOBS, PODS, put_claim, put_node, put_pod, stored_progress
from tests.unit.launcher.conftest import asked, fallback
from tests.unit.launcher.test_lease import LEASE, Clock, run_lease
from trainyard.k8s import names
from trainyard.k8s.client import ApiError, RetryPolicy
from trainyard.k8s.informer import Informer, ListWatch, _key

EVENTS = "/api/v1/namespaces/training/events"
JOB = "/apis/batch/v1/namespaces/training/jobs/launch-r1"
PLACEHOLDER = {"trainyard.dev/run": "r1", "trainyard.dev/role": "placeholder"}
TRAINJOBS = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/training/trainjobs"


class Hurried(Gateway):
    """A gateway whose waits end once its watches show what the server has; the clock moves on by eight seconds."""

    def __init__(
        self, api: FakeApi, patience: RetryPolicy, clock: Clock, then: Callable[[float], None]
    ) -> None:
        super().__init__(api.client(retry=patience), clock)
        api.clients.callback(self.close)
        self.api, self.clock, self.then = api, clock, then

    def wait(self, timeout: float) -> None:
        self.clock.now += 8.0
        self.then(self.clock.now)
        self.catch_up()

    def catch_up(self) -> None:
        """Wait for the watches; a server that is silent shows nothing, and is not waited for."""
        if not self.api.faults:
            until(lambda: all(self._is_current(*each) for each in [*self._informers._running.items()]))

    def _is_current(self, source: ListWatch[Any], informer: Informer[Any]) -> bool:
        with self.api.news:
            listed = self.api.listed(source.path, dict(source.selectors), self.api.version)
            there = {_key(item): source.convert(item) for item in listed}
        with informer._lock:
            return informer._items == {key: item for key, item in there.items() if item is not None}


def hurried(
    api: FakeApi,
    request: Request,
    then: Callable[[float], None] = lambda _now: None,
    clock: Clock | None = None,
    holder: str = "pod-a",
    patience: RetryPolicy = QUICK,
) -> tuple[Launcher, list[str]]:
    """A launcher whose waits are over at once, and what it says."""
    clock, said = clock or Clock(), list[str]()
    gateway = Hurried(api, patience, clock, then)
    runner = Launcher(
        request,
        "launch-r1",
        gateway,
        log_line=said.append,
        wall_clock=clock,
        clock=clock,
        holder=holder,
        draw=lambda: 0.0,
    )
    return runner, said


def test_run_second_launcher_names_first_and_ends(api: FakeApi) -> None:
    clock = Clock()
    first = run_lease(api, "pod-a", clock)
    first.take()

    def renew(now: float) -> None:
        first.keep(initial_progress(now))

    runner, said = hurried(api, asked(), renew, clock, "pod-b")
    assert runner.run() == names.EXIT_ALREADY_RUNNING
    assert clock.now - 1_800_000_000.0 <= 2 * names.LEASE_SECONDS
    (line,) = said
    assert "another launcher, pod-a, launches run r1: it holds and renews Lease training/launch-r1" in line
    assert api.names(PODS) == api.names(EVENTS) == []
    assert api.objects[LEASE]["spec"]["holderIdentity"] == "pod-a"


def test_run_after_crash_continues(api: FakeApi) -> None:
    clock = Clock()
    dead = run_lease(api, "pod-a", clock, Owner(name="launch-r1", uid=api.objects[JOB]["metadata"]["uid"]))
    dead.take()
    dead.write(Progress(attempt=2, candidate=0, since=clock.now - 900, began=clock.now - 100))
    request = asked(attempts=2)
    runner, said = hurried(api, request, clock=clock, holder="pod-b")
    assert runner.run() == names.EXIT_BELOW_MINIMUM
    waited = clock.now - 1_800_000_000.0
    assert 200 <= waited <= 206, "the deadline is the first one's"
    assert "after 2 of 2 attempts" in said[-1]
    assert api.objects[LEASE]["spec"]["holderIdentity"] is None
    first_pod = next(n for n, (m, p, _) in enumerate(api.requests) if (m, p) == ("POST", PODS))
    assert first_pod > 15, "nothing is done before the Lease is held"


def test_run_after_crash_and_deletion_of_job_ends(api: FakeApi) -> None:
    class Killed(BaseException):
        """The first launcher dies at its first wait after the submit."""

    def kill(_now: float) -> None:
        if api.names(JOBS):
            raise Killed

    for name in "abcd":
        put_node(api, name)
    clock = Clock()
    with pytest.raises(Killed):
        hurried(api, asked(maxRestarts=3), kill, clock)[0].run()
    api.remove(f"{JOBS}/train-r1")

    def stop(_now: float) -> None:
        if api.names(JOBS):
            runner.stopping.set()

    runner, said = hurried(api, asked(maxRestarts=3), stop, clock, "pod-b")
    assert runner.run() == names.EXIT_TRAINING_FAILED
    assert "PyTorchJob train-r1 was deleted" in said[-1]


def test_run_releases_node_with_warning_event(api: FakeApi) -> None:
    clock = Clock()

    def come(now: float) -> None:
        if not api.names(CLAIMS) and now > clock_began + 1:
            put_node(api, "n", status__allocatable={"cpu": "47", "memory": "180Gi"})
            item = put_claim(api, "small-x", "n", created=stamp(now))
            status = {**item["status"], "providerID": "aws:///us-west-2b/i-0abc"}
            api.put(f"{CLAIMS}/small-x", {**item, "status": status})

    clock_began = clock.now
    runner, said = hurried(api, asked(nodeStartSeconds=60, capacityDeadlineSeconds=75), come, clock)
    assert runner.run() == names.EXIT_BELOW_MINIMUM
    expected = "i-0abc / NodeClaim small-x: 0 of 4 nvidia.com/gpu after 60 s"
    assert f"; 1 node released: {expected}" in said[-1]
    warned = [event for path, event in api.objects.items() if path.startswith(EVENTS)]
    (event,) = (event for event in warned if event["reason"] == "NodeReleased")
    assert (event["type"], event["message"]) == ("Warning", expected)
    kept = loads(stored_progress(api.objects[LEASE]), 1)
    assert [loss.message for loss in kept.released] == [expected]


def test_run_writes_progress_before_actions(api: FakeApi) -> None:
    """Killed right after any request, a launcher leaves no placeholder of a wait that the Lease does not know."""
    wrong: list[str] = []

    def on_request(_method: str, _path: str) -> None:
        known = stored_progress(api.objects[LEASE]) if LEASE in api.objects else ""
        for name in api.names(PODS):
            label = api.objects[f"{PODS}/{name}"]["metadata"]["labels"]["trainyard.dev/attempt"]
            if not known or label > loads(known, 1).label:
                wrong.append(f"{name} of {label}, {known or 'nothing'} known")

    api.on_request = on_request
    runner, _ = hurried(api, asked(attempts=3, retrySeconds=180, capacityDeadlineSeconds=20))
    assert runner.run() == names.EXIT_BELOW_MINIMUM
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
    assert runner.run() == names.EXIT_ALREADY_RUNNING
    assert "another launcher, pod-b" in said[-1]
    made = [(method, path) for method, path, _ in api.requests if method in ("POST", "DELETE")]
    assert made == []
    assert api.objects[LEASE]["spec"]["holderIdentity"] == "pod-b"


def test_signal_without_lease_keeps_placeholders(api: FakeApi) -> None:
    clock = Clock()
    run_lease(api, "pod-a", clock).take()
    put_pod(api, "hold-r1-0", "", "training", **PLACEHOLDER)
    runner, _ = hurried(api, asked(), lambda _now: runner.stopping.set(), clock, "pod-b")
    assert runner.run() == names.EXIT_STOPPED
    assert api.names(PODS) == ["hold-r1-0"]
    assert api.objects[LEASE]["spec"]["holderIdentity"] == "pod-a"


def test_signal_releases_lease_and_keeps_progress(api: FakeApi) -> None:
    clock = Clock()

    def stop(now: float) -> None:
        if now >= 1_800_000_000.0 + 100:
            runner.stopping.set()

    runner, _ = hurried(api, asked(), stop, clock)
    assert runner.run() == names.EXIT_STOPPED
    assert api.objects[LEASE]["spec"]["holderIdentity"] is None
    assert api.names(PODS) == []
    following, said = hurried(api, asked(), clock=clock, holder="pod-b")
    assert following.run() == names.EXIT_BELOW_MINIMUM
    assert clock.now - 1_800_000_000.0 == pytest.approx(300, abs=6)
    assert "0 of at least 2 nodes after 300 s" in said[-1]


def test_run_without_lease_permission_ends(api: FakeApi) -> None:
    put_pod(api, "hold-r1-0", "", "training", **PLACEHOLDER)
    api.refused = {("GET", LEASE)}
    runner, said = hurried(api, asked())
    assert runner.run() == names.EXIT_API_ERROR
    assert f"GET {LEASE}: 403 Forbidden" in said[-1]
    assert api.names(PODS) == ["hold-r1-0"], "they may be those of a launcher that holds the Lease"


UNSEEN = "NotFound: specified trainingRuntime must be created before the TrainJob is created"


@pytest.mark.parametrize(
    ("seconds", "code"), [(500, names.EXIT_SUCCEEDED), (2 * UNAVAILABLE_SECONDS, names.EXIT_API_ERROR)]
)
def test_run_unseen_runtime_is_retried_for_ten_minutes(
    api: FakeApi, caplog: pytest.LogCaptureFixture, seconds: float, code: int
) -> None:
    clock = Clock()
    began = clock.now
    for name in "abcd":
        put_node(api, name)
    api.refused, api.refusal = {("POST", TRAINJOBS)}, UNSEEN

    def react(_now: float) -> None:
        clock.now += 42.0
        if clock.now >= began + seconds:
            api.refused = set()
        if job := api.objects.get(f"{TRAINJOBS}/train-r1"):
            done = {"conditions": [{"type": "Complete", "status": "True"}]}
            api.put(f"{TRAINJOBS}/train-r1", {**job, "status": done})

    runner, said = hurried(api, asked(backend="trainjob"), react, clock)
    assert runner.run() == code
    message = f"TrainJob train-r1 is not created: {UNSEEN}. The launcher tries again."
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [message]
    assert clock.now - began <= UNAVAILABLE_SECONDS + 100
    assert api.names(PODS) == []
    if code == names.EXIT_API_ERROR:
        assert "the API refused for 6" in said[-1]
        assert UNSEEN in said[-1]


def test_run_conflicts_with_rounds_between_do_not_end(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    """Only conflicts without a round between them count together."""
    clock = Clock()

    class Refusing(Hurried):
        def create_pods(self, manifests: Any) -> None:
            if clock.now % 100 < 50:
                raise ApiError("POST", PODS, 409, "Conflict", "quota q: the object has been modified")

    def hurry(_now: float) -> None:
        clock.now += 42.0

    gateway = Refusing(api, QUICK, clock, hurry)
    request = asked(capacityDeadlineSeconds=round(1.2 * UNAVAILABLE_SECONDS))
    runner = Launcher(request, "launch-r1", gateway, log_line=lambda _: None, wall_clock=clock, clock=clock)
    assert runner.run() == names.EXIT_BELOW_MINIMUM
    assert caplog.text.count("quota q: the object has been modified. The launcher tries again.") > 5


def test_run_lacking_fallback_needs_ends_at_once(api: FakeApi) -> None:
    other = fallback()
    other["worker"]["priorityClassName"] = "other"
    runner, said = hurried(api, asked(fallbacks=[other]))
    assert runner.run() == names.EXIT_IMPOSSIBLE
    assert 'reason="PriorityClass other: missing in this cluster. Run pulumi up --refresh' in said[-1]


def test_signal_during_outage_ends_in_time(api: FakeApi, caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()

    def silence(_now: float) -> None:
        api.faults = [(503, {}, b"")] * 1000
        runner.stopping.set()

    runner, said = hurried(
        api, asked(), silence, clock, patience=RetryPolicy(timeout=0.05, initial_delay=0.01)
    )
    assert runner.run() == names.EXIT_STOPPED
    assert "placeholders may be left" in said[-1]
    assert "is not released" not in caplog.text, "to ask for it takes as long as for anything else"
    assert api.objects[LEASE]["spec"]["holderIdentity"] == "pod-a"


def test_holder_is_pod_uid_or_random(document: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    holders: list[str] = []
    addresses: list[str] = []

    def run(_request: Request, _job: str, holder: str, address: str) -> int:
        holders.append(holder)
        addresses.append(address)
        return 0

    monkeypatch.setattr(entry, "run", run)
    environment = {"TRAINYARD_REQUEST": json.dumps(document)}
    for uid in ({"POD_UID": "pod-a"}, {}, {}):
        assert entry.main([], {**environment, **uid}) == 0
    assert holders[0] == "pod-a"
    assert len(set(holders)) == 3
    assert addresses == ["0.0.0.0", "127.0.0.1", "127.0.0.1"], "outside of a pod, metrics are local"  # noqa: S104


def test_round_runs_at_end_of_hold_window(api: FakeApi) -> None:
    asked_for: list[float] = []

    class Noting(Hurried):
        def wait(self, timeout: float) -> None:
            asked_for.append(timeout)
            self.clock.now += timeout
            self.catch_up()

    clock = Clock()
    for name in ("a", "b"):
        put_node(api, name)
    gateway = Noting(api, QUICK, clock, lambda _now: None)
    began = clock.now
    runner = Launcher(
        asked(holdSeconds=3), "launch-r1", gateway, log_line=lambda _: None, wall_clock=clock, clock=clock
    )
    runner.stopping = Stopped(api)
    runner.run()
    assert asked_for[:2] == [2.0, 1.0]
    assert clock.now - began == 3.0


class Stopped(threading.Event):
    """Set once the training is there."""

    def __init__(self, api: FakeApi) -> None:
        super().__init__()
        self.api = api

    def is_set(self) -> bool:
        return any("/pytorchjobs/" in path for path in self.api.objects)
