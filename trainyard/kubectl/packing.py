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
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from trainyard.kubectl.output import USAGE, WORKSPACE, Bar, PluginError, say
from trainyard.workspace.archive import Archive, pack_cached
from trainyard.workspace.errors import WorkspaceError, format_size

_MEBIBYTE: Final = 2**20
_SEARCH_SECONDS: Final = 1.0
_SEARCH_EVERY_SECONDS: Final = 5.0
_INTERRUPTS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Packed = Callable[[], Archive | None]


@contextmanager
def packing(options: argparse.Namespace) -> Iterator[Packed]:
    """Start to pack the workspace, and yield a function that waits for the archive, None without a workspace.

    The function raises PluginError for an invalid directory. The archive is removed afterwards.
    """
    root = workspace_root(options)
    if root is None:
        yield lambda: None
        return
    if options.workspace == "":
        raise PluginError(USAGE, "--workspace: is empty; name the directory with your code")
    if options.workspace is None:
        _check_current_directory()
    context: Any = multiprocessing.get_context("fork")  # starts at once
    with ExitStack() as stack:
        try:
            scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="kubectl-torchrun-"))
            answers, end = context.Pipe(duplex=False)
            arguments = (root, options.max_size * _MEBIBYTE, Path(scratch), end)
            process = context.Process(target=_pack, args=arguments, daemon=True)
            stack.callback(_kill, process)
            # The process ignores interrupts: a terminal sends them to both, and this one ends the other.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        except OSError as error:  # for example no temporary directory, or no more processes
            why = error.strerror or str(error)
            raise PluginError(WORKSPACE, f"workspace: can't be packed on this machine: {why}") from None
        end.close()
        yield lambda: _receive(answers)


def _kill(process: Any) -> None:
    if process.pid is not None:
        process.kill()
        process.join()


def workspace_root(options: argparse.Namespace) -> Path | None:
    """Return the directory of the workspace, None with --no-workspace."""
    if getattr(options, "no_workspace", False):
        return None
    return Path(os.path.expanduser(options.workspace or "."))


def _check_current_directory() -> None:
    """Refuse the home directory and its parents, which are never meant as a workspace. Raise PluginError."""
    try:
        here, home = (os.path.realpath(path) for path in (".", os.path.expanduser("~")))
    except OSError:  # the directory was removed; a later check reports it
        return
    if here == os.path.commonpath((here, home)):
        what = {home: "your home directory", "/": "the root directory"}.get(here, "above your home directory")
        raise PluginError(
            WORKSPACE,
            f"workspace: {here} is {what}. Go to the directory with your code, or use --workspace DIRECTORY. To send "
            f"this directory anyway, use --workspace {here}",
        )


def _receive(answers: Connection) -> Archive:
    try:
        answer = answers.recv()
    except EOFError:
        raise PluginError(WORKSPACE, "workspace: the process that packs it was killed") from None
    if not isinstance(answer, Archive):
        raise PluginError(WORKSPACE, str(answer))
    return answer


def _pack(root: Path, limit: int, scratch: Path, end: Connection) -> None:
    next_report = time.monotonic() + _SEARCH_SECONDS

    def report_search(files: int, size: int) -> None:
        nonlocal next_report
        if time.monotonic() >= next_report:
            say(f"workspace: {root.resolve()}: {files} files, {format_size(size)} so far")
            next_report = time.monotonic() + _SEARCH_EVERY_SECONDS

    # A relative XDG_CACHE_HOME is ignored (https://specifications.freedesktop.org/basedir-spec/latest/). Without a
    # home, the digests of unchanged workspaces are not kept.
    places = (os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache"), scratch)
    cache = next(Path(place) for place in places if os.path.isabs(place)) / "kubectl-torchrun-workspaces"
    try:
        with Bar("packing") as bar:
            end.send(pack_cached(root, limit, scratch, cache, bar, report_search))
    except WorkspaceError as error:
        end.send(str(error))
