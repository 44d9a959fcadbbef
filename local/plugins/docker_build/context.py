"""The digest of a build: its context without ignored files, its Dockerfile, target and arguments."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True)
class Rule:
    """A line of a .dockerignore: a pattern, and whether it includes files again (`!`)."""

    parts: tuple[str, ...]
    includes: bool


def parse_ignore(text: str) -> list[Rule]:
    """Return the rules of a .dockerignore.

    https://docs.docker.com/build/concepts/context/#dockerignore-files
    """
    rules = []
    for line in text.splitlines():
        # Only a number sign in the first column begins a comment.
        if line.startswith("#") or not line.strip():
            continue
        pattern = line.strip()
        includes = pattern.startswith("!")
        parts = tuple(part for part in pattern.lstrip("!").strip().split("/") if part not in ("", "."))
        if parts:
            rules.append(Rule(parts, includes))
    return rules


@lru_cache(maxsize=1024)
def _expression(part: str) -> re.Pattern[str]:
    """Return the expression for one component of a pattern.

    The syntax is that of Go's filepath.Match: `*`, `?`, `[a-z]`, `[^a]`, backslash.
    """
    made, index = "", 0
    while index < len(part):
        character = part[index]
        if character == "*":
            made += "[^/]*"
        elif character == "?":
            made += "[^/]"
        elif character == "[" and "]" in part[index + 1 :]:
            end = part.index("]", index + 1)
            made += part[index : end + 1]
            index = end
        elif character == "\\" and index + 1 < len(part):
            index += 1
            made += re.escape(part[index])
        else:
            made += re.escape(character)
        index += 1
    return re.compile(made)


def _matches(parts: Sequence[str], path: Sequence[str]) -> bool:
    """Return whether the pattern matches the path itself or one of its parents."""
    if not parts:
        return True
    if parts[0] == "**":
        return (
            any(_matches(parts[1:], path[index:]) for index in range(len(path) + 1))
            if parts[1:]
            else bool(path)
        )
    return bool(path) and bool(_expression(parts[0]).fullmatch(path[0])) and _matches(parts[1:], path[1:])


def _may_hold(parts: Sequence[str], path: Sequence[str]) -> bool:
    """Return whether the pattern could match something below the directory `path`."""
    for part, name in zip(parts, path, strict=False):
        if part == "**":
            return True
        if not _expression(part).fullmatch(name):
            return False
    return len(parts) > len(path)


def ignored(rules: Sequence[Rule], path: Sequence[str]) -> bool:
    """Return whether the last rule that matches the path excludes it."""
    result = False
    for rule in rules:
        if rule.includes == result and _matches(rule.parts, path):
            result = not rule.includes
    return result


def files(root: Path, rules: Sequence[Rule]) -> Iterator[tuple[str, Path]]:
    """Return (name, path) of all files of the context, sorted by name. Ignored directories are not searched."""

    def walk(directory: Path, above: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
        with os.scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            path = (*above, entry.name)
            out = ignored(rules, path)
            if entry.is_dir(follow_symlinks=False):
                if not out or any(rule.includes and _may_hold(rule.parts, path) for rule in rules):
                    yield from walk(Path(entry.path), path)
            elif not out:
                yield "/".join(path), Path(entry.path)

    return walk(root, ())


def ignore_rules(root: Path, dockerfile: Path) -> list[Rule]:
    """Return the rules for a build, from `<Dockerfile>.dockerignore` or else the context's .dockerignore."""
    for candidate in (dockerfile.with_name(dockerfile.name + ".dockerignore"), root / ".dockerignore"):
        if candidate.is_file():
            return parse_ignore(candidate.read_text())
    return []


def build_digest(root: Path, dockerfile: Path, settings: Mapping[str, object]) -> str:
    """Return 64 hex digits that change with the context, the Dockerfile or a setting.

    Settings are the target, arguments and labels.

    Raises:
        FileNotFoundError: A file is missing. The message names it.
    """
    if not root.is_dir():
        raise FileNotFoundError(f"context.location: {root} is no directory")
    if not dockerfile.is_file():
        raise FileNotFoundError(f"dockerfile.location: {dockerfile} does not exist")
    total = hashlib.sha256()

    def add(name: str, kind: str, content: bytes) -> None:
        total.update(f"{kind} {name} {hashlib.sha256(content).hexdigest()}\n".encode())

    for name, path in files(root, ignore_rules(root, dockerfile)):
        if path.is_symlink():
            add(name, "link", os.readlink(path).encode())
        elif path.is_file():
            # Like the official plugin, use the whole mode, also that of a checkout with another umask.
            add(name, stat.filemode(path.stat().st_mode), path.read_bytes())
    add("Dockerfile", "dockerfile", dockerfile.read_bytes())
    add("settings", "settings", json.dumps(settings, sort_keys=True).encode())
    return total.hexdigest()
