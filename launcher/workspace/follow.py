"""What a worker's init container and its sidecar do: get the workspace, put it in place, keep it up to date.

The archive stays beside the workspace, so that a worker can give it to a sync pod that was made after another was lost.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from launcher.workspace.errors import NotThere, Refused, WorkspaceError
from launcher.workspace.ignoring import CONTROL_DIRECTORY
from launcher.workspace.place import DOWNLOAD, Applied, apply, is_whole, placed
from launcher.workspace.sources import Source, SyncPod
from launcher.workspace.unpack import check_digest, digest_of, verify

LOG: Final = logging.getLogger("workspace")
EVERY_SECONDS: Final = 2.0
# A worker holds a node meanwhile. A new sync pod comes within this time; an archive in S3 is there before its job, and
# each of a job's few restarts waits for it once more.
WAIT_SECONDS: Final = 240.0
WAIT_FOR_S3_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 1.0
# An archive that could not be put in place is as large at the next try.
_LONGEST_PAUSE_SECONDS: Final = 60.0
_KEPT_NAMED: Final = 10
_KEPT_ARCHIVE: Final = "archive"
# A connection that broke in the middle is not seen as such by everyone in between.
_DAMAGED_TRIES: Final = 3


def fetch(
    source: Source,
    digest: str,
    into: Path,
    *,
    wait: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Applied:
    """Gets the archive of this digest and puts it in place, if it is not there already; what is gone of it, again.

    Where the job's present archive is another one by now, that is put in place: what follows it would bring it a moment
    later, under a worker that has begun with half of the other one. It may come later: it is waited for `wait` seconds,
    by default WAIT_SECONDS from a sync pod and WAIT_FOR_S3_SECONDS from elsewhere.
    Raises WorkspaceError where none comes, or it is damaged at each try.
    """
    check_digest(digest)
    digest = _present(source, digest)
    if is_whole(into, digest):
        return Applied(0, 0)
    if wait is None:
        wait = WAIT_SECONDS if isinstance(source, SyncPod) else WAIT_FOR_S3_SECONDS
    end, damaged, said = clock() + wait, 0, ""
    while True:
        try:
            return _get(source, digest, into)
        except NotThere as error:
            now = ""
            with suppress(WorkspaceError):  # who may not read it was told so at the beginning
                now = _instead(source, digest)
            if now:
                LOG.info("%s is not kept any more; the job's workspace is %s now", digest, now)
                digest = now
                continue
            if clock() >= end:
                raise WorkspaceError(
                    f"workspace: {digest} did not come within {wait:.0f} s: {error}"
                ) from None
            if str(error) != said:
                said = str(error)
                LOG.info("waiting for the workspace: %s", said)
        except _Damaged as error:
            damaged += 1
            if damaged == _DAMAGED_TRIES:
                raise WorkspaceError(f"{error} (at each of {damaged} tries)") from None
            LOG.warning("%s; getting it again", error)
        sleep(_RETRY_SECONDS)


def follow(source: Source, into: Path, stopping: threading.Event, *, every: float = EVERY_SECONDS) -> None:
    """Until `stopping`, each `every` seconds: brings the job's present archive in place if it is another one.

    What goes wrong is told once, and what is in place stays. An archive that is refused is not asked for again; one
    that is damaged, or that there is no room for, is after a while.
    """
    said, tries, giving = "", _Tries(every), _Tries(every)
    while not stopping.wait(every):
        problem = said
        try:
            pointer = source.current()
            digest = pointer.digest if pointer is not None else ""
            if pointer is not None:
                giving = _Tries(every)
            elif isinstance(source, SyncPod) and giving.has_time(placed(into).digest):
                giving.failed(NotThere("as long as it has none"))
                _give_back(source, into)
            if digest in ("", placed(into).digest):
                problem = ""
            elif tries.has_time(digest):
                try:
                    tell(digest, _get(source, digest, into))
                except (NotThere, WorkspaceError, _Damaged) as error:
                    tries.failed(error)
                    raise
                problem = ""
        except (NotThere, WorkspaceError, _Damaged) as error:
            problem = str(error)
        if problem and problem != said:
            LOG.warning("%s; the workspace stays as it is", problem)
        said = problem


def _present(source: Source, digest: str) -> str:
    """The job's present archive, or this one where nobody has said, or may say, which it is."""
    try:
        now = _instead(source, digest)
    except WorkspaceError as error:
        LOG.warning("%s; the workspace is %s, which may not be the one that was sent last", error, digest)
        return digest
    if now:
        LOG.info("the job's workspace is %s now, and not %s", now, digest)
    return now or digest


def _instead(source: Source, digest: str) -> str:
    """The job's present archive where that is another one, else ""."""
    try:
        pointer = source.current()
    except NotThere:
        return ""
    return pointer.digest if pointer is not None and pointer.digest != digest else ""


def tell(digest: str, applied: Applied) -> None:
    """What was done, and where is now what the job had in its way."""
    LOG.info("the workspace is now %s: %d put, %d removed", digest, applied.put, applied.removed)
    for place in applied.kept[:_KEPT_NAMED]:
        LOG.warning("%s has what the job had there; the workspace has something else now", place)
    if more := applied.kept[_KEPT_NAMED:]:
        LOG.warning("%d more of the job are beside that", len(more))


class _Tries:
    """When an archive is tried again."""

    def __init__(self, first: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._first, self._clock = first, clock
        self._digest, self._pause, self._next = "", first, 0.0

    def has_time(self, digest: str) -> bool:
        """Whether the archive of this digest is to be tried now."""
        if digest != self._digest:
            self._digest, self._pause, self._next = digest, self._first, 0.0
        return self._clock() >= self._next

    def failed(self, error: Exception) -> None:
        """The try that had time failed with this."""
        self._next = math.inf if isinstance(error, Refused) else self._clock() + self._pause
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)


class _Damaged(Exception):
    """What came is not what the digest says."""


def _get(source: Source, digest: str, into: Path) -> Applied:
    with _scratch(into) as directory:
        archive = directory / "archive"
        try:
            source.archive(digest, archive)
        except OSError as error:
            raise WorkspaceError(f"workspace: can't write in {into}: {error.strerror}") from None
        try:
            verify(archive, digest)
        except WorkspaceError as error:
            raise _Damaged(str(error)) from None
        applied = apply(archive, digest, into)
        if isinstance(source, SyncPod):
            with suppress(OSError):  # such as another worker's on a shared volume: theirs will do
                os.replace(archive, into / CONTROL_DIRECTORY / _KEPT_ARCHIVE)
        return applied


def _give_back(source: SyncPod, into: Path) -> None:
    """Sends the archive of what is in place to a sync pod that has none. Raises NotThere.

    The job can write the file: it is sent only if it is a plain file with the digest.
    """
    digest, path = placed(into).digest, into / CONTROL_DIRECTORY / _KEPT_ARCHIVE
    if not digest or not source.wants(digest):
        return
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    with os.fdopen(handle, "rb") as archive:
        if not stat.S_ISREG(os.fstat(handle).st_mode) or digest_of(archive) != digest:
            return
        archive.seek(0)
        if source.give(digest, archive):
            LOG.info("%s was given to the job's new sync pod", digest)


@contextmanager
def _scratch(into: Path) -> Iterator[Path]:
    """A directory on the volume of the workspace: a pod's own file system may be small, or read-only."""
    control = into / CONTROL_DIRECTORY
    try:
        control.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix=DOWNLOAD, dir=control))
    except OSError as error:
        raise WorkspaceError(f"--into: can't write in {into}: {error.strerror}") from None
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
