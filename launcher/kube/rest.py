"""JSON requests to the Kubernetes API, tried again where that is safe and can help."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

JsonObject = dict[str, Any]

CONNECT_SECONDS = 3.0
READ_SECONDS = 15.0
_TOO_MANY = 429
_RETRIED_STATUS = frozenset({_TOO_MANY, 500, 502, 503, 504})


class ApiError(Exception):
    """The API refused: `status` is the HTTP status, `reason` Kubernetes' own word for it."""

    def __init__(self, method: str, path: str, status: int, reason: str, message: str) -> None:
        super().__init__(f"{method} {path}: {status} {reason}: {message}")
        self.status = status
        self.reason = reason


class ApiUnavailable(Exception):
    """The API could not be reached, or was not able to answer, until the patience for this request ran out."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long one request is tried. All in seconds; waits double from `first` to `longest`, with jitter."""

    total: float = 20.0
    first: float = 0.2
    longest: float = 5.0


class Rest:
    """One connection pool to one API server."""

    def __init__(
        self,
        api: Any,
        patience: Patience | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api = api
        self._patience = patience or Patience()
        self._clock = clock
        self._sleep = sleep

    @classmethod
    def connect(cls) -> Rest:
        """With the pod's service account, or outside of a pod with the current kubeconfig.

        Raises ApiUnavailable where there is neither.
        """
        settings = client.Configuration()
        try:
            try:
                config.load_incluster_config(client_configuration=settings)
            except config.ConfigException:
                config.load_kube_config(client_configuration=settings)
        except config.ConfigException as error:
            raise ApiUnavailable(f"neither a service account nor a usable kubeconfig: {error}") from None
        return cls(client_of(settings))

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        *,
        repeatable: bool = True,
    ) -> JsonObject:
        """The answer as JSON. Raises ApiError for a refusal and ApiUnavailable when nothing answers.

        Most of what this launcher asks may be asked again: reads, deletions of exactly one uid, and creations of names
        that are known beforehand, where a lost answer shows as a conflict. With `repeatable` false, a request is
        sent again only if the API says that it did nothing (429).
        """
        began, wait = self._clock(), self._patience.first
        while True:
            failure: str
            pause, status = 0.0, 0
            try:
                status, headers, data = self._once(method, path, query, body)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                failure = f"{type(error).__name__}: {error}"
            else:
                if status < 300:
                    answer: JsonObject = json.loads(data)
                    return answer
                reason, message = _explain(data)
                if status not in _RETRIED_STATUS:
                    raise ApiError(method, path, status, reason, message)
                failure = f"{status} {reason}: {message}"
                pause = _retry_after(headers)
            if not repeatable and status != _TOO_MANY:
                raise ApiUnavailable(f"{method} {path}: {failure}")
            pause = max(pause, wait * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
            if self._clock() + pause - began > self._patience.total:
                raise ApiUnavailable(f"{method} {path}: {failure}")
            self._sleep(pause)
            wait = min(2 * wait, self._patience.longest)

    def _once(
        self, method: str, path: str, query: Mapping[str, str] | None, body: JsonObject | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        parameters = self._api.param_serialize(
            method=method,
            resource_path=path,
            query_params=list((query or {}).items()),
            header_params=headers,
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            response = self._api.call_api(*parameters, _request_timeout=(CONNECT_SECONDS, READ_SECONDS))
        except ApiException as error:  # a certificate that does not hold; waiting does not help
            raise ApiError(method, path, 0, "TLS", str(error.reason)) from None
        return response.status, response.getheaders(), response.read()


def client_of(settings: Any) -> Any:
    """A client with these settings that makes one attempt per request; `Rest` decides on the next."""
    settings.retries = False
    return client.ApiClient(settings)


def _retry_after(headers: Mapping[str, str]) -> float:
    try:
        return float(headers.get("Retry-After") or 0)
    except ValueError:  # the form with a date, which Kubernetes does not use
        return 0.0


def _explain(data: bytes) -> tuple[str, str]:
    """Reason and message of a `Status` object; proxies answer with something else."""
    try:
        status = json.loads(data)
        return str(status.get("reason") or ""), str(status.get("message") or "")
    except (ValueError, AttributeError):
        return "", data[:200].decode(errors="replace")
