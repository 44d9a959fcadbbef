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
from launcher.workspace.store import Pointer
from launcher.workspace.unpack import digest_of, verify

LOG: Final = logging.getLogger("workspace")
EVERY_SECONDS: Final = 2.0
# A worker holds a node meanwhile. A new sync pod comes within this time; an archive in S3 is there before its job, and
# each of a job's few restarts waits for it once more.
WAIT_SECONDS: Final = 240.0
WAIT_FOR_S3_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 1.0
# An archive that could not be put in place is as large at the next try.
_LONGEST_PAUSE_SECONDS: Final = 60.0
# A sync pod that lost its archive is asked within this time whether it wants it.
_LONGEST_UNGIVEN_SECONDS: Final = 10.0
_KEPT_NAMED: Final = 10
_KEPT_ARCHIVE: Final = "archive"
# A connection that broke in the middle is not seen as such by everyone in between.
_DAMAGED_TRIES: Final = 3


def fetch(
    source: Source,
    into: Path,
    *,
    wait: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Applied:
    """Get the job's archive and put it in place, if it is not there already; what is missing of it, again.

    It may come later: it is waited for `wait` seconds, by default WAIT_SECONDS from a sync pod and WAIT_FOR_S3_SECONDS
    from S3, and so is another one that the job names meanwhile.
    Raises WorkspaceError where none comes, or it is damaged at each try.
    """
    if wait is None:
        wait = WAIT_FOR_S3_SECONDS if source.pod is None else WAIT_SECONDS
    end, damaged, said = clock() + wait, 0, ""
    while True:
        pointer = source.current()
        if is_whole(into, pointer.digest):
            return Applied(0, 0)
        try:
            return _get(source, pointer, into)
        except NotThere as error:
            if clock() >= end:
                raise WorkspaceError(
                    f"workspace: {pointer.digest} did not come within {wait:.0f} s: {error}"
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
    said, tries, giving = "", _Tries(every), _Tries(every, _LONGEST_UNGIVEN_SECONDS)
    while not stopping.wait(every):
        problem = said
        try:
            pointer = source.current()
            if source.pod is not None and giving.has_time(placed(into).digest):
                giving.failed(NotThere("as long as it has none"))
                _give_back(source.pod, into)
            if pointer.digest == placed(into).digest:
                problem = ""
            elif tries.has_time(pointer.digest):
                try:
                    tell(pointer.digest, _get(source, pointer, into))
                except (NotThere, WorkspaceError, _Damaged) as error:
                    tries.failed(error)
                    raise
                problem = ""
        except (NotThere, WorkspaceError, _Damaged) as error:
            problem = str(error)
        if problem and problem != said:
            LOG.warning("%s; the workspace stays as it is", problem)
        said = problem


def tell(digest: str, applied: Applied) -> None:
    """What was done, and where is now what the job had in its way."""
    LOG.info("the workspace is now %s: %d put, %d removed", digest, applied.put, applied.removed)
    for place in applied.kept[:_KEPT_NAMED]:
        LOG.warning("%s has what the job had there; the workspace has something else now", place)
    if more := applied.kept[_KEPT_NAMED:]:
        LOG.warning("%d more of the job are beside that", len(more))


class _Tries:
    """When an archive is tried again."""

    def __init__(
        self,
        first: float,
        longest: float = _LONGEST_PAUSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._first, self._longest, self._clock = first, longest, clock
        self._digest, self._pause, self._next = "", first, 0.0

    def has_time(self, digest: str) -> bool:
        """Whether the archive of this digest is to be tried now."""
        if digest != self._digest:
            self._digest, self._pause, self._next = digest, self._first, 0.0
        return self._clock() >= self._next

    def failed(self, error: Exception) -> None:
        """The try that had time failed with this."""
        self._next = math.inf if isinstance(error, Refused) else self._clock() + self._pause
        self._pause = min(2 * self._pause, self._longest)


class _Damaged(Exception):
    """What came is not what the digest says."""


def _get(source: Source, pointer: Pointer, into: Path) -> Applied:
    with _scratch(into) as directory:
        archive = directory / "archive"
        try:
            source.archive(pointer, archive)
        except OSError as error:
            raise WorkspaceError(f"workspace: can't write in {into}: {error.strerror}") from None
        try:
            verify(archive, pointer.digest)
        except WorkspaceError as error:
            raise _Damaged(str(error)) from None
        applied = apply(archive, pointer.digest, into)
        if not pointer.url:
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
