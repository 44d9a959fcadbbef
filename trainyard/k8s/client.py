"""Send requests to the Kubernetes API, and retry them if that is safe and can help. Entry point: `Client`."""

from __future__ import annotations

import json
import random
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import urllib3

from trainyard.k8s.package import ApiException, RESTClientObject
from trainyard.k8s.stream import MalformedResponse, read_list

JsonObject = dict[str, Any]
T = TypeVar("T")

JSON = "application/json"
CONNECT_SECONDS = 3.0
READ_SECONDS = 15.0
# An incomplete object at the end of a chunk is parsed again with the next chunk.
_CHUNK_BYTES = 262144
# Watches and requests use the pool at the same time, and urllib3 warns of each connection beyond the pool's size.
_CONNECTIONS = 16
# In an SSLError of a certificate that is not trusted (OpenSSL's reason).
CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"
TOO_MANY_REQUESTS = 429
RETRIED_STATUS = frozenset({TOO_MANY_REQUESTS, 500, 502, 503, 504})
# An API server that just started also returns these until it has read the roles.
UNAUTHORIZED = 401
REFUSED_STATUS = frozenset({UNAUTHORIZED, 403})
_SECONDS = re.compile(r"[0-9]{1,9}")
# The API server accepts 10,000 levels (sigs.k8s.io/json, internal/golang/encoding/json/scanner.go: maxNestingDepth),
# and Python by default about 1,000. Functions such as copy.deepcopy need two calls per level. With this limit, C code
# that reads or writes JSON needs less than 6 MiB of a thread's stack, which usually has 8. Deeper text still raises
# RecursionError.
_DEEPEST = 25_000


class ApiError(Exception):
    """The API server refused a request.

    `status` is the HTTP status; `reason` and `message` are those of the Status object. `retry_after` is how many
    seconds the API server asks to wait, 0 if it does not say.
    """

    def __init__(
        self, method: str, path: str, status: int, reason: str, message: str, retry_after: float = 0.0
    ) -> None:
        super().__init__(f"{method} {path}: {status} {reason}: {message}")
        self.method = method
        self.path = path
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class ApiUnavailable(Exception):
    """The API server could not be reached, or could not answer, until the timeout of the request.

    `retry_after` is as in ApiError. It may be longer than the timeout; then it applies to the next request.
    """

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class _ConnectionBroken(ApiUnavailable):
    """The connection broke in the middle of a response."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """The retries of one request, in seconds. Delays double from `initial_delay` to `max_delay`, with jitter.

    A `timeout` of 0 is a single attempt.
    """

    timeout: float = 20.0
    initial_delay: float = 0.2
    max_delay: float = 5.0


class Client:
    """Requests to one API server over one pool of connections."""

    def __init__(
        self,
        api: Any,
        retry: RetryPolicy | None = None,
        *,
        renew_credentials: Callable[[], None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`api` is made by `api_client`. `renew_credentials` is called when its credentials are not accepted (401)."""
        self._api = api
        self._renew_credentials = renew_credentials
        self.retry = retry or RetryPolicy()
        self._sleep = sleep
        self._serializing = threading.Lock()

    @property
    def configuration(self) -> Any:
        """The settings with which a client of another protocol, such as exec's, reaches the same API server."""
        return self._api.configuration

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: JsonObject | None = None,
        *,
        repeatable: bool = True,
        content_type: str = JSON,
    ) -> JsonObject:
        """Return the response, a JSON object.

        Most requests may be repeated: reads, deletions of one uid, and creations with a fixed name. After a lost
        response, a repeated creation returns a conflict. With `repeatable` false, a request is repeated only if the
        API server has done nothing (429, 401, 403). A 401 or 403 is final once the API server is ready.

        Raises:
            ApiError: The API server refused.
            ApiUnavailable: It did not answer.
        """
        return self._send_with_retries(method, path, query, body, _object, repeatable, content_type)

    def is_ready(self) -> bool:
        """Return whether the API server is ready. A ready API server has read the roles.

        While it starts, it refuses requests that it allows a moment later
        (https://kubernetes.io/docs/reference/using-api/health-checks/; the check `informer-sync`). Everybody may read
        it (--authorization-always-allow-paths of kube-apiserver). A server without this endpoint counts as ready.
        """
        try:
            response = self._send("GET", "/readyz", None, None)
        except (urllib3.exceptions.HTTPError, OSError, ApiError):
            return False
        try:
            return response.status < 500
        finally:
            response.close()

    def list_items(
        self, path: str, query: Mapping[str, str], convert: Callable[[JsonObject], T | None]
    ) -> list[T]:
        """Return the items of a list. Each is converted as it arrives, and left out if the result is None.

        Raises as `request` does.
        """

        def read(response: Response) -> list[T]:
            items: list[T] = []

            def keep(item: JsonObject) -> None:
                converted = convert(_checked(item))
                if converted is not None:
                    items.append(converted)

            read_list(response.chunks(), keep)
            return items

        return self._send_with_retries("GET", path, query, None, read)

    def list_objects(self, path: str, query: Mapping[str, str] | None = None) -> list[JsonObject]:
        """Return every item of this list. Raises as `request` does."""
        return self.list_items(path, query or {}, lambda item: item)

    def read_text(self, path: str, query: Mapping[str, str] | None = None) -> str:
        """Return a response that is not JSON, such as a pod's log. Raises as `request` does."""
        return self._send_with_retries(
            "GET", path, query, None, lambda response: response.read_body().decode(errors="replace")
        )

    @contextmanager
    def open(
        self, path: str, query: Mapping[str, str], *, read_timeout: float = READ_SECONDS
    ) -> Iterator[Response]:
        """Make one attempt at a GET, and return a response to read in chunks. It is closed at the end of the block.

        `read_timeout` is the maximum number of seconds between two chunks. Raises ApiError for any status but success,
        and ApiUnavailable if the API server does not answer, even in the middle of the response. Other OSErrors of
        the block are not changed.
        """
        try:
            response = self._send("GET", path, query, None)
            if response.status >= 300:
                raise response.to_error("GET", path)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiUnavailable(f"GET {path}: {type(error).__name__}: {error}") from None
        response.set_read_timeout(read_timeout)
        try:
            yield response
        except MalformedResponse as error:
            raise ApiUnavailable(f"GET {path}: {type(error).__name__}: {error}") from None
        finally:
            response.close()

    def _send_with_retries(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: JsonObject | None,
        read: Callable[[Response], T],
        repeatable: bool = True,
        content_type: str = JSON,
    ) -> T:
        began, wait = time.monotonic(), self.retry.initial_delay
        ready = False  # whether the API server said so before the attempt
        while True:
            failure: str
            refused: ApiError | None = None
            retry_after, status = 0.0, 0
            try:
                response = self._send(method, path, query, body, content_type)
                try:
                    status = response.status
                    if status < 300:
                        return read(response)
                    refused = response.to_error(method, path)
                finally:
                    response.close()
            except _ConnectionBroken as error:
                failure = str(error)
            except (urllib3.exceptions.HTTPError, OSError, MalformedResponse) as error:
                failure = f"{method} {path}: {type(error).__name__}: {error}"
            else:
                starting = status in REFUSED_STATUS and not ready
                if status not in RETRIED_STATUS and not starting:
                    raise refused
                failure, retry_after = str(refused), refused.retry_after
                if status == UNAUTHORIZED:
                    self._renew_credentials()
                ready = starting and self.is_ready()
            if not repeatable and status != TOO_MANY_REQUESTS and status not in REFUSED_STATUS:
                raise ApiUnavailable(failure, retry_after)
            pause = max(retry_after, wait * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
            if time.monotonic() + pause - began > self.retry.timeout:
                if ready and refused is not None:
                    raise refused
                raise ApiUnavailable(failure, retry_after)
            self._sleep(pause)
            wait = min(2 * wait, self.retry.max_delay)

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: JsonObject | None,
        content_type: str = JSON,
    ) -> Response:
        url, headers = self.address(path, list((query or {}).items()))
        headers["Content-Type"] = content_type
        timeout = (CONNECT_SECONDS, READ_SECONDS)
        try:
            response = self._api.request(method, url, headers, body, _request_timeout=timeout)
        except ApiException as error:  # the client's form of an SSLError
            if CERTIFICATE not in str(error.reason):
                raise ConnectionError(str(error.reason)) from None
            # A retry does not help with an invalid certificate.
            raise ApiError(method, path, 0, "TLS", str(error.reason)) from None
        return Response(response.response, path)

    def address(self, path: str, query: Sequence[tuple[str, str]]) -> tuple[str, dict[str, str]]:
        """Return the URL of a request and its headers with the credentials."""
        settings = self._api.configuration
        with self._serializing:  # this renews an expired token
            login = settings.get_api_key_with_prefix("BearerToken", alias="authorization")
        headers = {
            "Accept": f"{JSON}, */*",
            "User-Agent": "trainyard",
            **({"authorization": login} if login else {}),
        }
        return settings.host + path + (
            f"?{urlencode(query, quote_via=quote, safe='/')}" if query else ""
        ), headers


class Response:
    """A response whose body is not read yet."""

    def __init__(self, response: Any, path: str) -> None:
        self.response = response
        self.status = int(response.status)
        self._path = path

    def read_body(self) -> bytes:
        """Return the whole body. Raises urllib3's errors and OSError."""
        data: bytes = self.response.data
        return data

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it arrives, each chunk of a chunked body without waiting for the next one.

        Raises ApiUnavailable if the connection breaks.
        """
        try:
            yield from self.response.stream(_CHUNK_BYTES)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _ConnectionBroken(f"GET {self._path}: {type(error).__name__}: {error}") from None

    def to_error(self, method: str, path: str) -> ApiError:
        """Return the ApiError of a response without success."""
        reason, message = _explain(self.read_body())
        return ApiError(method, path, self.status, reason, message, _retry_after(self.response.headers))

    def set_read_timeout(self, seconds: float) -> None:
        """Set the maximum pause of the body in seconds. The default is the read timeout."""
        # A connection that ends with its response is already detached and keeps its timeout.
        socket = getattr(self.response.connection, "sock", None)
        if socket is not None:
            socket.settimeout(seconds)

    def abort(self) -> None:
        """End the body for the thread that reads it. Another thread calls this."""
        # Already read to its end, or closed by the other side.
        with suppress(ValueError, RuntimeError, OSError):
            self.response.shutdown()

    def close(self) -> None:
        """Return the connection to the pool if the body was read to its end. Otherwise close it."""
        self.response.close()


def _object(response: Response) -> JsonObject:
    try:
        value = json.loads(response.read_body())
    except (ValueError, RecursionError) as error:
        raise MalformedResponse(f"no JSON: {error}") from None
    return _checked(value)


def _checked(value: Any) -> JsonObject:
    if not isinstance(value, dict):
        raise MalformedResponse(f"{json.dumps(value)[:80]} is no JSON object")
    return value


def accept_deep_objects() -> None:
    """Let this process read and write objects as deeply nested as the API server accepts. Any list may contain one."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _DEEPEST))


def api_client(settings: Any) -> Any:
    """Return a pool of connections with these settings. It makes one attempt per request; `Client` does the retries.

    Also let this process read deeply nested objects. Raises ApiUnavailable for an unusable proxy.
    """
    accept_deep_objects()
    settings.retries = False
    settings.connection_pool_maxsize = _CONNECTIONS
    # Keep-alive probes detect a lost peer after a minute or two, not at the end of a watch.
    settings.keep_alive = True
    proxy = "proxy-url, or the proxy of the environment"  # without its value, which may have a password
    try:
        with warnings.catch_warnings(action="ignore"):  # of urllib3, before the ImportError
            return RESTClientObject(settings)
    except ImportError:
        why = "a SOCKS proxy needs the Python package PySocks, which is not installed"
        raise ApiUnavailable(f"{proxy}: {why}; use an HTTP proxy, or install it") from None
    except urllib3.exceptions.LocationValueError:
        raise ApiUnavailable(f"{proxy}: must be an address such as http://proxy:3128") from None


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return whole seconds (https://www.rfc-editor.org/rfc/rfc9110#field.retry-after). Kubernetes sends no date."""
    said = headers.get("Retry-After") or ""
    return float(said) if _SECONDS.fullmatch(said) else 0.0


def _explain(data: bytes) -> tuple[str, str]:
    """Return reason and message of a `Status` object. The response of a proxy has none."""
    try:
        status = json.loads(data)
        return str(status.get("reason") or ""), str(status.get("message") or "")
    except (ValueError, AttributeError, RecursionError):
        return "", data[:200].decode(errors="replace")
