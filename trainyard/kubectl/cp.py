"""`cp`: a file or a directory from or to a worker, as a tar over exec; what broke in between is an error.

`kubectl cp` takes a stream that ends early for its end (kubernetes/kubernetes#60140): here the archive's own end
and the exit code of the command in the pod have to be seen.
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
from typing import IO, Final

from trainyard.k8s.exec import Execution
from trainyard.kubectl.cluster import Cluster, explained
from trainyard.kubectl.errors import DONE, NOT_FOUND, UNAVAILABLE, USAGE, WORKSPACE, PluginError
from trainyard.kubectl.follow import worker
from trainyard.kubectl.names import object_name, sendable
from trainyard.kubectl.pod_state import beyond, has_ended
from trainyard.kubectl.progress import Bar, say
from trainyard.kubectl.untar import Tree
from trainyard.operator import names as n
from trainyard.workspace.archive import Member
from trainyard.workspace.selection import size_in_words

_CHUNK: Final = 2**16
_DONE: Final = "done"
_DIRECTORY: Final = "a directory"
_NO_FILE: Final = "no file"
# In the worker, with a directory, a name in it, how many bytes come (a WebSocket's one direction can't be closed in
# every version) and the name of the last file in them, without which something is missing. What comes takes its place
# when all is there; what was there stays until then. A directory that can't be written can't be moved, nor emptied.
_OF_FILE: Final = f"""
not() {{ head -c "$3" >/dev/null; echo "$1"; exit; }}
if [ -d "$1/$2" ]; then not "{_DIRECTORY}" "$2" "$3"; fi
if [ -e "$1/$2" ] && [ ! -f "$1/$2" ]; then not "{_NO_FILE}" "$2" "$3"; fi
"""
_UNPACK: Final = f"""
scratch=$(mktemp -d "$1/.kubectl-torchrun-XXXXXX") || {{ head -c "$3" >/dev/null; exit 1; }}
trap 'rm -rf "$scratch" 2>/dev/null || {{ chmod -R u+rwx "$scratch"; rm -rf "$scratch"; }}' EXIT
trap 'exit 1' HUP INT TERM
head -c "$3" | tar xf - $raw -C "$scratch" || exit $?
[ -f "$scratch/$4" ] || exit 1
if [ -d "$1/$2" ]; then
  tar cf - $raw -C "$scratch/$2" . | tar xf - $raw -C "$1/$2" || exit $?
else
  closed=
  if [ -d "$scratch/$2" ] && [ ! -w "$scratch/$2" ]; then chmod u+w "$scratch/$2" && closed=1; fi
  mv -f "$scratch/$2" "$1/$2" || exit $?
  [ -z "$closed" ] || chmod u-w "$1/$2"
fi
echo {_DONE}
"""


def copy(options: argparse.Namespace, cluster: Cluster) -> int:
    """Copies in the direction that the words say. Raises PluginError."""
    source, target = _split(options.source), _split(options.target)
    if bool(source) == bool(target) or not (options.source and options.target):
        raise PluginError(USAGE, "cp: one of FROM and TO should be JOB:PATH, and the other a path here")
    job, path = source or target or ("", "")
    found = cluster.job(job)
    pod = worker(cluster, found, options.node_rank)
    if pod is None:
        if wrong := beyond(found, options.node_rank):
            raise PluginError(NOT_FOUND, wrong)
        phase = found.get("status", {}).get("phase") or "not known yet"
        raise PluginError(
            NOT_FOUND, f"job {job}: has no worker {options.node_rank} now; its phase is {phase}"
        )
    if has_ended(pod):
        raise PluginError(
            NOT_FOUND,
            f"job {job}: its worker {options.node_rank} has ended, and cp needs one that runs; what a claim has is "
            "read by a pod of yours that mounts it",
        )
    name = pod["metadata"]["name"]
    with explained("get and create pods/exec", cluster.namespace):
        if source:
            return download(cluster, name, path, Path(options.target))
        _upload(cluster, name, Path(options.source), path)
    return DONE


def _split(word: str) -> tuple[str, str] | None:
    """Job and path; None for a path here, which has a slash before any colon."""
    job, colon, path = word.partition(":")
    if not colon or "/" in job or not job:
        return None
    if not path:
        raise PluginError(USAGE, f"cp: {word}: a path should follow the colon")
    try:
        name = object_name(job)
    except ValueError as error:
        raise PluginError(USAGE, f"cp: {word}: job {error}") from None
    try:
        return name, sendable(path)
    except ValueError as error:
        raise PluginError(USAGE, f"cp: {job}: path {error}") from None


def _upload(cluster: Cluster, pod: str, source: Path, path: str) -> None:
    # A path that ends with a slash is the directory to copy into.
    into, base = (path, "") if posixpath.basename(path) in (".", "..") else posixpath.split(path)
    name = base or os.path.basename(os.path.abspath(source))
    if not name:
        raise PluginError(USAGE, f"cp: {source}: should end with the name of a file or a directory")
    try:
        try:
            mode = source.stat().st_mode
        except FileNotFoundError:
            raise PluginError(WORKSPACE, f"cp: {source} does not exist here") from None
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise PluginError(WORKSPACE, f"cp: {source} is neither a file nor a directory")
        with tempfile.TemporaryFile(prefix="kubectl-torchrun-") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as members:
                members.add(source.resolve(), name)  # what a link names
                contents = sum(each.size for each in members.getmembers() if each.isreg())
                members.addfile(tarfile.TarInfo(_last(name)))
            size = file.tell()
            file.seek(0)
            is_file = stat.S_ISREG(mode)
            if there := _send(cluster, pod, file, size, into or ".", name, is_file=is_file):
                where = posixpath.join(into, name)
                right = (
                    f"{where}/, to copy into it"
                    if there == _DIRECTORY
                    else "the name of a file, or of a new one"
                )
                raise PluginError(WORKSPACE, f"cp: {where} of {pod} is {there}; it must be {right}")
    except OSError as error:
        what = f"can't read {error.filename}" if error.filename else f"can't pack {source}"
        raise PluginError(WORKSPACE, f"cp: {what}: {error.strerror or error}") from None
    say(f"{size_in_words(contents)} of {source} are at {path} of {pod}")


def _last(name: str) -> str:
    """Another name than this."""
    return ".last" if name != ".last" else ".last-of-all"


def _send(
    cluster: Cluster, pod: str, file: IO[bytes], size: int, into: str, name: str, *, is_file: bool
) -> str:
    """ "" when it is there, else what is at its place, which stays: tar would put a file where a device is."""
    directory = into if into.startswith("/") else f"./{into}"
    script = (AS_IT_IS if "\\" in into + name else "raw=; ") + (_OF_FILE if is_file else "") + _UNPACK
    command = ["sh", "-c", script, "sh", directory, name, str(size), _last(name)]
    with (
        Execution(cluster.rest, cluster.namespace, pod, n.WORKER_CONTAINER, command, stdin=True) as running,
        Bar("sending") as bar,
    ):
        done = 0
        while data := file.read(_CHUNK):
            running.write(data)
            done += len(data)
            bar(done, size)
        answer = running.line()
        code, said = running.result()
    if code:
        raise failed(pod, into, code, said)
    if answer not in (_DONE, _DIRECTORY, _NO_FILE):
        raise PluginError(UNAVAILABLE, f"pod {pod}: did not say that it has all")
    return "" if answer == _DONE else answer


# As many links in a row as Linux follows.
_MOST_LINKS: Final = 40
_NAMED: Final = 10
# GNU's tar reads `\\n` in a name as a line's end, and others know no option against it.
AS_IT_IS: Final = "raw=; tar --help 2>&1 | grep -q -e --no-unquote && raw=--no-unquote; "
_ABSENT: Final = "No such file or directory"
# Above it, a signal ended it: the pod was stopped.
_MOST_OF_ITS_OWN: Final = 128
_NAMELESS: Final = frozenset({"", ".", ".."})
_BROKEN: Final = (tarfile.TarError, EOFError, ValueError, RecursionError)


def download(cluster: Cluster, pod: str, path: str, target: Path) -> int:
    """The exit code; WORKSPACE where something of a directory is left out. Raises PluginError, and nothing is here."""
    at = posixpath.normpath(path)
    with _writing(target):
        final = _final(target, posixpath.basename(at))
    left_out: list[str] = []
    with (
        _writing(final),
        tempfile.TemporaryDirectory(prefix=".kubectl-torchrun-", dir=final.parent) as scratch,
    ):
        for _ in range(_MOST_LINKS):
            unpacked = Path(scratch)
            directory, base = posixpath.split(at)
            if base in _NAMELESS:
                raise PluginError(
                    USAGE, f"cp: {at} of {pod}: should end with the name of a file or a directory"
                )
            link = _take(cluster, pod, at, unpacked, final, left_out)
            if not link:
                break
            at = posixpath.join(directory, _target(link, path, pod)).rstrip("/")
        else:
            raise PluginError(
                WORKSPACE, f"cp: {path} of {pod}: is a link, as are the {_MOST_LINKS} that follow"
            )
        for line in left_out[:_NAMED]:
            say(f"cp: left out: {line}")
        if more := left_out[_NAMED:]:
            say(f"cp: left out: {len(more)} more")
        if not os.path.lexists(unpacked / base):
            raise PluginError(WORKSPACE, f"cp: {path} of {pod}: is neither a file nor a directory")
        os.replace(unpacked / base, final)
    say(f"{path} of {pod} is at {final}" + (f", but for {len(left_out)} in it" if left_out else ""))
    return WORKSPACE if left_out else DONE


def _final(target: Path, base: str) -> Path:
    final = target / base if target.is_dir() else target
    if not final.parent.is_dir():
        raise PluginError(WORKSPACE, f"cp: {final.parent} is not a directory here; make it first")
    if final.is_dir() and not final.is_symlink():
        raise PluginError(WORKSPACE, f"cp: {final} is there already; name another place")
    # What comes takes its place: /dev/full would be a file then, for everybody.
    if final.exists() and not final.is_file():
        raise PluginError(WORKSPACE, f"cp: {final} is no file; it must be the name of one, or of a new one")
    return final


def _take(cluster: Cluster, pod: str, path: str, into: Path, final: Path, left_out: list[str]) -> str:
    """Unpacks what is at this path of the pod; where that is a link, its target, and nothing is unpacked."""
    directory, base = posixpath.split(path)
    command = ["tar", "cf", "-", "-C", directory or ".", "--", base]
    if "\\" in path:
        command = ["sh", "-c", f'{AS_IT_IS}exec tar cf - $raw -C "$1" -- "$2"', "sh", directory or ".", base]
    broken: Exception | None = None
    came = False
    with Execution(cluster.rest, cluster.namespace, pod, n.WORKER_CONTAINER, command) as running:
        try:
            with tarfile.open(fileobj=_Coming(running), mode="r|", tarinfo=Member) as members:  # type: ignore[call-overload]
                tree = Tree(base, into)
                for number, member in enumerate(members):
                    came = True
                    if number == 0 and member.issym() and "\0" not in member.linkname:
                        return str(member.linkname)
                    if number == 0 and member.isdir() and os.path.lexists(final):
                        raise PluginError(
                            WORKSPACE,
                            f"cp: {final} is a file here, and {path} of {pod} a directory; name another place",
                        )
                    tree.add(members, member)
                tree.end()
                left_out += tree.left_out
        except _BROKEN as error:
            broken = error
        while running.read():  # what fills its last block
            continue
        code, said = running.result()
    if code:
        raise failed(pod, path, code, said, came)
    if broken is not None:
        raise PluginError(UNAVAILABLE, f"pod {pod}: what came of {path} is broken: {broken}")
    return ""


def _target(link: str, path: str, pod: str) -> str:
    try:
        return sendable(link)
    except ValueError as error:
        raise PluginError(WORKSPACE, f"cp: {path} of {pod}: is a link, whose target {error}") from None


def failed(pod: str, path: str, code: int, said: str, came: bool = False) -> PluginError:
    """What is told of a tar in the pod that ended so: of what it said, the first line names the file.

    `came`: something was at the path, of which a part may have gone meanwhile.
    """
    if code > _MOST_OF_ITS_OWN:
        return PluginError(UNAVAILABLE, f"pod {pod}: tar was ended with {code}")
    lines = said.splitlines()
    if lines and lines[0].endswith(_ABSENT) and not came:
        return PluginError(WORKSPACE, f"cp: {path} is not in worker {pod}")
    why = "; ".join(dict.fromkeys((lines[0], lines[-1]))) if lines else f"tar ended with {code}"
    return PluginError(WORKSPACE, f"cp: {path} of {pod}: {why}")


class _Coming:
    """What a command writes, as a file that tarfile reads."""

    def __init__(self, running: Execution) -> None:
        self._running = running
        self._rest = b""

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and (data := self._running.read()):
            self._rest += data
        data, self._rest = self._rest[:size], self._rest[size:]
        return data


@contextmanager
def _writing(final: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PluginError(WORKSPACE, f"cp: can't write {final}: {error.strerror or error}") from None
