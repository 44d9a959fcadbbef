"""`aws eks get-token`."""

from __future__ import annotations

import base64
import datetime
import json
from urllib.parse import parse_qs, urlsplit

import pytest

from local.plugins.aws import eks_token

COMMAND = ["--region", "us-west-2", "eks", "get-token", "--cluster-name", "train", "--output", "json"]


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4")
    monkeypatch.delenv("AWS_ENDPOINT_URL_STS", raising=False)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    for name in ("KUBERNETES_EXEC_INFO", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAX")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


def test_a_token_is_a_presigned_identity_call_that_names_the_cluster(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert eks_token.main(COMMAND) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["apiVersion"] == "client.authentication.k8s.io/v1beta1"
    prefix, _, text = made["status"]["token"].partition(".")
    assert prefix == "k8s-aws-v1"
    assert "=" not in text
    url = urlsplit(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode())
    query = parse_qs(url.query)
    assert url.netloc == "127.0.0.1:4"
    assert query["Action"] == ["GetCallerIdentity"]
    assert query["X-Amz-SignedHeaders"] == ["host;x-k8s-aws-id"]
    assert query["X-Amz-Credential"][0].startswith("AKIAX/")
    assert "/us-west-2/sts/" in query["X-Amz-Credential"][0]


def test_a_token_for_another_cluster_has_another_signature() -> None:
    one, other = (eks_token.bearer_token(name, "us-west-2") for name in ("one", "other"))
    assert one.split("U2lnbmF0dXJl")[-1] != other.split("U2lnbmF0dXJl")[-1]
    assert one != other


def test_a_client_renews_before_the_token_ends_and_gets_the_version_that_it_asks_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBERNETES_EXEC_INFO", '{"apiVersion": "client.authentication.k8s.io/v1"}')
    now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    made = eks_token.exec_credential("train", "us-west-2", now)
    assert made["apiVersion"] == "client.authentication.k8s.io/v1"
    assert made["status"]["expirationTimestamp"] == "2026-01-01T00:14:00Z"  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["s3", "ls"], "invalid choice: 's3'"),
        ([], "service, operation, --cluster-name, --region"),
        ([*COMMAND, "--profile", "x"], "--profile x"),
        (["eks", "get-token", "--cluster-name"], "--cluster-name: expected one argument"),
        (["--region", "x", "eks", "get-token"], "--cluster-name"),
        ([*COMMAND[:-1], "yaml"], "invalid choice: 'yaml'"),
    ],
)
def test_anything_else_is_one_clear_line_and_exit_code_2(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert eks_token.main(arguments) == 2
    said = capsys.readouterr().err
    assert text in said
    assert said.count("\n") == 1


def test_without_keys_or_endpoint_it_says_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert eks_token.main(COMMAND) == 2
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    assert eks_token.main(COMMAND) == 2
    assert capsys.readouterr().err.count("python -m local env") == 2
