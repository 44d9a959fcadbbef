"""Published binaries of tools from a mirror: installed whole and with the pinned checksum, or not at all."""

from __future__ import annotations

import hashlib
import http.server
import os
import re
import socket
import tarfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from local.home import Home
from local.tools import OPTIONAL_TOOLS, TOOLS, ToolError, download, ensure, registry
from local.tools.tool import Archive, Release, Tool
from tests.unit.local_core.test_tools import SAMPLE, Machine, locked_at, machine

__all__ = ["machine"]  # the fixture

URL = "https://example.org/v1.2.3/sample-linux.tar.gz"
MACHINE = os.uname().machine
PROGRAMS = {"sample": "bin/one", "sample-two": "bin/two", "sample-start": "start"}


class Mirror:
    """A mirror on this machine, and the archives that it has."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.requests: list[str] = []
        self.missing_bytes = 0
        mirror = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.requests.append(self.path)
                file = mirror.directory / self.path.lstrip("/")
                if not file.is_file():
                    self.send_error(404)
                    return
                content = file.read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) - mirror.missing_bytes])

            def log_message(self, *_arguments: object) -> None:
                """Stay quiet."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def publish(self, source: Path, programs: dict[str, str]) -> Archive:
        """Put programs into an archive, and return it with its checksum."""
        target = self.directory / URL.removeprefix("https://")
        target.parent.mkdir(parents=True)
        with tarfile.open(target, "w:gz") as file:
            for name, path in programs.items():
                file.add(source / name, f"sample-linux/{path}")
            file.add(source, "sample-linux/other")
        return Archive(url=URL, checksum=f"sha512:{hashlib.sha512(target.read_bytes()).hexdigest()}")


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mirror]:
    mirror = Mirror(tmp_path / "mirror")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv(download.SETTING, f"{mirror.address}/")
    yield mirror
    mirror.server.shutdown()
    mirror.server.server_close()


def released(machine: Machine, mirror: Mirror, programs: dict[str, str] | None = None) -> Tool:
    """Publish the sample, whose programs Go builds first, and return it. The cache is empty again."""
    machine.install_go()
    built = ensure(["sample"], Home(machine.cache.with_name("earlier-home")), quiet=True)["sample"].parent
    archive = mirror.publish(built, PROGRAMS if programs is None else programs)
    machine.cache.rename(machine.cache.with_name("earlier"))
    machine.calls.unlink()
    release = Release(version="1.2.3", archives={MACHINE: archive}, programs=PROGRAMS)
    return use(machine, replace(machine.tool, release=release))


def use(machine: Machine, tool: Tool) -> Tool:
    machine.tool = tool
    registry.TOOLS["sample"] = tool  # the fixture's own table
    return tool


def installed(machine: Machine) -> list[str]:
    return sorted(each.name for each in (machine.cache / "tools").glob("*"))


def test_published_tool_is_downloaded_once_and_not_built(
    machine: Machine, mirror: Mirror, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = released(machine, mirror)
    capsys.readouterr()
    places = ensure(["sample"], machine.home)
    archive = tool.archive(MACHINE)
    assert archive is not None
    assert installed(machine) == [tool.archive_key(archive)]
    assert set(places) == set(PROGRAMS)
    assert all(os.access(machine.home.bin / name, os.X_OK) for name in places)
    assert sorted(each.name for each in places["sample"].parent.iterdir()) == sorted(PROGRAMS)
    assert machine.called() == []
    assert "tools: 0 built in 0 s, 1 downloaded; downloads: 0 MB in " in capsys.readouterr().out
    assert list((machine.cache / "build").iterdir()) == []
    before = list(mirror.requests)
    assert set(before) == {"/example.org/v1.2.3/sample-linux.tar.gz"}
    assert ensure(["sample"], machine.home, quiet=True) == places
    assert mirror.requests == before


def test_missing_go_is_reported_before_a_download(machine: Machine, mirror: Mirror, tmp_path: Path) -> None:
    released(machine, mirror)
    registry.TOOLS["other"] = locked_at(tmp_path / "other", "v1.2.4", SAMPLE, name="other")
    (machine.bin / "go").unlink()
    with pytest.raises(ToolError, match="is needed to build other; "):
        ensure([], machine.home)
    assert installed(machine) == []


def test_wrong_checksum_is_refused_and_nothing_is_installed(machine: Machine, mirror: Mirror) -> None:
    tool = released(machine, mirror)
    assert tool.release is not None
    wrong = Archive(url=URL, checksum=f"sha512:{'0' * 128}")
    use(machine, replace(tool, release=replace(tool.release, archives={MACHINE: wrong})))
    with pytest.raises(
        ToolError, match=rf"sample 1\.2\.3: {mirror.address}/.* must be sha512:000"
    ) as refused:
        ensure(["sample"], machine.home)
    assert "\n" not in str(refused.value)
    assert f"{download.SETTING}=no" in str(refused.value)
    assert (installed(machine), machine.called()) == ([], [])
    assert not list(machine.home.bin.glob("*"))


def test_archive_without_a_program_is_refused(machine: Machine, mirror: Mirror) -> None:
    released(machine, mirror, {"sample": "bin/one"})
    with pytest.raises(ToolError, match=r"lacks bin/two, start; nothing was installed"):
        ensure(["sample"], machine.home)
    assert installed(machine) == []


@pytest.mark.parametrize("fault", ["cut", "gone", "unreachable", "off", "version", "machine"])
def test_tool_without_its_archive_is_built(
    fault: str,
    machine: Machine,
    mirror: Mirror,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tool = released(machine, mirror)
    release = tool.release
    assert release is not None
    if fault == "cut":
        mirror.missing_bytes = 10
    elif fault == "gone":
        (mirror.directory / URL.removeprefix("https://")).unlink()
    elif fault == "unreachable":
        mirror.server.shutdown()
        mirror.server.server_close()
    elif fault == "off":
        monkeypatch.setenv(download.SETTING, "no")
    elif fault == "version":
        tool = use(machine, replace(tool, release=replace(release, version="1.2.2")))
    else:
        tool = use(
            machine,
            replace(tool, release=replace(release, archives={"sparc": Archive(url=URL, checksum="")})),
        )
    capsys.readouterr()
    started = time.monotonic()
    ensure(["sample"], machine.home)
    assert time.monotonic() - started < download.REACHABLE_SECONDS
    assert installed(machine) == [tool.key]
    assert list((machine.cache / "build").iterdir()) == []
    reported = capsys.readouterr().err.splitlines()
    if fault == "cut":
        assert re.fullmatch(
            r"sample 1\.2\.3: not downloaded \(.* ended .*\); it is built instead", reported[1]
        )
    if fault in ("gone", "unreachable"):
        place = urlsplit(mirror.address).netloc
        assert reported[0].startswith(f"tools: no published binaries from {place}, ")
        assert reported[0].endswith("can't be reached or lacks them")
    assert len(mirror.requests) == {"cut": 2, "gone": 1}.get(fault, 0)


def test_interrupted_download_installs_nothing_and_starts_again(
    machine: Machine, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = released(machine, mirror)

    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(registry.Progress, "update", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ensure(["sample"], machine.home)
    assert (installed(machine), machine.called()) == ([], [])
    # A kill leaves the work of the download behind.
    archive = tool.archive(MACHINE)
    assert archive is not None
    rest = machine.cache / "build" / tool.archive_key(archive) / "tool" / "bin"
    rest.mkdir(parents=True)
    (rest / "sample").write_text("half")
    places = ensure(["sample"], machine.home)
    assert "1.2.3" in places["sample"].read_text()
    assert machine.called() == []


def test_full_disk_is_no_error_of_the_network(machine: Machine, mirror: Mirror) -> None:
    tool = released(machine, mirror)
    archive = tool.archive(MACHINE)
    assert archive is not None
    address = str(download.address_of(archive))
    with pytest.raises(OSError, match="No space left"):
        download._receive(address, Path("/dev/full"), "sha256", lambda _text: None)


def test_server_that_does_not_answer_costs_some_seconds_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        assert download.reachable([f"{address}/{number}" for number in range(40)], 0.3) == set()
        assert time.monotonic() - started < 40 * 0.3 / 2


def test_slow_name_server_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Response:
        def close(self) -> None:
            """Do nothing."""

    done = threading.Event()

    def answer(address: str, _seconds: float) -> Response:
        if "slow" in address:
            done.wait(30)
        return Response()

    monkeypatch.setattr(download, "_open", answer)
    started = time.monotonic()
    assert download.reachable(["slow", "quick"], 0.2) == {"quick"}
    done.set()
    assert time.monotonic() - started < 15


@pytest.mark.parametrize(
    ("setting", "address"),
    [
        (None, URL),
        ("", URL),
        ("yes", URL),
        ("no", None),
        ("OFF", None),
        ("0", None),
        ("http://mirror:8080/tools/", "http://mirror:8080/tools/example.org/v1.2.3/sample-linux.tar.gz"),
    ],
)
def test_setting_names_a_mirror_or_turns_downloads_off(setting: str | None, address: str | None) -> None:
    environment = {} if setting is None else {download.SETTING: setting}
    assert download.address_of(Archive(url=URL, checksum=""), environment) == address


@pytest.mark.parametrize(
    "setting", ["maybe", "ftp://mirror", "file:///etc", "http://", "http://[bad/", "https://mirror:80a"]
)
def test_wrong_setting_is_one_line(setting: str) -> None:
    expected = rf"^{download.SETTING}: '{re.escape(setting)}' must be no, or the http"
    with pytest.raises(ToolError, match=expected):
        download.address_of(Archive(url=URL, checksum=""), {download.SETTING: setting})


def test_password_of_a_mirror_is_refused_and_not_shown() -> None:
    with pytest.raises(ToolError, match=r"'https://...@mirror/x' must be .* without a user"):
        download.address_of(Archive(url=URL, checksum=""), {download.SETTING: "https://me:secret@mirror/x"})


def test_malformed_proxy_is_an_error_of_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http:/127.0.0.1:1")
    monkeypatch.setattr(urllib.request, "_opener", None)  # it keeps the proxies of its first use
    with pytest.raises(download.DownloadBroken, match="no authority"):
        download._receive("http://example.org/x", tmp_path / "x", "sha256", lambda _text: None)


def test_every_release_is_complete() -> None:
    releases = {name: tool for name, tool in (TOOLS | OPTIONAL_TOOLS).items() if tool.release}
    assert set(releases) == {"kubernetes", "etcd", "helm"}
    for name, tool in releases.items():
        assert tool.release is not None
        assert tool.release.version == tool.number, f"{name}: find the checksums of {tool.number}"
        assert set(tool.release.programs) == set(tool.programs)
        assert set(tool.release.archives) == {"x86_64", "aarch64"}
        for archive in tool.release.archives.values():
            assert re.fullmatch(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}", archive.checksum)
            assert archive.url.startswith("https://")
            assert f"v{tool.number}" in archive.url
