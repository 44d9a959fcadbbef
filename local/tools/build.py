"""Build tools from their Go modules: atomic, resumable, one builder at a time. `build()` is the entry point."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local.tools.go import Go
from local.tools.progress import Progress, time_left
from local.tools.tool import Tool, ToolError

RECORD = "build.json"
MEGABYTE = 1e6
# The linker's `-s -w` drops debugging information, so that the compiler need not write it.
COMPILER_FLAGS = "-gcflags=all=-dwarf=false"
LINKER_FLAGS = "-s -w"
# For each package: its import path, its directory and its Go files.
LIST_FORMAT = "{{.ImportPath}}\t{{.Dir}}\t{{range .GoFiles}}{{.}} {{end}}"


@dataclass(frozen=True, kw_only=True)
class Built:
    """Statistics of builds and downloads. Seconds of downloads are separate from the seconds of compiling."""

    tools: int
    downloaded: int = 0
    download_bytes: int
    download_seconds: float
    build_seconds: float


def is_built(directory: Path) -> bool:
    """Return whether a tool's directory is complete. The record is the last file written before the rename."""
    return (directory / RECORD).is_file()


@contextmanager
def locked(path: Path, progress: Progress) -> Iterator[int]:
    """Hold a lock file and yield its descriptor. Wait while another process builds the same tools."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress.start("another process is building; waiting")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def build(name: str, tools: Sequence[Tool], cache: Path, go: Go, progress: Progress, lock: int) -> Built:
    """Build the tools of one lock directory together, and install each completely in `<cache>/tools/<key>`.

    An interrupted build resumes from Go's caches. A failed build installs no tool.

    Args:
        name: Name of the log, `<cache>/logs/<name>.log`.
        tools: Tools with the same `lock` directory.
        lock: Descriptor of the held lock. Go inherits it, and holds the lock even if the caller is killed.

    Raises:
        ToolError: Go failed; the message names the tools, the log and the first error.
    """
    work = cache / "build" / name
    shutil.rmtree(work, ignore_errors=True)
    output = work / "out"
    output.mkdir(parents=True)
    log = cache / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    packages = [path for tool in tools for path in tool.package_paths]
    step = _Step(tools=tools, go=go, work=work, log=log, progress=progress, lock=lock)

    started, before = time.monotonic(), _downloaded(go)
    names = ", ".join(f"{tool.name} {tool.number}" for tool in tools)
    progress.start(f"downloading the sources of {names}, then building")
    listing = step.run("downloading", "list", "-deps", "-f", LIST_FORMAT, *packages)
    received, fetched = _downloaded(go) - before, time.monotonic()

    flags = [COMPILER_FLAGS, f"-ldflags={LINKER_FLAGS}"]
    for tool in tools:
        variables = [f"-X {name}={value}" for name, value in tool.variables.items()]
        flags += [f"-ldflags={path}={' '.join([LINKER_FLAGS, *variables])}" for path in tool.package_paths]
    step.run("building", "build", "-v", *flags, "-o", f"{output}/", *packages, sizes=_sizes(listing))
    result = Built(
        tools=len(tools),
        download_bytes=received,
        download_seconds=fetched - started,
        build_seconds=time.monotonic() - fetched,
    )
    for tool in tools:
        module = go.query("list", "-m", "-json", tool.module, directory=tool.lock)["Dir"]
        _install(tool, cache, work, Path(module), go)
    shutil.rmtree(work, ignore_errors=True)
    progress.finish(
        f"built in {result.build_seconds:.0f} s "
        f"(downloads: {received / MEGABYTE:.0f} MB, {result.download_seconds:.0f} s)"
    )
    return result


def _install(tool: Tool, cache: Path, work: Path, module: Path, go: Go) -> None:
    """Stage the programs and rename their directory, so that a tool is never installed in part."""
    staged = work / tool.key
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
    }
    (staged / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    install_directory(staged, cache / "tools" / tool.key)


def install_directory(staged: Path, final: Path) -> None:
    """Move a complete directory of a tool to its place in the cache, in one step."""
    final.parent.mkdir(parents=True, exist_ok=True)
    if final.exists():  # an incomplete directory
        shutil.rmtree(final)
    os.rename(staged, final)


def _downloaded(go: Go) -> int:
    """Return the number of bytes in Go's download cache."""
    root = go.module_cache() / "cache" / "download"
    total = 0
    for directory, _, files in os.walk(root):
        for name in files:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size
            except FileNotFoundError:  # a temporary file of another Go process
                continue
    return total


def _sizes(listing: Sequence[str]) -> dict[str, int]:
    """Return the source bytes of each package, as an estimate of its compile time."""
    sizes = {}
    for line in listing:
        path, directory, files = line.split("\t")
        sizes[path] = sum(os.stat(os.path.join(directory, name)).st_size for name in files.split())
    return sizes


@dataclass(frozen=True, kw_only=True)
class _Step:
    """One run of `go` whose output goes to the log."""

    tools: Sequence[Tool]
    go: Go
    work: Path
    log: Path
    progress: Progress
    lock: int

    def run(self, action: str, *arguments: str, sizes: dict[str, int] | None = None) -> list[str]:
        """Run `go` and return the lines of its standard output.

        Args:
            sizes: Bytes of source of each package that is compiled; progress counts them.
        """
        output = self.work / "stdout"
        before, started = len(self._log_lines()), time.monotonic()
        with self.log.open("ab") as log, output.open("wb") as sink:
            process = subprocess.Popen(
                [self.go.program, *arguments],
                cwd=self.tools[0].lock,
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
                        compiled = self._log_lines()[before:]
                        self.progress.update(_state(action, compiled, sizes, time.monotonic() - started))
            except BaseException:
                process.terminate()
                process.wait()
                raise
        if code != 0:
            raise ToolError(self._failure(action, code, self._log_lines()[before:]))
        return output.read_text().splitlines()

    def _log_lines(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()

    def _failure(self, action: str, code: int, log: Sequence[str]) -> str:
        failed = f"{action} {', '.join(f'{tool.name} {tool.version}' for tool in self.tools)} failed"
        # Go also logs each download and, as a line without a space, each package that it compiles.
        lines = [
            line.strip() for line in log if " " in line.strip() and not line.startswith("go: downloading ")
        ]
        if any("no space left on device" in line.lower() for line in lines):
            free = shutil.disk_usage(self.work).free / 1e9
            return (
                f"{failed}: the disk is full ({free:.1f} GB free on the disk of {self.work.parent.parent}; all tools "
                f"together need 13 GB). Free some and start again; log: {self.log}"
            )
        reason = next((line for line in lines if "error" in line or ": " in line), lines[-1] if lines else "")
        return f"{failed} (exit code {code}): {reason}; log: {self.log}"


def _state(action: str, compiled: Sequence[str], sizes: dict[str, int] | None, seconds: float) -> str:
    """Return the progress of `go`. `compiled` are the packages that it has started to compile."""
    if not sizes:
        return action
    done = sum(sizes.get(path, 0) for path in compiled)
    left = time_left(done / sum(sizes.values()), seconds)
    count = sum(path in sizes for path in compiled)
    return f"{action}, {count} of at most {len(sizes)} packages{left and f', {left}'}"
