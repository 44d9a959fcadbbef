"""Fetch the workspace in a worker's init container (`fetch`), and update it in the sidecar (`follow`).

The archive stays beside the workspace, so that a worker can send it to a new sync pod if the earlier one was lost.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import stat
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Final

from trainyard.workspace.archive import digest_of
from trainyard.workspace.bucket import Bucket
from trainyard.workspace.errors import Damaged, NotThere, Refused, WorkspaceError
from trainyard.workspace.ignore import CONTROL_DIRECTORY
from trainyard.workspace.place import DOWNLOAD, Applied, apply, is_whole, placed
from trainyard.workspace.sync_pod import Pointer, SyncPod

LOG: Final = logging.getLogger("workspace")
EVERY_SECONDS: Final = 2.0
# The worker holds a node while it waits. A new sync pod starts within this time. An archive in S3 exists before its
# job, and each restart waits again.
WAIT_SECONDS: Final = 240.0
WAIT_FOR_S3_SECONDS: Final = 60.0
_RETRY_SECONDS: Final = 1.0
# The maximum interval of tries for an archive that could not be put in place.
_MAX_PAUSE_SECONDS: Final = 60.0
# Every fifth check asks whether the sync pod needs the archive again.
_CHECKS_PER_RESTORE: Final = 5
_MAX_KEPT_REPORTED: Final = 10
_KEPT_ARCHIVE: Final = "archive"
# A proxy may pass on an incomplete answer.
_DAMAGED_TRIES: Final = 3


class PodSource:
    """The archive in the pod's annotation, which the controller writes from the job's spec.

    `file` is the annotation in the pod's downward API volume, and `sync` the address of the sync pod for archives that
    are not in S3. `pod` is None without it. The methods raise NotThere if a later try may succeed, and WorkspaceError
    if none can.
    """

    def __init__(self, file: Path, sync: str = "") -> None:
        self._file = file
        self.pod = SyncPod(sync) if sync else None

    @cached_property
    def _bucket(self) -> Bucket:
        return Bucket()

    def current(self) -> Pointer:
        """Return the archive of the job's present workspace."""
        try:
            return Pointer.from_json(self._file.read_bytes())
        except OSError as error:
            raise WorkspaceError(f"--archive: can't read {self._file}: {error.strerror}") from None

    def archive(self, pointer: Pointer, into: Path) -> None:
        """Download the archive to a file, which the caller verifies. Raise OSError if it can't be written."""
        if pointer.url:
            self._bucket.read(pointer.url, into, pointer.size)
        elif self.pod is not None:
            self.pod.archive(pointer, into)
        else:
            raise WorkspaceError(
                f"--sync: is missing, and {pointer.digest} has no address in S3. Name the sync pod"
            )


def fetch(
    source: PodSource, into: Path, *, wait: float | None = None, sleep: Callable[[float], None] = time.sleep
) -> Applied:
    """Fetch the job's archive and unpack it, unless the workspace is complete already.

    Wait `wait` seconds for the archive, by default WAIT_SECONDS for a sync pod and WAIT_FOR_S3_SECONDS for S3. If the
    job names another archive meanwhile, wait for that one.

    Raises:
        WorkspaceError: The archive did not arrive, or it was damaged at each try.
    """
    if wait is None:
        wait = WAIT_FOR_S3_SECONDS if source.pod is None else WAIT_SECONDS
    end, damaged, last = time.monotonic() + wait, 0, ""
    while True:
        pointer = source.current()
        if is_whole(into, pointer.digest):
            return Applied(0, 0)
        try:
            return _get(source, pointer, into)
        except NotThere as error:
            if time.monotonic() >= end:
                why = f"did not arrive within {wait:.0f} s: {error}"
                raise WorkspaceError(f"workspace: {pointer.digest} {why}") from None
            if str(error) != last:
                last = str(error)
                LOG.info("waiting for the workspace: %s", last)
        except Damaged as error:
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
    reported, failed, pause, next_try = "", "", every, 0.0
    for number in itertools.count():
        if stopping.wait(every):
            return
        problem, digest = reported, ""
        try:
            if source.pod is not None and number % _CHECKS_PER_RESTORE == 0:
                with suppress(NotThere):
                    _restore_sync_pod(source.pod, into)
            pointer = source.current()
            if pointer.digest != failed:
                failed, pause, next_try = "", every, 0.0
            if pointer.digest == placed(into).digest:
                problem = ""
            elif time.monotonic() >= next_try:
                digest = pointer.digest
                log_applied(digest, _get(source, pointer, into))
                problem = ""
        except (NotThere, WorkspaceError) as error:
            problem = str(error)
            if digest:
                failed = digest
                next_try = math.inf if isinstance(error, Refused) else time.monotonic() + pause
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        if problem and problem != reported:
            LOG.warning("%s; the workspace is unchanged", problem)
        reported = problem


def log_applied(digest: str, applied: Applied) -> None:
    """Log what was done, and where files of the job were moved to."""
    LOG.info("the workspace is now %s: %d put, %d removed", digest, applied.put, applied.removed)
    for place in applied.kept[:_MAX_KEPT_REPORTED]:
        LOG.warning("%s: the job's file was moved here, because the workspace has another one", place)
    if more := applied.kept[_MAX_KEPT_REPORTED:]:
        LOG.warning("%d more files of the job were moved there", len(more))


def _get(source: PodSource, pointer: Pointer, into: Path) -> Applied:
    """Download the archive to the volume of the workspace, and put its files in place."""
    control = into / CONTROL_DIRECTORY
    try:
        control.mkdir(parents=True, exist_ok=True)
        # The pod's own file system may be small or read-only.
        with tempfile.TemporaryDirectory(
            prefix=DOWNLOAD, dir=control, ignore_cleanup_errors=True
        ) as directory:
            archive = Path(directory, "archive")
            source.archive(pointer, archive)
            applied = apply(archive, pointer.digest, into)
            if not pointer.url:
                with suppress(OSError):  # another worker may have written it on a shared volume
                    os.replace(archive, control / _KEPT_ARCHIVE)
            return applied
    except OSError as error:
        raise WorkspaceError(f"workspace: can't write in {into}: {error.strerror}") from None


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
