"""Start, wait for, signal and find again one process of a container. `Process.start` is the entry point.

A small shell runs beside the process and writes its exit code to a file. So the code is known even if the local/nodes
process did not run when it ended. The process id and start time are on disk (proc(5): field 22 of stat).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from local.cluster import record
from local.cluster.record import read_stat
from local.nodes.sandbox import CAPABILITIES
from local.nodes.status import KILLED

SANDBOX = Path(__file__).with_name("sandbox.py")
# `unshare --pid` without --fork: the shell stays outside, and its first child is process 1 of the new
# namespace. After the end of that child no other can be started, so a builtin writes the exit code. (`unshare
# --fork` reports 1 for a SIGKILL.)
KEEPER = '"$0" -I -S "$1" "$2/plan.json"; echo $? > "$2/exit"'
Stdin = Literal["none", "open", "once"]
SETUP_SECONDS = 10.0
SETUP_POLL_SECONDS = 0.02
_UNLOCK_TERMINAL, _OTHER_END = 0x40045431, 0x5441


@dataclass(frozen=True)
class Ended:
    """How a process ended: exit code (128 + n for signal n), time, and a message if it never ran."""

    code: int
    at: float
    message: str = ""


class NotRunningError(Exception):
    """The container has no running program in which a command could run. The message has the reason."""


@dataclass(frozen=True)
class Entry:
    """The namespaces, root, working directory and initial environment of a running program."""

    pid: int
    variables: dict[str, str]
    user: int = 0

    def command(self, argv: Sequence[str], terminal: bool = False) -> list[str]:
        """Return the command line that runs `argv` there, in its own session.

        The command is killed when the process that this command line starts is killed. Programs have absolute paths,
        because the container's PATH may not have them.
        """
        nsenter, setpriv, setsid = (shutil.which(name) or name for name in ("nsenter", "setpriv", "setsid"))
        enter = [nsenter, f"--target={self.pid}", "--mount", "--uts", "--ipc", "--pid"]
        # The privileges of the sandbox. A user namespace has no privileges outside; root has those of containers.
        rights = [f"--bounding-set=-all,{','.join(f'+{name}' for name in CAPABILITIES)}"]
        if self.user:
            enter += ["--user", "--preserve-credentials"]
            rights = []
        enter += ["--root", "--wd"]
        bound = [setpriv, *rights, "--pdeathsig=KILL", "--", setsid]
        return [*enter, "--", *bound, *(["--ctty"] if terminal else []), "--", *argv]

    def open_terminal(self) -> tuple[int, int]:
        """Open a terminal in the container's /dev/pts, as container runtimes do. Return its two ends, this side first.

        Source: ioctl_tty(2), TIOCSPTLCK and TIOCGPTPEER (Linux 4.13).

        Raises:
            OSError: The terminal can't be opened.
        """
        ours = os.open(f"/proc/{self.pid}/root/dev/pts/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_NOFOLLOW)
        try:
            fcntl.ioctl(ours, _UNLOCK_TERMINAL, struct.pack("i", 0))
            return ours, fcntl.ioctl(ours, _OTHER_END, os.O_RDWR | os.O_NOCTTY)
        except OSError:
            os.close(ours)
            raise


def _in_set_up(pid: int) -> bool:
    """Return whether the process is still the sandbox, which later executes the program."""
    try:
        return str(SANDBOX).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def create_stdin(pipe: Path, *, once: bool) -> tuple[int, int | None]:
    """Create the pipe of a program's input. Return the program's descriptor, and one that keeps the input open.

    Without `once`, the program keeps its own input open, so that the input never ends.
    """
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe, 0o600)
    if not once:
        return os.open(pipe, os.O_RDWR), None
    # A pipe with a reader only could not be opened without O_NONBLOCK.
    its = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    ours = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    os.set_blocking(its, True)
    return its, ours


def listens_on_loopback(programs: Sequence[int], port: int) -> bool:
    """Return whether one of the programs, or a process that it started, listens on a port of 127.0.0.1.

    Source: proc(5), /proc/net/tcp; the state 0A is LISTEN.
    """
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    address = f"0100007F:{port:04X}"
    sockets = {f"socket:[{row[9]}]" for row in rows if row[1] == address and row[3] == "0A"}
    namespaces = {_link(f"/proc/{pid}/ns/pid") for pid in programs} - {""}
    for process in Path("/proc").glob("[0-9]*") if sockets and namespaces else ():
        if _link(f"{process}/ns/pid") in namespaces:
            with contextlib.suppress(OSError):
                if any(_link(f"{process}/fd/{each}") in sockets for each in os.listdir(f"{process}/fd")):
                    return True
    return False


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


class Process:
    """A started process. `directory` has the plan, the record and the exit code of one run."""

    def __init__(
        self,
        directory: Path,
        keeper: int,
        child: subprocess.Popen[bytes] | None,
        stdin: int | None = None,
    ) -> None:
        self.directory = directory
        self.keeper = keeper
        self._child = child
        self._stdin = stdin  # a descriptor that keeps the input open until the first attachment

    @classmethod
    def start(cls, directory: Path, plan: dict[str, Any], log: Path, stdin: Stdin = "none") -> Process:
        """Start the plan's program.

        Args:
            log: The file that gets its output.
            stdin: Whether it has an input, and whether the input ends with the first attachment to it.

        Raises:
            OSError: Files can't be written, or no process can be started.
        """
        directory.mkdir(parents=True, exist_ok=True)
        log.parent.mkdir(parents=True, exist_ok=True)
        for stale in ("exit", "error", "process", "keeper"):
            (directory / stale).unlink(missing_ok=True)
        (directory / "plan.json").write_text(json.dumps(plan | {"state": str(directory)}))
        os.chmod(directory / "plan.json", 0o600)
        its_stdin, our_stdin = subprocess.DEVNULL, None
        if stdin != "none":
            its_stdin, our_stdin = create_stdin(directory / "stdin", once=stdin == "once")
        command = ["unshare", "--pid", "/bin/sh", "-c", KEEPER, sys.executable, str(SANDBOX), str(directory)]
        try:
            with log.open("ab") as output:
                child = subprocess.Popen(
                    command,
                    stdin=its_stdin,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env={"PATH": os.environ.get("PATH", os.defpath)},
                )
        finally:
            if its_stdin != subprocess.DEVNULL:
                os.close(its_stdin)
        try:
            (directory / "keeper").write_text(f"{child.pid} {read_stat(child.pid)}")
        except OSError:
            # Without the file, no later process could find or end it.
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            raise
        return cls(directory, child.pid, child, our_stdin)

    @classmethod
    def found(cls, directory: Path) -> Process | None:
        """Return the run that was started in this directory before, running or ended, or None."""
        keeper = record.Process.read(directory / "keeper")
        return None if keeper is None else cls(directory, keeper.pid, None)

    @property
    def pid(self) -> int | None:
        """The program's process id on this machine (it is 1 in its own namespace), None after its end."""
        program = record.Process.read(self.directory / "process")
        return program.pid if program is not None and program.alive else None

    @property
    def alive(self) -> bool:
        """Whether it runs, is being set up, or its exit code is being written."""
        keeper = record.Process.read(self.directory / "keeper")
        return keeper is not None and keeper.alive

    async def entry(self) -> Entry:
        """Wait until the program runs, and return how to run a command beside it.

        Raises:
            NotRunningError: The program does not run.
        """
        deadline = time.monotonic() + SETUP_SECONDS
        while self.alive:
            # Until the sandbox executes the program, it may still have the host's root.
            if (pid := self.pid) is not None and not _in_set_up(pid):
                plan = json.loads((self.directory / "plan.json").read_text())
                return Entry(pid, plan["env"], plan["user"])
            if time.monotonic() > deadline:
                raise NotRunningError(f"its sandbox is not ready after {SETUP_SECONDS:g} s")
            await asyncio.sleep(SETUP_POLL_SECONDS)
        raise NotRunningError("it does not run")

    def open_stdin(self) -> int:
        """Return a descriptor for the program's input. With `once`, its input ends when this descriptor is closed.

        Raises:
            OSError: The program does not read its input any more.
        """
        held, self._stdin = self._stdin, None
        return held if held is not None else os.open(self.directory / "stdin", os.O_WRONLY | os.O_NONBLOCK)

    async def wait(self) -> Ended:
        """Wait for the end, and return the exit code and time."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                await wait_for_pid(self.keeper)
        if self._child is not None:
            self._child.wait()  # it has ended; this only reaps the zombie
        if self._stdin is not None:
            os.close(self._stdin)
            self._stdin = None
        return self.ended()

    def ended(self) -> Ended:
        """Return the exit code and time that the shell wrote; KILLED if it wrote none."""
        exit_file, error_file = self.directory / "exit", self.directory / "error"
        message = error_file.read_text(errors="replace") if error_file.exists() else ""
        try:
            return Ended(int(exit_file.read_text()), exit_file.stat().st_mtime, message)
        except (FileNotFoundError, ValueError):
            return Ended(KILLED, time.time(), message or "the process is gone and left no exit code")

    def signal(self, number: signal.Signals) -> None:
        """Signal the program. SIGKILL ends all processes in its process namespace.

        A process in set-up has not run yet, so its whole group is killed. It gets SIGKILL, because the sandbox is
        process 1 of its namespace: after another signal it would continue without the shell.
        """
        pid = self.pid
        with contextlib.suppress(ProcessLookupError):
            if pid is not None and not _in_set_up(pid):
                os.kill(pid, number)
            elif self.alive:
                os.killpg(self.keeper, signal.SIGKILL)


async def wait_for_pid(pid: int) -> None:
    """Wait until a process has ended, whether it is a child or not.

    Raises:
        ProcessLookupError: The process does not exist.
    """
    descriptor = os.pidfd_open(pid)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
