"""`Tool`: one or several programs that are found on PATH, downloaded, or built from a published Go module.

The version of a tool is in the `go.mod` of its lock directory, which also pins all dependencies. The hashes are in
`go.sum` beside it. Tools with the same lock directory share the versions of all dependencies, so that Go compiles each
package once for all of them (docs/decisions/0025-one-build-list-for-the-tools.md).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

Version = tuple[int, ...]


class ToolError(Exception):
    """A tool is not available. The message is one line: the tool, its log, and what to do."""


def parse_version(text: str) -> Version:
    """Return `v1.35.4` or `1.35.4` as (1, 35, 4).

    Raises:
        ValueError: The text is not numbers with dots between them.
    """
    return tuple(int(part) for part in text.removeprefix("v").split("."))


def exactly(found: Version, pinned: Version) -> bool:
    return found == pinned


def is_same_minor(found: Version, pinned: Version) -> bool:
    """Accept the pinned version and later patch releases of the same minor version."""
    return found[:2] == pinned[:2] and found >= pinned


@dataclass(frozen=True, kw_only=True)
class OnPath:
    """How a binary on PATH prints its version; the first `x.y.z` in its output counts."""

    arguments: tuple[str, ...] = ("--version",)
    accepts: Callable[[Version, Version], bool] = is_same_minor


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An archive that the tool's project publishes for one architecture.

    Attributes:
        url: Its address.
        checksum: The published checksum: `sha256:` or `sha512:`, and its hexadecimal digits.
    """

    url: str
    checksum: str


@dataclass(frozen=True, kw_only=True)
class Release:
    """The published binaries of a tool. They are used only if `version` is the tool's, and its programs are all there.

    Attributes:
        version: The version, without its `v`.
        archives: The archive (.tar.gz) for each machine, by the name that `uname -m` prints.
        programs: The path of each of our programs, below the archive's top directory.
    """

    version: str
    archives: Mapping[str, Archive]
    programs: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A pinned tool.

    Attributes:
        module: The Go module. Its version is in `lock`/go.mod.
        packages: The main packages, relative to the module; "" is the module's root.
        binaries: Go's name of a built program (the last element of its package) to our name.
        files: Scripts of the module to install beside the programs: path in the module to our name.
        variables: String variables of Go packages that the linker sets, as in the tool's own releases.
        release: Its published binaries; None if the project publishes none, or no checksum is known.
        on_path: How to check the programs on PATH; None for tools that no distribution packages.
        lock: The directory of the `go.mod` and `go.sum` for the build.
    """

    name: str
    module: str
    packages: tuple[str, ...]
    binaries: Mapping[str, str]
    lock: Path
    files: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    release: Release | None = None
    on_path: Mapping[str, OnPath] | None = None

    @property
    def version(self) -> str:
        """The module's version, such as `v1.35.4`."""
        return _requirements(self.lock)[self.module]

    @property
    def number(self) -> str:
        return self.version.removeprefix("v")

    @property
    def package_paths(self) -> tuple[str, ...]:
        return tuple(f"{self.module}/{package}".rstrip("/") for package in self.packages)

    @property
    def programs(self) -> tuple[str, ...]:
        """The names of all executables of the tool."""
        return (*self.binaries.values(), *self.files.values())

    @property
    def key(self) -> str:
        """The name of the tool's directory in the cache: name, version, and a digest of the build's inputs."""
        recipe = [self.module, self.packages, dict(self.binaries), dict(self.files), dict(self.variables)]
        digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode())
        for file in ("go.mod", "go.sum"):
            digest.update((self.lock / file).read_bytes())
        return f"{self.name}-{self.number}-{digest.hexdigest()[:8]}"

    def archive(self, machine: str) -> Archive | None:
        """Return the archive for a machine (`uname -m`), None if there is none of the tool's version."""
        if self.release is None or self.release.version != self.number:
            return None
        return self.release.archives.get(machine)

    def archive_key(self, archive: Archive) -> str:
        """The name of the directory in the cache of the tool from this archive."""
        return f"{self.name}-{self.number}-{archive.checksum.partition(':')[2][:8]}"


@cache
def _requirements(lock: Path) -> dict[str, str]:
    """Return the required version of each module of a `go.mod`."""
    text = (lock / "go.mod").read_text()
    return dict(re.findall(r"^(?:require|\t) ?(\S+) (v\S+)", text, re.MULTILINE))
