"""Pack the workspace of `submit` and `sync` in a second process. The entry point is `packing`.

Half of the time of an unchanged submit is the import of the clients of Kubernetes and S3. A thread would share the
interpreter's lock with the imports.
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

from trainyard.kubectl.output import USAGE, WORKSPACE, Bar, PluginError, say
from trainyard.workspace.archive import Archive, pack_cached
from trainyard.workspace.errors import WorkspaceError, format_size

_MEBIBYTE: Final = 2**20
_SEARCH_SECONDS: Final = 1.0
_SEARCH_EVERY_SECONDS: Final = 5.0
# A forked process starts at once. Systems without fork start a new interpreter.
_METHODS: Final = multiprocessing.get_all_start_methods()
_METHOD: Final = "fork" if "fork" in _METHODS else _METHODS[0]
_INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Packed = Callable[[], Archive | None]


@contextmanager
def packing(options: argparse.Namespace) -> Iterator[Packed]:
    """Start to pack the workspace, and yield a function that waits for the archive, None without a workspace.

    The function raises PluginError for an invalid directory. The archive is removed afterwards.
    """
    if getattr(options, "no_workspace", False):
        yield lambda: None
        return
    if not options.workspace:
        raise PluginError(USAGE, "--workspace: is empty; name the directory with your code")
    if options.workspace == "." and not getattr(options, "workspace_is_given", False):
        _check_current_directory()
    context: Any = multiprocessing.get_context(_METHOD)
    with tempfile.TemporaryDirectory(prefix="kubectl-torchrun-") as scratch:
        answers, end = context.Pipe(duplex=False)
        root, limit = Path(os.path.expanduser(options.workspace)), options.max_size * _MEBIBYTE
        arguments = (root, limit, Path(scratch), _cache_directory(Path(scratch)), end)
        process = context.Process(target=_pack, args=arguments, daemon=True)
        try:
            _start_without_signals(process)
            end.close()
            yield lambda: _receive(answers)
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
            say(f"workspace: {self._root.resolve()}: {files} files, {format_size(size)} so far")
            self._next = now + _SEARCH_EVERY_SECONDS


def _start_without_signals(process: Any) -> None:
    """Start a process that ignores interrupts. A terminal interrupts both processes, and the parent ends the child."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _cache_directory(scratch: Path) -> Path:
    """Return the directory for digests of unchanged workspaces, in `scratch` if the user has no home.

    https://specifications.freedesktop.org/basedir-spec/latest/: a relative XDG_CACHE_HOME is ignored.
    """
    variable = os.environ.get("XDG_CACHE_HOME", "")
    caches = Path(variable) if os.path.isabs(variable) else Path(os.path.expanduser("~/.cache"))
    return (caches if caches.is_absolute() else scratch) / "kubectl-torchrun-workspaces"


def _receive(answers: Connection) -> Archive:
    try:
        answer = answers.recv()
    except EOFError:
        raise PluginError(WORKSPACE, "workspace: the process that packs it was killed") from None
    if not isinstance(answer, Archive):
        raise PluginError(WORKSPACE, str(answer))
    return answer


def _pack(root: Path, limit: int, directory: Path, cache: Path, end: Connection) -> None:
    try:
        with Bar("packing") as bar:
            end.send(pack_cached(root, limit, directory, cache, bar, _Search(root)))
    except WorkspaceError as error:
        end.send(str(error))
