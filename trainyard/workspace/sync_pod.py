"""The sync pod of a job without a bucket: its archives (`Store`), its HTTP server (`server`), and clients of it.

Archives are named by digest, which is verified, so their sender does not matter. Users send them by exec, which needs
its own permission. An upload is written to a partial file, which a later upload continues. Archives that are not needed
are removed. The job's spec selects the archive that runs; `/current` only tells the kubelet that the pod has one. After
an earlier sync pod was lost, a worker sends the expected archive back with PUT.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Final

from trainyard.workspace.archive import DIGEST_PREFIX, check_digest, digest_of, replace_file
from trainyard.workspace.errors import NotThere, WorkspaceError

LOG: Final = logging.getLogger("workspace")
ARCHIVES: Final = "/archives/"
CURRENT: Final = "/current"
WANTED: Final = "/wanted"
_CHUNK: Final = 2**18
_SECONDS: Final = 30.0
# The timeout for a worker that is gone.
_SILENCE_SECONDS: Final = 60.0
# The time limit for a worker's upload. A slower upload would block those of the other workers.
RECEIVE_SECONDS: Final = 300.0
# The timeout of another job's sync pod. The sender of the archive waits meanwhile.
_NEARBY_SECONDS: Final = 3.0
# Then the user's upload is probably faster. The plugin's timeout is a minute (trainyard/k8s/exec.py).
_MAX_COPY_SECONDS: Final = 30.0
_SUFFIX: Final = ".tar.zst"
_PART: Final = ".part"
_UNTRUSTED: Final = "untrusted-"
_CURRENT: Final = "current"
_LOCK: Final = "lock"


@dataclass(frozen=True)
class Pointer:
    """The archive of a job's workspace: its digest, its size in bytes, and its URL in S3, "" for one in a sync pod.

    A worker unpacks the archive in the annotation of its pod (trainyard/operator/children.py: archive_annotation).
    A sync pod records the archive that it received last.
    """

    digest: str
    size: int
    url: str = ""

    def to_json(self) -> bytes:
        """Return the JSON for an annotation or a sync pod."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Pointer:
        """Parse a pointer. Raise WorkspaceError for an invalid one."""
        try:
            found = json.loads(data)
            pointer = cls(str(found["digest"]), int(found["size"]), str(found["url"]))
        except (ValueError, KeyError, TypeError) as error:
            raise WorkspaceError(f"pointer to the workspace: {data[:100]!r}: {error}") from None
        check_digest(pointer.digest)
        return pointer


class Store:
    """A directory for archives of at most `maximum` bytes. Concurrent uploads of an archive give the same file."""

    def __init__(self, root: Path, maximum: int | None = None) -> None:
        self._root, self._maximum = root, maximum

    def archive(self, digest: str) -> Path:
        """Return the path of this archive, which may not exist yet."""
        return self._root / f"{check_digest(digest)}{_SUFFIX}"

    def receive(
        self,
        digest: str,
        size: int,
        read: Callable[[int], bytes],
        on_offset: Callable[[int], None] = lambda _o: None,
        *,
        untrusted: bool = False,
    ) -> None:
        """Receive the missing bytes of an archive, by `read`, which returns "" at the end.

        `on_offset` receives the offset of the first missing byte. `untrusted` archives are received from their first
        byte on, in a separate file.

        Raises:
            WorkspaceError: The stream ended early, and a later call continues; or it has another digest.
        """
        if self._maximum is not None and size > self._maximum:
            raise WorkspaceError(
                f"size: {size} bytes, and the limit of this job's sync pod is {self._maximum}; submit another job"
            )
        place = self.archive(digest)
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            if place.exists():
                on_offset(size)
                return
            with self._partial_file(digest, untrusted) as (part, file):
                offset = os.fstat(file.fileno()).st_size
                offset = offset if offset < size else 0
                on_offset(offset)
                _copy(file, offset, size, read)
                found = digest_of(part)
                if found != digest:
                    part.unlink()
                    raise WorkspaceError(f"upload: digest is {found} and must be {digest}; send it again")
                os.replace(part, place)
        except OSError as error:
            raise WorkspaceError(f"upload: can't write {place}: {error.strerror}") from None

    @contextmanager
    def _partial_file(self, digest: str, untrusted: bool) -> Iterator[tuple[Path, IO[bytes]]]:
        """Open a partial file of the archive: that of an earlier upload, unless another one continues it.

        A file that does not become the archive is left for a later upload. Untrusted uploads have a separate file.
        """
        part = self._part(digest)
        handle, name = tempfile.mkstemp(_PART, _UNTRUSTED if untrusted else f"{part.stem}-", self._root)
        os.close(handle)
        own = Path(name)
        try:
            if not untrusted:
                with suppress(FileNotFoundError):
                    os.replace(part, own)
            with own.open("r+b") as file:
                yield own, file
        finally:
            with suppress(FileNotFoundError):  # it is the archive now
                os.unlink(own) if untrusted else os.replace(own, part)

    @contextmanager
    def receiving(self, digest: str, keep: str = "") -> Iterator[None]:
        """Hold a lock during the upload of this archive. First remove all other archives except `keep`.

        `keep` is the digest that the job names until the upload is complete, by default the last received one. Nothing
        is removed during another upload.

        Raises:
            WorkspaceError: The directory can't be written.
        """
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            lock = (self._root / _LOCK).open("wb")
        except OSError as error:
            raise WorkspaceError(f"upload: can't write in {self._root}: {error.strerror}") from None
        with lock:
            current = self.current()
            keep = keep or (current.digest if current is not None else digest)
            archives = {self.archive(digest).name, self.archive(keep).name}
            kept = {_LOCK, _CURRENT, self._part(digest).name, *archives}
            with suppress(OSError):  # another upload runs; a later one removes the archives
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for file in self._root.iterdir():
                    # A worker that downloads one of them has it open, and is not affected.
                    if file.name not in kept:
                        file.unlink(missing_ok=True)
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield

    def last_write(self) -> float:
        """Return the time of the last byte of an upload, in seconds since the epoch; 0 if there was none.

        Uploads by PUT do not count, because any pod could send them and keep an abandoned job alive.
        """
        with suppress(OSError):  # the upload was completed meanwhile
            parts = (part for part in self._root.glob(f"*{_PART}") if not part.name.startswith(_UNTRUSTED))
            return max((part.stat().st_mtime for part in parts), default=0.0)
        return time.time()

    def current(self) -> Pointer | None:
        """Return the job's current archive, None if there is none."""
        try:
            return Pointer.from_json((self._root / _CURRENT).read_bytes())
        except FileNotFoundError:
            return None

    def point(self, pointer: Pointer) -> None:
        """Make this existing archive the job's current one."""
        if not self.archive(pointer.digest).exists():
            raise WorkspaceError(f"digest: {pointer.digest} does not exist; send the archive first")
        try:
            replace_file(self._root / _CURRENT, pointer.to_json().decode())
        except OSError as error:
            why = f"can't write in {self._root}: {error.strerror}"
            raise WorkspaceError(f"pointer to the workspace: {why}") from None

    def _part(self, digest: str) -> Path:
        return self._root / f"{check_digest(digest)}{_PART}"


def _copy(file: IO[bytes], offset: int, size: int, read: Callable[[int], bytes]) -> None:
    file.seek(offset)
    file.truncate()
    while offset < size:
        data = read(min(_CHUNK, size - offset))
        if not data:
            raise WorkspaceError(f"upload: ended after {offset} of {size} bytes; send it again")
        file.write(data)
        offset += len(data)
    file.flush()
    os.fsync(file.fileno())


class SyncPod:
    """A client of the server of a sync pod, at an address such as http://train-sync-0.train:8080."""

    def __init__(self, address: str, seconds: float = _SECONDS) -> None:
        """Create the client. `seconds` is the timeout of each read."""
        self._address, self._seconds = address, seconds

    def archive(self, pointer: Pointer, into: Path) -> None:
        """Download the archive to a file. Raises NotThere, WorkspaceError, OSError."""
        left = pointer.size
        with into.open("wb") as file:
            for data in self.chunks(pointer.digest):
                left -= len(data)
                if left < 0:
                    raise WorkspaceError(
                        f"sync pod: {self._address} sends more than the {pointer.size} bytes of the archive"
                    )
                file.write(data)

    def chunks(self, digest: str) -> Iterator[bytes]:
        """Yield the archive with this digest in chunks. Raises NotThere, WorkspaceError."""
        return self._request(ARCHIVES + check_digest(digest))

    def needs(self, digest: str) -> bool:
        """Return whether the pod has no archive and expects this one. Raises NotThere."""
        return b"".join(self._request(WANTED)) == digest.encode()

    def upload(self, digest: str, archive: IO[bytes]) -> bool:
        """Send the archive to a pod that needs it. Return whether the pod accepted it. Raises NotThere."""
        try:
            return not any(self._request(ARCHIVES + check_digest(digest), archive))
        except WorkspaceError:  # it does not need it any more
            return False

    def _request(self, path: str, body: IO[bytes] | None = None) -> Iterator[bytes]:
        """Yield the chunks of an answer. A request with a body, an open file, is a PUT."""
        request = urllib.request.Request(self._address + path)  # noqa: S310 (operator/names.py: sync_pod_url)
        if body is not None:
            request.method, request.data = "PUT", body
            request.add_header("Content-Length", str(os.fstat(body.fileno()).st_size))
        try:
            with urllib.request.urlopen(request, timeout=self._seconds) as answer:  # noqa: S310
                while data := answer.read1(_CHUNK):
                    yield data
        except urllib.error.HTTPError as error:
            with error:
                if error.code == HTTPStatus.NOT_FOUND:
                    raise NotThere(f"{request.full_url} does not exist yet") from None
                reason = error.read(300).decode(errors="replace")
                raise WorkspaceError(f"sync pod: {request.full_url}: {error.code} {reason}") from None
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "reason", None) or error
            raise NotThere(f"sync pod: {self._address} can't be reached: {why}") from None


def copy_from_nearby(store: Store, digest: str, size: int, addresses: Sequence[str]) -> bool:
    """Copy the archive from the sync pod of another job, unless it exists. Return whether it exists now.

    The pods are asked one after another, within half a minute, and their archives verified by the digest. Errors are
    logged: the user can still send the archive.
    """
    if store.archive(digest).exists():
        return True
    until = time.monotonic() + _MAX_COPY_SECONDS
    for address in addresses:
        try:
            chunks = SyncPod(address, _NEARBY_SECONDS).chunks(digest)

            def read(_size: int, chunks: Iterator[bytes] = chunks) -> bytes:
                if time.monotonic() > until:
                    raise NotThere("it is too slow")
                return next(chunks, b"")

            store.receive(digest, size, read, untrusted=True)
        except (NotThere, WorkspaceError) as error:
            LOG.info("%s is not copied from %s: %s", digest, address, error)
        else:
            LOG.info("%s was copied from %s, %d bytes", digest, address, size)
            return True
    return False


def server(store: Store, address: str, port: int, expected: Pointer | None = None) -> ThreadingHTTPServer:
    """Return a server for this store. The caller runs and closes it.

    It accepts the `expected` archive by PUT as long as the store has no archive.
    """
    receiving = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = _SILENCE_SECONDS

        def do_GET(self) -> None:
            try:
                if self.path == CURRENT and store.current() is None:
                    self._answer(HTTPStatus.NOT_FOUND, "no archive was sent yet")
                elif self.path == CURRENT:
                    self._answer(HTTPStatus.OK, "an archive was sent")
                elif self.path == WANTED:
                    self._answer(HTTPStatus.OK, expected.digest if expected and self._needs_archive() else "")
                elif self.path.startswith(ARCHIVES):
                    self._send_archive(self._digest())
                else:
                    self._answer(HTTPStatus.NOT_FOUND, f"the paths are {CURRENT} and {ARCHIVES}<digest>")
            except WorkspaceError as error:
                self._answer(HTTPStatus.BAD_REQUEST, str(error))
            except OSError:  # the worker is gone, or the disk failed
                self.close_connection = True

        def do_PUT(self) -> None:
            self.close_connection = True  # its body may be left unread
            if expected is None or self._digest() != expected.digest or not self._needs_archive():
                self._answer(HTTPStatus.CONFLICT, "this archive is not needed")
            elif self.headers.get("Content-Length") != str(expected.size):
                self._answer(HTTPStatus.BAD_REQUEST, f"the archive has {expected.size} bytes")
            elif not receiving.acquire(blocking=False):
                self._answer(HTTPStatus.CONFLICT, "another worker sends it")
            else:
                sender = self.client_address[0]
                late = threading.Timer(RECEIVE_SECONDS, self._close_connection)
                late.start()
                try:
                    store.receive(expected.digest, expected.size, self.rfile.read, untrusted=True)
                    store.point(expected)
                    LOG.info("%s: received from %s", expected.digest, sender)
                    self._answer(HTTPStatus.CREATED, "")
                except WorkspaceError as error:
                    self._answer(HTTPStatus.BAD_REQUEST, str(error))
                except OSError:  # the worker is gone
                    LOG.warning("%s: the upload from %s was interrupted", expected.digest, sender)
                finally:
                    late.cancel()
                    receiving.release()

        def _close_connection(self) -> None:
            with suppress(OSError):  # closed by the worker
                self.connection.shutdown(socket.SHUT_RDWR)

        def _digest(self) -> str:
            return DIGEST_PREFIX + self.path.removeprefix(ARCHIVES)

        def _needs_archive(self) -> bool:
            return store.current() is None and not receiving.locked()

        def _send_archive(self, digest: str) -> None:
            try:
                file = store.archive(digest).open("rb")
            except FileNotFoundError:
                self._answer(HTTPStatus.NOT_FOUND, "this archive was not sent yet")
                return
            with file:
                size = os.fstat(file.fileno()).st_size
                self._start_answer(HTTPStatus.OK, size)
                shutil.copyfileobj(file, self.wfile, _CHUNK)
                LOG.info("%s was sent to %s, %d bytes", digest, self.client_address[0], size)

        def _answer(self, status: HTTPStatus, text: str) -> None:
            self._start_answer(status, len(text.encode()))
            self.wfile.write(text.encode())

        def _start_answer(self, status: HTTPStatus, size: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(size))
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: probes would fill the log."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        # In an IPv6 cluster, pods have IPv6 addresses only.
        has_ipv6 = ":" in address or (not address and socket.has_dualstack_ipv6())
        address_family = socket.AF_INET6 if has_ipv6 else socket.AF_INET
        request_queue_size = 128  # all workers of a job connect at once

        def server_bind(self) -> None:
            """Bind. The IPv6 wildcard address also accepts IPv4."""
            if self.has_ipv6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            super().server_bind()

    return Server((address, port), Handler)
