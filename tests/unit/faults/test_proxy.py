"""The proxy of the fault tests, before a small API server in this process, with the launcher's own client."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from kubernetes import client

from launcher import sources
from tests.faults.launched import Launched
from tests.faults.proxy import Call, Fault, Moment, Proxy
from tests.unit.launcher.api_server import QUICK, FakeApi, until
from tests.unit.launcher.conftest import DOCUMENT, api, asked
from trainyard.k8s.client import ApiError, ApiUnavailable, Client, RetryPolicy, api_client
from trainyard.k8s.informer import Informer

__all__ = ["api"]

PODS = "/api/v1/namespaces/training/pods"
IMPATIENT = RetryPolicy(timeout=0.0)


@pytest.fixture
def proxy(api: FakeApi) -> Iterator[Proxy]:
    with Proxy(api.url) as started:
        yield started


def rest(proxy: Proxy, patience: RetryPolicy = QUICK) -> Client:
    settings = client.Configuration()
    settings.host = proxy.url
    return Client(api_client(settings), patience)


def make(proxy: Proxy, name: str, patience: RetryPolicy = QUICK) -> None:
    rest(proxy, patience).request("POST", PODS, body={"metadata": {"name": name}, "spec": {}})


@contextmanager
def upstream(handler: type[BaseHTTPRequestHandler]) -> Iterator[Proxy]:
    """A proxy before a server of one's own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        with Proxy(f"http://127.0.0.1:{server.server_port}") as started:
            yield started
    finally:
        server.shutdown()
        server.server_close()


def connection(proxy: Proxy) -> HTTPConnection:
    address = urlsplit(proxy.url)
    return HTTPConnection(str(address.hostname), address.port, timeout=30)


def test_what_is_asked_is_passed_on_and_writes_are_numbered(proxy: Proxy, api: FakeApi) -> None:
    make(proxy, "a")
    assert rest(proxy).request("GET", f"{PODS}/a")["metadata"]["name"] == "a"
    with pytest.raises(ApiError) as error:
        make(proxy, "a")
    assert (error.value.status, error.value.reason) == (409, "AlreadyExists")
    recorded = [(call.write, str(call), call.status) for call in proxy.calls]
    assert recorded == [(1, f"POST {PODS}", 201), (0, f"GET {PODS}/a", 0), (2, f"POST {PODS}", 409)]
    assert [call.write for call in proxy.writes] == [1, 2]
    assert api.names(PODS) == ["a"]


def test_the_clients_own_token_and_query_arrive() -> None:
    heard: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.update(path=self.path, **{name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            """Silent."""

    with upstream(Handler) as proxy:
        client_ = connection(proxy)
        client_.request("GET", "/api?limit=1&empty=", headers={"Authorization": "Bearer t"})
        assert client_.getresponse().read() == b"{}"
        (call,) = proxy.calls
        assert (call.path, call.query, call.is_fresh) == ("/api", {"limit": "1", "empty": ""}, True)
    assert (heard["path"], heard["authorization"], heard["connection"]) == (
        "/api?limit=1&empty=",
        "Bearer t",
        "close",
    )


def test_watches_stream_and_a_client_that_leaves_ends_them() -> None:
    left = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"first\n")
            self.wfile.flush()
            self.connection.settimeout(5)
            assert self.connection.recv(1) == b""
            left.set()

        def log_message(self, *_: object) -> None:
            """Silent."""

    with upstream(Handler) as proxy:
        client_ = connection(proxy)
        client_.request("GET", "/watch")
        answer = client_.getresponse()
        assert answer.readline() == b"first\n"
        assert not left.is_set()
        answer.close()
        client_.close()
        assert left.wait(30), "the API server still sends to nobody"


def test_a_reflector_hears_through_it_and_lists_again_where_it_was_away(proxy: Proxy, api: FakeApi) -> None:
    reflector = Informer(rest(proxy), sources.own_pods(asked()), lambda: None)
    labels = {"labels": {"trainyard.dev/run": "r1"}}
    reflector.start()
    try:
        assert reflector.items() == ()
        api.put(f"{PODS}/a", {"metadata": {"name": "a", "namespace": "training", **labels}})
        until(lambda: [pod.name for pod in reflector.items()] == ["a"])
        gone = Fault(on=lambda call: "watch" in call.query, moment="before", then=410)
        with proxy.away():
            proxy.plan(gone)
            before = len(proxy.calls)
            with pytest.raises(ApiUnavailable):
                make(proxy, "x", IMPATIENT)
            api.put(f"{PODS}/b", {"metadata": {"name": "b", "namespace": "training", **labels}})
        until(lambda: [pod.name for pod in reflector.items()] == ["a", "b"])
        assert gone.times == 0
        assert any(call.is_fresh for call in proxy.calls[before:]), "it did not list again"
    finally:
        reflector.stop()
    assert "x" not in api.names(PODS)


@pytest.mark.parametrize(("moment", "there"), [("before", []), ("after", ["a"])])
def test_a_dropped_request_was_carried_out_or_was_not(
    proxy: Proxy, api: FakeApi, moment: Moment, there: list[str]
) -> None:
    seen: list[Call] = []
    proxy.plan(Fault(on=lambda call: call.write == 1, moment=moment, does=seen.append))
    with pytest.raises(ApiUnavailable):
        make(proxy, "a", IMPATIENT)
    assert api.names(PODS) == there
    assert [(call.write, call.status) for call in seen] == [(1, 201 if there else 0)]


def test_a_lost_answer_shows_as_a_conflict_when_it_is_asked_again(proxy: Proxy, api: FakeApi) -> None:
    proxy.plan(Fault(on=lambda call: call.status == 201, moment="after", then=500))
    with pytest.raises(ApiError) as error:
        make(proxy, "a")
    assert error.value.status == 409
    assert [call.status for call in proxy.writes] == [201, 409]
    assert api.names(PODS) == ["a"]


def test_fault_with_retry_after_tells_the_client_how_long(proxy: Proxy) -> None:
    slept: list[float] = []
    settings = client.Configuration()
    settings.host = proxy.url
    proxy.plan(Fault(on=lambda call: bool(call.write), moment="before", then=429, retry_after=1))
    asking = Client(api_client(settings), QUICK, sleep=slept.append)
    asking.request("POST", PODS, body={"metadata": {"name": "a"}, "spec": {}})
    assert slept == [1.0]
    assert [call.status for call in proxy.writes] == [0, 201]


def test_a_request_that_is_held_has_no_answer_until_the_client_leaves(proxy: Proxy, api: FakeApi) -> None:
    proxy.plan(Fault(on=lambda call: bool(call.write), moment="before", then="hold"))
    waiting = connection(proxy)
    waiting.timeout = 0.1
    waiting.request("POST", PODS)
    with pytest.raises(TimeoutError):
        waiting.getresponse()
    waiting.close()
    make(proxy, "a")
    assert api.names(PODS) == ["a"]


def test_fault_trickle_answers_without_end(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.faults.proxy._TRICKLE_SECONDS", 0.05)
    proxy.plan(Fault(on=lambda call: call.method == "GET", moment="before", then="trickle"))
    reading = connection(proxy)
    reading.request("GET", PODS)
    answer = reading.getresponse()
    assert (answer.status, answer.read(2)) == (200, b"  ")
    answer.close()
    reading.close()


def test_a_fault_happens_as_often_as_planned_and_may_let_the_request_pass(proxy: Proxy, api: FakeApi) -> None:
    seen: list[Call] = []
    proxy.plan(
        Fault(on=lambda call: call.write == 2, moment="before", does=seen.append, then="pass"),
        Fault(on=lambda call: bool(call.write), moment="before", does=seen.append, then="pass", times=2),
    )
    for name in "abcd":
        make(proxy, name)
    assert [call.write for call in seen] == [1, 2, 3]
    assert [call.status for call in proxy.writes] == [201] * 4, "one had to be asked again"
    assert api.names(PODS) == ["a", "b", "c", "d"]


def test_without_an_api_server_there_is_no_answer() -> None:
    with Proxy("http://127.0.0.1:1") as proxy, pytest.raises(ApiUnavailable, match="closed connection"):
        make(proxy, "a", IMPATIENT)


@pytest.mark.long
@pytest.mark.parametrize(("moment", "placeholders"), [("before", []), ("after", ["hold-r1-0"])])
def test_a_launcher_is_killed_at_one_of_its_writes(
    proxy: Proxy, api: FakeApi, tmp_path: Path, moment: Moment, placeholders: list[str]
) -> None:
    launcher = Launched(proxy.url, "token", copy.deepcopy(DOCUMENT), tmp_path / "launcher.log")
    first_pod = Fault(
        on=lambda call: (call.method, call.path) == ("POST", PODS),
        moment=moment,
        does=lambda _call: launcher.kill(),
    )
    proxy.plan(first_pod)
    try:
        assert launcher.wait(30) == -9
    finally:
        launcher.kill()
    assert first_pod.times == 0
    assert api.names(PODS) == placeholders
    assert "state=waiting nodes=0/4" in launcher.last
    lease = "/apis/coordination.k8s.io/v1/namespaces/training/leases"
    recorded = [str(call) for call in proxy.writes]
    events = "/api/v1/namespaces/training/events"
    assert recorded == [f"POST {lease}", f"PUT {lease}/launch-r1", f"POST {events}", f"POST {PODS}"]
