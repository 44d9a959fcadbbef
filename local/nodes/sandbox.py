"""Set up a container's view of this machine, and execute its program. It runs in new namespaces.

It starts as process 1 of a process namespace (see process.py), reads a plan (JSON), and uses the standard library only.
The host's directories replace the image's files. Each container sees them through its own overlay layer, which receives
all writes and is removed with the container. Home directories and the local cloud's state are hidden. As user 0, a
container may change all files in its view. As another user, it may change its volumes, /tmp, and the directory of the
Python packages, so that `pip install` works as in an image.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import platform
import socket
import struct
import sys
from pathlib import Path
from typing import Any

READ_ONLY, NO_SUID, NO_DEV, NO_EXEC = 1, 2, 4, 8
BIND, RECURSIVE, UNBINDABLE, PRIVATE, DETACH = 4096, 16384, 1 << 17, 1 << 18, 2
NEW_MOUNTS, NEW_HOSTNAME, NEW_IPC, NEW_USER = 0x20000, 0x4000000, 0x8000000, 0x10000000
PARENT_DEATH_SIGNAL, DROP_CAPABILITY, SIGKILL = 1, 24, 9
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
# mount_setattr(2); the number is the same on all architectures.
OPENAT2, RESOLVE_NO_MAGIC_LINKS, RESOLVE_BENEATH = 437, 0x02, 0x08
MOUNT_SETATTR, HERE, WHOLE_TREE, ATTRIBUTE_READ_ONLY = 442, -100, 0x8000, 1
# The capabilities of root in container runtimes (moby/profiles, capabilities(7)), without two. MKNOD: no device filter
# exists here. NET_RAW: pods share a network with the emulator, and could read the credentials in its packets.
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
    "sys_chroot": 18,
    "audit_write": 29,
    "setfcap": 31,
}
LAST_CAPABILITY = Path("/proc/sys/kernel/cap_last_cap")
# The host's directories that replace an image's (Filesystem Hierarchy Standard, and those of Nix and Guix).
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
# The container's own directories.
PRIVATE_DIRECTORIES = ("dev", "home", "mnt", "proc", "root", "run", "srv", "sys", "tmp")
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "fd/0",
    "stdout": "fd/1",
    "stderr": "fd/2",
}
# As in runc's default: files through which root could change the host.
READ_ONLY_KERNEL = ("bus", "fs", "irq", "sys", "sysrq-trigger")
FIRST_USER, NOBODY = 1000, 65534
OLD = "/.old"
SHADOW = "/.shadow"
START_ERROR = 128

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise an OSError with the name of the failed call if the result is not 0."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    result = libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    check(result, f"mount {source} at {target}")


def make_read_only(target: str, *, whole_tree: bool) -> None:
    """Make a mount read-only, with or without all mounts below it."""
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
    """Bind-mount `source` to a path that may not exist yet."""
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    elif not os.path.exists(target):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()
    bind(source, target, read_only)


def open_sub_path(volume: str, path: str, *, create: bool) -> int:
    """Open a subPath of a volume, and return the file descriptor. Links are followed within the volume only.

    Containers may write to the volume meanwhile. Source: openat2(2), Linux 5.6.

    Raises:
        OSError: The path leads out of the volume, or does not exist.
    """
    current = os.open(volume, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not create:
            return open_at(current, path)
        for name in (each for each in path.split("/") if each not in ("", ".")):
            try:
                inner = open_at(current, name)
            except FileNotFoundError:
                os.mkdir(name, dir_fd=current)
                inner = open_at(current, name)
            os.close(current)
            current = inner
        return os.dup(current)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.ELOOP):
            raise
        raise OSError(errno.EPERM, f"subPath {path!r} leads out of its volume") from None
    finally:
        os.close(current)


def open_at(directory: int, path: str) -> int:
    """Open a path that must stay beneath a directory."""
    how = struct.pack("QQQ", os.O_PATH | os.O_CLOEXEC, 0, RESOLVE_BENEATH | RESOLVE_NO_MAGIC_LINKS)
    found: int = libc.syscall(OPENAT2, directory, path.encode(), how, len(how))
    if found < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return found


def make_directories(path: str) -> int:
    """Create the missing directories of an absolute path without links, and return a file descriptor of the last one.

    Raises:
        OSError: A part of the path is a link or a file, or can't be created.
    """
    current = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    for name in (each for each in path.split("/") if each):
        try:
            try:
                inner = os.open(name, flags, dir_fd=current)
            except FileNotFoundError:
                os.mkdir(name, dir_fd=current)
                inner = os.open(name, flags, dir_fd=current)
        finally:
            os.close(current)
        current = inner
    return current


def is_below(path: str, directories: list[str]) -> bool:
    """Return whether a path is one of the directories, or below one."""
    return any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in directories)


class Layer:
    """The writable layer of a container, in a directory that is removed with its pod.

    Raises:
        OSError: The kernel has no overlay file system.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.made = 0
        # In a user namespace, overlayfs uses user.* instead of trusted.* attributes (Linux 5.11).
        everyone = Path("/proc/self/uid_map").read_text().split()[2] == str(2**32 - 1)
        self.options = "" if everyone else ",userxattr"
        if directory.exists():  # from an earlier run of the container
            import shutil

            shutil.rmtree(directory)
        directory.mkdir()
        try:
            self._probe()
        except OSError:
            # This directory may itself be on an overlay, which can't be the upper layer of another one.
            mount("tmpfs", str(directory), "tmpfs", NO_SUID | NO_DEV, "mode=755")
            try:
                self._probe()
            except OSError as error:
                raise OSError(
                    error.errno,
                    "overlay: this host can't mount an overlay file system "
                    f"({os.strerror(error.errno or 0)}). Load the kernel module (`modprobe overlay`). Without root, "
                    "Linux 5.11 or newer is required",
                ) from error

    def _probe(self) -> None:
        target = self.empty()
        self.cover(self.empty(), target)
        check(libc.umount2(target.encode(), DETACH), f"umount {target}")

    def empty(self) -> str:
        """Return a new directory."""
        self.made += 1
        path = self.directory / str(self.made)
        path.mkdir()
        return str(path)

    def cover(self, lower: str, target: str) -> None:
        """Mount `lower` at `target` with a layer for changes."""
        own = self.empty()
        os.mkdir(f"{own}/upper")
        os.mkdir(f"{own}/work")
        paths = (("lowerdir", lower), ("upperdir", f"{own}/upper"), ("workdir", f"{own}/work"))
        words = ",".join(f"{name}={escape(path)}" for name, path in paths)
        mount("overlay", target, "overlay", NO_DEV, f"{words},volatile{self.options}")


def escape(path: str) -> str:
    """Return a path for the options of an overlay mount, in which commas and colons are separators."""
    for special in ("\\", ",", ":"):
        path = path.replace(special, f"\\{special}")
    return path


class Root:
    """Build the container's root directory at `base`. It is a small tmpfs, in which any mount point can be created."""

    def __init__(self, base: str, plan: dict[str, Any]) -> None:
        self.base = base
        self.root_user = plan["user"] == 0
        self.layer = Layer(Path(plan["state"]) / "layer")
        self.protected_mounts = ["/"]  # mounts that are read-only for users other than root
        mount("tmpfs", base, "tmpfs", 0, "mode=755")
        # Otherwise a bind mount of its parent directory would contain it again.
        mount("none", base, "", UNBINDABLE)
        for name in (*PRIVATE_DIRECTORIES, OLD[1:], SHADOW[1:]):
            os.mkdir(f"{base}/{name}")
        bind(plan["tmp"], f"{base}/tmp")  # noqa: S108 the container's own
        hidden = [path for path in map(os.path.realpath, plan["hidden"]) if path != "/"]
        self._mount_system_directories(hidden)
        self._hide_and_mount(hidden, plan["keep"], plan["packages"])
        self._mount_kernel_file_systems()
        self._create_devices()
        self._create_user_files(plan.get("users", {}), plan["secrets"])

    def _mount_system_directories(self, hidden: list[str]) -> None:
        """Mount the host's system directories with a layer."""
        for path in (f"/{name}" for name in SYSTEM_DIRECTORIES):
            inside = f"{self.base}{path}"
            if os.path.islink(path):
                os.symlink(os.readlink(path), inside)
            elif os.path.isdir(path):
                os.mkdir(inside)
                try:
                    self.layer.cover(path, inside)
                except OSError:
                    # A user namespace refuses an overlay with mounts below. Its user can't write there anyway.
                    bind(path, inside, read_only=True)
                else:
                    self._mounts_below(path, hidden)
                    self.protected_mounts.append(path)

    def _mounts_below(self, directory: str, hidden: list[str]) -> None:
        """Bind the host's mounts below a directory read-only, because a layer contains one file system only."""
        outermost: list[str] = []
        for path in sorted(mount_points(directory)):
            if not is_below(path, [*outermost, *hidden, self.base]) and os.path.exists(path):
                outermost.append(path)
                with contextlib.suppress(
                    OSError
                ):  # an unreachable network file system, or a user's FUSE mount
                    bind(path, f"{self.base}{path}", read_only=True)

    def _hide_and_mount(self, hidden: list[str], keep: list[str], packages: str) -> None:
        """Hide directories, and mount those that the container's program needs, outer ones first."""
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
                self.protected_mounts.append(path)
        # The program may be called through a link, such as a virtual environment.
        self.links = {
            path: os.path.realpath(path)
            for path in keep
            if os.path.realpath(path) != path and not is_below(path, system)
        }
        self._link(self.base)

    def _link(self, base: str) -> None:
        for path, target in self.links.items():
            if not os.path.lexists(f"{base}{path}"):
                os.makedirs(os.path.dirname(f"{base}{path}"), exist_ok=True)
                os.symlink(target, f"{base}{path}")

    def _mount_kernel_file_systems(self) -> None:
        """Mount /proc of the container's process namespace, and /sys. Files that change the host are read-only."""
        mount("proc", f"{self.base}/proc", "proc", NO_SUID | NO_DEV | NO_EXEC)
        for name in READ_ONLY_KERNEL:
            path = f"{self.base}/proc/{name}"
            if os.path.exists(path):
                bind(path, path, read_only=True)
        bind("/sys", f"{self.base}/sys", read_only=True)

    def _create_devices(self) -> None:
        """Create the devices of every container. /dev/shm is mounted as a volume."""
        own = f"{self.base}/dev"
        for name in DEVICES:
            open(f"{own}/{name}", "w").close()
            bind(f"/dev/{name}", f"{own}/{name}")
        for name, target in DEVICE_LINKS.items():
            os.symlink(target, f"{own}/{name}")
        os.mkdir(f"{own}/pts")
        mount("devpts", f"{own}/pts", "devpts", NO_SUID | NO_EXEC, "newinstance,ptmxmode=0666,mode=620")

    def _create_user_files(self, image_users: dict[str, int], secrets: list[str]) -> None:
        """Hide passwords and the host's users. As in an image, there are root, system users and the image's users."""
        for path in secrets:
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
            os.chmod(own, 0o1777)  # noqa: S103 its usual mode
            bind(own, temporary)

    def enter(self) -> None:
        """Pivot into the root. The host's root stays at OLD until `close`."""
        number = PIVOT_ROOT.get(platform.machine())
        if number is None:
            raise OSError(f"machine type {platform.machine()} is not known: one of {', '.join(PIVOT_ROOT)}")
        check(libc.syscall(number, self.base.encode(), f"{self.base}{OLD}".encode()), "pivot_root")
        os.chdir("/")

    def mount_volumes(self, mounts: list[dict[str, Any]], keep: list[str]) -> None:
        """Mount the volumes of the plan, outer targets before inner ones.

        Paths in `keep` stay visible, for instance a checkout below /tmp if a volume is mounted at /tmp.
        """
        kept = self._shadows(mounts, keep)
        for wanted in sorted(mounts, key=lambda m: str(m["target"]).count("/")):
            if "tmpfs" in wanted:
                real = self._mount_point(wanted["target"], is_directory=True)
                mount("tmpfs", real, "tmpfs", NO_SUID | NO_DEV, wanted["tmpfs"])
            else:
                source = wanted["source"] if wanted.get("inside") else OLD + wanted["source"]
                with contextlib.ExitStack() as stack:
                    if wanted.get("subPath"):
                        opened = open_sub_path(source, wanted["subPath"], create=wanted["create"])
                        stack.callback(os.close, opened)
                        source = f"{OLD}/proc/self/fd/{opened}"
                    real = self._mount_point(wanted["target"], is_directory=os.path.isdir(source))
                    bind(source, real, wanted.get("readOnly", False))
            self.protected_mounts = [
                path for path in self.protected_mounts if not is_below(path, [real])
            ]  # covered now
            for path, copy in kept.items():
                if is_below(path, [real]):
                    place(copy, path)
        with contextlib.suppress(OSError):  # a read-only volume
            self._link("")

    def _shadows(self, mounts: list[dict[str, Any]], keep: list[str]) -> dict[str, str]:
        """Bind the paths to keep a second time, before volumes cover them."""
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
        """Create a mount point if it does not exist, and return its real path."""
        real = os.path.realpath(target)
        if is_below(real, [OLD, SHADOW]):
            raise OSError(errno.EPERM, f"mountPath {target!r} leads out of the container")
        if os.path.exists(real):
            return real
        directory = real if is_directory else os.path.dirname(real)
        try:
            opened = make_directories(directory)
        except OSError:
            ancestor = os.path.dirname(real)
            while not os.path.isdir(ancestor):
                ancestor = os.path.dirname(ancestor)
            self._shadow(ancestor)
            opened = make_directories(directory)
        if not is_directory:
            name = os.path.basename(real)
            os.close(
                os.open(name, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=opened)
            )
        os.close(opened)
        return real

    def _shadow(self, directory: str) -> None:
        """Replace a read-only directory by one with the same entries, to which others can be added."""
        original = self._shadow_path()
        os.mkdir(original)
        bind(directory, original)
        mount("tmpfs", directory, "tmpfs", 0, "mode=755")
        self.protected_mounts.append(directory)
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

    def close(self, working_directory: str) -> None:
        """Unmount the host's root, and make the protected mounts read-only for users other than root.

        The working directory is created in between, as container runtimes do.
        """
        for name in os.listdir(SHADOW):
            with contextlib.suppress(OSError):
                check(libc.umount2(f"{SHADOW}/{name}".encode(), DETACH), f"umount {SHADOW}/{name}")
        check(libc.umount2(OLD.encode(), DETACH), f"umount {OLD}")
        os.rmdir(OLD)
        os.makedirs(working_directory, exist_ok=True)
        for path in () if self.root_user else self.protected_mounts:
            make_read_only(path, whole_tree=False)


def mount_points(directory: str) -> list[str]:
    """Return the mount points below a directory (proc(5), mountinfo: the fifth field)."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    paths = (line.split()[4].encode().decode("unicode_escape") for line in lines)
    return [path for path in paths if path.startswith(f"{directory}/")]


def is_system_user(line: str) -> bool:
    fields = line.split(":")
    return len(fields) > 2 and fields[2].isdigit() and not FIRST_USER <= int(fields[2]) < NOBODY


def drop_privileges(user: int, group: int) -> None:
    """Drop the privileges that a container's user does not have.

    A user other than root gets a user namespace of its own. This works for every user ID, and without root on the host.
    The files of the host's user then belong to it.
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
    """Write this process's id and start time on the host. /proc is still the host's here."""
    fields = Path("/proc/self/stat").read_text()
    number, rest = fields.split(" ", 1)
    started = rest.rpartition(")")[2].split()[19]
    temporary = path.with_suffix(".new")
    temporary.write_text(f"{number} {started}")
    os.replace(temporary, path)


def main() -> None:
    """Read the plan, set everything up, execute the program. On failure exit with 128 and a line in `error`."""
    plan = json.loads(Path(sys.argv[1]).read_text())
    state = Path(plan["state"])
    sources = [m | {"source": os.path.realpath(m["source"])} if "source" in m else m for m in plan["mounts"]]
    record_process(state / "process")
    # No process may outlive the shell that records its exit code.
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
        root.close(plan["cwd"])
        os.chdir(plan["cwd"])
        drop_privileges(plan["user"], plan["group"])
        os.execvpe(plan["argv"][0], plan["argv"], plan["env"])  # noqa: S606 the point of it
    except OSError as error:
        os.write(failures, f"cannot start {plan['argv'][0]!r}: {error.strerror or error}".encode())
        sys.exit(START_ERROR)


if __name__ == "__main__":
    main()
