"""The WSGI server: paths under /_trainyard, the Price List API, and moto for everything else."""

from __future__ import annotations

import hmac
import json
import logging
import secrets
import socket
import sys
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from typing import Any
from urllib.parse import parse_qs

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

from local.aws import (
    authenticate,
    authorise,
    faults,
    identity,
    instances,
    interruptions,
    memory,
    patches,
    prices,
    serial,
)
from local.aws.account import ACCOUNT_ID, DEPLOYER_ARN, create_deployer
from local.aws.calls import calls
from local.aws.eks.store import store
from local.aws.fsx import mounts
from local.aws.fsx.store import store as fsx_store
from local.aws.policy import Request as Permission
from local.home import Home, write_atomically

log = logging.getLogger(__name__)
OUR_PATHS = "/_trainyard/"
# Paths without authentication: the health check, and the check of EKS tokens. The API server calls the latter, and
# sends no token of its own to an address without TLS (k8s.io/client-go, tools/clientcmd,
# DirectClientConfig.ClientConfig).
OPEN_PATHS = ("health", "authenticate")
# Disabled parts of moto: pages that show and reset all accounts, and the metadata service with its credentials.
# The body of a request is in memory before moto reads who sent it.
UNSIGNED_BODY_BYTES = 1 << 20
CLOSED_BACKENDS = ("moto_api", "instance_metadata")


class RequestHandler(MotoRequestHandler):  # type: ignore[misc]
    """A handler that keeps connections open (HTTP/1.1) and logs no line per request."""

    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing: Karpenter alone would cause one line per second."""


class Application:
    """The WSGI application. `token` is the bearer token for the emulator's own paths."""

    def __init__(self, token: str) -> None:
        patches.install()
        self._token = token
        self.moto = DomainDispatcherApplication(_backend)
        self.collector = memory.Collector()
        self.ours: dict[tuple[str, str], Callable[[Request], Response]] = {
            ("GET", "health"): lambda _request: _json({"status": "ok", "accountId": ACCOUNT_ID}),
            ("GET", "instances"): _instances,
            ("GET", "mount"): _mount,
            ("POST", "authenticate"): _authenticate,
            ("GET", "faults"): lambda _request: _json(faults.plan().to_json()),
            ("PUT", "faults"): _put_faults,
            ("POST", "interruptions"): lambda request: _json(interruptions.begin(_body(request))),
        }

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        self.collector.collect_if_due()
        text = environ.get("CONTENT_LENGTH") or "0"
        if not text.isascii() or not text.isdecimal():
            return Response(f"Content-Length: {text!r} is not a number\n", 400)(environ, start_response)
        length = int(text)
        # A chunked body has no length. Only SDKs send one, with a key.
        is_chunked = bool(environ.get("HTTP_TRANSFER_ENCODING"))
        if (is_chunked or length > UNSIGNED_BODY_BYTES) and not _has_key(environ):
            reason = "a request without a valid access key must have a Content-Length of at most"
            code = 411 if is_chunked else 413
            body = f"{reason} {UNSIGNED_BODY_BYTES} bytes\n"
            return Response(body, code, headers={"Connection": "close"})(environ, start_response)
        self.collector.add(length)

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            self.collector.add(sum(int(value) for name, value in headers if name.lower() == "content-length"))
            return start_response(status, headers, *more)

        return self._route(environ, start)

    def _route(self, environ: dict[str, Any], start_response: Any) -> Any:
        path = environ.get("PATH_INFO", "")
        if path.startswith(OUR_PATHS):
            return self._ours(Request(environ), path.removeprefix(OUR_PATHS))(environ, start_response)
        if environ.get("HTTP_X_AMZ_TARGET") == prices.TARGET:
            return _get_products(Request(environ))(environ, start_response)
        return self.moto(environ, start_response)

    def _ours(self, request: Request, name: str) -> Response:
        # The API server drops the query of its webhook's address. So the path contains the cluster's name.
        name = name.partition("/")[0]
        if name not in OPEN_PATHS and not self._may_call(request):
            reason = f"{request.path}: the token is missing or wrong; send `Authorization: Bearer TOKEN`"
            return _json({"error": f"{reason} with emulatorToken of run/cloud.json"}, 401)
        handler = self.ours.get((request.method, name))
        if handler is None:
            known = ", ".join(f"{method} {OUR_PATHS}{path}" for method, path in self.ours)
            return _json({"error": f"no {request.method} {request.path}; there are {known}"}, 404)
        try:
            return handler(request)
        except (ValueError, KeyError, RecursionError) as error:
            return _json({"error": str(error)}, 400)

    def _may_call(self, request: Request) -> bool:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode(), self._token.encode())


def _has_key(environ: dict[str, Any]) -> bool:
    """Return whether the request names an access key of the account."""
    request = Request(environ)
    key_id = identity.access_key_id(request.headers, request.args)
    try:
        return key_id is not None and bool(identity.find(key_id))
    except identity.UnknownKey:
        return False


def _backend(service: Any) -> Any:
    """Return moto's application for a service, or an error response for a disabled one."""
    if service in CLOSED_BACKENDS:
        return Response("the local cloud does not have this\n", 404, content_type="text/plain")
    return create_backend_app(service)


def _json(document: Any, status: int = 200) -> Response:
    return Response(json.dumps(document), status, content_type="application/json")


def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request.

    Raises:
        ValueError: The body is no JSON object.
    """
    body = json.loads(request.get_data())
    if not isinstance(body, dict):
        raise ValueError(f"{request.path}: the body must be a JSON object, not {type(body).__name__}")
    return body


def _instances(request: Request) -> Response:
    cluster = request.args.get("cluster")
    if not cluster:
        return _json({"error": "cluster: must be the cluster's name, in the query"}, 400)
    tag, items = instances.wait(cluster, request.args.get("after"), float(request.args.get("wait", "0")))
    response = _json(items)
    response.headers["ETag"] = tag
    return response


def _mount(request: Request) -> Response:
    keys = ("fileSystem", "dnsName", "mountName", "instance")
    with serial.lock:
        return _json({"refusal": mounts.refusal(*(request.args[key] for key in keys))})


def _authenticate(request: Request) -> Response:
    cluster = request.path.removeprefix(f"{OUR_PATHS}authenticate/")
    return _json(authenticate.review(cluster, _body(request)))


def _put_faults(request: Request) -> Response:
    faults.plan().replace(json.loads(request.get_data()))
    return _json(faults.plan().to_json())


def _get_products(request: Request) -> Response:
    """Answer GetProducts, which moto lacks. It is authorized like any other call."""
    try:
        who = authorise.caller("pricing", request.headers, parse_qs(request.query_string.decode()))
        authorise.check(who, "pricing", [Permission("pricing:GetProducts", "*")])
        status, answer = 200, prices.get_products(json.loads(request.get_data()))
    except authorise.Refused as refused:
        status, answer = refused.status, {"__type": refused.code, "message": refused.message}
    except ValueError as error:
        status, answer = 400, {"__type": "InvalidParameterException", "message": str(error)}
    return Response(json.dumps(answer), status, content_type="application/x-amz-json-1.1")


def serve(home_directory: str, port: int) -> None:
    """Serve on 127.0.0.1 until the process ends. Write `run/aws.json` when the server answers calls.

    Port 0 takes a free one, and `run/aws.json` names it.

    Raises:
        OSError: The port is not available.
    """
    home = Home(home_directory)
    home.make()
    _log_to(home)
    calls.keep_in(home.role_calls_file)
    store.supervisor_socket = home.control_socket
    fsx_store.begin(home.volumes / "fsx")
    fsx_store.delay_seconds = home.settings().get("fileSystemSeconds", fsx_store.delay_seconds)
    memory.use_few_heaps()
    token = secrets.token_urlsafe(32)
    application = Application(token)
    memory.Collector.settle()
    with socket.socket() as trial:  # werkzeug would print two lines and exit
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        trial.bind(("127.0.0.1", port))
    server = make_server("127.0.0.1", port, application, threaded=True, request_handler=RequestHandler)
    server.daemon_threads = True
    key = create_deployer()
    record = {
        "accessKeyId": key.access_key_id,
        "secretAccessKey": key.secret_access_key,
        "deployerArn": DEPLOYER_ARN,
        "accountId": ACCOUNT_ID,
        "endpoint": f"http://127.0.0.1:{server.server_port}",
        "emulatorToken": token,
    }
    write_atomically(home.aws_file, json.dumps(record), 0o600)
    log.info("serving on %s", record["endpoint"])
    server.serve_forever()


def _log_to(home: Home) -> None:
    """Write warnings and refusals to logs/aws-events.log. The supervisor keeps the output in logs/aws.log."""
    handler = RotatingFileHandler(home.logs / "aws-events.log", maxBytes=4_000_000, backupCount=1)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    ours = logging.getLogger("local.aws")
    ours.setLevel(logging.INFO)
    ours.addHandler(handler)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
