"""Run the tools of a torchrun job's pods: `python -m trainyard.workspace VERB`.

fetch    in an init container: fetch, verify and unpack the workspace
follow   in a sidecar: unpack each new archive of the job, and upload the worker's log to the bucket
serve    in the sync pod: serve archives by digest over HTTP
logs     in the log reader's pod: print archived logs
receive  in the sync pod, by exec: receive an archive from standard input

Exit codes: 0 success or a signal, 1 an error with one line on standard error, 2 invalid arguments,
3 `serve --give-up-seconds`: no archive arrived.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, TextIO

from trainyard.operator import names
from trainyard.workspace.archive import check_digest
from trainyard.workspace.bucket import Bucket
from trainyard.workspace.errors import NotThere, WorkspaceError
from trainyard.workspace.logs import archive_log, print_logs
from trainyard.workspace.place import placed
from trainyard.workspace.sidecar import LOG, PodSource, fetch, follow, log_applied
from trainyard.workspace.sync_pod import Pointer, Store, copy_from_nearby, server

# The interval at which a sync pod without an archive asks other pods for it.
_NEARBY_SECONDS: Final = 5.0


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m trainyard.workspace", description=(__doc__ or "").splitlines()[0]
    )
    verbs = result.add_subparsers(dest="verb", required=True)
    fetching = verbs.add_parser("fetch", help="unpack the job's archive")
    following = verbs.add_parser("follow", help="unpack each new archive of the job")
    following.add_argument("--log", type=Path, help="the file with the worker's output")
    following.add_argument("--log-url", help="s3://bucket/key of the archived log")
    for verb in (fetching, following):
        needed = verb is fetching
        verb.add_argument(
            "--archive", required=needed, type=Path, help="the pod's archive annotation, a file"
        )
        verb.add_argument(
            "--sync", default="", help="http://host:port of the job's sync pod, without a bucket"
        )
        verb.add_argument("--into", required=needed, type=Path, help="the directory of the workspace")
    reading = verbs.add_parser("logs", help="print archived logs")
    reading.add_argument("--url", required=True, help="s3://bucket/prefix of the job's logs")
    reading.add_argument("--attempt", default="last", help="a number, or last")
    reading.add_argument("--node", type=int, help="default: all nodes of the attempt")
    serving = verbs.add_parser("serve", help="serve the archives that were received")
    serving.add_argument("--port", type=int, default=names.SYNC_PORT)
    serving.add_argument("--address", default="", help="default: all addresses of the pod")
    serving.add_argument("--expect", default="", help="digest of the archive to request from other pods")
    serving.add_argument("--size", type=int, default=0, help="bytes of that archive")
    serving.add_argument("--give-up-seconds", type=float, default=math.inf, help="see exit code 3")
    receiving = verbs.add_parser("receive", help="receive an archive from standard input")
    receiving.add_argument("--digest", required=True)
    receiving.add_argument("--size", required=True, type=int, help="bytes of the whole archive")
    receiving.add_argument("--keep", default="", help="digest of the archive that the job names at present")
    for verb in (serving, receiving):
        verb.add_argument(
            "--nearby",
            action="append",
            default=[],
            help="http://host:port of a sync pod that may have the archive",
        )
        verb.add_argument("--root", type=Path, default=Path(names.SYNC_DIRECTORY))
    return result


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("botocore").setLevel(logging.WARNING)
    try:
        _run(options)
    except Abandoned as error:
        print(error, file=sys.stderr)
        return names.SYNC_ABANDONED_EXIT
    except (WorkspaceError, NotThere) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace) -> None:
    if options.verb == "fetch":
        applied = fetch(PodSource(options.archive, options.sync), options.into)
        log_applied(placed(options.into).digest, applied)
    elif options.verb == "follow":
        _follow(options, _event_of_signals())
    elif options.verb == "serve":
        _serve(options, _event_of_signals())
    elif options.verb == "logs":
        print_logs(options.url, options.attempt, options.node, Bucket(), sys.stdout.buffer)
    else:
        receive(options, sys.stdin.buffer, sys.stdout)


def _event_of_signals() -> threading.Event:
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def _follow(options: argparse.Namespace, stopping: threading.Event) -> None:
    """Keep the workspace up to date, and archive the worker's log, until `stopping`."""
    archiving = None
    if options.log and options.log_url:
        arguments = (options.log, options.log_url, Bucket(), stopping)
        archiving = threading.Thread(target=archive_log, args=arguments)
        archiving.start()
    if options.archive:
        follow(PodSource(options.archive, options.sync), options.into, stopping)
    if archiving is not None:
        archiving.join()


def _serve(options: argparse.Namespace, stopping: threading.Event) -> None:
    store = Store(options.root)
    expected = Pointer(options.expect, options.size) if options.expect else None
    serving = server(store, options.address, options.port, expected)
    LOG.info("serving %s on port %d", options.root, serving.server_port)
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
    thread.start()
    try:
        _wait_for_archive(store, expected, options.nearby, options.give_up_seconds, stopping)
        stopping.wait()
    finally:
        serving.shutdown()
        serving.server_close()


class Abandoned(Exception):
    """The archive did not arrive in time."""


def _wait_for_archive(
    store: Store, expected: Pointer | None, nearby: Sequence[str], give_up: float, stopping: threading.Event
) -> None:
    """Wait until the store has an archive. Copy the expected one from other pods if they have it.

    Raises:
        Abandoned: No byte arrived for `give_up` seconds.
    """
    began = time.time()
    while store.current() is None and not stopping.is_set():
        if expected and copy_from_nearby(store, expected.digest, expected.size, nearby):
            if store.current() is None:
                store.point(expected)
            return
        if time.time() - max(began, store.last_write()) >= give_up:
            raise Abandoned(f"no byte of the workspace arrived for {give_up:g} s")
        stopping.wait(min(_NEARBY_SECONDS, give_up))


def receive(options: argparse.Namespace, archive: BinaryIO, answers: TextIO) -> None:
    """Receive an archive. Write the offset of the first missing byte to `answers`, and "done" at the end."""
    check_digest(options.digest)
    most = os.environ.get(names.ENV_SYNC_MOST)
    store = Store(options.root, int(most) if most else None)
    with store.receiving(options.digest, options.keep):
        copy_from_nearby(store, options.digest, options.size, options.nearby)
        offset = partial(print, "offset", file=answers, flush=True)
        store.receive(options.digest, options.size, archive.read, offset)
        store.point(Pointer(options.digest, options.size))
    print("done", options.digest, file=answers, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
