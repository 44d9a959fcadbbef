"""Apply the ignore files of a workspace. The directory `.git` is always ignored.

A `.torchrunignore` at the top replaces every `.gitignore`. Each directory may have an ignore file, and the one nearest
to an entry decides. As in git, `.gitignore` files above the workspace and `.git/info/exclude` of its repository apply,
and a nested repository, such as a submodule, has its own rules. Files that git tracks belong to the workspace even if a
`.gitignore` matches them. Without the program `git`, no file is known to be tracked.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trainyard.workspace.errors import WorkspaceError

OWN_IGNORE: Final = ".torchrunignore"
GIT_IGNORE: Final = ".gitignore"
# Where a worker keeps what it knows of its copy (trainyard/workspace/place.py).
CONTROL_DIRECTORY: Final = ".torchrun-workspace"
_GIT_SECONDS: Final = 30.0
NEVER: Final = frozenset({b".git", CONTROL_DIRECTORY.encode()})


@dataclass(frozen=True)
class Rules:
    """The patterns that hold in one directory: each with the path of its file's directory, the nearest last.

    `base` of a file above the workspace is what leads from there to the workspace.
    """

    file_name: str
    layers: tuple[tuple[bytes, tuple[Pattern, ...]], ...] = ()
    # Ignored paths that git tracks, and the directories above them.
    tracked: frozenset[bytes] = frozenset()
    leading: frozenset[bytes] = frozenset()
    # Whether the directory itself is ignored, so that only its tracked files count.
    only_tracked: bool = False

    def inside(self, directory: Path, path: bytes) -> Rules:
        """The rules within this directory, which is at this path of the workspace ("" for the top)."""
        rules = self
        if path and self.file_name == GIT_IGNORE and os.path.lexists(directory / ".git"):
            rules = Rules(GIT_IGNORE, _layers(path, _excluded(directory))).tracking(directory, path)
        patterns = _read(directory / self.file_name)
        return replace(rules, layers=(*rules.layers, (path, patterns))) if patterns else rules

    def within(self, path: bytes, name: bytes) -> Rules:
        """Return the rules for the entries of this directory, which is not ignored."""
        alone = self.only_tracked or (path in self.leading and self._matched(path, name, True))
        return replace(self, only_tracked=alone) if alone != self.only_tracked else self

    def tracking(self, directory: Path, path: bytes) -> Rules:
        """Return these rules with the ignored paths that git tracks in this directory's repository."""
        tracked = {path + b"/" + each if path else each for each in _tracked(directory)}
        ends = ((each, at) for each in tracked for at, letter in enumerate(each) if letter == ord("/"))
        return replace(self, tracked=frozenset(tracked), leading=frozenset(each[:at] for each, at in ends))

    def ignores(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        """Whether this entry is left out. Its directory is not, or nobody would ask."""
        if name in NEVER:
            return True
        # A tracked directory is a submodule, which has its own rules.
        if path in self.tracked or (is_directory and path in self.leading):
            return False
        return self.only_tracked or self._matched(path, name, is_directory)

    def _matched(self, path: bytes, name: bytes, is_directory: bool) -> bool:
        """Return whether the patterns match this entry."""
        for base, patterns in reversed(self.layers):
            relative = base[1:] + b"/" + path if base.startswith(b"<") else path[len(base) + bool(base) :]
            for pattern in reversed(patterns):
                if pattern.matches(relative, name, is_directory):
                    return pattern.ignores
        return False


def rules_of(root: Path) -> Rules:
    """The rules that hold at the top of this workspace before its own ignore file is read. Raises WorkspaceError."""
    try:
        return _rules_of(root)
    except OSError as error:
        raise _unreadable(Path(error.filename).parent, error) from None


def _rules_of(root: Path) -> Rules:
    if (root / OWN_IGNORE).is_file():
        return Rules(OWN_IGNORE)
    if (root / ".git").exists():
        return Rules(GIT_IGNORE, _layers(b"", _excluded(root))).tracking(root, b"")
    repository = next((above for above in root.parents if (above / ".git").exists()), None)
    if repository is None:
        return Rules(GIT_IGNORE)
    layers, above = [], root.parent
    while above.is_relative_to(repository):
        layers.append(_layers(_above(root, above), _read(above / GIT_IGNORE)))
        above = above.parent
    layers.append(_layers(_above(root, repository), _excluded(repository)))
    return Rules(GIT_IGNORE, tuple(layer for each in reversed(layers) for layer in each)).tracking(root, b"")


def _layers(base: bytes, patterns: tuple[Pattern, ...]) -> tuple[tuple[bytes, tuple[Pattern, ...]], ...]:
    return ((base, patterns),) if patterns else ()


def _above(root: Path, above: Path) -> bytes:
    return b"<" + os.fsencode(root.relative_to(above))


def _excluded(repository: Path) -> tuple[Pattern, ...]:
    """What a repository leaves out without saying so in its files (`.git` is a file in a submodule and a worktree)."""
    git = repository / ".git"
    try:
        if git.is_file():
            git = repository / git.read_text().removeprefix("gitdir:").strip()
            if (git / "commondir").is_file():
                git = git / (git / "commondir").read_text().strip()
    except (OSError, ValueError):  # no file of git's: there is nothing that it says
        return ()
    return _read(git / "info" / "exclude")


def _tracked(directory: Path) -> list[bytes]:
    """Return the ignored paths that git tracks below this directory (https://git-scm.com/docs/git-ls-files).

    The repository's configuration could run a program (core.fsmonitor), which is disabled here. Git's environment
    variables are removed, because in a hook they name another repository.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    words = (
        "git",
        "-c",
        "core.fsmonitor=false",
        "ls-files",
        "-z",
        "--cached",
        "--ignored",
        "--exclude-standard",
    )
    try:
        done = subprocess.run(
            words,
            cwd=directory,
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [each for each in done.stdout.split(b"\0") if each] if done.returncode == 0 else []


def in_force(root: Path) -> str:
    """The name of the file that leaves more out of this workspace, and lets in nothing that is left out now."""
    if (root / OWN_IGNORE).is_file():
        return OWN_IGNORE
    by_git = (root / GIT_IGNORE).is_file() or any((at / ".git").exists() for at in (root, *root.parents))
    return GIT_IGNORE if by_git else OWN_IGNORE


def _read(file: Path) -> tuple[Pattern, ...]:
    try:
        # git does not follow links to its own files.
        if file.name == GIT_IGNORE and file.is_symlink():
            return ()
        with open(file, "rb", opener=_at_once) as opened:
            return parse(opened.read()) if stat.S_ISREG(os.fstat(opened.fileno()).st_mode) else ()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return ()
    except OSError as error:
        raise _unreadable(file, error) from None


def _unreadable(path: Path, error: OSError) -> WorkspaceError:
    return WorkspaceError(f"workspace: can't read {path}: {error.strerror}; make it readable")


def _at_once(name: str, flags: int) -> int:
    """Opens a pipe, too, without waiting for who writes it."""
    return os.open(name, flags | os.O_NONBLOCK)


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
# What stars match, as little of it as will do.
_NAME: Final = b"[^/]*?"
_DIRECTORIES: Final = b"(?:.*?/)??"
_ANYTHING: Final = b".*?"


@dataclass(frozen=True)
class Pattern:
    """`ignores` is false for a line that begins with "!"; `by_name` has a pattern without a slash."""

    expression: re.Pattern[bytes]
    ignores: bool
    only_directories: bool
    by_name: bool

    def matches(self, path: bytes, name: bytes, directory: bool) -> bool:
        """Whether it speaks of this entry; `path` is relative to the directory of the file with the pattern."""
        if self.only_directories and not directory:
            return False
        return self.expression.fullmatch(name if self.by_name else path) is not None


def parse(text: bytes) -> tuple[Pattern, ...]:
    """The patterns of a file, in its order. What can never match anything is left out, as git does."""
    lines = text.removeprefix(_BYTE_ORDER_MARK).split(b"\n")
    found = (_parse_line(line.removesuffix(b"\r")) for line in lines if not line.startswith(b"#"))
    return tuple(pattern for pattern in found if pattern is not None)


def _parse_line(line: bytes) -> Pattern | None:
    line = _without_trailing_spaces(line)
    ignores = not line.startswith(b"!")
    line = line if ignores else line[1:]
    only_directories = line.endswith(b"/")
    line = line[:-1] if only_directories else line
    by_name = b"/" not in line
    expression = _translate(line.removeprefix(b"/"))
    if not line or expression is None:
        return None
    return Pattern(re.compile(expression, re.DOTALL), ignores, only_directories, by_name)


def _without_trailing_spaces(line: bytes) -> bytes:
    """Spaces at the end do not count but for one that a backslash stands before."""
    end, index = 0, 0
    while index < len(line):
        step = 2 if line[index : index + 1] == b"\\" else 1
        if line[index : index + 1] != b" ":
            end = index + step
        index += step
    return line[:end]


def _translate(pattern: bytes) -> bytes | None:
    """The pattern as a regular expression; None for one that is broken and so matches nothing."""
    parts, index = [(b"", b"")], 0
    # git compares what stands before the first of these by itself, and takes the rest for a pattern of its own.
    begins = next((at for at in range(len(pattern)) if pattern[at : at + 1] in b"*?[\\"), len(pattern))
    while index < len(pattern):
        letter = pattern[index : index + 1]
        if letter == b"*":
            stars, index = _stars(pattern, index, index == begins)
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
    return _joined(parts)


def _joined(parts: list[tuple[bytes, bytes]]) -> bytes:
    """One expression of stars, each with what follows it.

    The first place where that is found is the right one if more stars follow, since these match all that lies between
    it and a later place: no other is tried (`(?>`), or many stars would take time without end. A star for directories
    ends at a slash, and so do those parts together that stand between two of them.
    """
    result, run = b"", b""
    for index, (stars, then) in enumerate(parts):
        if stars in (_DIRECTORIES, _ANYTHING):
            result, run = result + (b"(?>" + run + b")"), b""
        is_last = index == len(parts) - 1
        run += b"(?>" + stars + then + b")" if stars == _NAME and not is_last else stars + then
    return result + run


def _stars(pattern: bytes, start: int, at_begin: bool) -> tuple[bytes, int]:
    """What these stars match, and where they end. Two between slashes are any directories, at the end anything."""
    end = start
    while pattern[end : end + 1] == b"*":
        end += 1
    whole = end - start >= 2 and (at_begin or pattern[start - 1 : start] == b"/")
    if whole and (end == len(pattern) or pattern[end : end + 2] == b"\\/"):
        return _ANYTHING, end
    if whole and pattern[end : end + 1] == b"/":
        return _DIRECTORIES, end + 1
    return _NAME, end


def _bracket(pattern: bytes, index: int) -> tuple[bytes, int] | None:
    """The set that begins here, and where it ends; None where it does not, or names a class that there is not."""
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
        # git compares with the first letter by itself, so that even a range the wrong way round has that one.
        pieces.append(re.escape(low[0]) + b"-" + re.escape(max(low[0], high[0])))
    inside = b"".join(pieces)
    return b"(?!/)[" + (b"^" if negated else b"") + inside + b"]", index + 1


def _letter(pattern: bytes, index: int) -> tuple[bytes, int] | None:
    """One letter of a set, which a backslash may stand before, and where it ends."""
    if pattern[index : index + 1] == b"\\":
        index += 1
    letter = pattern[index : index + 1]
    return (letter, index + 1) if letter else None
