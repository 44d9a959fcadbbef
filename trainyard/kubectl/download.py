"""`cp` from a worker: the tar that the pod makes is unpacked while it comes, and takes its place when it is whole."""

from __future__ import annotations

import os
import posixpath
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from trainyard.k8s.exec import Execution
from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.exits import DONE, UNAVAILABLE, USAGE, WORKSPACE, PluginError
from trainyard.kubectl.names import sendable
from trainyard.kubectl.screen import say
from trainyard.kubectl.untar import Tree
from trainyard.operator.core import names as n
from trainyard.workspace.heads import Member

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
