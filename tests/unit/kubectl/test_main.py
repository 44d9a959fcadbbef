"""The process: interrupts, a full output, the login of a kubeconfig."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import yaml

from tests.unit.kubectl.conftest import JOBS, PODS, SUBMIT, TorchrunApi, only_line, sent
from trainyard.kubectl import upload
from trainyard.kubectl.__main__ import main
from trainyard.operator import names as n

ROOT = Path(__file__).parents[3]
ONE = (*SUBMIT, "x")


@pytest.fixture(autouse=True)
def _kubeconfig(api: TorchrunApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig(tmp_path / "kubeconfig")))


def started(*words: str, **more: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "trainyard.kubectl", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        stderr=subprocess.PIPE,
        preexec_fn=_listen,
        **more,  # type: ignore[call-overload]
    )


def _listen() -> None:
    """To all signals, also where the tests themselves are run by nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


LONG = [pytest.param(number, marks=pytest.mark.long) for number in (signal.SIGHUP, signal.SIGINT)]


@pytest.mark.parametrize("number", [signal.SIGTERM, *LONG])
def test_submit_that_is_interrupted_leaves_no_job_nor_archive(
    api: TorchrunApi, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    process = started(*ONE)
    end = time.monotonic() + 60
    # Before that, it waits for the answer that the job was made (test_submit.py).
    while f"{PODS}/{n.sync_pod('one')}" not in sent(api, "GET"):
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    assert "job one: was deleted: its workspace could not be sent\n" in said
    assert said.endswith("kubectl torchrun: interrupted\n")
    assert f"{JOBS}/one" not in api.objects
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("module", ["trainyard.kubectl.cli", "zstandard", "trainyard.kubectl.submit"])
def test_an_interrupt_is_one_line_from_the_first_import_on(code: Path, module: str) -> None:
    interrupting = f"""
import os, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
sys.argv[1:] = {[*ONE, "--dry-run"]!r}
from trainyard.kubectl.__main__ import entry
entry()
"""
    command, environment = [sys.executable, "-c", interrupting], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=60)
    # Python ends itself with the signal where an import was interrupted.
    assert (done.returncode in (130, -signal.SIGINT), done.stdout) == (True, "")
    assert done.stderr == "kubectl torchrun: interrupted\n"


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("jobs", "trainyard.k8s.exec trainyard.operator.launcher_detection"),
        ("submit", "trainyard.k8s.exec trainyard.operator.nodes botocore"),
    ],
)
def test_verb_imports_only_what_it_always_needs(module: str, heavy: str) -> None:
    script = f"import sys, trainyard.kubectl.{module}; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert not set(heavy.split()) & set(done.stdout.split()), done.stderr
    assert f"trainyard.kubectl.{module}" in done.stdout.split()


def test_job_that_can_not_be_deleted_again_is_named(
    api: TorchrunApi, code: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api.refused.add(("DELETE", f"{JOBS}/one"))
    monkeypatch.setattr(upload, "WAIT_SECONDS", 0.0)
    assert main(ONE, {}) == 69
    *_, left, cause = capfd.readouterr().err.splitlines()
    assert left.startswith("job one: is left, without its workspace: namespace team: you may not delete ")
    assert left.endswith(". To remove it, run `kubectl torchrun cancel one`.")
    assert cause.startswith("kubectl torchrun: pod one-sync-0: receives the workspace, and does not")


NO_SPACE = "kubectl torchrun: standard output: No space left on device\n"


def main_into(output: str | int, words: tuple[str, ...]) -> int:
    """Run the plugin with this standard output, which takes no more when it is closed; return the exit code."""
    with open(output, "w") as stream, redirect_stdout(stream):
        return main(words, {})


@pytest.mark.parametrize("words", [("status", "one"), ("list", "-o", "json"), (*ONE, "--dry-run")])
def test_main_with_a_full_output_prints_one_line(
    api: TorchrunApi, code: Path, capfd: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    api.job("one")
    assert main_into("/dev/full", words) == 74
    assert capfd.readouterr().err.endswith(NO_SPACE)


CLOSED = "one: Running\nkubectl torchrun: standard output: was closed; the end of the job is unknown\n"


@pytest.mark.parametrize(
    ("words", "is_full", "ended"),
    [
        ("logs one", True, (74, NO_SPACE)),
        ("logs -f one", True, (74, f"one: Running\n{NO_SPACE}")),
        ("logs one", False, (0, "")),
        ("logs -f one", False, (74, CLOSED)),
    ],
)
def test_logs_to_a_closed_or_full_output_end(
    api: TorchrunApi, capfd: pytest.CaptureFixture[str], words: str, is_full: bool, ended: tuple[int, str]
) -> None:
    asked: list[str] = []

    def answer(pod: str) -> None:
        asked.append(pod)
        api.logs[pod] = [b"2026-01-01T00:00:00Z step\n"] * 3

    api.job("one", phase="Running")
    api.worker("one-0-0")
    api.on_log = answer
    reader, writer = os.pipe()
    os.close(reader)
    code = main_into("/dev/full" if is_full else writer, tuple(words.split()))
    assert ((code, capfd.readouterr().err), asked) == (ended, ["one-0-0"])
    if is_full:
        os.close(writer)


def test_a_current_directory_that_was_removed_is_reported(
    api: TorchrunApi, code: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (code / "train.py").unlink()
    code.rmdir()
    assert main(ONE, {}) == 65
    said = capfd.readouterr().err.splitlines()[-1]  # gRPC of other tests may say that it is not forked with
    assert re.fullmatch(r"kubectl torchrun: workspace: \.: .*; go to a directory that exists", said)
    assert sent(api, "POST") == []


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
        ("echo []", "malformed response. missing key 'apiVersion'; log in again"),
        (EMPTY, "it gave neither a token nor a certificate with its key; log in again"),
        ("", "No such file or directory; install the AWS CLI"),
    ],
)
def test_failed_login_is_one_line_without_a_request(
    api: TorchrunApi, tmp_path: Path, capfd: pytest.CaptureFixture[str], script: str, why: str
) -> None:
    command = program(tmp_path, script) if script else tmp_path / "none"
    more = {} if script else {"installHint": "install\n the AWS CLI"}
    assert main(["list", "--kubeconfig", kubeconfig(api, tmp_path, command, **more)], {}) == 78
    said = only_line(capfd.readouterr().err)
    assert said.startswith(f"kubectl torchrun: user u: {command} eks get-token failed: {why}")
    assert api.requests == []


def test_expired_login_token_is_renewed(
    api: TorchrunApi, tmp_path: Path, capfd: pytest.CaptureFixture[str], code: Path
) -> None:
    given = {"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"}
    answer = {"apiVersion": "client.authentication.k8s.io/v1beta1", "kind": "ExecCredential", "status": given}
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
