"""Build one tool from its published Go module: atomic, resumable, one builder at a time."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local.tools.errors import ToolError
from local.tools.go import Go
from local.tools.pin import Tool
from local.tools.progress import Progress

RECORD = "build.json"
MEGABYTE = 1e6


@dataclass(frozen=True, kw_only=True)
class Built:
    """What a build took. Bytes and seconds of downloads stand apart from the seconds of compiling."""

    download_bytes: int
    download_seconds: float
    build_seconds: float


def is_built(directory: Path) -> bool:
    """Whether a tool's directory is complete: the record is the last thing written, before the rename."""
    return (directory / RECORD).is_file()


@contextmanager
def locked(path: Path, progress: Progress) -> Iterator[int]:
    """Hold a lock file; yields its descriptor. Waits for whoever else builds the same tool."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.start("another process is building it; waiting")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def build(tool: Tool, cache: Path, go: Go, progress: Progress, lock: int) -> Built:
    """Build into `<cache>/tools/<key>`, which appears whole or not at all.

    Go's own caches keep what is compiled, so that an interrupted build goes on where it stopped. `lock` is the
    descriptor of the held lock; the compiler inherits it, so that a killed caller's build still counts as running.

    Raises:
        ToolError: Go failed; the message names the tool, the log and the first error.
    """
    work = cache / "build" / tool.key
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    log = cache / "logs" / f"{tool.key}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    (work / "go.mod").write_text(tool.go_mod())
    packages = [f"{tool.module}/{package}".rstrip("/") for package in tool.packages]
    step = _Step(tool=tool, go=go, work=work, log=log, progress=progress, lock=lock)

    started, before = time.monotonic(), _downloaded(go)
    progress.start(
        f"downloading its source, then building (about {tool.typical_seconds} s of building on two cores)"
    )
    listing = step.run("downloading", "list", "-mod=mod", "-deps", *packages)
    received, fetched = _downloaded(go) - before, time.monotonic()

    flags = " ".join(["-s", "-w", *(f"-X {name}={value}" for name, value in tool.variables.items())])
    (work / "out").mkdir()
    step.run(
        "building",
        "build",
        "-mod=mod",
        "-v",
        "-ldflags",
        flags,
        "-o",
        f"{work / 'out'}/",
        *packages,
        total=len(listing),
    )
    module = go.query("list", "-mod=mod", "-m", "-json", tool.module, directory=work)["Dir"]
    result = Built(
        download_bytes=received,
        download_seconds=fetched - started,
        build_seconds=time.monotonic() - fetched,
    )
    _install(tool, cache, work, Path(module), go, result)
    shutil.rmtree(work, ignore_errors=True)
    progress.finish(
        f"built in {result.build_seconds:.0f} s "
        f"(downloads: {received / MEGABYTE:.0f} MB, {result.download_seconds:.0f} s)"
    )
    return result


def _install(tool: Tool, cache: Path, work: Path, module: Path, go: Go, result: Built) -> None:
    """Put the programs together beside their final place and rename the whole."""
    staged = work / "tool"
    (staged / "bin").mkdir(parents=True)
    for built, name in tool.binaries.items():
        os.replace(work / "out" / built, staged / "bin" / name)
    for source, name in tool.files.items():
        shutil.copyfile(module / source, staged / "bin" / name)
        (staged / "bin" / name).chmod(0o755)
    record = {
        "module": tool.module,
        "version": tool.version,
        "moduleDirectory": str(module),
        "go": go.version,
        "downloadBytes": result.download_bytes,
        "downloadSeconds": round(result.download_seconds, 1),
        "buildSeconds": round(result.build_seconds, 1),
    }
    (staged / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    final = cache / "tools" / tool.key
    final.parent.mkdir(parents=True, exist_ok=True)
    if final.exists():  # without its record: a directory that somebody emptied by hand
        shutil.rmtree(final)
    os.rename(staged, final)


def _downloaded(go: Go) -> int:
    """Bytes of everything in Go's cache of downloads."""
    root = go.module_cache() / "cache" / "download"
    total = 0
    for directory, _, files in os.walk(root):
        for name in files:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size
            except FileNotFoundError:  # a temporary file of another Go process
                continue
    return total


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One run of `go` whose output goes to the tool's log."""

    tool: Tool
    go: Go
    work: Path
    log: Path
    progress: Progress
    lock: int

    def run(self, doing: str, *arguments: str, total: int = 0) -> list[str]:
        """Returns the lines of its standard output. `total`: how many packages at most will be compiled."""
        output = self.work / "stdout"
        before = self._log_lines()
        with self.log.open("ab") as log, output.open("wb") as sink:
            process = subprocess.Popen(
                [self.go.program, *arguments],
                cwd=self.work,
                env=self.go.environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=log,
                pass_fds=(self.lock,),
            )
            try:
                while True:
                    try:
                        code = process.wait(timeout=1.0)
                        break
                    except subprocess.TimeoutExpired:
                        compiled = self._log_lines() - before
                        self.progress.update(
                            f"{doing}, {compiled} of at most {total} packages" if total else doing
                        )
            except BaseException:
                process.terminate()
                process.wait()
                raise
        if code != 0:
            raise ToolError(self._failure(doing, code))
        return output.read_text().splitlines()

    def _log_lines(self) -> int:
        return self.log.read_bytes().count(b"\n")

    def _failure(self, doing: str, code: int) -> str:
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        telling = [line for line in lines if "no space left on device" in line.lower()]
        if telling:
            free = shutil.disk_usage(self.work).free / 1e9
            return (
                f"{doing} {self.tool.name} {self.tool.version} failed: the disk is full ({free:.1f} GB free on the "
                f"disk of {self.work.parent.parent}; all tools together need 13 GB); free some and start again; "
                f"log: {self.log}"
            )
        reason = next((line for line in lines if "error" in line or ": " in line), lines[-1] if lines else "")
        return f"{doing} {self.tool.name} {self.tool.version} failed (exit code {code}): {reason}; log: {self.log}"
