"""Client of the supervisor's HTTP API on a unix socket: it starts and stops the control planes of EKS clusters."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

# A control plane is ready in about five seconds; a machine that builds at the same time needs longer.
TIMEOUT_SECONDS = 300.0


class SupervisorError(Exception):
    """The supervisor refused, or could not be reached; the message says which and where."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("supervisor", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@dataclass(frozen=True)
class Supervisor:
    """The supervisor behind a unix socket."""

    socket_path: Path

    def start_cluster(self, name: str, version: str, issuer: str, region: str, arn: str) -> dict[str, Any]:
        """Start a control plane and wait until it is ready.

        Answers `endpoint`, `certificateAuthority` (base64 PEM), `jwks` and `number`. Raises SupervisorError.
        """
        body = {"name": name, "version": version, "issuer": issuer, "region": region, "arn": arn}
        answer: dict[str, Any] = self._call("POST", "/clusters", body)
        return answer

    def stop_cluster(self, name: str) -> None:
        """Stop a control plane and remove its data; one that is unknown is gone already. Raises SupervisorError."""
        self._call("DELETE", f"/clusters/{quote(name, safe='')}", None)

    def _call(self, method: str, path: str, body: Any) -> Any:
        connection = _UnixConnection(self.socket_path)
        try:
            text = json.dumps(body) if body is not None else None
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            raise SupervisorError(f"{method} {path} on {self.socket_path}: {error}") from error
        finally:
            connection.close()
        if response.status == 404 and method == "DELETE":
            return None
        if response.status >= 300:
            raise SupervisorError(f"{method} {path}: {response.status} {answer.strip()[:500]}")
        return json.loads(answer) if answer.strip() else None
