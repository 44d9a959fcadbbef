"""Apply the ignore files of a workspace. The directory `.git` is always ignored.

A `.torchrunignore` at the top replaces every `.gitignore`. Each directory may have an ignore file, and the one nearest
to an entry decides. As in git, `.gitignore` files above the workspace and `.git/info/exclude` of its repository apply,
and a nested repository, such as a submodule, has its own rules. Files that git tracks belong to the workspace even if a
`.gitignore` matches them. Without the program `git`, no file is known to be tracked.
"""

from __future__ import annotations

import os
import stat
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.patterns import Pattern, parse

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
