"""All tools, the cache that holds what was built, and the links that everything else starts them by."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from local.home import Home
from local.tools import plugin
from local.tools.build import RECORD, Built, build, is_built, locked
from local.tools.entering import write_script
from local.tools.errors import ToolError
from local.tools.go import find_go
from local.tools.path import find
from local.tools.pins import TOOLS
from local.tools.progress import Progress, SilentProgress
from local.tools.tool import Tool

__all__ = [
    "TOOLS",
    "ToolError",
    "cache_directory",
    "ensure",
    "ensure_other",
    "module_directory",
    "module_directory_of",
]

# What people type themselves, from a shell outside of the local cloud's network.
ENTERING = "kubectl"


def cache_directory() -> Path:
    """Where built tools are kept, shared by all checkouts: `$TRAINYARD_CACHE`, `$XDG_CACHE_HOME/trainyard` or
    `~/.cache/trainyard`."""
    chosen = os.environ.get("TRAINYARD_CACHE")
    if chosen:
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "trainyard"


def tool_directory(tool: Tool) -> Path:
    """The tool's directory in the cache, built or not."""
    return cache_directory() / "tools" / tool.key


def known(names: Iterable[str]) -> list[Tool]:
    """The tools of these names, all where none is named.

    Raises:
        ToolError: there is no such tool.
    """
    wanted = list(names) or list(TOOLS)
    unknown = [name for name in wanted if name not in TOOLS]
    if unknown:
        raise ToolError(f"no tool is called {', '.join(unknown)}; there are {', '.join(TOOLS)}")
    return [TOOLS[name] for name in wanted]


def ensure(names: Iterable[str], home: Home, quiet: bool = False) -> dict[str, Path]:
    """Make the named tools (all where none is named) runnable from the home's `bin`.

    Returns where each program really lies. With `quiet` nothing is printed unless something has to be built.

    Raises:
        ToolError: a tool can't be had; what was built so far stays.
        OSError: the cache or the home can't be written, or the home is none of ours.
    """
    home.claim()
    wanted = known(names)
    # Not Path.resolve(): before Python 3.13 it raises RuntimeError for a symbolic link to itself.
    ignored = (Path(os.path.realpath(cache_directory())), home.root.resolve())
    on_path = {
        tool.name: found
        for tool in wanted
        if not is_built(tool_directory(tool))
        and (found := find(tool, os.environ.get("PATH", ""), ignored)) is not None
    }
    missing = [tool for tool in wanted if tool.name not in on_path and not is_built(tool_directory(tool))]
    built = _build_missing(missing)
    places: dict[str, Path] = {}
    for tool in wanted:
        places |= on_path.get(tool.name) or _built_places(tool)
    _link(places, home)
    if built and not quiet:
        _summarise(built)
    return places


def ensure_other(tool: Tool) -> dict[str, Path]:
    """Where the programs of a tool are that is none of the local cloud's, such as a test's: built once, linked nowhere.

    Raises:
        ToolError: it can't be had.
        OSError: the cache can't be written.
    """
    _build_missing([] if is_built(tool_directory(tool)) else [tool])
    return _built_places(tool)


def _built_places(tool: Tool) -> dict[str, Path]:
    return {program: tool_directory(tool) / "bin" / program for program in tool.programs}


def _build_missing(tools: list[Tool]) -> list[Built]:
    """Build the tools, those of each lock directory together; return what that took."""
    groups: dict[Path, list[Tool]] = {}
    for tool in tools:
        groups.setdefault(tool.lock, []).append(tool)
    built: list[Built] = []
    for number, (lock, group) in enumerate(groups.items(), start=1):
        built += _build_once(lock.name, group, f"[{number}/{len(groups)}] " if len(groups) > 1 else "")
    return built


def _build_once(name: str, tools: list[Tool], prefix: str) -> list[Built]:
    """Build those of the tools that no other process builds meanwhile."""
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
    downloads = f"downloads apart: {megabytes:.0f} MB in {downloading:.0f} s"
    sys.stdout.write(f"tools: {count} built in {building:.0f} s; {downloads}\n")
    sys.stdout.flush()


def _link(places: dict[str, Path], home: Home) -> None:
    """Point the home's links at the programs; each is replaced in one step, others may be starting it."""
    directory = home.bin
    directory.mkdir(parents=True, exist_ok=True)
    for name, place in places.items():
        if name == ENTERING:
            write_script(home, name, place)
            plugin.write_scripts(home)
            continue
        link = directory / name
        if link.is_symlink() and Path(os.readlink(link)) == place:
            continue
        temporary = directory / f".{name}.{os.getpid()}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(place)
        os.replace(temporary, link)


def module_directory(name: str) -> Path:
    """Return the directory of the tool's module in Go's module cache: charts and manifests. Downloads it if missing.

    Raises:
        ToolError: no such tool, no Go, or the module can't be downloaded.
    """
    (tool,) = known([name])
    return module_directory_of(tool)


def module_directory_of(tool: Tool) -> Path:
    """Do the same for a tool that the local cloud itself does not need."""
    record = tool_directory(tool) / RECORD
    if record.is_file():
        recorded = Path(json.loads(record.read_text())["moduleDirectory"])
        # Another user may have built it: then its module cache may not be ours to read.
        if os.access(recorded, os.R_OK | os.X_OK):
            return recorded
    go = find_go(f"{tool.name} (its module holds charts and manifests)")
    with locked(cache_directory() / "locks" / f"{tool.key}-module.lock", SilentProgress()):
        answer = go.query("mod", "download", "-json", tool.module, directory=tool.lock)
    return Path(answer["Dir"])
