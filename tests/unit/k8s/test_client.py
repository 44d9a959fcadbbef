"""One request: what is retried and for how long, and what the answer becomes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.launcher.api_server import QUICK, FakeApi, serving
from trainyard.k8s import eks
from trainyard.k8s.client import ApiError, ApiUnavailable, RetryPolicy

POOLS = "/apis/karpenter.sh/v1/nodepools"
POOL = f"{POOLS}/small"
BUSY = (503, {}, b"not json")
ONCE = RetryPolicy(timeout=0.0)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with serving(FakeApi()) as served:
        served.put(POOL, {"metadata": {"name": "small"}})
        yield served


def test_request_retries_while_server_cannot_answer(api: FakeApi) -> None:
    api.faults = [BUSY, None, (500, {}, b"{}")]
    assert api.client().request("GET", POOL)["metadata"]["name"] == "small"


def test_retry_after_is_respected(api: FakeApi) -> None:
    slept: list[float] = []
    client = api.client(sleep=slept.append, retry=RetryPolicy(timeout=60.0, initial_delay=0.01))
    api.faults = [(429, {"Retry-After": "7"}, b"{}")]
    client.request("GET", POOL)
    assert slept == [7.0]


@pytest.mark.parametrize("code", [429, 503])
def test_retry_after_beyond_timeout_is_reported(api: FakeApi, code: int) -> None:
    slept: list[float] = []
    client = api.client(sleep=slept.append, retry=RetryPolicy())
    api.faults = [(code, {"Retry-After": "30"}, b"{}")]
    with pytest.raises(ApiUnavailable, match=str(code)) as failed:
        client.request("GET", POOL)
    assert (failed.value.retry_after, slept, api.requests) == (30.0, [], [])


@pytest.mark.parametrize("said", ["", "soon", "-5", "nan", "inf", "1e9", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_invalid_retry_after_is_ignored(api: FakeApi, said: str) -> None:
    slept: list[float] = []
    api.faults = [(429, {"Retry-After": said}, b"{}")]
    api.client(sleep=slept.append).request("GET", POOL)
    assert slept <= [0.01]


def test_retries_end_at_timeout(api: FakeApi) -> None:
    api.faults = [BUSY] * 1000
    with pytest.raises(ApiUnavailable, match=r"GET .*small: 503"):
        api.client(retry=RetryPolicy(timeout=0.03, initial_delay=0.01, max_delay=0.01)).request("GET", POOL)
    dead = FakeApi()
    dead.url = "http://127.0.0.1:9"
    with pytest.raises(ApiUnavailable, match="refused"):
        dead.client(retry=RetryPolicy(timeout=0.03, initial_delay=0.01)).request("GET", POOL)


def test_refusal_by_ready_server_is_final(api: FakeApi) -> None:
    api.refused = {("GET", POOL)}
    with pytest.raises(ApiError, match="403 Forbidden"):
        api.client().request("GET", POOL)
    assert [path for _, path, _ in api.requests] == [POOL, "/readyz", POOL]


@pytest.mark.parametrize("ready", [True, False])
def test_single_attempt_believes_refusal_of_ready_server_only(api: FakeApi, ready: bool) -> None:
    api.refused, api.unready = {("GET", POOL)}, 0 if ready else 5
    with pytest.raises(ApiError if ready else ApiUnavailable, match="403 Forbidden"):
        api.client(retry=ONCE).request("GET", POOL)
    assert [path for _, path, _ in api.requests] == [POOL, "/readyz"]


def test_list_objects_and_text_are_read_whole(api: FakeApi) -> None:
    log = "/api/v1/namespaces/training/pods/p/log"
    api.logs[log] = [b"one\n", b"tw\xffo\n"]
    assert [item["metadata"]["name"] for item in api.client().list_objects(POOLS)] == ["small"]
    assert api.client().read_text(log) == "one\ntw\ufffdo\n"


def test_object_of_any_depth_is_read(api: FakeApi) -> None:
    """The API server accepts 10,000 levels of JSON, and one such object may be in any list."""
    deep = b'{"a":' * 9900 + b"1" + b"}" * 9900
    api.logs[POOLS] = [b'{"metadata": {}, "items": [{"metadata": {"name": "deep"}, "spec": ', deep, b"}]}"]
    assert [item["metadata"]["name"] for item in api.client().list_objects(POOLS)] == ["deep"]


def test_eks_token_is_renewed_when_it_is_not_accepted(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter(["one", "two"])
    monkeypatch.setattr(eks, "token", lambda *_session_and_cluster: next(tokens))
    client = eks.connect(None, "main", api.url, "", QUICK)
    assert client.address(POOL, [])[1]["authorization"] == "Bearer one"
    api.faults = [(401, {}, b"{}")]
    client.request("GET", POOL)
    assert client.address(POOL, [])[1]["authorization"] == "Bearer two"
