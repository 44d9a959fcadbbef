"""`cp`: copy a file or directory from or to a worker, as a tar over exec. An incomplete copy is an error.

`kubectl cp` takes a broken connection for the end of the copy (kubernetes/kubernetes#60140). Here, the end of the
archive and the exit code of the command in the pod are checked.

The pod may send anything; nothing is written outside of an empty local directory (`Tree`). The filter of tarfile asks
the file system where a name leads, which can be deceived (CVE-2025-4517). This one checks the names alone, and creates
links after all files, so that no file is written through a link.
"""

from __future__ import annotations

import argparse
import os
import posixpath
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from trainyard.k8s.exec import Execution
from trainyard.kubectl.cli import object_name, utf8
from trainyard.kubectl.cluster import Cluster, explained
from trainyard.kubectl.logs import has_ended, newest_pods, node_rank_problem
from trainyard.kubectl.output import DONE, NOT_FOUND, UNAVAILABLE, USAGE, WORKSPACE, Bar, PluginError, say
from trainyard.operator import names as n
from trainyard.workspace.archive import Member
from trainyard.workspace.errors import format_size
from trainyard.workspace.ignore import CONTROL_DIRECTORY
from trainyard.workspace.selection import link_stays_inside, path_problem

_SHOWN: Final = 200
_CHUNK: Final = 2**16
_DONE: Final = "done"
_DIRECTORY: Final = "a directory"
_NO_FILE: Final = "no file"
# The arguments of this script: a directory, a name in it, the size of the tar (not every version of the protocol can
# close one direction), and the name of the tar's last file, without which it is incomplete. The copy replaces the old
# file when it is complete. A directory without write permission can't be moved.
_CHECK_FILE: Final = f"""
refuse() {{ head -c "$3" >/dev/null; echo "$1"; exit; }}
if [ -d "$1/$2" ]; then refuse "{_DIRECTORY}" "$2" "$3"; fi
if [ -e "$1/$2" ] && [ ! -f "$1/$2" ]; then refuse "{_NO_FILE}" "$2" "$3"; fi
"""
_UNPACK: Final = f"""
scratch=$(mktemp -d "$1/.kubectl-torchrun-XXXXXX") || {{ head -c "$3" >/dev/null; exit 1; }}
trap 'rm -rf "$scratch" 2>/dev/null || {{ chmod -R u+rwx "$scratch"; rm -rf "$scratch"; }}' EXIT
trap 'exit 1' HUP INT TERM
head -c "$3" | tar xf - -C "$scratch" || exit $?
[ -f "$scratch/$4" ] || exit 1
if [ -d "$1/$2" ]; then
  tar cf - -C "$scratch/$2" . | tar xf - -C "$1/$2" || exit $?
else
  closed=
  if [ -d "$scratch/$2" ] && [ ! -w "$scratch/$2" ]; then chmod u+w "$scratch/$2" && closed=1; fi
  mv -f "$scratch/$2" "$1/$2" || exit $?
  [ -z "$closed" ] || chmod u-w "$1/$2"
fi
echo {_DONE}
"""
# Linux follows this number of links.
_MAX_LINKS: Final = 40
_MAX_REPORTED: Final = 10
_ABSENT: Final = "No such file or directory"
# A higher exit code means a signal: the pod was stopped.
_MAX_EXIT_CODE: Final = 128
_BROKEN: Final = (tarfile.TarError, EOFError, ValueError, RecursionError)


def run(options: argparse.Namespace, cluster: Cluster) -> int:
    """Copy in the direction of the arguments. Return the exit code."""
    source, target = _split(options.source), _split(options.target)
    if bool(source) == bool(target) or not (options.source and options.target):
        raise PluginError(USAGE, "cp: one of FROM and TO must be JOB:PATH, and the other a local path")
    job, path = source or target or ("", "")
    pod = _worker(cluster, job, options.node_rank)
    with explained("get and create pods/exec", cluster.namespace):
        if source:
            return _download(cluster, pod, path, Path(options.target))
        _upload(cluster, pod, Path(options.source), path)
    return DONE


def _split(word: str) -> tuple[str, str] | None:
    """Return the job and the path, None for a local path, which has a slash before any colon."""
    job, colon, path = word.partition(":")
    if not colon or "/" in job or not job:
        return None
    if not path:
        raise PluginError(USAGE, f"cp: {word}: a path must follow the colon")
    place = f"cp: {word}: job"
    try:
        name = object_name(job)
        place = f"cp: {job}: path"
        return name, utf8(path)
    except ValueError as error:
        raise PluginError(USAGE, f"{place} {error}") from None


def _worker(cluster: Cluster, name: str, node_rank: int) -> str:
    """Return the name of the running worker's pod. Raise PluginError."""
    job = cluster.job(name)
    pod = newest_pods(cluster.workers(job)).get(node_rank)
    if pod is None:
        phase = job.get("status", {}).get("phase") or "not known yet"
        missing = f"job {name}: has no worker {node_rank} now; its phase is {phase}"
        raise PluginError(NOT_FOUND, node_rank_problem(job, node_rank) or missing)
    if has_ended(pod):
        advice = "cp needs a running worker. To read a claim, mount it in a pod of your own"
        raise PluginError(NOT_FOUND, f"job {name}: its worker {node_rank} has ended; {advice}")
    return str(pod["metadata"]["name"])


def _upload(cluster: Cluster, pod: str, source: Path, path: str) -> None:
    # A path that ends with a slash is the directory to copy into.
    into, base = (path, "") if posixpath.basename(path) in (".", "..") else posixpath.split(path)
    name = base or os.path.basename(os.path.abspath(source))
    if not name:
        raise PluginError(USAGE, f"cp: {source}: must end with the name of a file or a directory")
    try:
        try:
            mode = source.stat().st_mode
        except FileNotFoundError:
            raise PluginError(WORKSPACE, f"cp: {source} does not exist here") from None
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise PluginError(WORKSPACE, f"cp: {source} is neither a file nor a directory")
        with tempfile.TemporaryFile(prefix="kubectl-torchrun-") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as members:
                members.add(source.resolve(), name)  # the target of a link
                size = sum(each.size for each in members.getmembers() if each.isreg())
                members.addfile(tarfile.TarInfo(_last_name(name)))
            existing = _send(cluster, pod, file, into or ".", name, is_file=stat.S_ISREG(mode))
        if existing:
            where = posixpath.join(into, name)
            new = (
                f"{where}/, to copy into it"
                if existing == _DIRECTORY
                else "the name of a file, or of a new one"
            )
            raise PluginError(WORKSPACE, f"cp: {where} of {pod} is {existing}; it must be {new}")
    except OSError as error:
        what = f"can't read {error.filename}" if error.filename else f"can't pack {source}"
        raise PluginError(WORKSPACE, f"cp: {what}: {error.strerror or error}") from None
    say(f"copied {format_size(size)} of {source} to {path} of {pod}")


def _last_name(name: str) -> str:
    return ".last" if name != ".last" else ".last-of-all"


def _send(cluster: Cluster, pod: str, file: IO[bytes], into: str, name: str, *, is_file: bool) -> str:
    """Send the tar. Return "", or what exists at its place and stays: tar would replace a device by a file."""
    size = file.tell()
    file.seek(0)
    directory = into if into.startswith("/") else f"./{into}"
    script = (_CHECK_FILE if is_file else "") + _UNPACK
    command = ["sh", "-c", script, "sh", directory, name, str(size), _last_name(name)]
    with (
        Execution(cluster.client, cluster.namespace, pod, n.WORKER_CONTAINER, command, stdin=True) as running,
        Bar("sending") as bar,
    ):
        done = 0
        while data := file.read(_CHUNK):
            running.write(data)
            done += len(data)
            bar(done, size)
        answer = running.line()
        code, stderr = running.result()
    if code:
        raise _tar_error(pod, into, code, stderr)
    if answer not in (_DONE, _DIRECTORY, _NO_FILE):
        raise PluginError(UNAVAILABLE, f"pod {pod}: did not confirm the copy")
    return "" if answer == _DONE else answer


def _download(cluster: Cluster, pod: str, path: str, target: Path) -> int:
    """Copy from a worker. Return the exit code: WORKSPACE if some members of a directory were skipped."""
    at = posixpath.normpath(path)
    with _explain_write(target):
        final = _final(target, posixpath.basename(at))
    skipped: list[str] = []
    with (
        _explain_write(final),
        tempfile.TemporaryDirectory(prefix=".kubectl-torchrun-", dir=final.parent) as scratch,
    ):
        unpacked = Path(scratch)
        for _ in range(_MAX_LINKS):
            directory, base = posixpath.split(at)
            if base in ("", ".", ".."):
                raise PluginError(
                    USAGE, f"cp: {at} of {pod}: must end with the name of a file or a directory"
                )
            link = _receive(cluster, pod, at, unpacked, final, skipped)
            if not link:
                break
            try:
                at = posixpath.join(directory, utf8(link)).rstrip("/")
            except ValueError as error:
                raise PluginError(
                    WORKSPACE, f"cp: {path} of {pod}: is a link, whose target {error}"
                ) from None
        else:
            raise PluginError(
                WORKSPACE, f"cp: {path} of {pod}: is a link, as are the {_MAX_LINKS} that follow"
            )
        for line in skipped[:_MAX_REPORTED]:
            say(f"cp: skipped: {line}")
        if more := skipped[_MAX_REPORTED:]:
            say(f"cp: skipped: {len(more)} more")
        if not os.path.lexists(unpacked / base):
            raise PluginError(WORKSPACE, f"cp: {path} of {pod}: is neither a file nor a directory")
        os.replace(unpacked / base, final)
    say(f"copied {path} of {pod} to {final}" + (f", except {len(skipped)} of its members" if skipped else ""))
    return WORKSPACE if skipped else DONE


def _final(target: Path, base: str) -> Path:
    """Return the path of the copy. Raise PluginError if it can't be there."""
    final = target / base if target.is_dir() else target
    if not final.parent.is_dir():
        raise PluginError(WORKSPACE, f"cp: {final.parent} is not a directory here; create it first")
    if final.is_dir() and not final.is_symlink():
        raise PluginError(WORKSPACE, f"cp: {final} exists; use another path")
    # The copy replaces it: /dev/full would become a file, for all users.
    if final.exists() and not final.is_file():
        raise PluginError(WORKSPACE, f"cp: {final} is no file; it must be the name of one, or of a new one")
    return final


def _receive(cluster: Cluster, pod: str, path: str, into: Path, final: Path, skipped: list[str]) -> str:
    """Unpack what is at this path of the pod. If that is a link, return its target and unpack nothing."""
    directory, base = posixpath.split(path)
    command = ["tar", "cf", "-", "-C", directory or ".", "--", base]
    broken: Exception | None = None
    has_member = False
    with Execution(cluster.client, cluster.namespace, pod, n.WORKER_CONTAINER, command) as running:
        try:
            with tarfile.open(fileobj=_Reader(running), mode="r|", tarinfo=Member) as members:  # type: ignore[call-overload]
                tree = Tree(base, into)
                for member in members:
                    if not has_member and member.issym() and "\0" not in member.linkname:
                        return str(member.linkname)
                    if not has_member and member.isdir() and os.path.lexists(final):
                        why = f"is a file here, and {path} of {pod} a directory; use another path"
                        raise PluginError(WORKSPACE, f"cp: {final} {why}")
                    has_member = True
                    tree.add(members, member)
                tree.end()
                skipped += tree.skipped
        except _BROKEN as error:
            broken = error
        while running.read():  # the padding of the last block
            continue
        code, stderr = running.result()
    if code:
        raise _tar_error(pod, path, code, stderr, has_member)
    if broken is not None:
        raise PluginError(UNAVAILABLE, f"pod {pod}: the tar of {path} is broken: {broken}")
    return ""


def _tar_error(pod: str, path: str, code: int, stderr: str, has_member: bool = False) -> PluginError:
    """Return the error for a failed tar in the pod. With `has_member`, a part of the path may have been deleted."""
    if code > _MAX_EXIT_CODE:
        return PluginError(UNAVAILABLE, f"pod {pod}: tar was killed, exit code {code}")
    lines = stderr.splitlines()
    if lines and lines[0].endswith(_ABSENT) and not has_member:
        return PluginError(WORKSPACE, f"cp: {path} is not in worker {pod}")
    # The first line names the file.
    why = "; ".join(dict.fromkeys((lines[0], lines[-1]))) if lines else f"tar ended with exit code {code}"
    return PluginError(WORKSPACE, f"cp: {path} of {pod}: {why}")


class _Reader:
    """The output of a command, as a file for tarfile."""

    def __init__(self, running: Execution) -> None:
        self._running = running
        self._rest = b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and (data := self._running.read()):
            self._rest += data
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


@contextmanager
def _explain_write(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PluginError(WORKSPACE, f"cp: can't write {path}: {error.strerror or error}") from None


class Tree:
    """The file or directory `base` of a tar, unpacked in the directory `into`. `skipped` says what was left out."""

    def __init__(self, base: str, into: Path) -> None:
        self._base, self._into = base, into
        # The worker's own record of the workspace.
        self._record = f"{base}/{CONTROL_DIRECTORY}"
        self._created: set[str] = set()
        self._directories, self._files = {""}, set[str]()
        self._links: dict[str, str] = {}
        self.skipped: list[str] = []

    def add(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Unpack the next member.

        Raises:
            tarfile.ReadError: The member does not belong to `base`.
            OSError: The disk is full.
        """
        name = member.name
        if problem := self._problem(name):
            raise tarfile.ReadError(f"member {name[:_SHOWN]!r}: {problem}")
        if name == self._record or name.startswith(f"{self._record}/"):
            return
        self._created.add(name)
        if member.isdir():
            self._make_directory(name)
            return
        if why := self._unsupported(member):
            self.skipped.append(f"{name} is {why}")
            return
        self._make_directory(name.rpartition("/")[0])
        if member.issym():
            self._links[name] = member.linkname
        elif member.islnk() and member.linkname in self._links:  # a second name of a link
            self._links[name] = self._links[member.linkname]
        elif member.islnk():
            os.link(self._into / member.linkname, self._into / name, follow_symlinks=False)
            self._files.add(name)
        else:
            self._write(members, member)
            self._files.add(name)

    def end(self) -> None:
        """Create the links, after the last member."""
        for name, target in self._links.items():
            os.symlink(target, self._into / name)

    def _problem(self, name: str) -> str:
        if problem := path_problem(name):
            return problem
        if name != self._base and not name.startswith(f"{self._base}/"):
            return "it was not requested"
        if name in self._created or name in self._directories:
            return "a second member of the same name"
        parts = name.split("/")
        parents = {"/".join(parts[:end]) for end in range(1, len(parts))}
        return "it is inside of a file" if parents & (self._created - self._directories) else ""

    def _unsupported(self, member: tarfile.TarInfo) -> str:
        """Return why a member that is no directory is skipped, "" if it is not."""
        target = member.linkname if member.issym() else self._links.get(member.linkname, "")
        if target and (member.issym() or member.islnk()):
            is_inside = link_stays_inside(member.name[len(self._base) + 1 :], target)
            return "" if is_inside else f"a link that may lead out of it, to {target}"
        if member.islnk():
            exists = member.linkname in self._files
            return "" if exists else f"a hard link to {member.linkname}, which was not copied"
        if member.issparse():
            return "a file with holes"
        return "" if member.isreg() else "neither a file, a directory nor a link"

    def _make_directory(self, name: str) -> None:
        if name in self._directories:
            return
        self._make_directory(name.rpartition("/")[0])
        os.mkdir(self._into / name)
        self._directories.add(name)

    def _write(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        content = members.extractfile(member)
        assert content is not None  # noqa: S101 (it is a file)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(self._into / member.name, flags, 0o600), "wb") as file:
            shutil.copyfileobj(content, file, 2**20)
            file.flush()
            # Others may at most read it: the pod does not know the users of this machine.
            os.fchmod(file.fileno(), 0o600 | member.mode & (0o755 if member.mode & 0o100 else 0o644))
            with suppress(ValueError, OverflowError):  # not a valid time
                os.utime(file.fileno(), (member.mtime, member.mtime))
