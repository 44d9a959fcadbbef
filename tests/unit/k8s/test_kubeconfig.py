"""Which kubeconfig is taken, and what of several, as kubectl does (asked in test_torchrun_plugin.py)."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from base64 import urlsafe_b64encode
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import certifi
import pytest
from kubernetes.config import incluster_config

from trainyard.k8s import kubeconfig, package
from trainyard.k8s.client import ApiUnavailable, RetryPolicy

pytestmark = pytest.mark.unit


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


def test_kubeconfig_without_a_context_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the local cloud's is while it is down."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [],
        "users": [],
        "contexts": [],
        "current-context": "",
    }
    (tmp_path / "down").write_text(json.dumps(document))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "down"))
    with pytest.raises(ApiUnavailable, match=r"has no current context; is its cluster up\?$"):
        kubeconfig.namespace_of(None, None)


@pytest.mark.parametrize(("files", "why"), [("empty", "the file is empty"), (":gone", "no such file")])
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
        self.answer(
            {"access_token": "a", "token_type": "Bearer", "id_token": "renewed", "refresh_token": "next"}
        )

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
