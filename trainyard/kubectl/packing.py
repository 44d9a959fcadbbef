"""The workspace of `submit` and `sync`, packed beside everything else.

Half of a submit of code that has not changed is the import of the clients of Kubernetes and S3. A process of its own
packs meanwhile; a thread would have to share the interpreter's lock with the imports.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from trainyard.kubectl.errors import USAGE, WORKSPACE, PluginError
from trainyard.kubectl.progress import Bar, say
from trainyard.workspace.archive import Archive
from trainyard.workspace.cache import packed
from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.selection import size_in_words

_MEBIBYTE: Final = 2**20
_SEARCH_SECONDS: Final = 1.0
_SEARCH_EVERY_SECONDS: Final = 5.0
# A copy of this process begins at once. Where there is none, a new interpreter does.
_WAYS: Final = multiprocessing.get_all_start_methods()
_WAY: Final = "fork" if "fork" in _WAYS else _WAYS[0]
_INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Packed = Callable[[], Archive | None]


@contextmanager
def packing(options: argparse.Namespace) -> Iterator[Packed]:
    """Begins to pack what the verb sends; its archive can be asked for inside, None where nothing is sent.

    The file is removed afterwards. What is asked raises PluginError for a directory that can't be sent.
    """
    if not hasattr(options, "workspace") or getattr(options, "no_workspace", False):
        yield lambda: None
        return
    if not options.workspace:
        raise PluginError(USAGE, "--workspace: is empty; name the directory with your code")
    if options.workspace == "." and not getattr(options, "workspace_is_given", False):
        _check_current_directory()
    context: Any = multiprocessing.get_context(_WAY)
    with tempfile.TemporaryDirectory(prefix="kubectl-torchrun-") as scratch:
        answers, end = context.Pipe(duplex=False)
        root, limit = Path(os.path.expanduser(options.workspace)), options.max_size * _MEBIBYTE
        words = (root, limit, Path(scratch), _memory(Path(scratch)), end)
        process = context.Process(target=_pack, args=words, daemon=True)
        try:
            _begin(process)
            end.close()
            yield lambda: _answer(answers)
        finally:
            if process.pid is not None:
                process.kill()
                process.join()


def _check_current_directory() -> None:
    """Refuse the home directory and its parents, which are never meant as a workspace.

    Raises:
        PluginError: The current directory is one of them.
    """
    try:
        here, home = (os.path.realpath(each) for each in (".", os.path.expanduser("~")))
    except OSError:  # the directory was removed; a later check reports it
        return
    if here == os.path.commonpath((here, home)):
        what = {home: "your home directory", "/": "the root directory"}.get(here, "above your home directory")
        raise PluginError(
            WORKSPACE,
            f"workspace: {here} is {what}. Go to the directory with your code, or use --workspace DIRECTORY. To send "
            f"this directory anyway, use --workspace {here}",
        )


class _Search:
    """Print the number of files that were found, after a second and then every five seconds."""

    def __init__(self, root: Path) -> None:
        self._root, self._next = root, time.monotonic() + _SEARCH_SECONDS

    def __call__(self, files: int, size: int) -> None:
        now = time.monotonic()
        if now >= self._next:
            say(f"workspace: {self._root.resolve()}: {files} files, {size_in_words(size)} so far")
            self._next = now + _SEARCH_EVERY_SECONDS


def _begin(process: Any) -> None:
    """Begins it without what interrupts: a terminal interrupts both, and the one that waits ends the other."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _memory(scratch: Path) -> Path:
    """In the person's caches, else where it is forgotten.

    https://specifications.freedesktop.org/basedir-spec/latest/: a relative XDG_CACHE_HOME does not count.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    caches = Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~/.cache"))
    return (caches if caches.is_absolute() else scratch) / "kubectl-torchrun-workspaces"


def _answer(answers: Connection) -> Archive:
    try:
        answer = answers.recv()
    except EOFError:
        raise PluginError(WORKSPACE, "workspace: the process that packs it was ended") from None
    if not isinstance(answer, Archive):
        raise PluginError(WORKSPACE, str(answer))
    return answer


def _pack(root: Path, limit: int, directory: Path, memory: Path, end: Connection) -> None:
    try:
        with Bar("packing") as bar:
            end.send(packed(root, limit, directory, memory, bar, _Search(root)))
    except WorkspaceError as error:
        end.send(str(error))
