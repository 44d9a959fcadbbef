"""Which kubeconfig is taken, and what of several, as kubectl does (asked in test_torchrun_plugin.py)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import warnings
from base64 import b64encode, encodebytes, urlsafe_b64encode
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import certifi
import pytest
from kubernetes.config import incluster_config

from local.cluster.pki import Authority
from trainyard.k8s import kubeconfig, package
from trainyard.k8s.client import ApiUnavailable, RetryPolicy
from trainyard.k8s.kubeconfig import NoLogin


def write(directory: Path) -> None:
    """Kubeconfigs of two clusters whose entries have the same names, one without a context, and an empty one."""
    for place in ("dev", "prod"):
        server = {"server": f"http://{place}:1", **({} if place == "dev" else {"tls-server-name": "prod"})}
        document = {
            "clusters": [{"name": "c", "cluster": server}, {"name": place, "cluster": server}],
            "users": [{"name": "u", "user": {"token": place}}],
            "contexts": [
                {"name": name, "context": {"cluster": cluster, "user": "u", "namespace": place}}
                for name, cluster in (("both", "c"), (place, place))
            ],
            "current-context": place,
        }
        (directory / place).write_text(json.dumps(document))
    (directory / "both").write_text("current-context: both")
    (directory / "unnamed").write_text('current-context: ""\n')
    (directory / "empty").write_text("# nothing\n")


CASES = [
    ("dev:prod", "http://dev:1", "dev"),
    ("prod:dev", "http://prod:1", "prod"),
    ("both:prod:dev", "http://prod:1", "prod"),
    ("empty:unnamed:gone:both:dev:prod", "http://dev:1", "dev"),
    (":dev:dev:", "http://dev:1", "dev"),
    ("~/prod:dev", "http://dev:1", "dev"),
]


@pytest.mark.parametrize(("files", "server", "namespace"), CASES)
def test_the_first_file_that_has_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: str, server: str, namespace: str
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", files)
    rest, found = kubeconfig.connect(None, None, RetryPolicy())
    assert (rest.configuration.host, found) == (server, namespace)
    assert rest.configuration.api_key == {"BearerToken": f"Bearer {namespace}"}
    assert kubeconfig.connect_in_pod_or_outside().configuration.host == server


def test_an_empty_variable_is_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    (tmp_path / ".kube").mkdir()
    (tmp_path / "prod").rename(tmp_path / ".kube" / "config")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", "")
    assert kubeconfig.namespace_of(None, None) == "prod"


@pytest.mark.parametrize(("key", "value"), [("as", "guest"), ("as-groups", ["readers"])])
def test_kubeconfig_with_impersonation_is_refused(tmp_path: Path, key: str, value: object) -> None:
    write(tmp_path)
    document = json.loads((tmp_path / "prod").read_text())
    document["users"][0]["user"][key] = value
    (tmp_path / "prod").write_text(json.dumps(document))
    with pytest.raises(ApiUnavailable, match=f"^user u: {key} is not supported; use a user with permissions"):
        kubeconfig.connect(str(tmp_path / "prod"), None, RetryPolicy())


def connect(directory: Path, **changes: Any) -> Any:
    """Connect with the kubeconfig `dev`, with these fields of its cluster, this user and these top-level fields."""
    write(directory)
    document = json.loads((directory / "dev").read_text())
    document["clusters"][1]["cluster"] |= changes.pop("cluster", {})
    document["users"][0]["user"] = changes.pop("user", {"token": "dev"})
    (directory / "dev").write_text(json.dumps({**document, **changes}))
    return kubeconfig.connect(str(directory / "dev"), None, RetryPolicy())[0].configuration


def exec_login(directory: Path, **status: str) -> dict[str, Any]:
    """A user whose program returns this status."""
    version, program = "client.authentication.k8s.io/v1beta1", directory / "login"
    answer = json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n")
    program.chmod(0o755)
    return {"exec": {"apiVersion": version, "command": str(program)}}


def token_user(directory: Path, kind: str, token: str) -> dict[str, Any]:
    """A user with this token."""
    if kind == "exec":
        return exec_login(directory, token=token)
    (directory / "token").write_text(token, newline="")
    return {"token": token} if kind == "inline" else {"tokenFile": str(directory / "token")}


@pytest.mark.parametrize("kind", ["inline", "file", "exec"])
def test_white_space_around_a_token_is_removed(tmp_path: Path, kind: str) -> None:
    """An `echo` into a file adds the newline. client-go also removes it."""
    user = token_user(tmp_path, kind, " \tsecret\r\n")
    settings = connect(tmp_path, user=user)
    assert settings.api_key == {"BearerToken": "Bearer secret"}


@pytest.mark.parametrize("kind", ["inline", "exec"])
@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("a\nsecret", r"has the character '\\n'"),
        ("a\x00", r"has the character '\\x00'"),
        ("a\u20ac", r"has the character '\\u20ac'"),
        ("\n", "is empty"),
    ],
)
def test_token_that_no_header_can_have_is_refused(
    tmp_path: Path, kind: str, token: str, problem: str
) -> None:
    with pytest.raises(NoLogin, match=rf"^user u: its token {problem}; it must be one line of ASCII char"):
        connect(tmp_path, user=token_user(tmp_path, kind, token))


@pytest.mark.parametrize(
    ("proxy", "problem"),
    [
        ("socks5://127.0.0.1:1080", "a SOCKS proxy needs the Python package PySocks"),
        ("::::", "must be an address such as http://proxy:3128"),
        ("ftp://user:secret@proxy", "must be an address such as http://proxy:3128"),
        ("proxy:3128", "must be an address such as http://proxy:3128"),
    ],
)
def test_unusable_proxy_is_reported(
    tmp_path: Path, proxy: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "socks", None)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(ApiUnavailable, match=f"^proxy-url, or .*: {problem}") as said,
    ):
        connect(tmp_path, cluster={"proxy-url": proxy})
    assert "secret" not in str(said.value)


def encoded(data: bytes) -> str:
    return b64encode(data).decode()


@pytest.fixture(scope="module")
def pairs() -> list[Any]:
    """Two certificates with their keys."""
    return [Authority("test").issue("user") for _ in range(2)]


@pytest.mark.parametrize(
    ("cluster", "user", "problem"),
    [
        ({"certificate-authority-data": "?"}, {}, "cluster dev: certificate-authority-data must be base64"),
        ({}, {"client-key-data": "YQ="}, "user u: client-key-data must be base64"),
        ({"certificate-authority-data": "garbage"}, {}, "cluster dev: certificate-authority must be PEM"),
        ({}, {"client-certificate-data": "garbage"}, "user u: client-certificate must be a PEM certificate"),
        ({}, {"client-certificate-data": "cert 0"}, "user u: client-key must be the PEM key of client-cert"),
        (
            {},
            {"client-certificate-data": "cert 0", "client-key-data": "key 1"},
            "user u: client-key must be the PEM key of client-certificate.*KEY_VALUES_MISMATCH",
        ),
        ({}, {"client-certificate-data": "cert 0", "client-key-data": "key 0"}, ""),
        ({"certificate-authority-data": "cert 0"}, {}, ""),
    ],
)
def test_invalid_certificate_is_reported_with_its_field(
    tmp_path: Path, pairs: list[Any], cluster: dict[str, str], user: dict[str, str], problem: str
) -> None:
    values = {"garbage": encoded(b"garbage")}
    for index, pair in enumerate(pairs):
        values |= {f"cert {index}": encoded(pair.certificate), f"key {index}": encoded(pair.key)}
    cluster, user = (
        {name: values.get(each, each) for name, each in node.items()} for node in (cluster, user)
    )
    cluster["server"] = "https://dev:1"
    if not problem:
        assert connect(tmp_path, cluster=cluster, user=user).host == "https://dev:1"
        return
    with pytest.raises(ApiUnavailable, match=f"^{problem}"):
        connect(tmp_path, cluster=cluster, user=user)
    if "base64" not in problem:
        assert connect(tmp_path, cluster={**cluster, "server": "http://dev:1"}, user=user), "without TLS"


def test_base64_on_several_lines_is_accepted(tmp_path: Path, pairs: list[Any]) -> None:
    lines = encodebytes(pairs[0].certificate).decode()
    connect(tmp_path, cluster={"server": "https://dev:1", "certificate-authority-data": lines})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"users": None}, "user u: is not in users"),
        ({"users": []}, "user u: is not in users"),
        ({"current-context": ["dev"]}, r"Expected object with name \['dev'\] in "),
        *(
            ({"cluster": {"server": server}}, f"server: {re.escape(repr(server))} should be an address")
            for server in ("", "https://h\nost:6443", "https://..", "https://x:99999999")
        ),
    ],
)
def test_invalid_entry_is_reported(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ApiUnavailable, match=problem) as said:
        connect(tmp_path, **changes)
    assert "object at" not in str(said.value)


@pytest.mark.parametrize("server", ["https://h.:6443", "https://[fe80::1]:6443", "https://[2001:db8::1]"])
def test_unusual_address_is_accepted(tmp_path: Path, server: str) -> None:
    assert connect(tmp_path, cluster={"server": server}).host == server


def test_context_without_a_user_connects_without_a_login(tmp_path: Path) -> None:
    contexts = [{"name": "dev", "context": {"cluster": "dev"}}]
    assert connect(tmp_path, contexts=contexts, users=None).api_key == {}


def test_in_a_pod_without_a_kubeconfig_it_is_the_service_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As kubectl does it in a notebook's pod."""
    account, certificate = tmp_path / "account", Path(certifi.where())
    account.mkdir()
    (account / "token").write_text("its-own")
    (account / "namespace").write_text("research\n")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(account / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(certificate))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    rest, namespace = kubeconfig.connect(None, None, RetryPolicy())
    assert (namespace, kubeconfig.namespace_of(None, None)) == ("research", "research")
    settings = rest._api.configuration
    assert settings.host == "https://10.0.0.1:443"
    assert [each["value"] for each in settings.auth_settings().values()] == ["bearer its-own"]
    write(tmp_path)
    for file, context in ((str(tmp_path / "prod"), None), (None, "prod")):
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "prod"))
        assert kubeconfig.namespace_of(file, context) == "prod", "what is given comes first"
    monkeypatch.delenv("KUBECONFIG")
    (account / "token").unlink()
    with pytest.raises(ApiUnavailable, match="no such file"):
        kubeconfig.namespace_of(None, None)


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ("empty", "the file is empty"),
        (":gone", "no such file"),
        ("unnamed", r"has no current context; is its cluster up\?"),  # as of a stopped local cloud
    ],
)
def test_connect_without_any_configuration_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: str, why: str
) -> None:
    write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", files)
    with pytest.raises(ApiUnavailable, match=f"^{why}$"):
        kubeconfig.namespace_of(None, None)


class Issuer(BaseHTTPRequestHandler):
    """An OIDC issuer that renews every token."""

    def do_GET(self) -> None:
        self.answer({"token_endpoint": f"http://{self.headers['Host']}/token"})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        tokens = {"access_token": "a", "id_token": "renewed", "refresh_token": "next"}
        self.answer({"token_type": "Bearer", **tokens})

    def answer(self, body: dict[str, str]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_an_expired_oidc_token_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OAUTHLIB_INSECURE_TRANSPORT", "1")
    for name in ("oauthlib", "OAuth2Session", "ApiClient"):  # as trainyard.k8s.package imports it
        monkeypatch.setattr(package.kube_config, name, None)
    expired = ".".join(
        urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in ({}, {"exp": 1})
    )
    write(tmp_path)
    file = tmp_path / "dev"
    with HTTPServer(("127.0.0.1", 0), Issuer) as issuer:
        threading.Thread(target=issuer.serve_forever, daemon=True).start()
        words = {"client-id": "c", "client-secret": "s", "id-token": f"{expired}.", "refresh-token": "r"}
        login = {"idp-issuer-url": f"http://127.0.0.1:{issuer.server_port}", **words}
        document = json.loads(file.read_text())
        document["users"][0]["user"] = {"auth-provider": {"name": "oidc", "config": login}}
        file.write_text(json.dumps(document))
        rest, _ = kubeconfig.connect(str(file), None, RetryPolicy())
        issuer.shutdown()
    assert rest.configuration.api_key == {"BearerToken": "Bearer renewed"}
    assert "renewed" in file.read_text()


def test_connect_imports_no_oauth_and_no_pydantic() -> None:
    """They would take more than half of the processor time of `kubectl torchrun list`."""
    script = "import sys, trainyard.k8s.kubeconfig; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"pydantic", "oauthlib", "requests", "requests_oauthlib", "kubernetes.dynamic", "websocket"}
    assert not heavy & set(done.stdout.split())
