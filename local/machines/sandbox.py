"""Makes a container's view of the machine and becomes its program. Runs inside fresh namespaces.

Started as process 1 of a process namespace (see process.py); reads a plan (JSON) and needs the standard library alone.
The root is a small tmpfs with the machine's top-level directories bound into it, except /run and /tmp, so that
mount points can be made anywhere without touching the machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any

READ_ONLY, NO_SUID, NO_DEV, NO_EXEC, REMOUNT = 1, 2, 4, 8, 32
BIND, RECURSIVE, UNBINDABLE, PRIVATE = 4096, 16384, 1 << 17, 1 << 18
NO_ACCESS_TIME, NO_DIRECTORY_TIME, RELATIVE_TIME, DETACH = 1024, 2048, 1 << 21, 2
NEW_MOUNTS, NEW_HOSTNAME, PARENT_DEATH_SIGNAL, SIGKILL = 0x20000, 0x4000000, 1, 9
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
PRIVATE_DIRECTORIES = ("run", "tmp", "proc")
OLD = "/.old"
SHADOW = "/.shadow"
# What a container runtime puts into /dev (github.com/opencontainers/runtime-spec, config-linux.md: Default Devices).
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "fuse")
START_ERROR = 128

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise OSError that says what failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2)."""
    result = libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    check(result, f"mount {source} at {target}")


def bind(source: str, target: str, read_only: bool = False) -> None:
    """Bind a file or a directory with everything below it."""
    mount(source, target, "", BIND | RECURSIVE)
    if read_only:
        # A user namespace may not drop flags that its parent set, so they are repeated. statvfs and mount(2)
        # use the same bits except for relatime.
        found = os.statvfs(target).f_flag
        kept = found & (NO_SUID | NO_DEV | NO_EXEC | NO_ACCESS_TIME | NO_DIRECTORY_TIME)
        kept |= RELATIVE_TIME if found & 4096 else 0
        mount("", target, "", REMOUNT | BIND | READ_ONLY | kept)


def enter_root(base: Path, keep: list[str], tmp: str) -> None:
    """Build the new root at `base` and pivot into it; the machine's own root is at OLD until `leave_old`."""
    mount("none", "/", "", RECURSIVE | PRIVATE)
    mount("tmpfs", str(base), "tmpfs", 0, "mode=755")
    mount(
        "none", str(base), "", UNBINDABLE
    )  # else binding the directory that holds it would copy it into itself
    for entry in os.scandir("/"):
        inside = base / entry.name
        if entry.is_symlink():
            inside.symlink_to(os.readlink(entry.path))
        elif entry.is_dir() and entry.name not in PRIVATE_DIRECTORIES:
            inside.mkdir()
            bind(entry.path, str(inside))
    for name in (*PRIVATE_DIRECTORIES, OLD[1:], SHADOW[1:]):
        (base / name).mkdir()
    bind(tmp, str(base / "tmp"))
    mount("proc", str(base / "proc"), "proc", 0)
    for real in keep:
        if real.split("/")[1] in ("run", "tmp") and os.path.exists(real):
            place(f"{base}{real}", real)
    number = PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise OSError(f"machine type {platform.machine()} is not known: one of {', '.join(PIVOT_ROOT)}")
    check(libc.syscall(number, str(base).encode(), f"{base}{OLD}".encode()), "pivot_root")
    os.chdir("/")


def place(target: str, source: str) -> None:
    """Bind `source` at a path below a directory that is the sandbox's own."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "a").close()
    bind(source, target)


def shadow(directory: str, number: int) -> None:
    """Replace a directory of the machine by one of the sandbox with the same entries, so that more can be added."""
    original = f"{SHADOW}/{number}"
    os.mkdir(original)
    bind(directory, original)
    mount("tmpfs", directory, "tmpfs", 0, "mode=755")
    for entry in os.scandir(original):
        inside = f"{directory}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), inside)
        elif entry.is_dir():
            os.mkdir(inside)
            bind(entry.path, inside)
        elif entry.is_file() or entry.name in DEVICES:
            open(inside, "w").close()
            bind(entry.path, inside)


def prepare_target(target: str, is_directory: bool, own: list[str], number: int) -> str:
    """Make sure that a mount point exists, without writing to a directory of the machine. Returns its real path."""
    real = os.path.realpath(target)
    if os.path.exists(real):
        return real
    ancestor = os.path.dirname(real)
    while not os.path.isdir(ancestor):
        ancestor = os.path.dirname(ancestor)
    mine = any(ancestor == path or ancestor.startswith(path + "/") for path in own)
    if not mine and os.stat(ancestor).st_dev != os.stat("/").st_dev:
        shadow(ancestor, number)
    os.makedirs(real if is_directory else os.path.dirname(real), exist_ok=True)
    if not is_directory:
        open(real, "a").close()
    return real


def mount_volumes(mounts: list[dict[str, Any]], keep: list[str]) -> None:
    """Mount what the plan lists, outer targets before inner ones. Targets below `own` may be written.

    What is kept of the machine stays to be seen, as where the checkout lies below /tmp and a volume is mounted there.
    """
    own = ["/tmp", "/run"]  # noqa: S108 the sandbox's own
    for number, wanted in enumerate(sorted(mounts, key=lambda m: str(m["target"]).count("/"))):
        if "tmpfs" in wanted:
            real = prepare_target(wanted["target"], True, own, number)
            mount("tmpfs", real, "tmpfs", NO_SUID | NO_DEV, wanted["tmpfs"])
        else:
            source = OLD + wanted["source"]
            real = prepare_target(wanted["target"], os.path.isdir(source), own, number)
            bind(source, real, wanted.get("readOnly", False))
        own.append(real)
        for path in keep:
            if path.startswith(f"{real}/") and os.path.exists(OLD + path):
                place(path, OLD + path)


def leave_old() -> None:
    """Let go of the machine's root."""
    check(libc.umount2(OLD.encode(), DETACH), f"umount {OLD}")
    os.rmdir(OLD)


def record_process(path: Path) -> None:
    """Write this process's number and start time as the machine sees them: /proc is still the machine's here."""
    fields = Path("/proc/self/stat").read_text()
    number, rest = fields.split(" ", 1)
    started = rest.rpartition(")")[2].split()[19]
    temporary = path.with_suffix(".new")
    temporary.write_text(f"{number} {started}")
    os.replace(temporary, path)


def main() -> None:
    """Read the plan, set everything up, execute the program. Ends with 128 and a line in `error` on failure."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    state = Path(plan["state"])
    sources = [m | {"source": os.path.realpath(m["source"])} if "source" in m else m for m in plan["mounts"]]
    keep = [os.path.realpath(path) for path in plan["keep"]]
    record_process(state / "process")
    libc.prctl(
        PARENT_DEATH_SIGNAL, SIGKILL, 0, 0, 0
    )  # nothing may outlive the shell that keeps its exit code
    failures = os.open(state / "error", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        check(libc.unshare(NEW_MOUNTS | NEW_HOSTNAME), "unshare")
        socket.sethostname(plan["hostname"])
        root = state / "root"
        root.mkdir(exist_ok=True)
        enter_root(root, keep, plan["tmp"])
        mount_volumes(sources, keep)
        leave_old()
        os.makedirs(plan["cwd"], exist_ok=True)  # as container runtimes do
        os.chdir(plan["cwd"])
        os.execvpe(plan["argv"][0], plan["argv"], plan["env"])  # noqa: S606 the point of it
    except OSError as error:
        os.write(failures, f"cannot start {plan['argv'][0]!r}: {error.strerror or error}".encode())
        sys.exit(START_ERROR)


if __name__ == "__main__":
    main()
