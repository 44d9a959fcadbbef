"""The AWS emulator in this process, on a free port, with a supervisor that only answers.

boto3 clients of this process call it without a connection, which halves the time of a call. tests/unit/local_aws/
test_server.py and test_s3_rights.py call it over HTTP (fixture `over_http`), as do the tests on the local cloud.
"""

from __future__ import annotations

import functools
import http.server
import io
import json
import os
import socketserver
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import boto3
import jwt
import pytest
from botocore import session as botocore_session
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config
from botocore.httpsession import URLLib3Session
from cryptography.hazmat.primitives.asymmetric import rsa
from urllib3 import HTTPResponse

from local.aws.account import prepare_environment

REGION = "us-west-2"
TOKEN = "the-emulator-s-own"
# One session: it reads each service model once.
SESSION = boto3.session.Session()
SEND_OVER_HTTP = URLLib3Session.send
BLOCK_BYTES = 16384


class FakeSupervisor:
    """Answers what the emulator asks for a control plane, over HTTP on a unix socket; signs tokens as one would."""

    def __init__(self, path: Path) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.other_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.started: list[dict[str, Any]] = []
        self.stopped: list[str] = []
        self.refuse: str | None = None
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if fake.refuse:
                    return self.answer(500, {"error": fake.refuse})
                fake.started.append(body)
                jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(fake.key.public_key()))
                self.answer(
                    200,
                    {
                        "endpoint": "https://127.0.0.1:6443",
                        "certificateAuthority": "Y2E=",
                        "jwks": {"keys": [{**jwk, "kid": "k1", "alg": "RS256", "use": "sig"}]},
                        "number": 0,
                    },
                )

            def do_DELETE(self) -> None:
                fake.stopped.append(self.path.rsplit("/", 1)[-1])
                self.answer(200, {})

            def answer(self, status: int, document: Any) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def address_string(self) -> str:
                return "unix"

            def log_message(self, format: str, *args: Any) -> None:
                return

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

        self.server = Server(str(path), Handler)
        threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()


@dataclass
class Cloud:
    """The emulator as a test sees it."""

    endpoint: str
    supervisor: FakeSupervisor
    key: str
    secret: str
    clients: dict[str, Any] = field(default_factory=dict)

    def client(self, service: str, credentials: dict[str, str] | None = None, **more: Any) -> Any:
        """A boto3 client as the deployer, or with the credentials that STS gave."""
        given = credentials or {"AccessKeyId": self.key, "SecretAccessKey": self.secret}
        name = service + given["AccessKeyId"]
        if name not in self.clients or more:
            self.clients[name] = SESSION.client(
                service,
                region_name=REGION,
                endpoint_url=self.endpoint,
                aws_access_key_id=given["AccessKeyId"],
                aws_secret_access_key=given["SecretAccessKey"],
                aws_session_token=given.get("SessionToken"),
                config=Config(retries={"total_max_attempts": 1}),
                **more,
            )
        return self.clients[name]

    def call(self, method: str, path: str, body: Any = None) -> tuple[Any, Any]:
        """A call of our own paths: the JSON answer and the headers."""
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Authorization": f"Bearer {TOKEN}"}
        request = Request(self.endpoint + "/_trainyard/" + path, data, headers, method=method)  # noqa: S310
        with urlopen(request, timeout=10) as answer:  # noqa: S310
            return json.loads(answer.read()), answer.headers

    def role(self, name: str, policy: dict[str, Any] | None, trust: dict[str, Any] | None = None) -> str:
        """ARN of a new role with one inline policy."""
        iam = self.client("iam")
        default = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}
        document = {"Version": "2012-10-17", "Statement": [trust or default]}
        arn = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(document))["Role"]["Arn"]
        if policy is not None:
            text = json.dumps({"Version": "2012-10-17", **policy})
            iam.put_role_policy(RoleName=name, PolicyName="inline", PolicyDocument=text)
        return str(arn)

    def session(self, name: str, *statements: dict[str, Any]) -> dict[str, str]:
        """Credentials of a session of a new role that grants these statements."""
        arn = self.role(name, {"Statement": list(statements)} if statements else None)
        return dict(self.client("sts").assume_role(RoleArn=arn, RoleSessionName="test")["Credentials"])

    def network(self) -> dict[str, Any]:
        """A VPC with a subnet in each of two zones."""
        ec2 = self.client("ec2")
        vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        subnets = [
            ec2.create_subnet(VpcId=vpc, CidrBlock=f"10.0.{i}.0/24", AvailabilityZone=REGION + zone)[
                "Subnet"
            ]["SubnetId"]
            for i, zone in enumerate("ab")
        ]
        return {"vpc": vpc, "subnets": subnets}

    def cluster(self, name: str = "main", **more: Any) -> dict[str, Any]:
        """An active cluster in a new network, with `vpc` and `subnets` added to its document."""
        import time

        eks, network = self.client("eks"), self.network()
        arguments: dict[str, Any] = {"accessConfig": {"authenticationMode": "API"}, **more}
        eks.create_cluster(
            name=name,
            roleArn=self.role(f"{name}-cluster", None),
            resourcesVpcConfig={"subnetIds": network["subnets"]},
            **arguments,
        )
        for _ in range(200):
            document = eks.describe_cluster(name=name)["cluster"]
            if document["status"] != "CREATING":
                return {**document, **network}
            time.sleep(0.01)
        raise AssertionError("the cluster never left CREATING")


def wsgi_environ(request: AWSPreparedRequest) -> dict[str, Any]:
    """Return what a WSGI server makes of a request of botocore."""
    url, body = urlsplit(request.url), request.body or b""
    # As http.client does: a progress bar counts the blocks that are read.
    content = b"".join(iter(lambda: body.read(BLOCK_BYTES), b"")) if hasattr(body, "read") else body
    environ = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote(url.path, "latin-1"),
        "QUERY_STRING": url.query,
        "REQUEST_URI": url._replace(scheme="", netloc="").geturl(),
        "RAW_URI": url._replace(scheme="", netloc="").geturl(),
        "REMOTE_ADDR": "127.0.0.1",
        "SERVER_NAME": url.hostname,
        "SERVER_PORT": str(url.port),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": url.netloc,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": url.scheme,
        "wsgi.input": io.BytesIO(content.encode() if isinstance(content, str) else content),
        "wsgi.input_terminated": True,
        "wsgi.errors": io.StringIO(),
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in request.headers.items():
        key = name.upper().replace("-", "_")
        text = value.decode() if isinstance(value, bytes) else str(value)
        environ[key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"] = text
    return environ


def direct_send(application: Callable[..., Any], endpoint: str) -> Callable[..., AWSResponse]:
    """Return a `send` for botocore's HTTP sessions that hands requests for the endpoint to the application."""

    def send(session: URLLib3Session, request: AWSPreparedRequest) -> AWSResponse:
        if not request.url.startswith(f"{endpoint}/"):
            return SEND_OVER_HTTP(session, request)
        answer: dict[str, Any] = {}

        def start_response(status: str, headers: Any, _exc_info: Any = None) -> None:
            answer.update(status=int(status.split()[0]), headers=headers)

        content = b"".join(application(wsgi_environ(request), start_response))
        raw = HTTPResponse(
            io.BytesIO(content), preload_content=False, request_method=request.method, **answer
        )
        response = AWSResponse(request.url, raw.status, raw.headers, raw)
        if not request.stream_output:
            _ = response.content  # botocore reads it here as well
        return response

    return send


def cache_lookups(patch: pytest.MonkeyPatch) -> None:
    """Cache what botocore reads from its files for each session, and what moto looks up for each request."""
    from moto import backends
    from moto.core import responses, utils

    for module in (responses, utils):
        patch.setattr(module, "method_names_from_class", functools.cache(utils.method_names_from_class))
    modules = tuple(backends.list_of_moto_modules())
    patch.setattr(backends, "list_of_moto_modules", lambda: modules)
    patch.setattr(botocore_session, "create_loader", functools.cache(botocore_session.create_loader))


@contextmanager
def serving() -> Iterator[tuple[str, FakeSupervisor]]:
    """The emulator's address and its supervisor. Its changes of moto stay for the process: start it once, for all."""
    prepare_environment(os.environ)
    from moto.iam.models import IAMBackend, iam_backends
    from werkzeug.serving import make_server

    from local.aws.eks.store import store
    from local.aws.server import Application, RequestHandler

    # 1582 policies of AWS are read once, not for each test's new account.
    policies = iam_backends["123456789012"]["aws"].aws_managed_policies
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(IAMBackend, "_init_aws_policies", lambda _self: policies)
        fake = FakeSupervisor(Path(directory) / "s")
        store.supervisor_socket = Path(directory) / "s"
        application = Application(TOKEN)
        server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=RequestHandler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        cache_lookups(patch)
        patch.setattr(URLLib3Session, "send", direct_send(application, endpoint))
        yield endpoint, fake
        server.shutdown()
        fake.server.shutdown()


_clients: dict[str, Any] = {}


def empty_account(endpoint: str, fake: FakeSupervisor) -> Cloud:
    """Forget all that tests made. The deployer has the same key in every test: clients are slow to make."""
    from moto.core.base_backend import BackendDict
    from moto.iam.models import iam_backends
    from moto.s3.models import s3_backends

    from local.aws import faults
    from local.aws.account import create_deployer
    from local.aws.eks.store import store
    from local.aws.fsx.store import store as fsx

    for backends in list(BackendDict._instances):
        backends.clear()
    s3_backends.bucket_accounts.clear()  # bucket names are global, and kept beside the backends
    store.clusters.clear()
    fsx.file_systems.clear()
    fsx.backups.clear()
    fsx.delay_seconds = 0.0
    faults.plan().replace({"faults": []})
    fake.started.clear()
    fake.stopped.clear()
    fake.refuse = None
    made = create_deployer()
    iam = iam_backends["123456789012"]["aws"]
    key = iam.access_keys.pop(made.access_key_id)
    key.access_key_id, key.secret_access_key = "AKIATESTTESTTESTTEST", "secret"
    iam.access_keys[key.access_key_id] = key
    return Cloud(endpoint, fake, key.access_key_id, key.secret_access_key, _clients)
