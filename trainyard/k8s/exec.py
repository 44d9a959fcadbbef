"""Run a command in a container as `kubectl exec` does, with its streams on one WebSocket to the API server.

The protocol is in k8s.io/apimachinery, pkg/util/remotecommand/constants.go. The client is that of the package
kubernetes.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any, Final
from urllib.parse import quote

from websocket import WebSocketException

from trainyard.k8s.client import ApiError, ApiUnavailable, Client
from trainyard.k8s.package import ApiException

_STDOUT, _STDERR, _STATUS = 1, 2, 3
# The maximum silence of the other side, in seconds.
SILENCE_SECONDS: Final = 60.0
# The interval of the checks for silence, in seconds.
_POLL_SECONDS: Final = 1.0
_MOST_MESSAGES: Final = 100
_HANDSHAKE: Final = re.compile(r"Handshake status (\d{3})")
_PART: Final = " -+-+- "
_SHOWN: Final = 300
_BROKEN: Final = (WebSocketException, OSError)


class Execution:
    """A running command. Its methods raise ApiUnavailable if its streams can't be written or read."""

    def __init__(
        self,
        client: Client,
        namespace: str,
        pod: str,
        container: str,
        command: Sequence[str],
        *,
        stdin: bool = False,
    ) -> None:
        """Start the command. Raises ApiError for a refusal."""
        self._what = f"exec in {namespace}/{pod}"
        self._stdout = b""
        self._stderr = b""
        query = [
            ("container", container),
            ("stdin", str(stdin).lower()),
            ("stdout", "true"),
            ("stderr", "true"),
        ]
        query += [("command", word) for word in command]
        # Without the package's CoreV1Api, whose import takes longer than the command.
        url, headers = client.address(f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(pod)}/exec", query)
        try:
            self._socket: Any = _connected(client.configuration, url, headers)
            self._socket.sock.settimeout(SILENCE_SECONDS)
        except ApiException as error:
            said = str(error.reason)
            refused = _HANDSHAKE.search(said)  # websocket-client has the status only in its message
            if not refused:
                raise ApiUnavailable(f"{self._what}: {said}") from None
            reason, message = _refusal(said)
            raise ApiError("GET", self._what, int(refused.group(1)), reason, message[:_SHOWN]) from None
        except _BROKEN as error:
            raise ApiUnavailable(f"{self._what}: {error}") from None

    def __enter__(self) -> Execution:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._socket.sock.close()
        except _BROKEN:  # the other side closed it first
            return

    def write(self, data: bytes) -> None:
        try:
            self._socket.write_stdin(data)
        except _BROKEN as error:
            self._take_what_came()
            raise ApiUnavailable(f"{self._what}: the connection broke: {error}{self._said()}") from None

    def read(self) -> bytes:
        """Return its output since the last call, at least one byte; b"" when it has ended."""
        end = time.monotonic() + SILENCE_SECONDS
        while not self._stdout and self._take(_POLL_SECONDS):
            if time.monotonic() > end:
                raise self._silent()
        data, self._stdout = self._stdout, b""
        return data

    def line(self) -> str:
        """Return its next line; "" when it has ended."""
        data = b""
        while b"\n" not in data:
            more = self.read()
            if not more:
                return ""
            data += more
        line, _, self._stdout = data.partition(b"\n")
        return line.decode(errors="replace")

    def result(self) -> tuple[int, str]:
        """Wait for its end. Return its exit code and standard error; ApiUnavailable if the exit code is unknown."""
        end, known = time.monotonic() + SILENCE_SECONDS, 0
        while self._take(_POLL_SECONDS):
            said = len(self._stdout) + len(self._stderr)
            if said > known:
                end, known = time.monotonic() + SILENCE_SECONDS, said
            elif time.monotonic() > end:
                raise self._silent()
        try:
            status = json.loads(self._socket.read_channel(_STATUS))
            if status["status"] == "Success":
                return 0, self._stderr.decode(errors="replace").strip()
            causes = status.get("details", {}).get("causes", [])
            code = next((int(cause["message"]) for cause in causes if cause.get("reason") == "ExitCode"), 0)
        except (ValueError, KeyError, TypeError):
            raise ApiUnavailable(f"{self._what}: the connection broke{self._said()}") from None
        if not code:
            raise ApiUnavailable(f"{self._what}: {status.get('message', 'it did not run')}")
        return code, self._stderr.decode(errors="replace").strip()

    def _take_what_came(self) -> None:
        """Read the last messages, which have the reason of its end. A call of the client reads only one message."""
        for _ in range(_MOST_MESSAGES):
            known = len(self._stdout) + len(self._stderr)
            self._take(0)
            if len(self._stdout) + len(self._stderr) == known:
                return

    def _take(self, seconds: float) -> bool:
        """Read the available data, and wait for it at most this many seconds. Return False if nothing more can come."""
        try:
            self._socket.update(timeout=seconds)
        except _BROKEN:
            self._socket.sock.shutdown()
            return False
        for channel in (_STDOUT, _STDERR):
            data = self._socket._channels.pop(channel, b"")
            if channel == _STDOUT:
                self._stdout += data
            else:
                self._stderr += data
        return bool(self._socket.is_open())

    def _silent(self) -> ApiUnavailable:
        return ApiUnavailable(f"{self._what}: nothing came for {SILENCE_SECONDS:.0f} s{self._said()}")

    def _said(self) -> str:
        said = self._stderr.decode(errors="replace").strip()
        return f": {said.splitlines()[-1]}" if said else ""


def _refusal(said: str) -> tuple[str, str]:
    """Return reason and message of the Status in websocket-client's error: status line, headers and body."""
    line, *rest = said.split(_PART)
    body = rest[-1] if rest else ""
    try:
        status = json.loads(body)
        return str(status.get("reason") or ""), str(status.get("message") or line)
    except (ValueError, AttributeError):  # of a proxy
        return "", line


def _connected(configuration: Any, url: str, headers: dict[str, str]) -> Any:
    """Call `websocket_call` with a timeout of SILENCE_SECONDS. Return its result, or raise its error.

    It has no timeout and turns an interrupt into an ordinary error. So another thread calls it.
    """
    from kubernetes.stream.ws_client import websocket_call  # after trainyard.k8s.package

    answers: SimpleQueue[Any] = SimpleQueue()
    given_up = threading.Event()

    def connect() -> None:
        try:
            binary = {"binary": True, "_preload_content": False, "capture_all": False}
            found = websocket_call(configuration, "GET", url, headers=headers, **binary)
        except Exception as error:
            answers.put(error)
            return
        answers.put(found)
        if given_up.is_set():
            found.sock.close()

    threading.Thread(target=connect, name="exec", daemon=True).start()
    try:
        answer = answers.get(timeout=SILENCE_SECONDS)
    except BaseException as error:
        given_up.set()
        if isinstance(error, Empty):
            raise TimeoutError(f"no answer for {SILENCE_SECONDS:.0f} s") from None
        raise
    if isinstance(answer, Exception):
        raise answer
    # Otherwise the client reads as long as data arrives, and copies all of it for each frame. A large file takes hours.
    answer._frames_immediately_available = lambda: False
    return answer
