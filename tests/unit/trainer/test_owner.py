"""Two jobs, one place for checkpoints: the second is refused, and a dead one's place is taken over."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from trainer import process as processes
from trainer.checkpoint import owner as module
from trainer.checkpoint.owner import ABANDONED_SECONDS, SAME_RUN_SECONDS, Claim, Owner, newest_generation
from trainer.contract import Exit, TrainerError
from trainer.process import Process
from trainer.stores import Directory, StoreError


class Clock:
    """Time that passes when somebody sleeps; `meanwhile` is what others do while they do."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.meanwhile: Callable[[float], object] = lambda _now: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile(self.now)


@pytest.fixture
def store(tmp_path: Path) -> Directory:
    return Directory(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def elsewhere(store: Directory, clock: Clock, run: str = "theirs") -> Owner:
    """An owner on another machine, so that nobody here can see whether its process lives."""
    other = Owner(store, run, "r2", clock=clock, sleep=clock.sleep)
    other._claim = replace(other._claim, process=replace(Process.own(), host="far", boot="b2"))
    return other


def mine(store: Directory, clock: Clock, said: list[str] | None = None) -> Owner:
    log_line = (lambda _line: None) if said is None else said.append
    return Owner(store, "mine", "r1", clock=clock, sleep=clock.sleep, log_line=log_line)


def test_an_empty_place_is_claimed_at_once(store: Directory, clock: Clock) -> None:
    own = mine(store, clock)
    own.claim()
    assert (own.generation, own.takeover, clock.now) == (1, "", 1000.0)
    assert newest_generation(store) == own.generation


def test_claim_of_abandoned_place_is_taken_over(store: Directory, clock: Clock) -> None:
    first = elsewhere(store, clock)
    first.claim()
    own = mine(store, clock)
    own.claim()
    assert clock.now >= 1000 + ABANDONED_SECONDS
    assert own.generation == 2
    assert list(store.list("owners/")) == ["owners/000002.json"]
    said: list[str] = []
    first._log_line = said.append
    first.renew()
    first.renew()
    assert first.takeover.startswith(f"{store.path} was taken over by run r1 (process {os.getpid()} on ")
    assert said == [f"alarm=checkpoint owner=lost reason={first.takeover}"]
    assert newest_generation(store) == own.generation  # the one that lost wrote nothing


def test_claim_same_run_silent_owner_is_taken_over(store: Directory, clock: Clock) -> None:
    before = elsewhere(store, clock, run="mine")
    before.claim()
    own = mine(store, clock)
    own.claim()
    assert 1000 + module.RENEW_SECONDS < 1000 + SAME_RUN_SECONDS <= clock.now < 1000 + ABANDONED_SECONDS
    before.renew()
    assert before.takeover  # and where it hung and comes back, it sees that


def test_renew_after_the_claim_was_deleted_writes_it_again(store: Directory, clock: Clock) -> None:
    own = mine(store, clock)
    own.claim()
    store.delete(store.list("owners/"))
    own.renew()
    assert not own.takeover
    assert newest_generation(store) == own.generation


def here_alive(store: Directory, clock: Clock) -> Owner:
    """An owner of the same run whose process lives on this machine: this one's parent."""
    other = Owner(store, "mine", "r1", clock=clock, sleep=clock.sleep)
    state = processes._state(os.getppid())
    assert state is not None
    process = replace(Process.own(), pid=os.getppid(), started=state[1])
    assert not process.is_dead()
    other._claim = replace(other._claim, process=process)
    return other


@pytest.mark.parametrize(
    ("where", "run", "advice"),
    [
        ("elsewhere", "theirs", "use another place for this run"),
        ("elsewhere", "mine", "use another run id or owner"),
        ("here", "mine", "use another run id or owner"),
    ],
)
def test_claim_beside_a_live_run_is_refused(
    store: Directory, clock: Clock, where: str, run: str, advice: str
) -> None:
    first = here_alive(store, clock) if where == "here" else elsewhere(store, clock, run)
    first.claim()
    renewals = iter(range(100))
    first._now = lambda: replace(first._claim, renewed_at=f"at {next(renewals)}")  # type: ignore[method-assign]
    clock.meanwhile = lambda now: first.renew() if now >= 1000 + module.RENEW_SECONDS else None
    with pytest.raises(TrainerError) as caught:
        mine(store, clock).claim()
    assert caught.value.code == Exit.CONFIGURATION
    process, line = first._claim.process, str(caught.value)
    assert "\n" not in line
    name = f"{first._claim.run_id} (process {process.pid} on {process.host}, last seen at 0)"
    assert f"run {name}, which is alive. " in line
    assert advice in line
    assert clock.now < 1000 + ABANDONED_SECONDS
    assert newest_generation(store) == first.generation


@pytest.mark.parametrize(
    ("before", "at"),
    [("this process", 1000.0), ("a dead process", 1000.0), ("released", 1000.0), ("released later", 1004.0)],
)
def test_claim_that_nobody_holds_is_followed_at_once(
    store: Directory, clock: Clock, before: str, at: float
) -> None:
    first = elsewhere(store, clock, run="mine") if before.startswith("released") else mine(store, clock)
    if before == "a dead process":
        child = subprocess.Popen(["true"])
        child.wait()
        first._claim = replace(first._claim, process=replace(Process.own(), pid=child.pid, started="1"))
    first.claim()
    if before == "released":
        first.release()
    elif before == "released later":
        clock.meanwhile = lambda now: first.release() if now >= at else None
    own = mine(store, clock)
    own.claim()
    assert (own.generation, clock.now) == (2, at)


def test_what_cannot_be_seen_from_here_is_not_known_to_be_dead() -> None:
    own = Process.own()
    assert not own.is_dead()
    child = subprocess.Popen(["true"])
    zombie = replace(own, pid=child.pid, started=processes._state(child.pid)[1])  # type: ignore[index]
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert zombie.is_dead()
    child.wait()
    assert zombie.is_dead()
    assert replace(own, started="1").is_dead()  # the number was given to another process since
    for other in ({"host": "far"}, {"boot": "b2"}, {"namespace": "pid:[1]"}):
        assert not replace(zombie, **other).is_dead()


def test_owner_without_proc_claims_renews_and_releases(
    store: Directory, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "PROC", tmp_path / "no-proc")
    first = Owner(store, "theirs", "r2", clock=clock, sleep=clock.sleep)
    first.claim()
    first.renew()
    assert not first.takeover
    claim = Claim.decode(store.read("owners/000001.json"))
    assert claim is not None
    assert claim.process == Process(socket.gethostname(), "", "", os.getpid(), "")
    assert not claim.process.is_dead()
    assert not replace(claim.process, pid=2**22 + 1).is_dead()  # nobody can tell whose process that is
    first.release()
    own = mine(store, clock)
    own.claim()
    assert (own.generation, clock.now) == (2, 1000.0)


@pytest.mark.parametrize("claim", ["that nobody can read", "without /proc"])
def test_claim_of_unknown_process_is_taken_when_abandoned(
    store: Directory, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claim: str
) -> None:
    if claim == "without /proc":
        monkeypatch.setattr(processes, "PROC", tmp_path / "no-proc")
        Owner(store, "theirs", "r2", clock=clock, sleep=clock.sleep).claim()
    else:
        store.put("owners/000001.json", b"")
    own = mine(store, clock)
    own.claim()
    assert own.generation == 2
    assert clock.now >= 1000 + ABANDONED_SECONDS


def test_of_two_that_wait_for_an_abandoned_place_one_gets_it(store: Directory, clock: Clock) -> None:
    elsewhere(store, clock).claim()
    rival = elsewhere(store, clock, run="rival")

    def faster(now: float) -> None:
        if now >= 1000 + ABANDONED_SECONDS:
            rival._take(2)
            rival.generation = 2
            rival._claim = replace(rival._claim, renewed_at=f"{now}")
            rival._now = lambda: replace(rival._claim, renewed_at=f"{clock.now}")  # type: ignore[method-assign]
            rival.renew()

    clock.meanwhile = faster
    with pytest.raises(TrainerError, match="belongs to run r2"):
        mine(store, clock).claim()
    assert newest_generation(store) == rival.generation


class Forgetful(Directory):
    """A store that carries a claim out and says that the name was taken, as S3 does after a lost answer."""

    def put_if_absent(self, path: str, body: bytes) -> bool:
        super().put_if_absent(path, body)
        return False


def test_a_claim_whose_answer_was_lost_is_known_again(tmp_path: Path, clock: Clock) -> None:
    own = mine(Forgetful(tmp_path), clock)
    own.claim()
    assert own.generation == 1


class Failing(Directory):
    def list(self, prefix: str = "") -> dict[str, int]:
        raise StoreError("cannot list s3://b/p: 503")


def test_a_store_that_fails_is_neither_free_nor_lost(store: Directory, clock: Clock, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="503"):
        mine(Failing(tmp_path), clock).claim()
    said: list[str] = []
    own = mine(store, clock, said)
    own.claim()
    own._store = Failing(tmp_path)
    own.renew()
    own.renew()
    assert said == ["alarm=checkpoint owner=unrenewed reason=cannot list s3://b/p: 503"]
    assert not own.takeover
    own._store = store
    own.renew()
    assert not own.takeover


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.02)


def test_the_thread_renews_until_the_release(store: Directory, clock: Clock, quick: None) -> None:
    puts = threading.Event()
    bodies: list[bytes] = []

    class Watched(Directory):
        def put(self, path: str, body: bytes, *more: object, **named: object) -> None:
            super().put(path, body)
            bodies.append(body)
            if len(bodies) >= 3:
                puts.set()

    own = Owner(Watched(store.path), "mine", "r1", clock=clock, sleep=clock.sleep)
    own.claim()
    own.start()
    assert puts.wait(10)
    own.release()
    released = Claim.decode(store.read("owners/000001.json"))
    assert released is not None
    assert released.released
    count = len(bodies)
    threading.Event().wait(0.06)  # three times as long as to the next one
    assert len(bodies) == count


def test_who_lost_does_not_release_what_is_another_ones(store: Directory, clock: Clock) -> None:
    first = elsewhere(store, clock)
    first.claim()
    first.release()
    own = mine(store, clock)
    own.claim()
    first.release()
    claim = Claim.decode(store.read("owners/000002.json"))
    assert claim is not None
    assert not claim.released


def test_a_store_in_which_others_are_always_faster_is_given_up(store: Directory, clock: Clock) -> None:
    class Contended(Directory):
        def list(self, prefix: str = "") -> dict[str, int]:
            return {}

        def delete(self, paths: Iterable[str]) -> None:
            raise AssertionError("nothing was won")

    store.put("owners/000001.json", Claim("x", "x", Process.own(), "").encode())
    with pytest.raises(StoreError, match="others were faster 10 times"):
        mine(Contended(store.path), clock).claim()
