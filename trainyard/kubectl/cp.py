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
import stat
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from trainyard.k8s.exec import Execution
from trainyard.kubectl.cli import JOB_KINDS, job_name, utf8
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
_MAX_REPORTED: Final = 10
_MAX_TIME: Final = 2**32
_DONE: Final = "done"
_DIRECTORY: Final = "a directory"
_NO_FILE: Final = "no file"
# The arguments of these scripts: a directory, a name in it, and the size of the tar (not every version of the protocol
# can close one direction). The tar has the copy as `new`, and at its end `end`, without which it is incomplete. The
# copy replaces the old file when it is complete.
_CHECK_FILE: Final = f"""
refuse() {{ head -c "$3" >/dev/null; echo "$1"; exit; }}
if [ -d "$1/$2" ]; then refuse "{_DIRECTORY}" "$2" "$3"; fi
if [ -e "$1/$2" ] && [ ! -f "$1/$2" ]; then refuse "{_NO_FILE}" "$2" "$3"; fi
"""
_UNPACK: Final = f"""
scratch=$(mktemp -d "$1/.kubectl-torchrun-XXXXXX") || {{ head -c "$3" >/dev/null; exit 1; }}
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
head -c "$3" | tar xf - -C "$scratch" || exit $?
[ -f "$scratch/end" ] || exit 1
if [ -d "$1/$2" ]; then
  tar cf - -C "$scratch/new" . | tar xf - -C "$1/$2" || exit $?
else
  mv -f "$scratch/new" "$1/$2" || exit $?
fi
echo {_DONE}
"""
# A link is copied as what it names. Links in a directory stay links.
_PACK: Final = """
if [ -d "$1/$2" ]; then exec tar cf - -C "$1/$2" .; fi
exec tar chf - -C "$1" -- "$2"
"""
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
            return _download(cluster, pod, path, options.target)
        _upload(cluster, pod, Path(options.source), path)
    return DONE


def _split(word: str) -> tuple[str, str] | None:
    """Return the job and the path, None for a local path, which has a slash before any colon.

    The job may have the prefix of `-o name`.
    """
    job, colon, path = word.partition(":")
    kind, slash, _ = job.partition("/")
    if not colon or (slash and kind not in JOB_KINDS) or not job:
        return None
    if not path:
        raise PluginError(USAGE, f"cp: {word}: a path must follow the colon")
    place = f"cp: {word}: job"
    try:
        name = job_name(job)
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
    with _explain_read(source), tempfile.TemporaryFile(prefix="kubectl-torchrun-") as file:
        mode = source.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise PluginError(WORKSPACE, f"cp: {source} is neither a file nor a directory")
        with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as members:
            members.add(source.resolve(), "new", filter=_make_writable)  # the target of a link
            copied = sum(member.size for member in members.getmembers() if member.isreg())
            members.addfile(tarfile.TarInfo("end"))
        size, done = file.tell(), 0
        file.seek(0)
        directory = into if into.startswith("/") else f"./{into}"
        script = (_CHECK_FILE if stat.S_ISREG(mode) else "") + _UNPACK
        command = ["sh", "-c", script, "sh", directory, name, str(size)]
        with _execute(cluster, pod, command, stdin=True) as running, Bar("sending") as bar:
            while data := file.read(_CHUNK):
                running.write(data)
                done += len(data)
                bar(done, size)
            answer = running.line()
            code, stderr = running.result()
    if code:
        raise _tar_error(pod, into or ".", code, stderr)
    # tar would replace a device by a file.
    where, form = posixpath.join(into, name), "the name of a file, or of a new one"
    form = f"{where}/, to copy into it" if answer == _DIRECTORY else form
    if answer in (_DIRECTORY, _NO_FILE):
        raise PluginError(WORKSPACE, f"cp: {where} of {pod} is {answer}; it must be {form}")
    if answer != _DONE:
        raise PluginError(UNAVAILABLE, f"pod {pod}: did not confirm the copy")
    say(f"copied {format_size(copied)} of {source} to {path} of {pod}")


def _make_writable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Let the owner change a directory: without this permission it can't be moved to its place."""
    member.mode |= 0o700 if member.isdir() else 0
    return member


def _download(cluster: Cluster, pod: str, path: str, target: str) -> int:
    """Copy from a worker. Return the exit code: WORKSPACE if some members of a directory were skipped."""
    directory, base = posixpath.split(posixpath.normpath(path))
    if base in ("", ".", ".."):
        raise PluginError(USAGE, f"cp: {path} of {pod}: must end with the name of a file or a directory")
    with _explain_write(Path(target)):
        final = _final(Path(target), base)
    # As in GNU cp, a path that ends with a slash is a directory.
    is_directory = final == Path(target) and posixpath.basename(target) in ("", ".", "..")
    with (
        _explain_write(final),
        tempfile.TemporaryDirectory(prefix=".kubectl-torchrun-", dir=final.parent) as scratch,
    ):
        tree = Tree(base, Path(scratch) / "new")
        _receive(cluster, pod, directory or ".", tree, final, is_directory=is_directory)
        for line in tree.skipped[:_MAX_REPORTED]:
            say(f"cp: skipped: {line}")
        if more := tree.skipped[_MAX_REPORTED:]:
            say(f"cp: skipped: {len(more)} more")
        if not os.path.lexists(tree.root):
            raise PluginError(WORKSPACE, f"cp: {path} of {pod}: is neither a file nor a directory")
        os.replace(tree.root, final)
    rest = f", except {len(tree.skipped)} of its members" if tree.skipped else ""
    say(f"copied {path} of {pod} to {final}{rest}")
    return WORKSPACE if tree.skipped else DONE


def _final(target: Path, base: str) -> Path:
    """Return the path of the copy. Raise PluginError if it can't be there."""
    final = target / base if target.is_dir() else target
    problem = ""
    if not final.parent.is_dir():
        problem = f"{final.parent} is not a directory here; create it first"
    elif final.is_dir() and not final.is_symlink():
        problem = f"{final} exists; use another path"
    # The copy replaces it: /dev/full would become a file, for all users.
    elif final.exists() and not final.is_file():
        problem = f"{final} is no file; it must be the name of one, or of a new one"
    if problem:
        raise PluginError(WORKSPACE, f"cp: {problem}")
    return final


def _receive(
    cluster: Cluster, pod: str, directory: str, tree: Tree, final: Path, *, is_directory: bool
) -> None:
    """Unpack what the pod has below this directory as the `base` of the tree.

    With `is_directory`, `final` must become a directory.
    """
    path = posixpath.join(directory, tree.base).removeprefix("./")
    broken: Exception | None = None
    is_empty = True
    with _execute(cluster, pod, ["sh", "-c", _PACK, "sh", directory, tree.base]) as running:
        try:
            with tarfile.open(fileobj=_Reader(running), mode="r|", tarinfo=Member) as members:  # type: ignore[call-overload]
                for member in members:
                    if is_empty and member.isdir() and os.path.lexists(final):
                        why = f"is a file here, and {path} of {pod} a directory; use another path"
                        raise PluginError(WORKSPACE, f"cp: {final} {why}")
                    if is_empty and is_directory and not member.isdir():
                        raise PluginError(WORKSPACE, f"cp: {final} is not a directory here; create it first")
                    is_empty = False
                    tree.add(members, member)
                tree.end()
        except _BROKEN as error:
            broken = error
        while running.read():  # the padding of the last block
            continue
        code, stderr = running.result()
    if code:
        raise _tar_error(pod, path, code, stderr, is_empty=is_empty)
    if broken is not None:
        raise PluginError(UNAVAILABLE, f"pod {pod}: the tar of {path} is broken: {broken}")


def _execute(cluster: Cluster, pod: str, command: list[str], *, stdin: bool = False) -> Execution:
    return Execution(cluster.client, cluster.namespace, pod, n.WORKER_CONTAINER, command, stdin=stdin)


def _tar_error(pod: str, path: str, code: int, stderr: str, *, is_empty: bool = True) -> PluginError:
    """Return the error for a failed tar in the pod. If it is not empty, a part of the path may have been deleted."""
    if code > _MAX_EXIT_CODE:
        return PluginError(UNAVAILABLE, f"pod {pod}: tar was killed, exit code {code}")
    lines = stderr.splitlines()
    if lines and lines[0].endswith(_ABSENT) and is_empty:
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
def _explain_read(source: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = f"can't read {error.filename}" if error.filename else f"can't pack {source}"
        why = f"cp: {what}: {error.strerror or error}"
        is_absent = isinstance(error, FileNotFoundError) and error.filename == str(source)
        raise PluginError(WORKSPACE, f"cp: {source} does not exist here" if is_absent else why) from None


@contextmanager
def _explain_write(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PluginError(WORKSPACE, f"cp: can't write {path}: {error.strerror or error}") from None


class Tree:
    """The file or directory `base` of a tar, unpacked as `root`. `skipped` says what was left out."""

    def __init__(self, base: str, root: Path) -> None:
        self.base, self.root = base, root
        self._files: set[str] = set()
        self._links: dict[str, str] = {}
        self.skipped: list[str] = []

    def add(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Unpack the next member.

        Raises:
            tarfile.ReadError: The member does not belong to the tree.
            OSError: The disk is full, or the member is inside of a file.
        """
        members.extract(member, self.root.parent, filter=self._check)

    def end(self) -> None:
        """Create the links, after the last member, each in a real directory."""
        for name in self._links:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        for name, target in self._links.items():
            os.symlink(target, self.root / name)

    def _check(self, member: tarfile.TarInfo, _into: str) -> tarfile.TarInfo | None:
        """Return the member with its new name, without the pod's users. Return None for a link and what is skipped."""
        name = "" if member.name in (".", self.base) else member.name.removeprefix("./")
        problem = "it was not requested" if name == member.name else ""
        if problem := (path_problem(name) if name else "") or problem:
            raise tarfile.ReadError(f"member {member.name[:_SHOWN]!r}: {problem}")
        if name.partition("/")[0] == CONTROL_DIRECTORY:  # the worker's own record of the workspace
            return None
        if why := self._unsupported(member, name):
            self.skipped.append(f"{posixpath.join(self.base, name).rstrip('/')} is {why}")
            return None
        link = member.linkname.removeprefix("./")
        if member.issym() or (member.islnk() and link in self._links):
            self._links[name] = self._links[link] if member.islnk() else member.linkname
            return None
        new = {path: posixpath.join(self.root.name, path).rstrip("/") for path in (name, link)}
        self._files |= set() if member.isdir() else {name}
        # Others may at most read a file: the pod does not know the users of this machine.
        mode = 0o600 | member.mode & (0o755 if member.mode & 0o100 else 0o644)
        changes: dict[str, Any] = dict.fromkeys(("uid", "gid", "uname", "gname"))
        changes |= {"mode": None if member.isdir() else mode, "mtime": min(max(member.mtime, 0), _MAX_TIME)}
        return member.replace(name=new[name], linkname=new[link], **changes, deep=False)

    def _unsupported(self, member: tarfile.TarInfo, name: str) -> str:
        """Return why a member is skipped, "" if it is not."""
        link = member.linkname.removeprefix("./")
        target = self._links.get(link, "") if member.islnk() else member.linkname
        if target and (member.issym() or member.islnk()):
            is_inside = bool(name) and link_stays_inside(name, target)
            return "" if is_inside else f"a link that may lead out of it, to {target}"
        if member.islnk():
            return "" if link in self._files else f"a hard link to {link}, which was not copied"
        if member.issparse():
            return "a file with holes"
        return "" if member.isreg() or member.isdir() else "neither a file, a directory nor a link"
