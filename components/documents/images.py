"""Names of container images, and the digest of a build context.

The digest is the tag of an image that the stack builds. It changes exactly when the content of the image does.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

# Docker's default prefixes for a name without a registry, and without an owner
# (https://docs.docker.com/reference/cli/docker/image/tag/).
DEFAULT_REGISTRY = "docker.io"
OFFICIAL = "library"
DIGEST_LENGTH = 16

Pattern = tuple[bool, "re.Pattern[str]", str]
"""(whether it includes files again, the expression, the pattern's text)."""


def full_name(image: str) -> str:
    """Return an image's name with its registry: `alpine:3` is `docker.io/library/alpine:3`."""
    host, slash, _ = image.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return image
    return f"{DEFAULT_REGISTRY}/{image}" if slash else f"{DEFAULT_REGISTRY}/{OFFICIAL}/{image}"


def mirrored(image: str, mirror: str | None) -> str:
    """Return the name under which an image is pulled: from the mirror, with its full name, tag and digest.

    registry.k8s.io/pause:3.9 becomes <mirror>/registry.k8s.io/pause:3.9. Without a mirror the name is unchanged.
    """
    return image if mirror is None else f"{mirror}/{full_name(image)}"


def context_digest(root: Path, dockerfile: Path) -> str:
    """Return a short digest of the Dockerfile and of every file in the build context.

    The context is everything under `root` that its .dockerignore does not exclude
    (https://docs.docker.com/build/concepts/context/#dockerignore-files; a `<Dockerfile>.dockerignore` has precedence
    over the one of the root). The digest covers names, contents and modes, not times and owners. It covers the whole
    mode, although git only stores the executable bit: the plugin hashes the mode and rebuilds the image if it differs,
    as in checkouts of users with another umask (github.com/pulumi/pulumi-docker-build, provider/internal/context.go,
    hashFile). The image then differs, too, and ECR refuses it under an existing tag.

    Raises:
        FileNotFoundError: the Dockerfile does not exist.
    """
    beside = dockerfile.with_name(dockerfile.name + ".dockerignore")
    ignore_file = beside if beside.is_file() else root / ".dockerignore"
    patterns = parse_ignore(ignore_file.read_text()) if ignore_file.is_file() else []
    digest = hashlib.sha256()
    _feed(digest, "Dockerfile", dockerfile)
    for relative in visible_files(root, patterns):
        _feed(digest, relative, root / relative)
    return digest.hexdigest()[:DIGEST_LENGTH]


def parse_ignore(text: str) -> list[Pattern]:
    """Return the patterns of a .dockerignore, in their order."""
    patterns: list[Pattern] = []
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        negated = line.startswith("!")
        cleaned = os.path.normpath(line.removeprefix("!").strip()).strip("/")
        if cleaned != ".":
            patterns.append((negated, re.compile(_expression(cleaned)), cleaned))
    return patterns


def ignored(relative: str, patterns: list[Pattern]) -> bool:
    """Return whether the build excludes a path. The last pattern that matches it or a parent decides."""
    result = False
    for negated, expression, _ in patterns:
        if expression.match(relative):
            result = not negated
    return result


def visible_files(root: Path, patterns: list[Pattern]) -> Iterator[str]:
    """Return the files below `root` in the build context, as sorted POSIX paths relative to it."""
    paths: list[str] = []
    for directory, names, files in os.walk(root):
        base = Path(directory).relative_to(root).as_posix()
        prefix = "" if base == "." else f"{base}/"
        names[:] = [n for n in names if _may_hold_files(f"{prefix}{n}", patterns)]
        paths.extend(f"{prefix}{n}" for n in files if not ignored(f"{prefix}{n}", patterns))
    yield from sorted(paths)


def _may_hold_files(directory: str, patterns: list[Pattern]) -> bool:
    """Return whether a directory may have files in the context. Others, such as `.venv`, are not walked."""
    if not ignored(directory, patterns):
        return True
    return any(negated and _reaches(directory, text) for negated, _, text in patterns)


def _reaches(directory: str, pattern: str) -> bool:
    """Return whether a pattern may match a path below the directory, because its start matches the directory."""
    pairs = zip(directory.split("/"), pattern.split("/"), strict=False)
    return "**" in pattern or all(fnmatch.fnmatchcase(part, expected) for part, expected in pairs)


def _expression(pattern: str) -> str:
    """Return a regular expression for a pattern. `*` and `?` stay within a name, `**` does not; parents match, too."""
    result = ""
    index = 0
    while index < len(pattern):
        if pattern.startswith("**/", index):
            result += "(?:.*/)?"
            index += 3
        elif pattern.startswith("**", index):
            result += ".*"
            index += 2
        else:
            char = pattern[index]
            result += {"*": "[^/]*", "?": "[^/]"}.get(char, re.escape(char))
            index += 1
    return result + "(?:/.*)?$"


def _feed(digest: hashlib._Hash, name: str, path: Path) -> None:
    mode = stat.filemode(path.lstat().st_mode)
    content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
    digest.update(f"{len(name)}:{name}:{mode}:{len(content)}:".encode())
    digest.update(content)
