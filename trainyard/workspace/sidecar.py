"""Fetch the workspace in a worker's init container (`fetch`), and update it in the sidecar (`follow`).

The archive stays beside the workspace, so that a worker can send it to a new sync pod if the earlier one was lost.
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

from trainyard.workspace.archive import digest_of, verify
from trainyard.workspace.errors import NotThere, Refused, WorkspaceError
from trainyard.workspace.ignore import CONTROL_DIRECTORY
from trainyard.workspace.place import DOWNLOAD, Applied, apply, is_whole, placed
from trainyard.workspace.store import Pointer
from trainyard.workspace.transfer import PodSource, SyncPod

LOG: Final = logging.getLogger("workspace")
EVERY_SECONDS: Final = 2.0
# The worker holds a node while it waits. A new sync pod starts within this time. An archive in S3 exists before its
# job, and each restart waits again.
WAIT_SECONDS: Final = 240.0
WAIT_FOR_S3_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 1.0
# The maximum interval of tries for an archive that could not be put in place.
_MAX_PAUSE_SECONDS: Final = 60.0
# The maximum interval of the requests whether the sync pod needs the archive again.
_MAX_RESTORE_PAUSE_SECONDS: Final = 10.0
_MAX_KEPT_REPORTED: Final = 10
_KEPT_ARCHIVE: Final = "archive"
# A proxy may pass on an incomplete answer.
_DAMAGED_TRIES: Final = 3


def fetch(
    source: PodSource,
    into: Path,
    *,
    wait: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Applied:
    """Fetch the job's archive and unpack it, unless the workspace is complete already.

    Wait `wait` seconds for the archive, by default WAIT_SECONDS for a sync pod and WAIT_FOR_S3_SECONDS for S3. If the
    job names another archive meanwhile, wait for that one.

    Raises:
        WorkspaceError: The archive did not arrive, or it was damaged at each try.
    """
    if wait is None:
        wait = WAIT_FOR_S3_SECONDS if source.pod is None else WAIT_SECONDS
    end, damaged, last = clock() + wait, 0, ""
    while True:
        pointer = source.current()
        if is_whole(into, pointer.digest):
            return Applied(0, 0)
        try:
            return _get(source, pointer, into)
        except NotThere as error:
            if clock() >= end:
                raise WorkspaceError(
                    f"workspace: {pointer.digest} did not arrive within {wait:.0f} s: {error}"
                ) from None
            if str(error) != last:
                last = str(error)
                LOG.info("waiting for the workspace: %s", last)
        except _Damaged as error:
            damaged += 1
            if damaged == _DAMAGED_TRIES:
                raise WorkspaceError(f"{error} (at each of {damaged} tries)") from None
            LOG.warning("%s; downloading it again", error)
        sleep(_RETRY_SECONDS)


def follow(source: PodSource, into: Path, stopping: threading.Event, *, every: float = EVERY_SECONDS) -> None:
    """Check every `every` seconds whether the job names another archive, and unpack it, until `stopping` is set.

    After an error the workspace is unchanged, and the error is logged once. A refused archive is not fetched again.
    A damaged one, or one without enough space, is retried later.
    """
    last, tries, restoring = "", _Tries(every), _Tries(every, _MAX_RESTORE_PAUSE_SECONDS)
    while not stopping.wait(every):
        problem = last
        try:
            pointer = source.current()
            if source.pod is not None and restoring.has_time(placed(into).digest):
                restoring.failed(NotThere("the next request is later"))
                _restore_sync_pod(source.pod, into)
            if pointer.digest == placed(into).digest:
                problem = ""
            elif tries.has_time(pointer.digest):
                try:
                    log_applied(pointer.digest, _get(source, pointer, into))
                except (NotThere, WorkspaceError, _Damaged) as error:
                    tries.failed(error)
                    raise
                problem = ""
        except (NotThere, WorkspaceError, _Damaged) as error:
            problem = str(error)
        if problem and problem != last:
            LOG.warning("%s; the workspace is unchanged", problem)
        last = problem


def log_applied(digest: str, applied: Applied) -> None:
    """Log what was done, and where files of the job were moved to."""
    LOG.info("the workspace is now %s: %d put, %d removed", digest, applied.put, applied.removed)
    for place in applied.kept[:_MAX_KEPT_REPORTED]:
        LOG.warning("%s: the job's file was moved here, because the workspace has another one", place)
    if more := applied.kept[_MAX_KEPT_REPORTED:]:
        LOG.warning("%d more files of the job were moved there", len(more))


class _Tries:
    """The times of the tries of an archive."""

    def __init__(
        self, initial: float, maximum: float = _MAX_PAUSE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._initial, self._maximum, self._clock = initial, maximum, clock
        self._digest, self._pause, self._next = "", initial, 0.0

    def has_time(self, digest: str) -> bool:
        """Return whether it is time to try the archive with this digest."""
        if digest != self._digest:
            self._digest, self._pause, self._next = digest, self._initial, 0.0
        return self._clock() >= self._next

    def failed(self, error: Exception) -> None:
        """Record the error of a try."""
        self._next = math.inf if isinstance(error, Refused) else self._clock() + self._pause
        self._pause = min(2 * self._pause, self._maximum)


class _Damaged(Exception):
    """The download has another digest."""


def _get(source: PodSource, pointer: Pointer, into: Path) -> Applied:
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
            with suppress(OSError):  # another worker may have written it on a shared volume
                os.replace(archive, into / CONTROL_DIRECTORY / _KEPT_ARCHIVE)
        return applied


def _restore_sync_pod(source: SyncPod, into: Path) -> None:
    """Send the archive of the present workspace to a sync pod without one.

    The job can write the file, so only a regular file with the right digest is sent.

    Raises:
        NotThere: The sync pod can't be reached.
    """
    digest, path = placed(into).digest, into / CONTROL_DIRECTORY / _KEPT_ARCHIVE
    if not digest or not source.needs(digest):
        return
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return
    with os.fdopen(handle, "rb") as archive:
        if not stat.S_ISREG(os.fstat(handle).st_mode) or digest_of(archive) != digest:
            return
        archive.seek(0)
        if source.upload(digest, archive):
            LOG.info("%s was sent to the job's new sync pod", digest)


@contextmanager
def _scratch(into: Path) -> Iterator[Path]:
    """Yield a directory on the volume of the workspace. The pod's own file system may be small or read-only."""
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
