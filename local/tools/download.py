"""Download the binaries that projects publish, and install them if their checksum is the pinned one.

`$TRAINYARD_DOWNLOADS` is `no`, or the address of a mirror; unset, the addresses in the table (`pins.py`) count. Entry
points: `reachable()` decides once which archives can be had, `download()` installs one.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import tarfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from local.tools.build import MEGABYTE, RECORD, Built, install_directory
from local.tools.progress import Progress
from local.tools.tool import Archive, Tool, ToolError

SETTING = "TRAINYARD_DOWNLOADS"
OFF, ON = ("0", "no", "false", "off"), ("", "1", "yes", "true", "on")
# Names of hosts that can't be resolved may take longer than the timeout of a connection.
REACHABLE_SECONDS = 4.0
# The longest silence of a server during a download.
SILENCE_SECONDS = 30.0
CHUNK_BYTES = 1 << 20
# What a broken connection raises, in the middle of a body too. A malformed proxy is a ValueError.
NETWORK_ERRORS = (OSError, http.client.HTTPException, ValueError)


class DownloadBroken(Exception):
    """The archive did not arrive completely. The tool can be built instead."""


def address_of(archive: Archive, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return where the archive is downloaded, None if downloads are turned off.

    A mirror has the file `https://dl.k8s.io/v1/x.tar.gz` at `<mirror>/dl.k8s.io/v1/x.tar.gz`.

    Raises:
        ToolError: The setting is neither yes, no nor an address.
    """
    setting = environment.get(SETTING, "").strip()
    if setting.lower() in OFF:
        return None
    if setting.lower() in ON:
        return archive.url
    if not _is_mirror(setting):
        without_password = re.sub("//.*@", "//...@", setting)
        raise ToolError(
            f"{SETTING}: {without_password!r} must be no, or the http or https address of a mirror, without a user. "
            "Unset it to download from the projects themselves"
        )
    return f"{setting.rstrip('/')}/{archive.url.removeprefix('https://')}"


def _is_mirror(address: str) -> bool:
    """Return whether this is an address that can be opened. urllib supports no user in it."""
    try:
        parts = urlsplit(address)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and parts.port != 0
            and not parts.username
        )
    except ValueError:  # a wrong port, or half of an IPv6 address
        return False


def reachable(addresses: Sequence[str], seconds: float = REACHABLE_SECONDS) -> set[str]:
    """Return the addresses that answer within some seconds. All are asked at the same time."""
    answered: set[str] = set()

    def ask(address: str) -> None:
        try:
            _open(address, seconds).close()
        except NETWORK_ERRORS:
            return
        answered.add(address)

    deadline = time.monotonic() + seconds
    threads = [threading.Thread(target=ask, args=(each,), daemon=True) for each in addresses]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return set(answered)


def download(tool: Tool, archive: Archive, address: str, cache: Path, progress: Progress) -> Built:
    """Download the archive of a tool, and install its programs completely in `<cache>/tools/<key>`.

    The caller holds a lock for the tool.

    Raises:
        DownloadBroken: The connection failed.
        ToolError: The checksum is wrong, or the archive lacks a program. Nothing is installed.
    """
    work = cache / "build" / tool.archive_key(archive)
    shutil.rmtree(work, ignore_errors=True)
    staged = work / "tool"
    (staged / "bin").mkdir(parents=True)
    started = time.monotonic()
    progress.start(f"downloading from {address}")
    try:
        size, checksum = _receive(
            address, work / "archive", archive.checksum.partition(":")[0], progress.update
        )
        if checksum != archive.checksum:
            raise ToolError(
                f"{tool.name} {tool.number}: {address} has the checksum {checksum}, which must be {archive.checksum}; "
                f"nothing was installed. Try again, or set {SETTING}=no to build {tool.name}"
            )
        _extract(tool, work / "archive", staged / "bin")
        seconds = time.monotonic() - started
        record = {"url": address, "checksum": archive.checksum}
        (staged / RECORD).write_text(json.dumps(record, indent=2) + "\n")
        install_directory(staged, cache / "tools" / tool.archive_key(archive))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    progress.finish(f"downloaded {size / MEGABYTE:.0f} MB in {seconds:.0f} s")
    return Built(tools=0, downloaded=1, download_bytes=size, download_seconds=seconds, build_seconds=0.0)


def _open(address: str, seconds: float) -> Any:
    """Open an address. A proxy of the environment counts."""
    request = urllib.request.Request(address, headers={"User-Agent": "trainyard"})  # noqa: S310  (http or https)
    return urllib.request.urlopen(request, timeout=seconds)  # noqa: S310


def _receive(address: str, target: Path, algorithm: str, report: Callable[[str], None]) -> tuple[int, str]:
    """Write the body to a file. Return its size, and its checksum in the form of the table.

    Raises:
        DownloadBroken: The connection failed. Errors of the disk stay OSErrors.
    """
    digest, size = hashlib.new(algorithm), 0
    with _network(partial(_open, address, SILENCE_SECONDS)) as response, target.open("wb") as file:
        length = int(response.headers.get("Content-Length") or 0)
        while chunk := _network(partial(response.read, CHUNK_BYTES)):
            file.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            of = f" of {length / MEGABYTE:.0f}" if length else ""
            report(f"downloading, {size / MEGABYTE:.0f}{of} MB")
    if size < length:
        raise DownloadBroken(f"the connection ended after {size} of {length} bytes")
    return size, f"{algorithm}:{digest.hexdigest()}"


def _network(call: Callable[[], Any]) -> Any:
    """Call something that uses the network.

    Raises:
        DownloadBroken: The network or the server failed.
    """
    try:
        return call()
    except NETWORK_ERRORS as error:
        raise DownloadBroken(" ".join(str(getattr(error, "reason", error) or error).split())) from error


def _extract(tool: Tool, archive: Path, target: Path) -> None:
    """Write the programs of an archive to a directory, and nothing else of it.

    Raises:
        ToolError: A program is not there.
    """
    missing = {path: name for name, path in tool.release.programs.items()} if tool.release else {}
    with tarfile.open(archive, "r|gz") as file:
        for member in file:
            # The top directory of some projects names the version or the machine.
            name = missing.get(member.name.removeprefix("./").partition("/")[2])
            content = file.extractfile(member) if name and member.isfile() else None
            if name is None or content is None:
                continue
            with (target / name).open("wb") as program:
                shutil.copyfileobj(content, program, CHUNK_BYTES)
            (target / name).chmod(0o755)
            missing = {path: other for path, other in missing.items() if other != name}
            if not missing:
                return
    raise ToolError(
        f"{tool.name} {tool.number}: its archive lacks {', '.join(missing)}; nothing was installed. "
        f"Set {SETTING}=no to build {tool.name}"
    )
