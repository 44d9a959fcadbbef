"""Makes a container's view of the machine and becomes its program. Runs inside fresh namespaces.

Started as process 1 of a process namespace (see process.py); reads a plan (JSON) and needs the standard library alone.
The machine's directories stand in for the image's files. A container sees them through its own layer: what it writes
goes there, not to the machine, and the layer is gone with it. Home directories and the local cloud's state are hidden.
As user 0 a container may change all files of its view. As any other user it may change its volumes, /tmp, and
the directory of the Python packages, so that `pip install` works as it does in an image.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import socket
import sys
from pathlib import Path
from typing import Any

READ_ONLY, NO_SUID, NO_DEV, NO_EXEC = 1, 2, 4, 8
BIND, RECURSIVE, UNBINDABLE, PRIVATE, DETACH = 4096, 16384, 1 << 17, 1 << 18, 2
NEW_MOUNTS, NEW_HOSTNAME, NEW_IPC, NEW_USER = 0x20000, 0x4000000, 0x8000000, 0x10000000
PARENT_DEATH_SIGNAL, DROP_CAPABILITY, SIGKILL = 1, 24, 9
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
# mount_setattr(2); the number is the same on all architectures.
MOUNT_SETATTR, HERE, WHOLE_TREE, ATTRIBUTE_READ_ONLY = 442, -100, 0x8000, 1
# What container runtimes leave to root, but for MKNOD, as no device filter is here (moby/profiles, capabilities(7)):
# CHOWN, DAC_OVERRIDE, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, NET_RAW, SYS_CHROOT,
# AUDIT_WRITE, SETFCAP.
CAPABILITIES = {
    "chown": 0,
    "dac_override": 1,
    "fowner": 3,
    "fsetid": 4,
    "kill": 5,
    "setgid": 6,
    "setuid": 7,
    "setpcap": 8,
    "net_bind_service": 10,
    "net_raw": 13,
    "sys_chroot": 18,
    "audit_write": 29,
    "setfcap": 31,
}
LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")
# The machine's directories that stand in for an image's (Filesystem Hierarchy Standard, and those of Nix and Guix).
SYSTEM_DIRECTORIES = (
    "bin",
    "etc",
    "gnu",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "nix",
    "opt",
    "sbin",
    "usr",
    "var",
)
# The container's own.
PRIVATE_DIRECTORIES = ("dev", "home", "mnt", "proc", "root", "run", "srv", "sys", "tmp")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "fd/0",
    "stdout": "fd/1",
    "stderr": "fd/2",
}
# As runc's default: what root could change the machine with.
READ_ONLY_KERNEL = ("bus", "fs", "irq", "sys", "sysrq-trigger")
SECRET_FILES = ("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-")
FIRST_PERSON, NOBODY = 1000, 65534
OLD = "/.old"
SHADOW = "/.shadow"
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


def make_read_only(target: str, *, whole_tree: bool) -> None:
    """Make a mount read-only, with all mounts below it or without them."""
    attributes = (ctypes.c_uint64 * 4)(ATTRIBUTE_READ_ONLY, 0, 0, 0)
    flags = WHOLE_TREE if whole_tree else 0
    result = libc.syscall(
        MOUNT_SETATTR, HERE, target.encode(), flags, ctypes.byref(attributes), ctypes.sizeof(attributes)
    )
    check(result, f"make {target} read-only (mount_setattr, Linux 5.12 or newer)")


def bind(source: str, target: str, read_only: bool = False) -> None:
    """Bind a file or a directory with everything below it."""
    mount(source, target, "", BIND | RECURSIVE)
    if read_only:
        make_read_only(target, whole_tree=True)


def place(source: str, target: str, read_only: bool = False) -> None:
    """Bind `source` at a path that may not exist yet."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()
    bind(source, target, read_only)


def is_below(path: str, directories: list[str]) -> bool:
    """Whether a path is one of the directories or below one."""
    return any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in directories)


class Layer:
    """The container's own writable files, in a directory that is removed with its pod.

    Raises OSError where the kernel has no overlay file system.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.made = 0
        # trusted.* attributes are the machine's root's alone; user.* ones serve in a user namespace (Linux 5.11).
        everyone = Path("/proc/self/uid_map").read_text().split()[2] == str(2**32 - 1)
        self.options = "" if everyone else ",userxattr"
        if directory.exists():  # of the container's run before
            import shutil

            shutil.rmtree(directory)
        directory.mkdir()
        try:
            self._probe()
        except OSError:
            # A directory of a container's own root is on an overlay, which can't carry another one's changes.
            mount("tmpfs", str(directory), "tmpfs", NO_SUID | NO_DEV, "mode=755")
            try:
                self._probe()
            except OSError as error:
                raise OSError(
                    error.errno,
                    "overlay: this machine can't give the container a layer of its own "
                    f"({os.strerror(error.errno or 0)}). Load the kernel module (`modprobe overlay`); as an ordinary "
                    "user Linux 5.11 or newer is needed",
                ) from error

    def _probe(self) -> None:
        target = self.empty()
        self.cover(self.empty(), target)
        check(libc.umount2(target.encode(), DETACH), f"umount {target}")

    def empty(self) -> str:
        """A new directory."""
        self.made += 1
        path = self.directory / str(self.made)
        path.mkdir()
        return str(path)

    def cover(self, lower: str, target: str) -> None:
        """Show `lower` at `target`, and keep what is changed there."""
        own = self.empty()
        os.mkdir(f"{own}/upper")
        os.mkdir(f"{own}/work")
        paths = (("lowerdir", lower), ("upperdir", f"{own}/upper"), ("workdir", f"{own}/work"))
        words = ",".join(f"{name}={escape(path)}" for name, path in paths) + self.options
        try:
            mount("overlay", target, "overlay", NO_DEV, f"{words},volatile")
        except OSError:
            mount("overlay", target, "overlay", NO_DEV, words)  # before Linux 5.10


def escape(path: str) -> str:
    """A path in the options of an overlay mount, where commas and colons separate."""
    for special in ("\\", ",", ":"):
        path = path.replace(special, f"\\{special}")
    return path


class Root:
    """Builds the container's root directory at `base`, a small tmpfs, so that mount points can be made anywhere."""

    def __init__(self, base: str, plan: dict[str, Any]) -> None:
        self.base = base
        self.root_user = plan["user"] == 0
        self.layer = Layer(Path(plan["state"]) / "layer")
        self.closed = ["/"]  # what another user than root may not change, each a mount
        mount("tmpfs", base, "tmpfs", 0, "mode=755")
        # Else binding the directory that holds it would copy it into itself.
        mount("none", base, "", UNBINDABLE)
        for name in (*PRIVATE_DIRECTORIES, OLD[1:], SHADOW[1:]):
            os.mkdir(f"{base}/{name}")
        bind(plan["tmp"], f"{base}/tmp")  # noqa: S108 the container's own
        hidden = [path for path in map(os.path.realpath, plan["hidden"]) if path != "/"]
        self._machine(hidden)
        self._hide_and_keep(hidden, plan["keep"], plan["packages"])
        self._kernel()
        self._devices()
        self._files(plan.get("users", {}))

    def _machine(self, hidden: list[str]) -> None:
        """The machine's system directories, each through the layer."""
        for path in (f"/{name}" for name in SYSTEM_DIRECTORIES):
            inside = f"{self.base}{path}"
            if os.path.islink(path):
                os.symlink(os.readlink(path), inside)
            elif os.path.isdir(path):
                os.mkdir(inside)
                try:
                    self.layer.cover(path, inside)
                except OSError:
                    # In a user namespace, where something is mounted below it; and its user can't write there anyway.
                    bind(path, inside, read_only=True)
                else:
                    self._mounts_below(path, hidden)
                    self.closed.append(path)

    def _mounts_below(self, directory: str, hidden: list[str]) -> None:
        """What the machine has mounted below a directory, read-only: a layer shows one file system alone."""
        outermost: list[str] = []
        for path in sorted(mount_points(directory)):
            if not is_below(path, [*outermost, *hidden, self.base]) and os.path.exists(path):
                outermost.append(path)
                with contextlib.suppress(OSError):  # of a network that is away, or a person's own (FUSE)
                    bind(path, f"{self.base}{path}", read_only=True)

    def _hide_and_keep(self, hidden: list[str], keep: list[str], packages: str) -> None:
        """Hide directories, and show what the container's program needs and would not see; outer ones first."""
        system = [f"/{name}" for name in SYSTEM_DIRECTORIES]
        real = {os.path.realpath(path) for path in keep}
        for path in sorted({*hidden, *real, packages}, key=lambda path: path.count("/")):
            target = f"{self.base}{path}"
            if path == packages:
                os.makedirs(target, exist_ok=True)
                self.layer.cover(path, target)
            elif path in real:
                if os.path.exists(path) and (is_below(path, hidden) or not is_below(path, system)):
                    place(path, target, read_only=True)
            elif os.path.isdir(target):
                bind(self.layer.empty(), target)
                self.closed.append(path)
        # By the name that the program is called by, too, such as a virtual environment that is a link.
        self.links = {
            path: os.path.realpath(path)
            for path in keep
            if os.path.realpath(path) != path and not is_below(path, system)
        }
        self._link(self.base)

    def _link(self, base: str) -> None:
        """Make the links that are not there."""
        for path, target in self.links.items():
            if not os.path.lexists(f"{base}{path}"):
                os.makedirs(os.path.dirname(f"{base}{path}"), exist_ok=True)
                os.symlink(target, f"{base}{path}")

    def _kernel(self) -> None:
        """/proc of the container's own process namespace, and /sys, without what changes the machine."""
        mount("proc", f"{self.base}/proc", "proc", NO_SUID | NO_DEV | NO_EXEC)
        for name in READ_ONLY_KERNEL:
            path = f"{self.base}/proc/{name}"
            if os.path.exists(path):
                bind(path, path, read_only=True)
        bind("/sys", f"{self.base}/sys", read_only=True)

    def _devices(self) -> None:
        """The devices that every container has; /dev/shm is mounted as a volume."""
        own = f"{self.base}/dev"
        for name in DEVICES:
            open(f"{own}/{name}", "w").close()
            bind(f"/dev/{name}", f"{own}/{name}")
        for name, target in DEVICE_LINKS.items():
            os.symlink(target, f"{own}/{name}")
        os.mkdir(f"{own}/pts")
        mount("devpts", f"{own}/pts", "devpts", NO_SUID | NO_EXEC, "newinstance,ptmxmode=0666,mode=620")

    def _files(self, image_users: dict[str, int]) -> None:
        """No passwords, and no people: an image knows root, its system's users and its own. /var/tmp is empty."""
        for path in SECRET_FILES:
            if os.path.exists(f"{self.base}{path}"):
                bind("/dev/null", f"{self.base}{path}")
        users = Path(self.layer.empty()) / "passwd"
        lines = Path("/etc/passwd").read_text(errors="replace").splitlines(keepends=True)
        own_lines = (
            f"{name}:x:{number}:{number}::/home/{name}:/bin/sh\n" for name, number in image_users.items()
        )
        users.write_text("".join([*filter(is_system_user, lines), *own_lines]))
        for name in image_users:
            os.mkdir(f"{self.base}/home/{name}")
            bind(self.layer.empty(), f"{self.base}/home/{name}")
        bind(str(users), f"{self.base}/etc/passwd")
        temporary = f"{self.base}/var/tmp"  # noqa: S108 the container's own
        if os.path.isdir(temporary):
            own = self.layer.empty()
            os.chmod(own, 0o1777)  # noqa: S103 as it is everywhere
            bind(own, temporary)

    def enter(self) -> None:
        """Pivot into it; the machine's own root is at OLD until `leave_old`."""
        number = PIVOT_ROOT.get(platform.machine())
        if number is None:
            raise OSError(f"machine type {platform.machine()} is not known: one of {', '.join(PIVOT_ROOT)}")
        check(libc.syscall(number, self.base.encode(), f"{self.base}{OLD}".encode()), "pivot_root")
        os.chdir("/")

    def mount_volumes(self, mounts: list[dict[str, Any]], keep: list[str]) -> None:
        """Mount what the plan lists, outer targets before inner ones.

        What is kept of the machine stays visible, as where the checkout lies below /tmp and a volume is mounted there.
        """
        kept = self._shadows(mounts, keep)
        for wanted in sorted(mounts, key=lambda m: str(m["target"]).count("/")):
            if "tmpfs" in wanted:
                real = self._mount_point(wanted["target"], is_directory=True)
                mount("tmpfs", real, "tmpfs", NO_SUID | NO_DEV, wanted["tmpfs"])
            else:
                source = wanted["source"] if wanted.get("inside") else OLD + wanted["source"]
                real = self._mount_point(wanted["target"], is_directory=os.path.isdir(source))
                bind(source, real, wanted.get("readOnly", False))
            self.closed = [path for path in self.closed if not is_below(path, [real])]  # covered now
            for path, copy in kept.items():
                if is_below(path, [real]):
                    place(copy, path)
        with contextlib.suppress(OSError):  # a volume that is read-only
            self._link("")

    def _shadows(self, mounts: list[dict[str, Any]], keep: list[str]) -> dict[str, str]:
        """Second mounts of the kept paths that volumes are going to cover."""
        targets = [os.path.realpath(m["target"]) for m in mounts]
        found = {}
        for path in dict.fromkeys(os.path.realpath(path) for path in keep):
            if is_below(path, targets) and os.path.exists(path):
                found[path] = self._shadow_path()
                place(path, found[path])
        return found

    def _shadow_path(self) -> str:
        return f"{SHADOW}/{len(os.listdir(SHADOW))}"

    def _mount_point(self, target: str, *, is_directory: bool) -> str:
        """Make sure that a mount point exists; its real path."""
        real = os.path.realpath(target)
        if os.path.exists(real):
            return real
        directory = real if is_directory else os.path.dirname(real)
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError:
            ancestor = os.path.dirname(real)
            while not os.path.isdir(ancestor):
                ancestor = os.path.dirname(ancestor)
            self._shadow(ancestor)
            os.makedirs(directory, exist_ok=True)
        if not is_directory:
            open(real, "a").close()
        return real

    def _shadow(self, directory: str) -> None:
        """Replace a directory that can't be written by one with the same entries, so that more can be added."""
        original = self._shadow_path()
        os.mkdir(original)
        bind(directory, original)
        mount("tmpfs", directory, "tmpfs", 0, "mode=755")
        self.closed.append(directory)
        for entry in os.scandir(original):
            inside = f"{directory}/{entry.name}"
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), inside)
            elif entry.is_dir():
                os.mkdir(inside)
                bind(entry.path, inside)
            elif entry.is_file():
                open(inside, "w").close()
                bind(entry.path, inside)

    def close(self) -> None:
        """Let go of the machine's root, and close what the container's user may not change."""
        for name in os.listdir(SHADOW):
            with contextlib.suppress(OSError):
                check(libc.umount2(f"{SHADOW}/{name}".encode(), DETACH), f"umount {SHADOW}/{name}")
        check(libc.umount2(OLD.encode(), DETACH), f"umount {OLD}")
        os.rmdir(OLD)
        for path in () if self.root_user else self.closed:
            make_read_only(path, whole_tree=False)


def mount_points(directory: str) -> list[str]:
    """Where something is mounted below a directory (proc(5), mountinfo: the fifth field)."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    paths = (line.split()[4].encode().decode("unicode_escape") for line in lines)
    return [path for path in paths if path.startswith(f"{directory}/")]


def is_system_user(line: str) -> bool:
    """Whether a line of /etc/passwd is a user of the system rather than a person."""
    fields = line.split(":")
    return len(fields) > 2 and fields[2].isdigit() and not FIRST_PERSON <= int(fields[2]) < NOBODY


def become(user: int, group: int) -> None:
    """Give up what a container's user has no right to.

    Another user than root is this user in a namespace that has nobody else: that works for every number, and for an
    ordinary user's local cloud, too. The files of the machine's own user are then its own.
    """
    if user:
        check(libc.unshare(NEW_USER), "a user namespace (sysctl user.max_user_namespaces)")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} 0 1")
        Path("/proc/self/gid_map").write_text(f"{group} 0 1")
        return
    for number in range(int(LAST_CAPABILITY.read_text()) + 1):
        if number not in CAPABILITIES.values():
            check(libc.prctl(DROP_CAPABILITY, number, 0, 0, 0), f"drop capability {number}")


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
    record_process(state / "process")
    # Nothing may outlive the shell that keeps its exit code.
    libc.prctl(PARENT_DEATH_SIGNAL, SIGKILL, 0, 0, 0)
    failures = os.open(state / "error", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        check(libc.unshare(NEW_MOUNTS | NEW_HOSTNAME | NEW_IPC), "unshare")
        socket.sethostname(plan["hostname"])
        mount("none", "/", "", RECURSIVE | PRIVATE)
        base = state / "root"
        base.mkdir(exist_ok=True)
        root = Root(str(base), plan)
        root.enter()
        root.mount_volumes(sources, [*plan["keep"], plan["packages"]])
        os.makedirs(plan["cwd"], exist_ok=True)  # as container runtimes do
        root.close()
        os.chdir(plan["cwd"])
        become(plan["user"], plan["group"])
        os.execvpe(plan["argv"][0], plan["argv"], plan["env"])  # noqa: S606 the point of it
    except OSError as error:
        os.write(failures, f"cannot start {plan['argv'][0]!r}: {error.strerror or error}".encode())
        sys.exit(START_ERROR)


if __name__ == "__main__":
    main()
