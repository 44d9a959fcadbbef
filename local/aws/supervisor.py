"""A client of the supervisor's HTTP API on a unix socket, which starts and stops the control planes of EKS clusters."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from local.cluster import control

# A control plane is ready in about five seconds, or later on a host with other load.
TIMEOUT_SECONDS = 300.0


class SupervisorError(Exception):
    """The supervisor refused, or is not reachable. The message contains the reason and the socket."""


@dataclass(frozen=True)
class Supervisor:
    """The supervisor behind a unix socket."""

    socket_path: Path

    def start_cluster(self, name: str, version: str, issuer: str, region: str, arn: str) -> dict[str, Any]:
        """Start a control plane and wait until it is ready.

        Returns:
            `endpoint`, `certificateAuthority` (base64 PEM), `jwks` and `number`.

        Raises:
            SupervisorError: The supervisor refused, or is not reachable.
        """
        body = {"name": name, "version": version, "issuer": issuer, "region": region, "arn": arn}
        answer: dict[str, Any] = self._call("POST", "/clusters", body)
        return answer

    def stop_cluster(self, name: str) -> None:
        """Stop a control plane and remove its data. An unknown one counts as stopped.

        Raises:
            SupervisorError: The supervisor refused, or is not reachable.
        """
        self._call("DELETE", f"/clusters/{quote(name, safe='')}", None)

    def _call(self, method: str, path: str, body: Any) -> Any:
        try:
            return control.request(self.socket_path, method, path, body, TIMEOUT_SECONDS)
        except control.ControlError as error:
            if error.status == 404 and method == "DELETE":
                return None
            raise SupervisorError(f"{method} {path}: {error.status} {error}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise SupervisorError(f"{method} {path} on {self.socket_path}: {error}") from error
