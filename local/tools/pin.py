"""What a pin says about a tool: where its source is published, what to build, and what counts as the same on PATH."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

Version = tuple[int, ...]


def parse_version(text: str) -> Version:
    """`v1.35.4` or `1.35.4` as (1, 35, 4).

    Raises:
        ValueError: the text is no dotted row of numbers.
    """
    return tuple(int(part) for part in text.removeprefix("v").split("."))


def exactly(found: Version, pinned: Version) -> bool:
    """Only the pinned version will do."""
    return found == pinned


def same_minor(found: Version, pinned: Version) -> bool:
    """The pinned release or a later patch of it."""
    return found[:2] == pinned[:2] and found >= pinned


@dataclass(frozen=True, kw_only=True)
class OnPath:
    """How a binary on PATH says its version; the first `x.y.z` it prints counts."""

    arguments: tuple[str, ...] = ("--version",)
    accepts: Callable[[Version, Version], bool] = same_minor


@dataclass(frozen=True, kw_only=True)
class Tool:
    """A pinned tool.

    `binaries` maps Go's name of a built program (the last element of its package) to the name we give it;
    `packages` are relative to the module. `files` are scripts of the same module that belong beside the
    programs: path in the module to name. `replaces` maps a module to the version that is used in its place.
    `variables` are string variables of Go packages that the linker sets, as the tool's own release does.
    `on_path` is None for tools that no distribution installs. `typical_seconds` is a cold build on two cores.
    """

    name: str
    module: str
    version: str
    packages: tuple[str, ...]
    binaries: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)
    replaces: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    on_path: Mapping[str, OnPath] | None = None
    typical_seconds: int = 60

    @property
    def number(self) -> str:
        """The version without its `v`."""
        return self.version.removeprefix("v")

    @property
    def programs(self) -> tuple[str, ...]:
        """Names of everything executable that the tool brings."""
        return (*self.binaries.values(), *self.files.values())

    @property
    def key(self) -> str:
        """Name of the tool's directory in the cache: name, version, and a digest of how it is built."""
        recipe = {k: v for k, v in asdict(self).items() if k not in ("on_path", "typical_seconds")}
        digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()[:8]
        return f"{self.name}-{self.number}-{digest}"

    def go_mod(self) -> str:
        """The module that requires the tool's module; Go fills in the rest while it builds.

        `go install module@version` would need lists of versions, which not every module proxy serves, and it
        refuses modules with replace lines.
        """
        lines = ["module build", "", "go 1.26", "", f"require {self.module} {self.version}"]
        lines += [f"replace {module} => {module} {version}" for module, version in self.replaces.items()]
        return "\n".join(lines) + "\n"
