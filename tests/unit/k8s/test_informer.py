"""A copy of a list by list and watch, against an API server that drops, forgets, lags, refuses and falls silent."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.unit.launcher.api_history import Change
from tests.unit.launcher.api_server import FakeApi, Fault, serving, until
from trainyard.k8s.client import ApiError, ApiUnavailable, RetryPolicy
from trainyard.k8s.informer import Informer, ListWatch, UnreadableObject

NODES = "/api/v1/nodes"
PARTS = 8
SEQUENCES = 25  # in each part
CHANGES = 25
FAST = RetryPolicy(timeout=5.0, initial_delay=0.001, max_delay=0.004)
BUSY: Fault = (503, {}, b"{}")
Value = tuple[str, int]
News = tuple[Value | None, Value | None]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeApi]:
    with serving(FakeApi()) as served:
        yield served


@pytest.fixture
def api(server: FakeApi) -> FakeApi:
    """The server, empty and well-behaved."""
    until(lambda: not server.watching)
    for path in list(server.objects):
        server.remove(path)
    server.requests.clear()
    server.faults.clear()
    server.refused.clear()
    server.cached_version, server.gone_status, server.mute = None, False, False
    server.bookmark_seconds, server.list_seconds, server.piece_seconds = 60.0, 0.0, 0.0
    return server


def value(item: dict[str, Any]) -> Value:
    return item["metadata"]["name"], item["spec"]["n"]


class Watched:
    """An informer of the nodes of pool a, and what it reported."""

    def __init__(self, api: FakeApi, retry: RetryPolicy = FAST, **options: float) -> None:
        self.news: list[News] = []
        self.rings = 0
        source = ListWatch(path=NODES, selectors=(("labelSelector", "pool=a"),), convert=value)
        client = api.client(retry=retry)
        self.informer = Informer(client, source, self._ring, on_change=self._note, **options)

    def _note(self, before: Value | None, after: Value | None) -> None:
        self.news.append((before, after))

    def _ring(self) -> None:
        self.rings += 1

    @property
    def state(self) -> list[Value]:
        return sorted(self.informer.items())


class Pauses(threading.Event):
    """The stop event of an informer that notes its pauses between two attempts, and has them over at once."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout or 0.0)
        return super().wait(min(timeout or 0.0, 0.001))


@contextmanager
def paused(api: FakeApi, retry: RetryPolicy) -> Iterator[list[float]]:
    """The seconds of each pause of an informer."""
    pauses = Pauses()
    with running(api, retry, pauses):
        yield pauses.seconds


@contextmanager
def running(
    api: FakeApi, retry: RetryPolicy = FAST, stopping: threading.Event | None = None, **options: float
) -> Iterator[Watched]:
    made = Watched(api, retry, **options)
    made.informer._stopping = stopping or threading.Event()
    made.informer.start()
    try:
        yield made
    finally:
        made.informer.stop()
        made.informer.join(20.0)


def put(api: FakeApi, name: str, n: int, pool: str = "a") -> None:
    api.put(f"{NODES}/{name}", {"metadata": {"name": name, "labels": {"pool": pool}}, "spec": {"n": n}})


def truth(api: FakeApi) -> list[Value]:
    return sorted(value(item) for item in api.objects.values() if item["metadata"]["labels"]["pool"] == "a")


def as_news(change: Change) -> News | None:
    """What a watch of pool a reports of this change; None for nothing."""
    both = [
        value(item) if item and item["metadata"]["labels"]["pool"] == "a" else None
        for item in (change.before, change.after)
    ]
    return (both[0], both[1]) if both[0] != both[1] else None


def disturb(api: FakeApi, chance: random.Random) -> bool:
    """Does something bad to the watch; whether it may go unnoticed that objects changed in between."""
    match chance.choice(["drop", "drop", "close", "busy", "expire", "expire", "mute"]):
        case "drop":
            api.drop()
        case "close":
            api.faults.append(None)
            api.drop()
        case "busy":
            api.faults.append(BUSY)
            api.drop()
            return True
        case "expire":
            api.gone_status = chance.random() < 0.5
            # A cache of the API server that lags: a list from it would bring back what is long gone.
            api.cached_version = chance.randint(api.gone, api.version)
            api.expire(tell=chance.random() < 0.5)
            api.drop()
            return True
        case "mute":
            api.mute = not api.mute
    return False


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.long
def test_informer_under_faults_reports_each_event_once(api: FakeApi, part: int) -> None:
    exact = 0
    for seed in range(part, PARTS * SEQUENCES, PARTS):
        chance = random.Random(seed)  # noqa: S311
        kind = chance.choice(["drop", "all"])
        api.bookmark_seconds = chance.choice([0.002, 60.0])
        for index in range(chance.randint(0, 3)):
            put(api, f"old-{index}", 0)
        with running(api) as seen:
            until(lambda: seen.rings)
            seen.news.clear()
            first = len(api.changes)
            blurred = False
            for n in range(1, CHANGES):
                name = f"n{chance.randint(0, 4)}"
                if chance.random() < 0.25 and f"{NODES}/{name}" in api.objects:
                    api.remove(f"{NODES}/{name}")
                else:
                    put(api, name, n, chance.choice(["a", "a", "b"]))
                if chance.random() < 0.2:
                    if kind == "all":
                        blurred |= disturb(api, chance)
                    else:
                        api.drop()
                if chance.random() < 0.3:
                    time.sleep(chance.random() / 500)
            api.mute = False
            with api.news:
                api.news.notify_all()
            put(api, "last", CHANGES)
            until(lambda: ("last", CHANGES) in seen.state)
            assert seen.state == truth(api), seed
        reported = seen.news
        known = {each[0]: each for each in truth_at(api, first)}
        for before, after in reported:  # each change starts from the state before
            name = (before or after or ("", 0))[0]
            assert known.get(name) == before, (seed, reported)
            assert before is None or after is None or before[1] < after[1], (seed, before, after)
            known.pop(name, None)
            if after is not None:
                known[name] = after
        if not blurred:
            exact += 1
            assert reported == [news for change in api.changes[first:] if (news := as_news(change))], seed
        api.cached_version, api.gone_status = None, False
        for path in list(api.objects):
            api.remove(path)
    assert exact > SEQUENCES / 4


def truth_at(api: FakeApi, first: int) -> list[Value]:
    version = api.changes[first - 1].version if first else 0
    return [value(item) for item in api.listed(NODES, {"labelSelector": "pool=a"}, version)]


def test_informer_lists_from_the_cache_only_at_first(api: FakeApi) -> None:
    with running(api) as seen:
        until(lambda: seen.rings and api.watching)
        put(api, "a", 1)
        until(lambda: seen.state == [("a", 1)])
        api.expire(tell=True)
        until(lambda: len(api.asked("list")) == 2)
        until(lambda: len(api.asked("watch")) == 2)
    lists = [query for _, _, query in api.requests if "watch" not in query]
    assert [query.get("resourceVersion") for query in lists] == ["0", None]
    watches = [query for _, _, query in api.requests if "watch" in query]
    assert {query["allowWatchBookmarks"] for query in watches} == {"true"}
    assert all(240 <= int(query["timeoutSeconds"]) <= 300 for query in watches)


def test_informer_reports_changes_of_a_new_list(api: FakeApi) -> None:
    with running(api) as seen:
        until(lambda: seen.rings and api.watching)
        with api.news:
            api.drop()
            put(api, "a", 1)
            api.gone = api.version
            api.version += 1
        until(lambda: seen.rings == 2)
        assert seen.state == [("a", 1)]
        assert len(api.asked("list")) == 2


def test_informer_resumes_from_the_last_bookmark(api: FakeApi) -> None:
    api.bookmark_seconds = 0.01
    with running(api):
        until(lambda: api.watching)
        put(api, "b", 1, pool="b")  # not ours: only bookmarks tell how far the watch is
        time.sleep(0.05)
        api.gone = api.version - 1
        api.drop()
        until(lambda: len(api.asked("watch")) == 2)
        time.sleep(0.02)
        assert len(api.asked("list")) == 1


def test_informer_silent_watch_is_replaced(api: FakeApi) -> None:
    with running(api, watch_seconds=0.1, grace_seconds=0.05) as seen:
        until(lambda: seen.rings and api.watching)
        api.mute = True
        put(api, "a", 1)
        began = time.monotonic()
        until(lambda: len(api.asked("watch")) == 2)
        assert time.monotonic() - began > 0.1
        api.mute = False
        until(lambda: seen.state == [("a", 1)])
        assert len(api.asked("list")) == 1


def test_informer_refusal_is_raised_until_it_is_lifted(api: FakeApi) -> None:
    api.refused = {("GET", NODES)}
    with running(api) as seen:
        with pytest.raises(ApiError, match=r"GET /api/v1/nodes: 403 Forbidden"):
            seen.informer.items()
        api.refused = set()
        put(api, "a", 1)

        def back() -> bool:
            try:
                return seen.state == [("a", 1)]
            except ApiError:
                return False

        until(back)
        # A right that is taken away later shows when the watch ends.
        until(lambda: seen.rings and api.watching)
        api.refused = {("GET", NODES)}
        api.drop()
        until(lambda: not back())


def test_informer_waits_for_a_server_that_starts(api: FakeApi) -> None:
    put(api, "a", 1)
    api.unready = 3
    with running(api) as seen:
        assert seen.state == [("a", 1)]
        until(lambda: api.watching)
        before = len(api.requests)
        api.unready = 3
        api.drop()
        put(api, "b", 1)
        while len(seen.state) < 2:  # none of these reads raises
            time.sleep(0.001)
        assert any(path == "/readyz" for _, path, _ in api.requests[before:])


def test_items_wait_for_a_slow_list_beyond_the_retry(api: FakeApi) -> None:
    for index in range(60):
        put(api, f"n{index}", 1)
        api.objects[f"{NODES}/n{index}"]["status"] = {"images": "x" * 25_000}
    api.piece_seconds = 0.05  # the list takes 0.25 s
    with running(api, RetryPolicy(timeout=0.2, initial_delay=0.01, max_delay=0.02)) as seen:
        assert len(seen.state) == 60


def test_items_after_a_long_silence_are_unavailable(api: FakeApi) -> None:
    retry = RetryPolicy(timeout=60.0, initial_delay=0.01, max_delay=0.02)
    put(api, "a", 1)
    with running(api, retry) as seen:
        until(lambda: seen.rings and api.watching)
        api.faults = [BUSY] * 10_000
        api.drop()
        until(lambda: len(api.faults) < 9_999)  # the answer to the first one was read
        assert seen.state == [("a", 1)]  # retry
        seen.informer._heard -= retry.timeout
        with pytest.raises(ApiUnavailable, match=r"/api/v1/nodes: not heard for .* s: GET .* 503"):
            seen.informer.items()
        api.faults.clear()
        until(lambda: api.watching)
        assert seen.state == [("a", 1)]
    dead = FakeApi()
    dead.url = "http://127.0.0.1:9"
    began = time.monotonic()  # the watch begins in a moment, on its own
    with running(dead, RetryPolicy(timeout=0.05, initial_delay=0.01, max_delay=0.02)) as seen:
        with pytest.raises(ApiUnavailable, match="refused"):
            seen.informer.items()
        assert 0.05 <= time.monotonic() - began < 10


def test_informer_whose_attempts_fail_pauses_longer_each_time(api: FakeApi) -> None:
    api.faults = [BUSY] * 10_000
    with paused(api, RetryPolicy(timeout=60.0, initial_delay=1.0, max_delay=10.0)) as pauses:
        until(lambda: len(pauses) > 8)
    assert pauses[0] == 0.0
    longest = [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses[1:], longest, strict=False)), pauses


def test_informer_asked_to_retry_later_pauses_as_long(api: FakeApi) -> None:
    api.faults = [(429, {"Retry-After": "7"}, b"{}")]
    with paused(api, FAST) as pauses:
        until(lambda: len(pauses) > 1)
    assert pauses[:2] == [0.0, 7.0]


def test_informer_whose_watch_ends_at_once_pauses(api: FakeApi) -> None:
    with paused(api, RetryPolicy(timeout=60.0, initial_delay=1.0, max_delay=4.0)) as pauses:
        until(lambda: api.drop() or len(pauses) > 7)
    assert all(pause >= 0.5 for pause in pauses[1:]), pauses


def test_items_with_an_unreadable_object_raise(api: FakeApi) -> None:
    with running(api) as seen:
        until(lambda: seen.rings and api.watching)
        api.put(f"{NODES}/a", {"metadata": {"name": "a", "labels": {"pool": "a"}}})
        until(lambda: seen.rings == 2)
        with pytest.raises(UnreadableObject, match=r"/api/v1/nodes: a cannot be read: KeyError: 'spec'"):
            seen.informer.items()


@pytest.mark.parametrize("when", ["list", "watch"])
def test_informer_unreadable_object_hides_no_other(api: FakeApi, when: str) -> None:
    with running(api) as seen:
        if when == "watch":
            until(lambda: seen.rings and api.watching)
        put(api, "a", 1)
        api.put(f"{NODES}/bad", {"metadata": {"name": "bad", "labels": {"pool": "a"}}})
        put(api, "b", 1)
        until(lambda: seen.news == [(None, ("a", 1)), (None, ("b", 1))])
        with pytest.raises(UnreadableObject):
            seen.informer.items()
        put(api, "bad", 2)
        until(lambda: (None, ("bad", 2)) in seen.news)
        assert seen.state == [("a", 1), ("b", 1), ("bad", 2)]
        assert len(api.asked("list")) == 1


@pytest.mark.parametrize(
    "line", [b"no JSON\n", b"[]\n", b"{}\n", b'{"type": "MODIFIED", "object": {"metadata": {}}}\n']
)
def test_informer_event_of_another_form_lists_again(api: FakeApi, line: bytes) -> None:
    with running(api) as seen:
        until(lambda: seen.rings and api.watching)
        api.faults = [(200, {}, line)]
        api.drop()
        until(lambda: len(api.asked("list")) == 2)
        put(api, "a", 1)
        until(lambda: seen.news == [(None, ("a", 1))])
        assert seen.state == [("a", 1)]


def test_informer_whose_callback_fails_goes_on(api: FakeApi) -> None:
    with running(api) as seen:
        until(lambda: seen.rings and api.watching)
        ring, seen.informer._changed = seen.informer._changed, lambda: [][0]
        put(api, "a", 1)
        until(lambda: len(seen.news) == 1)
        seen.informer._changed = ring
        put(api, "b", 1)
        until(lambda: seen.rings == 2)
        assert seen.state == [("a", 1), ("b", 1)]


def test_informer_ignores_changes_of_other_fields(api: FakeApi) -> None:
    with running(api) as seen:
        until(lambda: seen.rings and api.watching)
        put(api, "a", 1)
        until(lambda: seen.rings == 2)
        for beat in range(20):
            item = api.objects[f"{NODES}/a"]
            api.put(f"{NODES}/a", {**item, "status": {"heartbeat": beat}})
        put(api, "b", 1)
        until(lambda: len(seen.state) == 2)
        assert seen.rings == 3


@pytest.mark.parametrize("when", ["list", "watch", "pause"])
def test_informer_stop_ends_its_thread(api: FakeApi, when: str) -> None:
    before = set(threading.enumerate())
    api.list_seconds = 0.1 if when == "list" else 0.0
    if when == "pause":
        api.faults = [(429, {"Retry-After": "60"}, b"{}")]
    watching = Watched(api)
    watching.informer.start()
    if when == "watch":
        until(lambda: api.watching)
    time.sleep(0.02)
    watching.informer.stop()
    watching.informer.join(20.0)
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert f"watch {NODES}" not in left
    assert not watching.informer.has_died
    until(lambda: not api.watching)
