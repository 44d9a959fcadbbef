"""A kubeconfig that names a program to log in with, as those of EKS do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.unit.kubectl.plugin_api import JOBS, SUBMIT, TorchrunApi, only_line
from trainyard.kubectl.__main__ import main

pytestmark = pytest.mark.unit
EXPIRED = "echo Token has expired >&2; exit 255"
EMPTY = """echo '{"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": {}}'"""


def program(directory: Path, script: str) -> Path:
    file = directory / "aws"
    file.write_text(f"#!/bin/sh\ntouch {directory / 'ran'}\n{script}\n")
    file.chmod(0o755)
    return file


def kubeconfig(api: TorchrunApi, directory: Path, command: Path, **more: str) -> str:
    file = api.kubeconfig(directory / "kubeconfig")
    whole = yaml.safe_load(file.read_text())
    version = "client.authentication.k8s.io/v1beta1"
    words = {"apiVersion": version, "command": str(command), "args": ["eks", "get-token", "--region", "x"]}
    whole["users"][0]["user"] = {"exec": {**words, **more}}
    file.write_text(yaml.safe_dump(whole))
    return str(file)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (EXPIRED, "process returned 255. Token has expired; log in again"),
        ("exit 3", "process returned 3; log in again"),
        ("echo no JSON", "failed to decode process output: "),
        ("echo []", "malformed response. missing key 'apiVersion'; log in again"),
        (EMPTY, "it gave neither a token nor a certificate with its key; log in again"),
    ],
)
def test_a_login_that_fails_is_one_line_and_nothing_is_asked(
    api: TorchrunApi, tmp_path: Path, capfd: pytest.CaptureFixture[str], script: str, why: str
) -> None:
    command = program(tmp_path, script)
    assert main(["list", "--kubeconfig", kubeconfig(api, tmp_path, command)], {}) == 78
    said = only_line(capfd.readouterr().err)
    assert said.startswith(f"kubectl torchrun: user u: {command} eks get-token failed: {why}")
    assert api.requests == []


def test_a_missing_program_is_reported_with_how_to_get_it(
    api: TorchrunApi, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = kubeconfig(api, tmp_path, tmp_path / "none", installHint="install\n the AWS CLI")
    assert main(["list", "--kubeconfig", file], {}) == 78
    said = only_line(capfd.readouterr().err)
    assert said.endswith("none eks get-token failed: No such file or directory; install the AWS CLI")


def test_its_token_is_used_and_a_new_one_when_it_has_run_out(
    api: TorchrunApi, tmp_path: Path, capfd: pytest.CaptureFixture[str], code: Path
) -> None:
    given = {"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    answer = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "status": given,
    }
    first = f"[ -e {tmp_path}/first ] && {{ {EXPIRED}; }}\ntouch {tmp_path}/first\n"
    file = kubeconfig(api, tmp_path, program(tmp_path, f"{first}echo '{json.dumps(answer)}'"))
    api.job("one")
    assert main(["list", "--kubeconfig", file], {}) == 78, "the first token had run out before it was used"
    assert "process returned 255. Token has expired" in only_line(capfd.readouterr().err)
    assert ("GET", JOBS) not in {each[:2] for each in api.requests}
    given["expirationTimestamp"] = "2999-01-01T00:00:00Z"
    file = kubeconfig(api, tmp_path, program(tmp_path, f"echo '{json.dumps(answer)}'"))
    assert main(["list", "--kubeconfig", file], {}) == 0
    assert capfd.readouterr().out.splitlines()[1].startswith("one ")


def test_a_dry_run_runs_no_program(
    api: TorchrunApi, tmp_path: Path, capfd: pytest.CaptureFixture[str], code: Path
) -> None:
    file = kubeconfig(api, tmp_path, program(tmp_path, EXPIRED))
    assert main([*SUBMIT, "--kubeconfig", file, "--dry-run", "x"], {}) == 0
    assert yaml.safe_load(capfd.readouterr().out)["metadata"]["namespace"] == "team"
    assert not (tmp_path / "ran").exists()
