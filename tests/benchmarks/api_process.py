"""Fake API servers of the unit tests in a process of their own, so that their time is not the launcher's."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from kubernetes import client

from tests.unit.launcher import cluster
from tests.unit.launcher.api_server import FakeApi, serving
from trainyard.k8s.client import Client, RetryPolicy, api_client

Object = dict[str, Any]
ANSWER_SECONDS = 120.0
_LOOK_SECONDS = 0.01


class HurriedApi(FakeApi):
    """An API server for which time passes `speed` times as fast: its watches end and its bookmarks come earlier."""

    def __init__(self, speed: float) -> None:
        super().__init__()
        self.speed = speed
        self.bookmark_seconds /= speed

    def watch(self, path: str, query: dict[str, str]) -> Iterator[bytes | None]:
        return super().watch(
            path, {**query, "timeoutSeconds": str(float(query["timeoutSeconds"]) / self.speed)}
        )


class Server:
    """One API server of the process, from outside."""

    def __init__(self, process: ApiProcess, key: int, url: str) -> None:
        self._process, self._key, self.url = process, key, url

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a module's function says of the FakeApi and these arguments, in the other process."""
        return self._process.ask(self._key, function, arguments)

    def until(self, function: Callable[..., Any], *arguments: Any, seconds: float = 60.0) -> None:
        """Waits until this holds. Raises TimeoutError if it does not in time."""
        end = time.monotonic() + seconds
        while not self.call(function, *arguments):
            if time.monotonic() > end:
                raise TimeoutError(f"{function.__name__}{arguments} did not come in {seconds:.0f} s")
            time.sleep(_LOOK_SECONDS)

    def client(self, retry: RetryPolicy | None = None) -> Client:
        settings = client.Configuration()
        settings.host = self.url
        return Client(api_client(settings), retry)


class ApiProcess:
    """Serves API servers until the end of its context; usable from several threads."""

    def __enter__(self) -> ApiProcess:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()
        self._lock = threading.Lock()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()  # it ends by that
        self._process.join(10.0)
        if self._process.is_alive():
            self._process.kill()

    @contextmanager
    def server(self, speed: float = 1.0) -> Iterator[Server]:
        """A new API server with the launcher's Job, the pool and the priority classes."""
        key, url = self.ask(0, _open, (speed,))
        try:
            yield Server(self, key, url)
        finally:
            self.ask(key, None, ())

    def ask(self, key: int, function: Callable[..., Any] | None, arguments: tuple[Any, ...]) -> Any:
        with self._lock:
            self._connection.send((key, function, arguments))
            if not self._connection.poll(ANSWER_SECONDS):
                raise TimeoutError(f"the API servers' process says nothing for {ANSWER_SECONDS:.0f} s")
            error, answer = self._connection.recv()
        if error is not None:
            raise error
        return answer


def _open(open_: dict[int, tuple[FakeApi, contextlib.ExitStack]], speed: float) -> tuple[int, str]:
    stack = contextlib.ExitStack()
    api = stack.enter_context(serving(cluster.prepare(HurriedApi(speed))))
    key = max(open_, default=0) + 1
    open_[key] = (api, stack)
    return key, api.url


def _serve(connection: Connection) -> None:
    """The other process: runs commands on its servers until the connection ends."""
    servers: dict[int, tuple[FakeApi, contextlib.ExitStack]] = {}
    while True:
        try:
            key, function, arguments = connection.recv()
        except EOFError:
            return
        error, answer = None, None
        try:
            if function is None:
                servers.pop(key)[1].close()
            else:
                answer = function(servers[key][0] if key else servers, *arguments)
        except Exception as raised:
            error = raised
        connection.send((error, answer))


# -- what is asked of a server


def watching(api: FakeApi, watches: int, placeholders: int) -> bool:
    """Whether a launcher watches so many lists and holds so many placeholders."""
    return api.watching == watches and len(api.names(cluster.PODS)) == placeholders


def put_nodes(api: FakeApi, number: int) -> None:
    for index in range(number):
        cluster.put_node(api, f"n{index}")


def put_last(api: FakeApi) -> float:
    """One more node; the monotonic moment before any watch has its event."""
    began = time.monotonic()
    cluster.put_node(api, "last")
    return began


def replicas(api: FakeApi) -> int | None:
    """The nodes of the training, None without one."""
    made = api.objects.get(f"{cluster.JOBS}/train-r1")
    if made is None:
        return None
    return sum(each["replicas"] for each in made["spec"]["pytorchReplicaSpecs"].values())


def requests(api: FakeApi) -> list[tuple[str, str, bool]]:
    """Method, path and whether it is a watch, of every request so far."""
    with api.news:
        return [(method, path, "watch" in query) for method, path, query in api.requests]
