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
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trainyard.workspace.errors import WorkspaceError

OWN_IGNORE: Final = ".torchrunignore"
GIT_IGNORE: Final = ".gitignore"
# A worker's record of its workspace (trainyard/workspace/place.py).
CONTROL_DIRECTORY: Final = ".torchrun-workspace"
_GIT_SECONDS: Final = 30.0
_NEVER: Final = frozenset({b".git", CONTROL_DIRECTORY.encode()})


@dataclass(frozen=True)
class Pattern:
    """One line of an ignore file. `ignores` is false for a line that begins with "!"."""

    expression: re.Pattern[bytes]
    ignores: bool
    only_directories: bool
    # A pattern without a slash matches names in any directory.
    by_name: bool

    def matches(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        """Return whether the pattern matches this entry. `path` is relative to the directory of the ignore file."""
        if self.only_directories and not is_directory:
            return False
        return self.expression.fullmatch(name if self.by_name else path) is not None


Layer = tuple[bytes, tuple[Pattern, ...]]


@dataclass(frozen=True)
class Rules:
    """The patterns for one directory: each layer with the path of its ignore file's directory, the nearest last.

    The path of a file above the workspace is "<" and the path from there to the workspace.
    """

    file_name: str
    layers: tuple[Layer, ...] = ()
    # Ignored paths that git tracks, and the directories above them.
    tracked: frozenset[bytes] = frozenset()
    parents: frozenset[bytes] = frozenset()
    # Whether the directory itself is ignored, so that only its tracked files count.
    only_tracked: bool = False

    def with_file(self, directory: Path, path: bytes) -> Rules:
        """Return the rules inside of this directory, with its ignore file. `path` is "" for the workspace."""
        rules = self
        if path and self.file_name == GIT_IGNORE and os.path.lexists(directory / ".git"):
            rules = Rules(GIT_IGNORE, _layer(path, _read_exclude(directory))).with_tracked(directory, path)
        patterns = _read(directory / self.file_name)
        return replace(rules, layers=(*rules.layers, (path, patterns))) if patterns else rules

    def within(self, path: bytes, name: bytes) -> Rules:
        """Return the rules for the entries of this directory, which is not ignored."""
        only_tracked = self.only_tracked or (path in self.parents and self._matches(path, name, True))
        return replace(self, only_tracked=only_tracked) if only_tracked != self.only_tracked else self

    def with_tracked(self, directory: Path, path: bytes) -> Rules:
        """Return these rules with the ignored paths that git tracks in this directory's repository."""
        tracked = {path + b"/" + each if path else each for each in _list_tracked(directory)}
        ends = ((each, at) for each in tracked for at, letter in enumerate(each) if letter == ord("/"))
        return replace(self, tracked=frozenset(tracked), parents=frozenset(each[:at] for each, at in ends))

    def ignores(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        """Return whether this entry of a directory that is not ignored is ignored."""
        if name in _NEVER:
            return True
        # A tracked directory is a submodule, which has its own rules.
        if path in self.tracked or (is_directory and path in self.parents):
            return False
        return self.only_tracked or self._matches(path, name, is_directory)

    def _matches(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        for base, patterns in reversed(self.layers):
            relative = base[1:] + b"/" + path if base.startswith(b"<") else path[len(base) + bool(base) :]
            for pattern in reversed(patterns):
                if pattern.matches(relative, name, is_directory):
                    return pattern.ignores
        return False


def rules_of(root: Path) -> Rules:
    """Return the rules for the top of this workspace, without its own ignore file. Raise WorkspaceError."""
    try:
        return _find_rules(root)
    except OSError as error:
        raise _unreadable(Path(error.filename).parent, error) from None


def _find_rules(root: Path) -> Rules:
    if (root / OWN_IGNORE).is_file():
        return Rules(OWN_IGNORE)
    if (root / ".git").exists():
        return Rules(GIT_IGNORE, _layer(b"", _read_exclude(root))).with_tracked(root, b"")
    repository = next((above for above in root.parents if (above / ".git").exists()), None)
    if repository is None:
        return Rules(GIT_IGNORE)
    layers, above = [], root.parent
    while above.is_relative_to(repository):
        layers.append(_layer(_path_above(root, above), _read(above / GIT_IGNORE)))
        above = above.parent
    layers.append(_layer(_path_above(root, repository), _read_exclude(repository)))
    return Rules(GIT_IGNORE, tuple(layer for each in reversed(layers) for layer in each)).with_tracked(
        root, b""
    )


def effective_file(root: Path) -> str:
    """Return the name of the ignore file to which the user can add patterns without losing others."""
    if (root / OWN_IGNORE).is_file():
        return OWN_IGNORE
    by_git = (root / GIT_IGNORE).is_file() or any((at / ".git").exists() for at in (root, *root.parents))
    return GIT_IGNORE if by_git else OWN_IGNORE


def _layer(base: bytes, patterns: tuple[Pattern, ...]) -> tuple[Layer, ...]:
    return ((base, patterns),) if patterns else ()


def _path_above(root: Path, above: Path) -> bytes:
    return b"<" + os.fsencode(root.relative_to(above))


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


def _list_tracked(directory: Path) -> list[bytes]:
    """Return the ignored paths that git tracks below this directory (https://git-scm.com/docs/git-ls-files).

    The repository's configuration could run a program (core.fsmonitor), which is disabled here. Git's environment
    variables are removed, because in a hook they name another repository.
    """
    import subprocess

    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = [
        "git",
        "-c",
        "core.fsmonitor=false",
        "ls-files",
        "-z",
        "--cached",
        "--ignored",
        "--exclude-standard",
    ]
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [each for each in done.stdout.split(b"\0") if each] if done.returncode == 0 else []


def _read(file: Path) -> tuple[Pattern, ...]:
    try:
        # git does not follow links to its own files.
        if file.name == GIT_IGNORE and file.is_symlink():
            return ()
        with open(file, "rb", opener=_open_nonblocking) as opened:
            return parse(opened.read()) if stat.S_ISREG(os.fstat(opened.fileno()).st_mode) else ()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return ()
    except OSError as error:
        raise _unreadable(file, error) from None


def _open_nonblocking(name: str, flags: int) -> int:
    """Open a file. A pipe would block without a writer."""
    return os.open(name, flags | os.O_NONBLOCK)


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
# What stars match. The regular expressions are lazy.
_NAME: Final = b"[^/]*?"
_DIRECTORIES: Final = b"(?:.*?/)??"
_ANYTHING: Final = b".*?"


def parse(text: bytes) -> tuple[Pattern, ...]:
    """Return the patterns of an ignore file, in its order, without those that can't match anything."""
    lines = text.removeprefix(_BYTE_ORDER_MARK).split(b"\n")
    found = (_parse_line(line.removesuffix(b"\r")) for line in lines if not line.startswith(b"#"))
    return tuple(pattern for pattern in found if pattern is not None)


def _parse_line(line: bytes) -> Pattern | None:
    line = _strip_trailing_spaces(line)
    ignores = not line.startswith(b"!")
    line = line if ignores else line[1:]
    only_directories = line.endswith(b"/")
    line = line[:-1] if only_directories else line
    expression = _translate(line.removeprefix(b"/"))
    if not line or expression is None:
        return None
    return Pattern(re.compile(expression, re.DOTALL), ignores, only_directories, b"/" not in line)


def _strip_trailing_spaces(line: bytes) -> bytes:
    """Return the line without spaces at its end, except for an escaped one."""
    end, index = 0, 0
    while index < len(line):
        step = 2 if line[index : index + 1] == b"\\" else 1
        if line[index : index + 1] != b" ":
            end = index + step
        index += step
    return line[:end]


def _translate(pattern: bytes) -> bytes | None:
    """Return the pattern as a regular expression, None for an invalid one, which matches nothing."""
    parts, index = [(b"", b"")], 0
    # git compares the text before the first of these by itself, and matches the rest as a pattern of its own.
    start = next((at for at in range(len(pattern)) if pattern[at : at + 1] in b"*?[\\"), len(pattern))
    while index < len(pattern):
        letter = pattern[index : index + 1]
        if letter == b"*":
            stars, index = _stars(pattern, index, index == start)
            parts.append((stars, b""))
            continue
        if letter == b"?":
            piece, index = b"[^/]", index + 1
        elif letter == b"[":
            bracket = _bracket(pattern, index + 1)
            if bracket is None:
                return None
            piece, index = bracket
        elif letter == b"\\":
            if index + 1 == len(pattern):
                return None
            piece, index = re.escape(pattern[index + 1 : index + 2]), index + 2
        else:
            piece, index = re.escape(letter), index + 1
        parts[-1] = (parts[-1][0], parts[-1][1] + piece)
    return _join(parts)


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


def _stars(pattern: bytes, start: int, is_first: bool) -> tuple[bytes, int]:
    """Return what these stars match, and their end. Two between slashes match directories, at the end anything."""
    end = start
    while pattern[end : end + 1] == b"*":
        end += 1
    whole = end - start >= 2 and (is_first or pattern[start - 1 : start] == b"/")
    if whole and (end == len(pattern) or pattern[end : end + 2] == b"\\/"):
        return _ANYTHING, end
    if whole and pattern[end : end + 1] == b"/":
        return _DIRECTORIES, end + 1
    return _NAME, end


def _bracket(pattern: bytes, index: int) -> tuple[bytes, int] | None:
    """Return the set that begins here, and its end; None if it does not end, or has an unknown class."""
    negated = pattern[index : index + 1] in (b"!", b"^")
    index += negated
    pieces, first = [], True
    while first or pattern[index : index + 1] != b"]":
        first = False
        if pattern[index : index + 2] == b"[:" and (end := pattern.find(b"]", index + 2)) > 0:
            name = pattern[index + 2 : end]
            if name.endswith(b":"):
                if name[:-1] not in _CLASSES:
                    return None
                pieces.append(_CLASSES[name[:-1]])
                index = end + 1
                continue
        low = _letter(pattern, index)
        if low is None:
            return None
        index = low[1]
        high = low
        if pattern[index : index + 1] == b"-" and pattern[index + 1 : index + 2] not in (b"]", b""):
            end_of_range = _letter(pattern, index + 1)
            if end_of_range is None:
                return None
            high, index = end_of_range, end_of_range[1]
        # git also compares with the first letter alone, so that a reversed range has that one.
        pieces.append(re.escape(low[0]) + b"-" + re.escape(max(low[0], high[0])))
    inside = b"".join(pieces)
    return b"(?!/)[" + (b"^" if negated else b"") + inside + b"]", index + 1


def _letter(pattern: bytes, index: int) -> tuple[bytes, int] | None:
    """Return one letter of a set, which may be escaped, and its end."""
    if pattern[index : index + 1] == b"\\":
        index += 1
    letter = pattern[index : index + 1]
    return (letter, index + 1) if letter else None
