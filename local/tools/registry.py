"""All tools, the cache of downloaded and built tools, and the links in the home. `ensure` is the entry point."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from local.home import Home, expand, read_record, write_atomically
from local.tools.build import RECORD, Built, build, is_built, locked
from local.tools.download import DownloadBroken, address_of, download, reachable
from local.tools.go import find_go
from local.tools.path import find
from local.tools.pins import OPTIONAL_TOOLS, TOOLS
from local.tools.progress import Progress
from local.tools.scripts import write_plugin, write_script
from local.tools.tool import Archive, Tool, ToolError

# The program that users start themselves, from a shell outside the local cloud's network.
ENTERING = "kubectl"


def cache_directory() -> Path:
    """Return the directory of downloaded and built tools, which all checkouts share.

    It is `$TRAINYARD_CACHE`, otherwise `$XDG_CACHE_HOME/trainyard`, otherwise `~/.cache/trainyard`.
    """
    chosen = os.environ.get("TRAINYARD_CACHE")
    if chosen:
        return expand("TRAINYARD_CACHE", chosen)
    return expand("XDG_CACHE_HOME", os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "trainyard"


def tool_directory(tool: Tool) -> Path:
    """Return the tool's directory in the cache: that of its archive if it is there, else that of its build, which may
    be missing.
    """
    tools = cache_directory() / "tools"
    archive = tool.archive(platform.machine())
    if archive is not None and is_built(tools / tool.archive_key(archive)):
        return tools / tool.archive_key(archive)
    return tools / tool.key


def find_tools(names: Iterable[str]) -> list[Tool]:
    """Return the tools of these names, or for no names those that every local cloud needs.

    Raises:
        ToolError: A tool does not exist.
    """
    wanted = list(names) or list(TOOLS)
    every = TOOLS | OPTIONAL_TOOLS
    unknown = [name for name in wanted if name not in every]
    if unknown:
        raise ToolError(f"no tool is called {', '.join(unknown)}; there are {', '.join(every)}")
    return [every[name] for name in wanted]


def ensure(names: Iterable[str], home: Home, quiet: bool = False) -> dict[str, Path]:
    """Make tools runnable from the home's `bin`.

    Args:
        names: Names of tools; empty for those that every local cloud needs.
        quiet: Print nothing unless something must be downloaded or built.

    Returns:
        The real path of each program.

    Raises:
        ToolError: A tool is not available. Tools that are already built stay.
        OSError: The cache or the home can't be written, or the home is not a local cloud's.
    """
    home.claim()
    wanted = find_tools(names)
    # Not Path.resolve(): before Python 3.13 it raises RuntimeError for a symbolic link to itself.
    ignored = (Path(os.path.realpath(cache_directory())), home.root.resolve())
    on_path = {
        tool.name: found
        for tool in wanted
        if not is_built(tool_directory(tool))
        and (found := find(tool, os.environ.get("PATH", ""), ignored)) is not None
    }
    missing = [tool for tool in wanted if tool.name not in on_path and not is_built(tool_directory(tool))]
    built = _make(missing)
    places: dict[str, Path] = {}
    for tool in wanted:
        places |= on_path.get(tool.name) or _built_places(tool)
    _link(places, home)
    if built and not quiet:
        _summarise(built)
    return places


def ensure_other(*tools: Tool) -> dict[str, Path]:
    """Make tools available that not every local cloud needs, such as a test's, and return their programs' paths.

    Each is downloaded or built once, and no links are created.

    Raises:
        ToolError: A tool is not available.
        OSError: The cache can't be written.
    """
    _make([tool for tool in tools if not is_built(tool_directory(tool))])
    return {program: place for tool in tools for program, place in _built_places(tool).items()}


def _built_places(tool: Tool) -> dict[str, Path]:
    return {program: tool_directory(tool) / "bin" / program for program in tool.programs}


def _make(tools: list[Tool]) -> list[Built]:
    """Download the tools whose published binaries can be reached, and build the others. Return statistics."""
    archives = _reachable_archives(tools)
    others = [tool.name for tool in tools if tool not in [each[0] for each in archives]]
    if archives and others:
        find_go(", ".join(others))  # first: a missing Go is reported before minutes of downloads
    downloaded = [built for each in archives if (built := _download_once(*each)) is not None]
    return [*downloaded, *_build_missing([tool for tool in tools if not is_built(tool_directory(tool))])]


def _reachable_archives(tools: list[Tool]) -> list[tuple[Tool, Archive, str]]:
    """Return the tools whose archive can be reached, with the archive and its address."""
    archives = [(tool, tool.archive(platform.machine())) for tool in tools]
    wanted = [
        (tool, archive, address)
        for tool, archive in archives
        if archive is not None and (address := address_of(archive)) is not None
    ]
    answering = reachable([address for _, _, address in wanted])
    if silent := sorted({urlsplit(address).netloc for _, _, address in wanted if address not in answering}):
        sys.stderr.write(
            f"tools: no published binaries from {', '.join(silent)}, which can't be reached or lacks them\n"
        )
        sys.stderr.flush()
    return [each for each in wanted if each[2] in answering]


def _download_once(tool: Tool, archive: Archive, address: str) -> Built | None:
    """Download a tool unless another process has done it meanwhile. Return None without a download."""
    cache, progress = cache_directory(), Progress(f"{tool.name} {tool.number}")
    with locked(cache / "locks" / f"{tool.archive_key(archive)}.lock", progress):
        if is_built(tool_directory(tool)):
            progress.finish("made by another process")
            return None
        try:
            return download(tool, archive, address, cache, progress)
        except DownloadBroken as error:
            progress.finish(f"not downloaded ({error}); it is built instead")
            return None
        except BaseException:
            progress.finish("not downloaded")
            raise


def _build_missing(tools: list[Tool]) -> list[Built]:
    """Build the tools, those with the same lock directory together. Return statistics."""
    groups: dict[Path, list[Tool]] = {}
    for tool in tools:
        groups.setdefault(tool.lock, []).append(tool)
    built: list[Built] = []
    for number, (lock, group) in enumerate(groups.items(), start=1):
        built += _build_once(lock.name, group, f"[{number}/{len(groups)}] " if len(groups) > 1 else "")
    return built


def _build_once(name: str, tools: list[Tool], prefix: str) -> list[Built]:
    """Build those of the tools that another process has not built meanwhile."""
    cache = cache_directory()
    title = f"{len(tools)} tools" if len(tools) > 1 else f"{tools[0].name} {tools[0].number}"
    progress = Progress(prefix + title)
    with locked(cache / "locks" / f"{name}.lock", progress) as lock:
        missing = [tool for tool in tools if not is_built(tool_directory(tool))]
        if not missing:
            progress.finish("built by another process")
            return []
        go = find_go(", ".join(tool.name for tool in missing))
        try:
            return [build(name, missing, cache, go, progress, lock)]
        except BaseException:
            progress.finish("not built")
            raise


def _summarise(built: list[Built]) -> None:
    megabytes = sum(each.download_bytes for each in built) / 1e6
    downloading = sum(each.download_seconds for each in built)
    building = sum(each.build_seconds for each in built)
    count = sum(each.tools for each in built)
    fetched = sum(each.downloaded for each in built)
    and_fetched = f", {fetched} downloaded" if fetched else ""
    downloads = f"downloads: {megabytes:.0f} MB in {downloading:.0f} s"
    sys.stdout.write(f"tools: {count} built in {building:.0f} s{and_fetched}; {downloads}\n")
    sys.stdout.flush()


def _link(places: dict[str, Path], home: Home) -> None:
    """Update the links in the home. Each is replaced in one step, because other processes may use it."""
    directory = home.bin
    directory.mkdir(parents=True, exist_ok=True)
    for name, place in places.items():
        if name == ENTERING:
            write_script(home, name, place)
            write_plugin(home)
            continue
        link = directory / name
        if link.is_symlink() and Path(os.readlink(link)) == place:
            continue
        temporary = directory / f".{name}.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(place)
        os.replace(temporary, link)


def module_directory(name: str) -> Path:
    """Return the directory of the tool's module in Go's module cache: charts and manifests.

    Downloads the module if it is missing.

    Raises:
        ToolError: The tool or Go does not exist, or the module can't be downloaded.
    """
    (tool,) = find_tools([name])
    return module_directory_of(tool)


def module_directory_of(tool: Tool) -> Path:
    """Return the same as `module_directory` for a tool that the local cloud itself does not need."""
    record = tool_directory(tool) / RECORD
    recorded = (read_record(record) or {}).get("moduleDirectory")
    # If another user built it, this user may not be able to read the module cache.
    if recorded and os.access(recorded, os.R_OK | os.X_OK):
        return Path(recorded)
    go = find_go(f"{tool.name} (its module holds charts and manifests)")
    return Path(go.query("mod", "download", "-json", tool.module, directory=tool.lock)["Dir"])


def rendered(name: str, kustomization: Path) -> Path:
    """Return a file with the objects of a kustomization of the tool's module, rendered once for the tool's version.

    Each run of the Pulumi program would need two seconds of a processor for it. Where it can't be rendered or kept, it
    returns the kustomization, which the program renders itself.
    """
    (tool,) = find_tools([name])
    file = cache_directory() / "manifests" / f"{tool.key}.yaml"
    if file.is_file():
        return file
    (kubernetes,) = find_tools(["kubernetes"])
    command = [str(tool_directory(kubernetes) / "bin" / "kubectl"), "kustomize", str(kustomization)]
    try:
        write_atomically(file, subprocess.run(command, capture_output=True, check=True, text=True).stdout)
    except (OSError, subprocess.CalledProcessError):
        return kustomization
    return file
