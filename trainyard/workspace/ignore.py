"""Apply the ignore files of a workspace as git does. The entry point is `rules_of`.

The directory `.git` is always ignored. A `.torchrunignore` at the top replaces every `.gitignore`. Each directory may
have an ignore file, and the one nearest to an entry decides. As in git, `.gitignore` files above the workspace and
`.git/info/exclude` of its repository apply, and a nested repository, such as a submodule, has its own rules. Files that
git tracks belong to the workspace even if a `.gitignore` matches them. Without the program `git`, no file is known to
be tracked.

Git matches each entry alone, never searches an ignored directory, and compares bytes
(https://git-scm.com/docs/gitignore; dir.c and wildmatch.c of git). A comparison: docs/decisions/0029-ignore-rules.md.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from trainyard.workspace.errors import WorkspaceError

OWN_IGNORE: Final = ".torchrunignore"
GIT_IGNORE: Final = ".gitignore"
# A worker's record of its workspace (trainyard/workspace/place.py).
CONTROL_DIRECTORY: Final = ".torchrun-workspace"
_GIT_SECONDS: Final = 30.0
_NEVER: Final = frozenset({b".git", CONTROL_DIRECTORY.encode()})


class Pattern(NamedTuple):
    """One line of an ignore file. `ignores` is false for a line that begins with "!"."""

    expression: re.Pattern[bytes]
    ignores: bool
    only_directories: bool
    # A pattern without a slash matches names in any directory.
    by_name: bool


class Layer(NamedTuple):
    """The patterns of one file. They see a path without its first `cut` bytes, with `prefix` before it."""

    patterns: tuple[Pattern, ...]
    cut: int = 0
    prefix: bytes = b""


@dataclass(frozen=True)
class Rules:
    """The patterns for one directory, those of the nearest file last."""

    file_name: str
    layers: tuple[Layer, ...] = ()
    # Ignored paths that git tracks, and the directories above them, which end with a slash.
    tracked: frozenset[bytes] = frozenset()
    # Whether the directory itself is ignored, so that only its tracked files count.
    only_tracked: bool = False

    def inside(self, directory: Path, path: bytes) -> Rules:
        """Return the rules inside of this directory, which is not ignored. `path` is "" for the workspace."""
        rules, cut = self, len(path) + bool(path)
        if path and self.file_name == GIT_IGNORE and os.path.lexists(directory / ".git"):
            exclude = Layer(_read_exclude(directory), cut)
            rules = Rules(GIT_IGNORE, (exclude,), _list_tracked(directory, path))
        elif path + b"/" in self.tracked and self._matches(path, path.rpartition(b"/")[2], True):
            rules = replace(self, only_tracked=True)
        patterns = _read(directory / self.file_name)
        return replace(rules, layers=(*rules.layers, Layer(patterns, cut))) if patterns else rules

    def ignores(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        """Return whether this entry of a directory that is not ignored is ignored."""
        if name in _NEVER:
            return True
        # A tracked directory is a submodule, which has its own rules.
        if path in self.tracked or (is_directory and path + b"/" in self.tracked):
            return False
        return self.only_tracked or self._matches(path, name, is_directory)

    def _matches(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        for patterns, cut, prefix in reversed(self.layers):
            relative = prefix + path[cut:]
            for expression, ignores, only_directories, by_name in reversed(patterns):
                if only_directories and not is_directory:
                    continue
                if expression.fullmatch(name if by_name else relative):
                    return ignores
        return False


def rules_of(root: Path) -> Rules:
    """Return the rules for the top of this workspace, without its own ignore file. Raise WorkspaceError."""
    try:
        if (root / OWN_IGNORE).is_file():
            return Rules(OWN_IGNORE)
        above = [root, *root.parents]
        depth = next((at for at, directory in enumerate(above) if (directory / ".git").exists()), None)
    except OSError as error:
        raise _unreadable(Path(error.filename).parent, error) from None
    if depth is None:
        return Rules(GIT_IGNORE)
    layers: list[Layer] = []
    for directory in (above[depth], *reversed(above[1 : depth + 1])):
        patterns = _read(directory / GIT_IGNORE) if layers else _read_exclude(directory)
        names = root.relative_to(directory).parts
        layers.append(Layer(patterns, prefix=b"".join(os.fsencode(name) + b"/" for name in names)))
    return Rules(GIT_IGNORE, tuple(layers), _list_tracked(root, b""))


def effective_file(root: Path) -> str:
    """Return the name of the ignore file to which the user can add patterns without losing others."""
    if (root / OWN_IGNORE).is_file():
        return OWN_IGNORE
    by_git = (root / GIT_IGNORE).is_file() or any((at / ".git").exists() for at in (root, *root.parents))
    return GIT_IGNORE if by_git else OWN_IGNORE


def _read_exclude(repository: Path) -> tuple[Pattern, ...]:
    """Return the patterns of `info/exclude`. In a submodule or worktree, `.git` is a file with the path."""
    git = repository / ".git"
    try:
        if git.is_file():
            git = repository / git.read_text().removeprefix("gitdir:").strip()
            if (git / "commondir").is_file():
                git = git / (git / "commondir").read_text().strip()
    except (OSError, ValueError):  # not a file of git
        return ()
    return _read(git / "info" / "exclude")


def _list_tracked(directory: Path, path: bytes) -> frozenset[bytes]:
    """Return the ignored paths below this directory that git tracks, and their parents, as `Rules.tracked`.

    https://git-scm.com/docs/git-ls-files. The repository's configuration could run a program (core.fsmonitor), which is
    disabled here. Git's environment variables are removed, because in a hook they name another repository.
    """
    import subprocess

    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    options = ("-z", "--cached", "--ignored", "--exclude-standard")
    try:
        listed = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "ls-files", *options],
            cwd=directory,
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    files = [path + b"/" + name if path else name for name in listed.stdout.split(b"\0") if name]
    parents = (file[: slash.end()] for file in files for slash in re.finditer(b"/", file))
    return frozenset((*files, *parents))


def _read(file: Path) -> tuple[Pattern, ...]:
    try:
        # Reading a pipe would block. git does not follow links to its own files.
        if not file.is_file() or (file.name == GIT_IGNORE and file.is_symlink()):
            return ()
        return parse(file.read_bytes())
    except FileNotFoundError:  # removed meanwhile
        return ()
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(path: Path, error: OSError) -> WorkspaceError:
    return WorkspaceError(f"workspace: can't read {path}: {error.strerror}; make it readable")


_CLASSES: Final = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"!-~",
    b"lower": rb"a-z",
    b"print": rb" -~",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb" \t\n\r\f\v",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
# A line without spaces at its end, except for an escaped one.
_LINE: Final = re.compile(rb"(?:\\.?|[^\\ ]| +(?=[^ ]))*", re.DOTALL)
# A part of a set in brackets: a class, or a letter and the end of its range, both perhaps escaped.
_ITEM: Final = re.compile(rb"\[:([^]]*):\]|(\\.|[^\\])(?:-(\\.|[^\\\]]))?", re.DOTALL)
# A part of a pattern. Only the first item of a set may be a bracket. A set is read in one way only: `?+`, `(?>`.
_TOKEN: Final = re.compile(
    rb"(?P<stars>\*+)|(?P<any>\?)|\[(?P<negated>[!^]?+)(?P<set>(?>%b)(?>(?!\])(?:%b))*+)\]|(?P<letter>\\.|[^*?[\\])"
    % (_ITEM.pattern, _ITEM.pattern),
    re.DOTALL,
)
# What stars match. The regular expressions are lazy.
_NAME: Final = b"[^/]*?"
_DIRECTORIES: Final = b"(?:.*?/)??"
_ANYTHING: Final = b".*?"


def parse(text: bytes) -> tuple[Pattern, ...]:
    """Return the patterns of an ignore file, in its order, without those that can't match anything."""
    lines = text.removeprefix(_BYTE_ORDER_MARK).split(b"\n")
    return tuple(pattern for pattern in map(_parse_line, lines) if pattern is not None)


def _parse_line(line: bytes) -> Pattern | None:
    match = _LINE.match(line.removesuffix(b"\r"))
    if match is None or line.startswith(b"#"):
        return None
    line = match.group()
    ignores, line = not line.startswith(b"!"), line.removeprefix(b"!")
    only_directories, line = line.endswith(b"/"), line.removesuffix(b"/")
    expression = _translate(line.removeprefix(b"/"))
    if not line or expression is None:
        return None
    return Pattern(re.compile(expression, re.DOTALL), ignores, only_directories, b"/" not in line)


def _translate(pattern: bytes) -> bytes | None:
    """Return the pattern as a regular expression, None for an invalid one, which matches nothing."""
    # Stars, each with the text after it.
    parts, end, is_prefix = [(b"", b"")], 0, True
    while end < len(pattern):
        token = _TOKEN.match(pattern, end)
        if token is None:
            return None
        start, end, piece = token.start(), token.end(), token["letter"]
        if token["stars"]:
            # git compares the text before the first special letter by itself, and matches the rest as its own pattern.
            is_whole = end - start > 1 and (is_prefix or pattern[start - 1 : start] == b"/")
            stars = _NAME
            if is_whole and pattern[end : end + 2] in (b"", b"\\/"):
                stars = _ANYTHING
            elif is_whole and pattern[end : end + 1] == b"/":
                stars, end = _DIRECTORIES, end + 1
            parts.append((stars, b""))
        else:
            text = re.escape(piece[-1:]) if piece else b"[^/]" if token["any"] else _translate_set(token)
            if text is None:
                return None
            parts[-1] = (parts[-1][0], parts[-1][1] + text)
        is_prefix = is_prefix and piece is not None and len(piece) == 1
    return _join(parts)


def _translate_set(token: re.Match[bytes]) -> bytes | None:
    """Return the expression of a set in brackets, None for an unknown class."""
    inside = b"^" if token["negated"] else b""
    for name, low, high in _ITEM.findall(token["set"]):
        if not low and name not in _CLASSES:
            return None
        # git also compares with the first letter alone, so that a reversed range has that one.
        first, last = low[-1:], max(low[-1:], high[-1:])
        inside += re.escape(first) + b"-" + re.escape(last) if low else _CLASSES[name]
    return b"(?!/)[" + inside + b"]"


def _join(parts: list[tuple[bytes, bytes]]) -> bytes:
    """Return one expression for stars, each with the text after it.

    If more stars follow, the first match of that text is the right one, because they match everything up to a later
    one. So no other is tried (`(?>`), or many stars would take exponential time. A star for directories ends at a
    slash, and so does the group of parts between two of them.
    """
    result, group = b"", b""
    for index, (stars, text) in enumerate(parts):
        if stars in (_DIRECTORIES, _ANYTHING):
            result, group = result + (b"(?>" + group + b")"), b""
        is_last = index == len(parts) - 1
        group += b"(?>" + stars + text + b")" if stars == _NAME and not is_last else stars + text
    return result + group
