"""The digest of a build: its context without ignored files, its Dockerfile, target and arguments."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# The syntax is that of Go's filepath.Match, and `**` for any number of directories.
_TOKEN = re.compile(r"\*\*/?|\*|\?|\[[^\]]+\]|\\?.")
_WILDCARDS = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}


@dataclass(frozen=True)
class Rule:
    """A line of a .dockerignore: the paths that it matches, and whether it includes them again (`!`)."""

    expression: re.Pattern[str]
    includes: bool
    # What all paths begin with.
    start: str
    # The slashes in all paths that the rule itself matches, without those below; None for any number.
    slashes: int | None

    def may_match_below(self, directory: str) -> bool:
        """Return whether the rule, which does not match a directory (with a slash at its end), could match below it."""
        if self.slashes is not None and directory.count("/") > self.slashes:
            return False
        return directory.startswith(self.start) or self.start.startswith(directory)


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
        path = posixpath.normpath(pattern.lstrip("!").strip()).lstrip("/")
        if path not in ("", "."):
            # A rule for a directory matches everything below.
            expression = re.compile(_TOKEN.sub(_translated, path) + "(?:/.*)?")
            start = re.split(r"[*?\[\\]", path, maxsplit=1)[0]
            slashes = None if "**" in path else path.count("/")
            rules.append(Rule(expression, pattern.startswith("!"), start, slashes))
    return rules


def _translated(match: re.Match[str]) -> str:
    token = match.group()
    if token == "**":  # at the start and at the end, it also matches a part of a name
        return ".*" if match.start() == 0 or match.end() == len(match.string) else "(?:.*/)?"
    if token in _WILDCARDS or (token.startswith("[") and len(token) > 1):
        return _WILDCARDS.get(token, token)
    return re.escape(token[-1])


def ignored(rules: Sequence[Rule], path: str) -> bool:
    """Return whether the last rule that matches the path excludes it."""
    result = False
    for rule in rules:
        if rule.includes == result and rule.expression.fullmatch(path):
            result = not rule.includes
    return result


def files(root: Path, rules: Sequence[Rule]) -> Iterator[tuple[str, Path]]:
    """Return (name, path) of all files of the context, sorted by name. Ignored directories are not searched."""

    def walk(directory: Path, above: str) -> Iterator[tuple[str, Path]]:
        with os.scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        for entry in found:
            name = above + entry.name
            out = ignored(rules, name)
            if entry.is_dir(follow_symlinks=False):
                below = f"{name}/"
                if not out or any(rule.includes and rule.may_match_below(below) for rule in rules):
                    yield from walk(Path(entry.path), below)
            elif not out:
                yield name, Path(entry.path)

    return walk(root, "")


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
