"""The bar of an upload: on a terminal alone, to its end, and never in the answer."""

from __future__ import annotations

import os
import re
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.kubectl.plugin_api import SUBMIT, Run, TorchrunApi
from trainyard.kubectl import output
from trainyard.kubectl.output import Bar, render_bar
from trainyard.operator import names as n
from trainyard.workspace.store import Store

pytestmark = pytest.mark.unit
MEBIBYTES = 2
DRAWN = re.compile(r"sending \[([#.]*)\] (\S+ \S+) of (\S+ \S+)")


class Terminal:
    """A terminal that somebody looks at."""

    def __init__(self) -> None:
        self._shown, self._side = os.openpty()
        mode = termios.tcgetattr(self._side)
        mode[1] &= ~termios.OPOST  # lines end as they were written
        termios.tcsetattr(self._side, termios.TCSANOW, mode)
        self.stream = os.fdopen(self._side, "w")

    def columns(self, count: int) -> None:
        """Its width from now on."""
        termios.tcsetwinsize(self._side, (24, count))

    def seen(self) -> str:
        """What it was sent since it was asked last."""
        self.stream.flush()
        os.set_blocking(self._shown, False)
        text = b""
        try:
            while piece := os.read(self._shown, 65536):
                text += piece
        except BlockingIOError:
            pass
        return text.decode()

    def close(self) -> None:
        self.stream.close()
        os.close(self._shown)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    made = Terminal()
    yield made
    made.close()


def test_an_upload_is_drawn_to_its_end_on_a_terminal(
    api: TorchrunApi, run: Run, pod: Store, code: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_EVERY_SECONDS", 0.0)
    (code / "data").write_bytes(os.urandom(MEBIBYTES * 2**20))
    api.queue("q")
    api.pod("one-sync-0", n.SYNC_CONTAINER)
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    result, out, _ = run(*SUBMIT, "x")
    text = terminal.seen()
    assert (result, out) == (0, "torchrunjob.torchrun.ai/one created\n"), text
    render_bar = DRAWN.findall(text)
    shares = [bar.count("#") / len(bar) for bar, _, _ in render_bar]
    assert len(render_bar) > 10
    assert shares == sorted(shares)
    assert shares[0] < 0.2
    assert shares[-1] == 1
    assert render_bar[-1][1] == render_bar[-1][2] == "2.0 MiB"
    # Its line is empty again when the next one comes.
    assert "of 2.0 MiB\r\x1b[Kworkspace sha256:" in text


def test_so_is_one_to_a_bucket(
    deployer: object,
    cloud,
    api: TorchrunApi,
    run: Run,
    code: Path,
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,  # type: ignore[no-untyped-def]
) -> None:
    monkeypatch.setattr(output, "_EVERY_SECONDS", 0.0)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-west-2")
    place = {"LocationConstraint": "us-west-2"}
    cloud.client("s3").create_bucket(Bucket="bar", CreateBucketConfiguration=place)
    (code / "data").write_bytes(os.urandom(MEBIBYTES * 2**20))
    api.queue("q", storage={"workspace": {"enabled": True, "bucket": "s3://bar"}})
    monkeypatch.setattr(sys, "stderr", terminal.stream)
    assert run(*SUBMIT, "x")[0] == 0
    text = terminal.seen()
    # Without TLS, as here, what is sent is read once before, to be signed: that is not render_bar.
    sent = [bar.count("#") / len(bar) for bar, _, _ in DRAWN.findall(text)]
    assert len(sent) > 10
    assert sent == sorted(sent)
    assert (sent[0] < 0.2, sent[-1]) == (True, 1)
    assert "of 2.0 MiB\r\x1b[Kworkspace sha256:" in text


def test_nothing_is_drawn_where_standard_error_is_no_terminal(
    api: TorchrunApi, run: Run, pod: Store, code: Path
) -> None:
    (code / "data").write_bytes(os.urandom(MEBIBYTES * 2**20))
    api.queue("q")
    api.pod("one-sync-0", n.SYNC_CONTAINER)
    result, _, err = run(*SUBMIT, "x")
    assert result == 0
    assert "sending" not in err
    assert not set("\r\x1b") & set(err)


def test_bar_is_drawn_at_intervals_and_at_the_end(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "_EVERY_SECONDS", 3600.0)
    monkeypatch.setattr("time.monotonic", lambda: 10_000.0)
    with Bar("sending", terminal.stream) as bar:
        for done in range(5):
            bar(done, 4)
    assert [bar.count("#") for bar, _, _ in DRAWN.findall(terminal.seen())] == [0, 30]
    with Bar("sending", terminal.stream):
        pass
    assert terminal.seen() == ""


@pytest.mark.parametrize("columns", [1, 2, 5, 10, 20, 28, 40, 60, 80, 200])
def test_it_is_never_wider_than_the_terminal(terminal: Terminal, columns: int) -> None:
    terminal.columns(columns)
    with Bar("sending", terminal.stream) as bar:
        bar(3 * 2**20, 2**30)
        bar(2**30, 2**30)
    *lines, end = terminal.seen().removeprefix("\r\x1b[K").split("\r\x1b[K")
    assert (len(lines), end) == (2, "")
    assert all(len(line) < columns for line in lines)
    assert all(line.isprintable() for line in lines)


def test_how_wide_it_is_is_asked_each_time(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_EVERY_SECONDS", 0.0)
    widths = []
    with Bar("sending", terminal.stream) as bar:
        for columns in (80, 20, 0):  # the last one does not know
            terminal.columns(columns)
            bar(1, 2)
            widths.append(len(terminal.seen().removeprefix("\r\x1b[K")))
    assert widths == [51, 18, 51]


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (62, f"sending [{'#' * 15}{'.' * 15}] 512.0 MiB of 1.0 GiB"),
        (36, "sending 512.0 MiB of 1.0 GiB"),
        (37, "sending [##...] 512.0 MiB of 1.0 GiB"),
        (29, "sending 512.0 MiB of 1.0 GiB"),
        (28, "sending 50 %"),
        (13, "sending 50 %"),
        (12, "50 %"),
        (4, ""),
    ],
)
def test_what_there_is_room_for(columns: int, line: str) -> None:
    assert render_bar("sending", 2**29, 2**30, columns) == line


def test_nothing_is_drawn_on_a_terminal_that_takes_nothing_back(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    with Bar("sending", terminal.stream) as bar:
        bar(1, 1)
    assert terminal.seen() == ""
