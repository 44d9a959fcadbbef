"""The small network programs of the pods, run as a pod runs them."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from local.nodes import images


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All of them, as on a machine that has none."""
    monkeypatch.setattr(images, "missing_helpers", lambda: [*images.ALWAYS, *images.IF_MISSING])
    return images.write_helpers(tmp_path / "bin")


def run(programs: Path, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [str(programs / words[0]), *words[1:]]
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=30, env={})


class Pages(http.server.BaseHTTPRequestHandler):
    """One page, /here."""

    def do_GET(self) -> None:
        found = self.path == "/here"
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(b"a page\n")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    """Of an HTTP server."""
    with http.server.HTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture
def closed() -> int:
    """A port on which nothing listens."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def test_helpers_are_only_those_that_are_missing(tmp_path: Path) -> None:
    (tmp_path / "nc").touch(0o755)
    assert images.missing_helpers(str(tmp_path)) == ["nslookup", "ping", "wget"]


def test_helpers_are_rewritten_in_the_same_file(programs: Path) -> None:
    before = (programs / "nc").stat().st_ino
    images.write_helpers(programs)
    assert (programs / "nc").stat().st_ino == before, "a pod would see the old directory"


def test_nslookup_reads_the_hosts_file(programs: Path) -> None:
    found = run(programs, "nslookup", "localhost")
    assert (found.returncode, "Address: 127.0.0.1" in found.stdout) == (0, True)
    unknown = run(programs, "nslookup", "nobody.invalid")
    assert (unknown.returncode, unknown.stdout) == (1, "** server can't find nobody.invalid: NXDOMAIN\n")


def test_nc_reports_open_and_closed_ports(programs: Path, port: int, closed: int) -> None:
    opened = run(programs, "nc", "-zv", "127.0.0.1", str(port))
    assert (opened.returncode, "succeeded" in opened.stderr) == (0, True)
    refused = run(programs, "nc", "-zv", "127.0.0.1", str(closed))
    assert (refused.returncode, "Connection refused" in refused.stderr) == (1, True)


def test_nc_sends_its_input_and_prints_the_answer(programs: Path, port: int) -> None:
    answer = run(programs, "nc", "127.0.0.1", str(port), typed="GET /here HTTP/1.0\r\n\r\n")
    assert answer.stdout.endswith("a page\n")


def test_wget_fetches_a_page(programs: Path, port: int, closed: int, tmp_path: Path) -> None:
    page = f"http://127.0.0.1:{port}/here"
    assert run(programs, "wget", "-qO-", page).stdout == "a page\n"
    assert run(programs, "wget", "-q", "-O", str(tmp_path / "page"), page).returncode == 0
    assert (tmp_path / "page").read_text() == "a page\n"
    missing = run(programs, "wget", "-O-", f"http://127.0.0.1:{port}/nowhere")
    assert (missing.returncode, "404" in missing.stderr) == (8, True)
    refused = run(programs, "wget", "-qO-", f"127.0.0.1:{closed}")
    assert (refused.returncode, refused.stderr) == (4, "")


def test_ping_address_answers_unknown_name_fails(programs: Path) -> None:
    found = run(programs, "ping", "-c", "1", "127.0.0.9")
    assert (found.returncode, "1 packets received" in found.stdout) == (0, True)
    assert run(programs, "ping", "-c", "1", "nobody.invalid").returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ("nc", "-zv", ".training", "80"),
        ("ping", "-c1", ".training"),
        ("nslookup", ".training"),
        ("wget", "-O-", "http://.training"),
    ],
)
def test_programs_report_a_name_with_an_empty_part_in_one_line(
    programs: Path, words: tuple[str, ...]
) -> None:
    answer = run(programs, *words)
    assert answer.returncode != 0
    (line,) = (answer.stdout + answer.stderr).splitlines()
    assert ".training" in line


@pytest.mark.parametrize(
    ("configuration", "metrics"),
    [
        ({"kind": "Configuration", "internalCertManagement": {"enable": True}}, "127.96.0.2:8443"),
        (
            {
                "health": {"healthProbeBindAddress": ":8081", "readinessEndpointName": "readyz"},
                "metrics": {"bindAddress": ":9000"},
                "webhook": {"port": 9443, "host": ""},
            },
            "127.96.0.2:9000",
        ),
    ],
)
def test_manager_listens_on_address_of_its_pod(
    programs: Path, tmp_path: Path, configuration: dict[str, object], metrics: str
) -> None:
    file, program = tmp_path / "configuration.yaml", tmp_path / "manager"
    file.write_text(yaml.safe_dump(configuration))
    program.write_text('#!/bin/sh\necho "$2" >&2\nexec cat "${1#--config=}"\n')
    program.chmod(0o755)
    command = [sys.executable, "-I", str(programs / images.MANAGER), "127.96.0.2", str(program)]
    answer = subprocess.run(
        [*command, f"--config={file}", "--zap-log-level=2"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    found = yaml.safe_load(answer.stdout)
    assert found["health"]["healthProbeBindAddress"] == "127.96.0.2:8081"
    assert found["metrics"]["bindAddress"] == metrics
    assert found["webhook"] == {"port": 9443, "host": "127.96.0.2"}
    assert configuration.keys() <= found.keys()
    assert answer.stderr == "--zap-log-level=2\n"
    assert yaml.safe_load(file.read_text()) == configuration
