"""`kubectl exec` and `attach` at the kubelets' server: streams, terminals, exit codes. Commands run on this machine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from multidict import MultiDict

from local.cluster.record import read_stat
from local.nodes.logs import Clock
from local.nodes.process import Entry, NotRunningError, Process, create_stdin
from local.nodes.remote import CLOSE, PROTOCOLS, RESIZE, STATUS, STDERR, STDIN, STDOUT, Request, parse_request
from tests.unit.nodes.event_loop import SECONDS, in_event_loop
from tests.unit.nodes.kubelet_server import client_tls, serving

EXEC, ATTACH = "exec/training/one/main", "attach/training/one/main"
SPDY = {"Upgrade": "SPDY/3.1", "Connection": "Upgrade"}
Client = Callable[[aiohttp.ClientWebSocketResponse], Awaitable[None]]


class Here(Entry):
    """Enters nothing, so that no rights are needed."""

    def command(self, argv: Any, terminal: bool = False) -> list[str]:
        return ["setpriv", "--pdeathsig=KILL", "setsid", *(["--ctty"] if terminal else []), *argv]


def container(error: str = "") -> Any:
    """One that a command can be run in, or not, with the reason."""

    async def entry() -> Entry:
        if error:
            raise NotRunningError(error)
        return Here(os.getpid(), {"PATH": os.environ["PATH"], "WORD": "from the pod"})

    return SimpleNamespace(name="main", entry=entry)


class Exec:
    """What one command said, by channel, and how the server ended it."""

    def __init__(self) -> None:
        self.said: dict[int, bytes] = {STDOUT: b"", STDERR: b""}
        self.status: dict[str, Any] = {}
        self.closed: int | None = None

    @property
    def code(self) -> int:
        if self.status["status"] == "Success":
            return 0
        (cause,) = self.status["details"]["causes"]
        assert (self.status["reason"], cause["reason"]) == ("NonZeroExitCode", "ExitCode")
        return int(cause["message"])


def execute(pki: Path, *command: str, streams: str = "output error", client: Client | None = None) -> Exec:
    """Run a command through the server."""
    streaming = stream(pki, container(), EXEC, *command, streams=streams, client=client)
    return asyncio.run(asyncio.wait_for(streaming, SECONDS))


async def stream(
    pki: Path, target: Any, path: str, *command: str, streams: str, client: Client | None = None
) -> Exec:
    """Call the server. `client` sends and reads; without it everything is read to the end."""
    found = Exec()
    query = MultiDict([("command", word) for word in command] + [(name, "1") for name in streams.split()])
    async with (
        serving(pki, SimpleNamespace(every=[target])) as (_, port),
        aiohttp.ClientSession() as session,
        session.ws_connect(
            f"https://127.0.0.1:{port}/{path}", params=query, protocols=PROTOCOLS, ssl=client_tls(pki)
        ) as socket,
    ):
        assert socket.protocol == PROTOCOLS[0]
        if client is not None:
            await client(socket)
        async for message in socket:
            if message.data[0] == STATUS:
                found.status = json.loads(message.data[1:])
            else:
                found.said[message.data[0]] += message.data[1:]
        found.closed = socket.close_code
    return found


def test_exec_separates_outputs_and_has_the_exit_code(pki: Path) -> None:
    found = execute(pki, "sh", "-c", 'echo "$WORD"; echo trouble >&2; exit 3')
    assert found.said == {STDOUT: b"from the pod\n", STDERR: b"trouble\n"}
    assert (found.code, found.closed) == (3, 1000)


def test_exec_large_output_is_complete(pki: Path) -> None:
    found = execute(pki, "head", "-c", "3000000", "/dev/zero")
    assert (len(found.said[STDOUT]), found.code) == (3000000, 0)


def test_exec_end_by_signal_is_128_plus_its_number(pki: Path) -> None:
    assert execute(pki, "sh", "-c", "kill -9 $$").code == 137


def test_exec_missing_program_is_named_and_ends_with_127(pki: Path) -> None:
    found = execute(pki, "no-such-program")
    assert found.code == 127
    assert b"no-such-program" in found.said[STDERR]


def test_exec_input_and_its_end_reach_the_command(pki: Path) -> None:
    async def client(socket: aiohttp.ClientWebSocketResponse) -> None:
        await socket.send_bytes(bytes([STDIN]) + b"one\n")
        await socket.send_bytes(bytes([STDIN]) + b"two\n")
        await socket.send_bytes(bytes([CLOSE, STDIN]))

    found = execute(pki, "wc", "-l", streams="input output", client=client)
    assert (found.said[STDOUT].strip(), found.code) == (b"2", 0)


def test_exec_without_input_reads_nothing(pki: Path) -> None:
    assert execute(pki, "cat").said == {STDOUT: b"", STDERR: b""}


def test_exec_terminal_has_the_clients_size_and_keys(pki: Path) -> None:
    async def client(socket: aiohttp.ClientWebSocketResponse) -> None:
        await socket.send_bytes(bytes([RESIZE]) + b'{"Width": 99, "Height": 33}')
        await socket.send_bytes(bytes([STDIN]) + b"go\n")
        heard = b""
        while b"33 99" not in heard or b"/dev/pts/" not in heard:
            heard += (await socket.receive_bytes())[1:]
        await socket.send_bytes(bytes([STDIN]) + b"\x03")

    script = 'trap "exit 5" INT; read word; stty size; tty; while :; do sleep 0.1; done'
    assert execute(pki, "sh", "-c", script, streams="input output tty", client=client).code == 5


def test_exec_terminal_last_output_is_complete(pki: Path) -> None:
    found = execute(pki, "seq", "5000", streams="output tty")
    assert found.said[STDOUT].split() == [str(number).encode() for number in range(1, 5001)]
    assert found.code == 0


def test_exec_client_disconnect_ends_the_command(pki: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local.nodes.remote._TIDY_SECONDS", 0.05)
    pids: list[int] = []

    async def client(socket: aiohttp.ClientWebSocketResponse) -> None:
        pids.append(int((await socket.receive_bytes())[1:]))
        await socket.close()

    execute(pki, "sh", "-c", "echo $$; exec sleep 60", client=client)
    deadline = time.monotonic() + 30
    while read_stat(pids[0]) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert read_stat(pids[0]) is None


@pytest.mark.parametrize("once", [True, False])
@in_event_loop
async def test_attach_sends_input_and_the_output_from_now_on(pki: Path, once: bool) -> None:
    log = pki / "0.log"
    log.write_text("before\n")
    its, ours = create_stdin(pki / "stdin", once=once)
    with log.open("ab") as output:
        cat = await asyncio.create_subprocess_exec("cat", stdin=its, stdout=output, pass_fds=(its,))
    os.close(its)
    process = Process(pki, cat.pid, None, ours)
    target = container()
    target.clock, target.running, target.open_stdin = Clock(log), asyncio.Event(), process.open_stdin
    target.running.set()

    async def client(socket: aiohttp.ClientWebSocketResponse) -> None:
        await asyncio.sleep(0.1)  # the output so far is not sent
        await socket.send_bytes(bytes([STDIN]) + b"typed\n")
        assert await socket.receive_bytes() == bytes([STDOUT]) + b"typed\n"
        await socket.send_bytes(bytes([CLOSE, STDIN]))
        if not once:  # its input never ends, so another attachment can send more
            second = process.open_stdin()
            os.write(second, b"more\n")
            os.close(second)
            assert await socket.receive_bytes() == bytes([STDOUT]) + b"more\n"
            cat.kill()
        await cat.wait()
        target.running.clear()

    found = await stream(pki, target, ATTACH, streams="input output error", client=client)
    assert (found.code, found.closed) == (0, 1000)


@pytest.mark.parametrize(("path", "command"), [(EXEC, ("sleep", "60")), (ATTACH, ())])
@in_event_loop
async def test_disconnect_ends_the_session_of_a_program_that_reads_nothing(
    pki: Path, path: str, command: tuple[str, ...]
) -> None:
    log = pki / "0.log"
    log.touch()

    async def client(socket: aiohttp.ClientWebSocketResponse) -> None:
        for _ in range(100):
            await socket.send_bytes(bytes([STDIN]) + bytes(1 << 14))
        await socket.close()  # the server answers the end of the session

    unread, ours = create_stdin(pki / "stdin", once=False)
    target = container()
    target.clock, target.running = Clock(log), asyncio.Event()
    target.open_stdin = Process(pki, os.getpid(), None, ours).open_stdin
    target.running.set()
    found = await stream(pki, target, path, *command, streams="input output", client=client)
    os.close(unread)
    assert found.closed == 1000


@pytest.mark.parametrize(
    ("inside", "path", "headers", "status", "said"),
    [
        ("it does not run", f"{EXEC}?command=true&output=1", {}, 409, "container 'main': it does not run"),
        ("", f"{EXEC}?command=true&output=1", SPDY, 400, "do not speak SPDY"),
        ("", f"{EXEC}?output=1", {}, 400, "parameter `command` is missing"),
        ("", f"{ATTACH}?output=1&tty=1", {}, 400, "tty: true"),
    ],
)
@in_event_loop
async def test_stream_refusal_has_a_status_with_the_reason(
    pki: Path, inside: str, path: str, headers: dict[str, str], status: int, said: str
) -> None:
    """kubectl shows the message of a Status, and of nothing else."""
    async with (
        serving(pki, SimpleNamespace(every=[container(inside)])) as (_, port),
        aiohttp.ClientSession() as session,
        session.post(f"https://127.0.0.1:{port}/{path}", headers=headers, ssl=client_tls(pki)) as answer,
    ):
        found = await answer.json()
    assert (found["kind"], found["status"]) == ("Status", "Failure")
    assert found["code"] == answer.status == status
    assert said in found["message"]


def test_request_has_the_streams_of_the_query() -> None:
    query = MultiDict(
        [("command", "sh"), ("command", "-c"), ("input", "1"), ("output", "true"), ("tty", "1")]
    )
    assert parse_request(query, "exec") == Request(("sh", "-c"), stdin=True, stdout=True, terminal=True)
    assert parse_request(MultiDict(output="1"), "attach") == Request(stdout=True)
    with pytest.raises(ValueError, match="at least one"):
        parse_request(MultiDict(command="sh"), "exec")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter namespaces without having made them")
def test_entry_command_has_the_programs_root_and_directory() -> None:
    entry = Entry(os.getpid(), {})
    argv = entry.command(["sh", "-c", "pwd; echo $$; cut -d' ' -f6 /proc/$$/stat"])
    assert argv[0] == shutil.which("nsenter")

    async def run() -> list[bytes]:
        child = await asyncio.create_subprocess_exec(*argv, env={}, stdout=asyncio.subprocess.PIPE)
        return (await child.communicate())[0].split()

    directory, number, session = asyncio.run(run())
    assert directory.decode() == os.getcwd()
    assert number == session, "it has no session of its own"
