"""The guard between the local cloud and real AWS accounts."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from local.cluster.shell import execute, print_status, tool_environment
from local.guard import (
    CREDENTIALS,
    ForeignCloudError,
    NotRunningError,
    cloud_environment,
    is_loopback,
    refuse_foreign,
)
from local.home import BY_MAKE, CHECKOUT, STARTED, Home
from trainyard.cli.engine import Engine

RECORD = {
    "pid": 1,
    "startTime": 2,
    "generation": "g",
    "awsEndpoint": "http://127.0.0.1:4566",
    "region": "us-west-2",
    "accountId": "123456789012",
    "accessKeyId": "AKIAOWN",
    "secretAccessKey": "own-secret",
    "deployerArn": "arn:aws:iam::123456789012:user/deployer",
}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path)
    home.make()
    home.cloud_file.write_text(json.dumps(RECORD))
    return home


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:4566", "https://localhost", "http://127.64.0.1:443/x", "http://[::1]:80"]
)
def test_addresses_of_this_machine_are_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address",
    [
        "https://ec2.us-west-2.amazonaws.com",
        "http://127.0.0.1@example.com",
        "http://127.0.0.1.example.com",
        "http://localhost.example.com",
        "http://169.254.169.254",
        "http://10.0.0.1",
        "http://0.0.0.0",
        "http://0x7f.1:80",
        "http://127.0.0.1:notaport",
        "127.0.0.1:4566",
        "file:///etc/passwd",
        "ftp://127.0.0.1",
        "//127.0.0.1",
        "http://",
    ],
)
def test_whatever_may_lead_elsewhere_is_not_loopback(address: str) -> None:
    assert not is_loopback(address)


def test_the_clouds_own_environment_is_accepted(home: Home) -> None:
    refuse_foreign(cloud_environment(home))
    refuse_foreign({"PATH": "/bin", "AWS_REGION": "eu-west-1", "AWS_PROFILE": ""}, home)


@pytest.mark.parametrize("name", CREDENTIALS)
def test_every_ambient_credential_is_refused_by_name_and_without_its_value(home: Home, name: str) -> None:
    with pytest.raises(ForeignCloudError, match=f"{name} is set") as caught:
        refuse_foreign({**cloud_environment(home), name: "foreign-value"})
    assert "foreign-value" not in str(caught.value)
    assert f"unset {name}" in str(caught.value)
    assert "\n" not in str(caught.value)


S3 = "https://s3.amazonaws.com"


@pytest.mark.parametrize(
    ("variables", "facts"),
    [
        ({"AWS_ENDPOINT_URL": S3}, [S3]),
        ({"AWS_ENDPOINT_URL_S3": S3}, [S3]),
        ({"AWS_EC2_METADATA_SERVICE_ENDPOINT": S3}, [S3]),
        ({"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "TRUE"}, ["AWS itself would be called"]),
        (
            {"AWS_PROFILE": "prod", "AWS_ENDPOINT_URL": "http://example.com"},
            ["AWS_PROFILE", "http://example.com"],
        ),
    ],
)
def test_guard_reports_all_foreign_settings_together(
    home: Home, variables: dict[str, str], facts: list[str]
) -> None:
    with pytest.raises(ForeignCloudError) as caught:
        refuse_foreign(variables, home)
    assert all(fact in str(caught.value) for fact in facts)


def test_without_a_running_cloud_every_credential_is_foreign(tmp_path: Path) -> None:
    with pytest.raises(ForeignCloudError):
        refuse_foreign({"AWS_ACCESS_KEY_ID": "AKIAOWN"}, Home(tmp_path))


@pytest.mark.parametrize("text", [b"{", b"", b"[]", b"null", b"{}", b'{"region": 1}', b"\xff"])
def test_damaged_record_counts_as_none(home: Home, text: bytes) -> None:
    home.cloud_file.write_bytes(text)
    refuse_foreign({}, home)
    with pytest.raises(NotRunningError):
        cloud_environment(home)


@pytest.mark.parametrize("key", sorted(RECORD.keys() - {"pid", "startTime"}))
def test_record_without_a_key_is_damaged(home: Home, key: str) -> None:
    home.cloud_file.write_text(json.dumps({**RECORD, key: None}))
    with pytest.raises(NotRunningError, match=rf"^{home.cloud_file}: is damaged\. `.* down` ends"):
        cloud_environment(home)


@pytest.mark.parametrize("name", ["cloud.json", ""], ids=["damaged", "directory"])
def test_variable_must_name_a_record(home: Home, name: str) -> None:
    home.cloud_file.write_text("[]")
    with pytest.raises(ForeignCloudError, match=r"^TRAINYARD_LOCAL_CLOUD: '.*' must be run/cloud\.json of"):
        refuse_foreign({"TRAINYARD_LOCAL_CLOUD": str(home.run / name)}, home)


def test_credentials_of_another_local_cloud_are_foreign(home: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    other.make()
    other.cloud_file.write_text(json.dumps({**RECORD, "accessKeyId": "AKIAOTHER"}))
    mixed = {**cloud_environment(home), "AWS_ACCESS_KEY_ID": "AKIAOTHER"}
    with pytest.raises(ForeignCloudError):
        refuse_foreign(mixed)
    refuse_foreign(cloud_environment(other))


def test_the_environment_leaves_no_way_to_files_metadata_or_proxies(home: Home) -> None:
    variables = cloud_environment(home)
    assert variables["AWS_CONFIG_FILE"] == variables["AWS_SHARED_CREDENTIALS_FILE"] == "/dev/null"
    assert variables["AWS_EC2_METADATA_DISABLED"] == "true"
    assert variables["NO_PROXY"] == "*"
    assert {v for k, v in variables.items() if k.startswith("AWS_ENDPOINT_URL")} == {"http://127.0.0.1:4566"}


def test_what_helm_and_kubectl_remember_of_its_clusters_stays_in_the_home(home: Home) -> None:
    assert cloud_environment(home)["KUBECACHEDIR"] == str(home.root / "kube-cache")


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The environments of the commands that `execute` becomes, in a cloud that runs."""
    environments: list[dict[str, str]] = []
    monkeypatch.setattr("local.cluster.shell.running", lambda _home: object())
    monkeypatch.setattr("local.cluster.shell.enter_prefix", lambda _process: [])
    monkeypatch.setattr(os, "execvpe", lambda _program, _words, environment: environments.append(environment))
    return environments


def test_a_command_of_the_person_finds_the_stacks_and_their_secrets(
    home: Home, became: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    execute(home, ["sh"])
    engine = Engine(home.root, "dev", {}).environment
    assert shutil.which("pulumi-resource-aws", path=became[0]["PATH"]), "the engine finds its plugins on PATH"
    assert became[0]["TRAINYARD_HOME"] == str(home.root)
    python = shutil.which("python", path=became[0]["PATH"])
    assert python == str(CHECKOUT / ".venv/bin/python"), "the first Python on PATH runs the program"
    for name in ("PULUMI_BACKEND_URL", "PULUMI_CONFIG_PASSPHRASE_FILE", "PULUMI_HOME"):
        assert became[0][name] == engine[name]
    assert not [name for name in tool_environment(home) if name.startswith("PULUMI_")], (
        "a shell is for AWS, too"
    )


@pytest.mark.parametrize(
    ("own", "command", "found"),
    [
        (None, ["sh"], "OURS"),
        ("", ["sh"], "OURS"),
        ("/mine", ["sh"], "/mine:OURS"),
        ("/mine:/other", ["kubectl", "get"], "/mine:/other:OURS"),
        ("/mine:OURS", ["sh"], "/mine:OURS"),
    ],
)
def test_kubeconfig_of_the_person_stays_in_force(
    home: Home,
    became: list[dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    own: str | None,
    command: list[str],
    found: str,
) -> None:
    ours = str(home.kubeconfig)
    (home.clusters / "a").mkdir(parents=True)
    monkeypatch.setattr("shutil.which", lambda name, **_: f"/bin/{name}")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    if own is not None:
        monkeypatch.setenv("KUBECONFIG", own.replace("OURS", ours))
    execute(home, command)
    execute(home, command, as_administrator=True)
    assert [each["KUBECONFIG"] for each in became] == [found.replace("OURS", ours), ours]


@pytest.mark.parametrize("program", ["make", "trainyard"])
def test_not_running_names_the_command_in_the_users_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], program: str
) -> None:
    monkeypatch.delenv(BY_MAKE, raising=False)
    monkeypatch.setenv(STARTED, "yes")
    if program == "make":
        monkeypatch.setenv(BY_MAKE, "1")
    command = f"`TRAINYARD_HOME={tmp_path} {program} up` starts it"
    for call in (cloud_environment, tool_environment):
        with pytest.raises(NotRunningError, match=command):
            call(Home(tmp_path))
    print_status(Home(tmp_path), None, as_json=False)
    assert command in capsys.readouterr().out
