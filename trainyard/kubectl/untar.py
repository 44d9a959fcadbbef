"""The tar that a pod makes, into an empty directory here. The pod may send anything: nothing is written elsewhere.

tarfile's own filter asks the file system where a name leads, and can be told wrong (CVE-2025-4517); this one goes by
names alone. Links are made when all files are written, so that no file is written through one.
"""

from __future__ import annotations

import os
import shutil
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from trainyard.workspace.ignore import CONTROL_DIRECTORY
from trainyard.workspace.selection import link_stays_inside, path_problem

_SHOWN: Final = 200
_CHUNK: Final = 2**20


class Tree:
    """What comes of the file or directory `base`, in the directory `into`; `left_out` says what does not."""

    def __init__(self, base: str, into: Path) -> None:
        self._base, self._into = base, into
        # Of a workspace's directory: what its worker knows of it is no part of it.
        self._record = f"{base}/{CONTROL_DIRECTORY}"
        self._made: set[str] = set()
        self._directories, self._files = {""}, set[str]()
        self._links: dict[str, str] = {}
        self.left_out: list[str] = []

    def add(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Takes the next member. Raises tarfile.ReadError for one that is not of `base`, OSError for want of room."""
        name = member.name
        if problem := self._problem(name):
            raise tarfile.ReadError(f"member {name[:_SHOWN]!r}: {problem}")
        if name == self._record or name.startswith(f"{self._record}/"):
            return
        self._made.add(name)
        if member.isdir():
            self._make_directory(name)
            return
        why = self._left_out(member)
        if why:
            self.left_out.append(f"{name} is {why}")
            return
        self._make_directory(name.rpartition("/")[0])
        if member.issym():
            self._links[name] = member.linkname
        elif member.islnk() and member.linkname in self._links:  # of one link, two names
            self._links[name] = self._links[member.linkname]
        elif member.islnk():
            os.link(self._into / member.linkname, self._into / name, follow_symlinks=False)
            self._files.add(name)
        else:
            self._write(members, member)
            self._files.add(name)

    def end(self) -> None:
        """After the last member."""
        for name, target in self._links.items():
            os.symlink(target, self._into / name)

    def _problem(self, name: str) -> str:
        if problem := path_problem(name):
            return problem
        if name != self._base and not name.startswith(f"{self._base}/"):
            return "it was not asked for"
        if name in self._made or name in self._directories:
            return "a second member of the same name"
        parts = name.split("/")
        above = {"/".join(parts[:end]) for end in range(1, len(parts))}
        if above & (self._made - self._directories):
            return "it is inside of a file"
        return ""

    def _left_out(self, member: tarfile.TarInfo) -> str:
        """Why a member that is no directory is left out, "" where it is not."""
        target = member.linkname if member.issym() else self._links.get(member.linkname, "")
        if target and (member.issym() or member.islnk()):
            if link_stays_inside(member.name[len(self._base) + 1 :], target):
                return ""
            return f"a link that may lead out of it, to {target}"
        if member.islnk():
            return (
                ""
                if member.linkname in self._files
                else f"a hard link to {member.linkname}, which is not here"
            )
        if member.issparse():
            return "a file with holes"
        return "" if member.isreg() else "neither a file, a directory nor a link"

    def _make_directory(self, name: str) -> None:
        if name in self._directories:
            return
        self._make_directory(name.rpartition("/")[0])
        os.mkdir(self._into / name)
        self._directories.add(name)

    def _write(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        content = members.extractfile(member)
        assert content is not None  # noqa: S101 (it is a file)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with os.fdopen(os.open(self._into / member.name, flags, 0o600), "wb") as file:
            shutil.copyfileobj(content, file, _CHUNK)
            file.flush()
            # Never more than for others to read: who they are here, the pod does not know.
            os.fchmod(file.fileno(), 0o600 | member.mode & (0o755 if member.mode & 0o100 else 0o644))
            with suppress(ValueError, OverflowError):  # no time at all
                os.utime(file.fileno(), (member.mtime, member.mtime))
