"""Start and end a local cloud from outside. `up`, `down` and `reset` are the entry points."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import http.client
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from local.cluster import namespaces
from local.cluster.control import ControlError, JsonObject, request
from local.cluster.processes import last_line
from local.cluster.record import Process, read_stat, recorded, remove_records, running
from local.cluster.supervisor import child_environment
from local.home import CHECKOUT, Home, local_command, write_atomically
from local.ports import free_ports

READY_SECONDS = 90.0
# Pods get up to 20 s to end, then the control planes and the emulator.
DOWN_SECONDS = 45.0
POLL_SECONDS = 0.05
# Space for the clusters, pods and logs of a run, with a margin.
FREE_BYTES = 1_000_000_000
ERROR = re.compile(r"\berror: (.+)")
# Passes the shell's line of /proc/<pid>/stat to the supervisor, which can't read it in its PID namespace.
# `exec` keeps the id and the start time.
START = 'exec "$@" --outer "$(cat /proc/$$/stat)"'

Report = Callable[[str], None]


class CloudError(Exception):
    """The local cloud can't be started, reached or ended. The message is one line."""


def up(
    home: Home, report: Report, boot_seconds: float | None = None, gpu_delay_seconds: float | None = None
) -> None:
    """Start the local cloud unless it is running. Return when the emulator answers.

    Raises:
        CloudError: It does not start. The message has the reason and the path of the log.
    """
    try:
        home.make()
        _store_settings(home, boot_seconds, gpu_delay_seconds)
        with _one_at_a_time(home):
            _up(home, report)
    except namespaces.NamespaceError as error:
        raise CloudError(str(error)) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise CloudError(f"the disk of {home.root} is full: free some space and start again") from error
        raise CloudError(f"{error.strerror or error}: {error.filename or home.root}") from error


def _up(home: Home, report: Report) -> None:
    process = running(home)
    started = time.monotonic()
    if process is not None and home.cloud_file.exists():
        record = home.cloud() or {}
        report(f"local cloud: already running at {record.get('awsEndpoint')} (process {process.pid})")
        return
    if process is None:
        _report_stale(home, report)
        remove_records(home)
        _check_disk(home)
        process = _start(home)
    else:
        report(f"local cloud: process {process.pid} runs but is not ready yet; waiting")
    _wait_ready(home, process)
    record = home.cloud() or {}
    report(f"local cloud: ready after {time.monotonic() - started:.1f} s at {record.get('awsEndpoint')}")


@contextlib.contextmanager
def _one_at_a_time(home: Home) -> Iterator[None]:
    """Serialize commands that start the same cloud. The second command finds it running."""
    descriptor = os.open(home.run / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def down(home: Home, report: Report) -> None:
    """End the local cloud and wait until all processes are gone. A cloud that is not running is no error."""
    process = running(home)
    if process is None:
        _report_stale(home, report)
        remove_records(home)
        report("local cloud: not running")
        return
    started = time.monotonic()
    try:
        request(home.control_socket, "POST", "/shutdown", timeout=5.0)
    except (OSError, http.client.HTTPException, ControlError) as error:
        report(f"local cloud: process {process.pid} does not answer ({error}); killing it")
        _kill(process)
    if not _gone(process, DOWN_SECONDS):
        report(f"local cloud: still there after {DOWN_SECONDS:.0f} s; killing it")
        _kill(process)
        _gone(process, DOWN_SECONDS)
    remove_records(home)
    report(f"local cloud: stopped after {time.monotonic() - started:.1f} s")


def reset(home: Home, report: Report) -> None:
    """End the local cloud and delete all of its state, except the built tools.

    Raises:
        CloudError: The directory is not a local cloud's, or can't be deleted.
    """
    if home.root.exists() and any(home.root.iterdir()) and not home.marker.exists():
        raise CloudError(
            f"{home.root} is not deleted: it holds no {home.marker.name}, so it is no local cloud's"
        )
    down(home, report)
    try:
        _delete(home)
    except OSError as error:
        place = error.filename or home.root
        raise CloudError(f"{home.root}: could not be deleted: {place}: {error.strerror or error}") from error
    report(f"local cloud: {home.root} deleted")


def _delete(home: Home) -> None:
    """Delete all files of a home. The marker is last, so that `up` and `reset` accept a half deleted home.

    Raises:
        OSError: Something can't be deleted.
    """
    inside = home.root.iterdir() if home.root.exists() else ()
    for path in (home.control_socket.parent, *(each for each in inside if each != home.marker)):
        if path.is_dir() and not path.is_symlink():
            _open_directories(path)
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    home.marker.unlink(missing_ok=True)
    # It may be a mount point or a link. `up` accepts it when it is empty.
    with contextlib.suppress(OSError):
        home.root.rmdir()


def _open_directories(root: Path) -> None:
    """Allow the owner to delete everything. overlayfs leaves a directory with mode 000 in each layer's `work`."""
    for place, names, _ in os.walk(root):
        for path in (Path(place, name) for name in names):
            if not path.is_symlink() and path.stat().st_mode & stat.S_IRWXU != stat.S_IRWXU:
                path.chmod(stat.S_IRWXU)


def status(home: Home) -> JsonObject | None:
    """Return what is running, or None if nothing is.

    Raises:
        CloudError: It runs but does not answer.
    """
    process = running(home)
    if process is None:
        return None
    try:
        answer = request(home.control_socket, "GET", "/status", timeout=10.0)
    except (OSError, http.client.HTTPException, ControlError) as error:
        raise CloudError(
            f"process {process.pid} does not answer ({error}); `{local_command(home, 'down')}` ends it"
        ) from error
    return {
        **process.as_json(),
        **answer,
        "home": str(home.root),
        "kubeconfig": str(home.kubeconfig),
        "logs": str(home.logs),
    }


def _store_settings(home: Home, boot_seconds: float | None, gpu_delay_seconds: float | None) -> None:
    given = {"bootSeconds": boot_seconds, "gpuDelaySeconds": gpu_delay_seconds}
    changed = {name: value for name, value in given.items() if value is not None}
    settings = home.settings()
    if changed or not home.settings_file.exists():
        write_atomically(home.settings_file, json.dumps({**settings, **changed}) + "\n")


def _report_stale(home: Home, report: Report) -> None:
    old = recorded(home)
    if old is not None:
        report(f"local cloud: the last one (process {old.pid}) ended without `down`; its record is removed")


def _check_disk(home: Home) -> None:
    free = shutil.disk_usage(home.root).free
    if free < FREE_BYTES:
        raise CloudError(
            f"the disk of {home.root} is full: {free / 1e6:.0f} MB free, {FREE_BYTES / 1e6:.0f} MB are needed; "
            "free some space and start again"
        )


def _start(home: Home) -> Process:
    chosen = namespaces.options()
    options = ["--home", str(home.root), "--port", str(free_ports(1)[0])]
    command = ["unshare", *chosen, sys.executable, "-m", "local.cluster", *options]
    if "--net" in chosen:
        command.append("--private-network")
    _put_logs_aside(home)
    log = home.logs / "supervisor.log"
    with log.open("ab") as sink:
        process = subprocess.Popen(
            ["/bin/sh", "-c", START, "sh", *command],
            cwd=CHECKOUT,
            env=child_environment(home, os.environ),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            # Its own session, so that it outlives the terminal and the command that started it.
            start_new_session=True,
        )
    start = read_stat(process.pid)
    if start is None:
        raise CloudError(_reason(home))
    return Process(process.pid, start)


def _put_logs_aside(home: Home) -> None:
    """Move the logs of the last cloud to `logs/previous`, and delete older ones."""
    previous = home.logs / "previous"
    old = list(home.logs.glob("*.log"))
    if old:
        shutil.rmtree(previous, ignore_errors=True)
        previous.mkdir()
        for file in old:
            os.rename(file, previous / file.name)


def _wait_ready(home: Home, process: Process) -> None:
    log = home.logs / "supervisor.log"
    deadline = time.monotonic() + READY_SECONDS
    while not home.cloud_file.exists():
        if not process.alive:
            raise CloudError(_reason(home))
        if time.monotonic() > deadline:
            raise CloudError(
                f"the local cloud is not ready after {READY_SECONDS:.0f} s: {last_line(log)} (log: {log})"
            )
        time.sleep(POLL_SECONDS)


def _reason(home: Home) -> str:
    """Return why the supervisor ended: its error line, otherwise its last line."""
    log = home.logs / "supervisor.log"
    for line in reversed(log.read_text(errors="replace").splitlines()):
        match = ERROR.search(line)
        if match:
            return match.group(1)
    return f"the supervisor ended: {last_line(log)} (log: {log})"


def _kill(process: Process) -> None:
    """Send SIGKILL to unshare, which ends the whole namespace."""
    if process.alive:
        os.kill(process.pid, signal.SIGKILL)


def _gone(process: Process, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while process.alive:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
