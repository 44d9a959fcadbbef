"""What the launcher knows of the cluster without asking: complete, up to date, and at no cost while nothing changes."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from statistics import median
from typing import Any

import pytest

from launcher import __main__ as program
from launcher import gateway as gateway_module
from launcher.gateway import Gateway
from launcher.loop import Launcher
from launcher.observe import Observation, Pod
from launcher.request import Request
from tests.unit.launcher import cluster
from tests.unit.launcher.api_server import FakeApi, until
from tests.unit.launcher.cluster import JOBS, NODES, PODS, put_claim, put_node, put_pod, put_training
from tests.unit.launcher.test_gateway import built
from trainyard.k8s import kubeconfig, names

NOW = 1_800_000_000.0
SOURCES = 7


@pytest.fixture
def gateway(api: FakeApi) -> Iterator[Gateway]:
    with closing(Gateway(api.client(), lambda: NOW)) as made:
        yield made


def contents(seen: Observation) -> dict[str, Any]:
    """What it shows, whatever the order, but for others' pods without a node, which fresh lists alone have."""

    def stays(each: Any) -> bool:
        return not isinstance(each, Pod) or bool(each.node) or each.namespace == "training"

    return {
        name: {str(each) for each in value if stays(each)} if isinstance(value, tuple) else value
        for name, value in vars(seen).items()
        if name != "fresh"
    }


@pytest.mark.long
def test_the_copy_shows_what_fresh_lists_show(api: FakeApi, gateway: Gateway, request_: Request) -> None:
    chance = random.Random(7)  # noqa: S311
    for step in range(24):
        on = f"n{chance.randint(0, 5)}"
        label = chance.choice([{}, {"trainyard.dev/run": "r1"}, {"trainyard.dev/role": "warm"}])
        match chance.choice(["node", "claim", "pod", "own", "finish", "warn", "remove", "pool"]):
            case "node":
                put_node(api, on, chance.choice(["small", "small", "other"]), spec__unschedulable=step % 2)
            case "claim":
                put_claim(api, f"small-{on}", chance.choice(["", on]), chance.choice(["small", "other"]))
            case "pod":
                put_pod(api, f"pod-{step % 7}", chance.choice(["", on]), **label)
            case "own":
                put_pod(api, f"hold-{step % 4}", on, "training", **label)
            case "finish":
                for path in [key for key in api.objects if "/pods/" in key][:2]:
                    api.put(path, {**api.objects[path], "status": {"phase": "Succeeded"}})
            case "warn":
                cluster.put_warning(api, f"event-{step % 3}", f"small-{on}")
            case "remove":
                objects = [key for key in api.objects if "/pods/" in key or key.startswith(NODES)]
                if objects:
                    api.remove(chance.choice(objects))
            case "pool":
                spec = {"limits": {"nvidia.com/gpu": str(4 * chance.randint(1, 8))}}
                api.put(f"{cluster.POOLS}/small", {"metadata": {"name": "small"}, "spec": spec})

        def agree() -> bool:
            copied = gateway.observe(request_, fresh=False)
            assert not copied.fresh
            return contents(copied) == contents(gateway.observe(request_, fresh=True))

        until(agree)


def test_of_the_pods_those_are_kept_that_concern_the_run(
    api: FakeApi, gateway: Gateway, request_: Request
) -> None:
    put_node(api, "here")
    put_node(api, "there", "other")
    put_claim(api, "small-1", "coming")
    put_pod(api, "on-a-node", "here")
    put_pod(api, "on-a-machine-without-a-node", "coming")
    put_pod(api, "elsewhere", "there")
    put_pod(api, "pending", "")
    put_pod(api, "own", "here", "training", **{"trainyard.dev/run": "r1"})
    item = put_pod(api, "own-finished", "gone", "training", **{"trainyard.dev/run": "r1"})
    api.put(f"{PODS}/own-finished", {**item, "status": {"phase": "Failed"}})
    put_pod(api, "of-another-run", "", "training", **{"trainyard.dev/run": "r2"})
    for fresh in (False, True):
        found = gateway.observe(request_, fresh=fresh).pods
        pods = {pod.name: pod for pod in found}
        assert [pod.name for pod in sorted(found, key=lambda pod: (not pod.node, pod.name))] == [
            "on-a-machine-without-a-node",
            "on-a-node",
            "own",
            "own-finished",
            # Fresh lists show who waits for a machine, too.
            *(["of-another-run", "pending"] if fresh else []),
        ]
        assert pods["own"].annotations == {"note": "x"}
        assert pods["on-a-node"].annotations == {}


def waited_out(api: FakeApi, request: Request, deadline: int) -> tuple[int, int]:
    """(rounds, requests) of a run that waits for nodes until its deadline, in a time that passes quickly."""
    seconds = itertools.count(int(NOW))
    rounds = 0

    def clock() -> float:
        nonlocal rounds
        rounds += 1
        return float(next(seconds))

    before = len(api.requests)
    with closing(Gateway(api.client(), clock)) as gateway:
        runner = Launcher(
            dataclasses.replace(request, deadline_seconds=deadline),
            "launch-r1",
            gateway,
            log_line=lambda _: None,
            poll_seconds=0.001,
        )
        assert runner.run() == names.EXIT_BELOW_MINIMUM
    until(lambda: not api.watching)
    return rounds, len(api.requests) - before


@pytest.mark.long
def test_waiting_costs_no_requests_however_long_it_is(api: FakeApi, request_: Request) -> None:
    put_node(api, "a")
    short_rounds, short = waited_out(api, request_, 20)
    long_rounds, long = waited_out(api, request_, 100)
    assert long_rounds > 90 > 40 > short_rounds
    # Owner, three things that may lack, seven lists, seven watches, four placeholders made and removed, two Events, and
    # at most a few recounts of six reads each.
    assert long <= short + 6 <= 50


def changes(api: FakeApi) -> dict[str, Callable[[], object]]:
    """One change of each kind that is news."""
    finished = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    limits = {"spec": {"limits": {"nvidia.com/gpu": "8"}}}
    return {
        "node": lambda: put_node(api, "b"),
        "node changes": lambda: put_node(api, "b", spec__unschedulable=True),
        "claim": lambda: put_claim(api, "small-1", "b"),
        "pool": lambda: api.put(f"{cluster.POOLS}/small", {"metadata": {"name": "small"}, **limits}),
        "own pod": lambda: put_pod(api, "hold-r1-0", "", "training", **{"trainyard.dev/run": "r1"}),
        "pod of another on the node": lambda: put_pod(api, "other", "b"),
        "that pod leaves": lambda: api.remove("/api/v1/namespaces/default/pods/other"),
        "warning": lambda: cluster.put_warning(api, "event", "small-1"),
        "training": lambda: put_training(api),
        "its end": lambda: put_training(api, **finished),
    }


def test_each_change_ends_the_wait_at_once(
    api: FakeApi, gateway: Gateway, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "SETTLE_SECONDS", 0.0)
    took: dict[str, float] = {}
    gateway.observe(request_, fresh=False)
    until(lambda: api.watching == SOURCES)
    before = contents(gateway.observe(request_, fresh=False))
    for name, change in changes(api).items():
        began = time.monotonic()
        change()
        gateway.wait(30.0)
        took[name] = time.monotonic() - began
        after = contents(gateway.observe(request_, fresh=False))
        assert after != before, name
        before = after
    print("seconds from a change to the end of the wait:", {k: round(v, 3) for k, v in took.items()})
    assert median(took.values()) < 1.0
    assert max(took.values()) < 15.0


def test_what_concerns_nobody_here_ends_no_wait(
    api: FakeApi, gateway: Gateway, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "SETTLE_SECONDS", 0.0)
    put_node(api, "a")
    gateway.observe(request_, fresh=False)
    until(lambda: api.watching == SOURCES)
    gateway.wait(0.05)
    gateway.observe(request_, fresh=False)
    put_pod(api, "elsewhere", "far")
    put_node(api, "other", "other")
    put_claim(api, "other-1", "other", "other")
    put_node(api, "a", status__heartbeat=1)
    began = time.monotonic()
    gateway.wait(0.1)
    assert time.monotonic() - began >= 0.1


def test_what_was_observed_already_ends_no_wait(
    api: FakeApi, gateway: Gateway, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_module, "SETTLE_SECONDS", 0.0)
    gateway.observe(request_, fresh=False)
    until(lambda: api.watching == SOURCES)
    put_node(api, "a")
    until(lambda: gateway.observe(request_, fresh=False).nodes)
    time.sleep(0.05)
    for fresh in (False, True):
        gateway.wake()
        gateway.observe(request_, fresh=fresh)
        began = time.monotonic()
        gateway.wait(0.04)
        assert time.monotonic() - began >= 0.04


def test_flapping_nodes_make_twenty_rounds_a_second_at_most(
    api: FakeApi, gateway: Gateway, request_: Request
) -> None:
    gateway.observe(request_, fresh=False)
    until(lambda: api.watching == SOURCES)
    stop = threading.Event()

    def flap() -> None:
        for count in itertools.count():
            if stop.is_set():
                return
            put_node(api, f"n{count % 256}", spec__unschedulable=count // 256 % 2 == 0)
            time.sleep(0.001)

    flapping = threading.Thread(target=flap)
    flapping.start()
    began = time.monotonic()
    for _ in range(4):
        gateway.wait(10.0)
        gateway.observe(request_, fresh=False)
    took = time.monotonic() - began
    stop.set()
    flapping.join()
    assert 4 * gateway_module.SETTLE_SECONDS <= took < 20.0
    assert api.version > 40


def test_a_signal_ends_a_wait_at_once(gateway: Gateway) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: gateway.wake())
    try:
        for delay in (0.0, 0.02):
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            began = time.monotonic()
            gateway.wait(60.0)
            assert time.monotonic() - began < 30.0
            timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_sigterm_ends_the_launchers_wait_and_its_watches(
    api: FakeApi, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(launcher: Launcher) -> int:
        launcher.gateway.observe(request_, fresh=False)
        until(lambda: api.watching == SOURCES)
        launcher.gateway.observe(request_, fresh=False)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        launcher.gateway.wait(60.0)
        return names.EXIT_STOPPED if launcher.stopping.is_set() else names.EXIT_API_ERROR

    monkeypatch.setattr(Launcher, "run", run)
    monkeypatch.setattr(kubeconfig, "connect_in_pod_or_outside", api.client)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    began = time.monotonic()
    try:
        assert program.run(request_, "launch-r1", "pod-a", cluster.NO_ADDRESS) == names.EXIT_STOPPED
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert time.monotonic() - began < 30.0
    assert not [each for each in threading.enumerate() if each.name.startswith("watch ")]


def _reads_of_training(api: FakeApi) -> int:
    """How often it was asked for by its name; a watch asks by a selector."""
    return [path for _, path, _ in api.requests].count(f"{JOBS}/train-r1")


def test_a_training_is_never_forgotten_because_a_watch_lags(
    api: FakeApi, gateway: Gateway, request_: Request
) -> None:
    gateway.observe(request_, fresh=False)
    until(lambda: api.watching == SOURCES)
    api.mute = True
    put_training(api)
    assert gateway.observe(request_, fresh=True).training is not None
    assert gateway.observe(request_, fresh=False).training is not None
    api.mute = False

    def asks_nobody() -> bool:
        reads = _reads_of_training(api)
        assert gateway.observe(request_, fresh=False).training is not None
        return _reads_of_training(api) == reads

    until(asks_nobody)  # the watch has reported it, too
    assert all(asks_nobody() for _ in range(5))
    api.remove(f"{JOBS}/train-r1")
    until(lambda: gateway.observe(request_, fresh=False).training is None)


def test_created_training_is_read_although_its_watch_lags(
    api: FakeApi, gateway: Gateway, request_: Request
) -> None:
    gateway.observe(request_, fresh=True)
    gateway.observe(request_, fresh=False)
    until(lambda: api.watching == SOURCES)
    api.mute = True
    gateway.create_training(request_, built(request_))
    assert gateway.observe(request_, fresh=False).training is not None


def test_watches_with_training_are_two(api: FakeApi, gateway: Gateway, request_: Request) -> None:
    put_node(api, "a")
    gateway.observe(request_, fresh=False)
    until(lambda: api.watching == SOURCES)
    put_training(api)
    put_pod(api, "train-r1-master-0", "a", "training", **{"trainyard.dev/run": "r1"})
    until(lambda: gateway.observe(request_, fresh=False).training)
    until(lambda: api.watching == 2)
    until(lambda: gateway.observe(request_, fresh=False).pods)
    assert gateway.observe(request_, fresh=False).nodes == ()


def test_observe_existing_training_reads_no_cluster(
    api: FakeApi, gateway: Gateway, request_: Request
) -> None:
    put_training(api)
    api.cached_version = 100  # a cache that lags shows nothing of it
    assert gateway.observe(request_, fresh=False).training is not None
    until(lambda: api.watching == 2)
    assert {path for _, path, _ in api.requests} == {JOBS, f"{JOBS}/train-r1", PODS}


def test_another_pool_is_watched_instead_of_the_first(
    api: FakeApi, gateway: Gateway, request_: Request
) -> None:
    put_node(api, "a")
    put_node(api, "b", "large")
    put_claim(api, "large-1", "b", "large")
    assert [node.name for node in gateway.observe(request_, fresh=False).nodes] == ["a"]
    until(lambda: api.watching == SOURCES)
    seen = gateway.observe(cluster.pool_named(request_, "large"), fresh=False)
    assert [node.name for node in seen.nodes] == ["b"]
    assert [claim.name for claim in seen.claims] == ["large-1"]
    assert seen.pool is None
    paths = (PODS, JOBS, "/api/v1/pods", NODES)
    until(lambda: api.asked("watch").count(NODES) == 2)
    until(lambda: api.watching == SOURCES)
    # What is the same for both goes on.
    assert [api.asked("watch").count(path) for path in paths] == [1, 1, 1, 2]
