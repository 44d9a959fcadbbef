"""Unpack the tar of a pod into an empty local directory. The pod may send anything: nothing is written elsewhere.

The filter of tarfile asks the file system where a name leads, which can be deceived (CVE-2025-4517). This one checks
the names alone, and creates links after all files, so that no file is written through a link.
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
    """The file or directory `base` of a tar, unpacked in the directory `into`. `skipped` says what was left out."""

    def __init__(self, base: str, into: Path) -> None:
        self._base, self._into = base, into
        # The worker's own record of the workspace.
        self._record = f"{base}/{CONTROL_DIRECTORY}"
        self._created: set[str] = set()
        self._directories, self._files = {""}, set[str]()
        self._links: dict[str, str] = {}
        self.skipped: list[str] = []

    def add(self, members: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """Unpack the next member.

        Raises:
            tarfile.ReadError: The member does not belong to `base`.
            OSError: The disk is full.
        """
        name = member.name
        if problem := self._problem(name):
            raise tarfile.ReadError(f"member {name[:_SHOWN]!r}: {problem}")
        if name == self._record or name.startswith(f"{self._record}/"):
            return
        self._created.add(name)
        if member.isdir():
            self._make_directory(name)
            return
        if why := self._unsupported(member):
            self.skipped.append(f"{name} is {why}")
            return
        self._make_directory(name.rpartition("/")[0])
        if member.issym():
            self._links[name] = member.linkname
        elif member.islnk() and member.linkname in self._links:  # a second name of a link
            self._links[name] = self._links[member.linkname]
        elif member.islnk():
            os.link(self._into / member.linkname, self._into / name, follow_symlinks=False)
            self._files.add(name)
        else:
            self._write(members, member)
            self._files.add(name)

    def end(self) -> None:
        """Create the links, after the last member."""
        for name, target in self._links.items():
            os.symlink(target, self._into / name)

    def _problem(self, name: str) -> str:
        if problem := path_problem(name):
            return problem
        if name != self._base and not name.startswith(f"{self._base}/"):
            return "it was not requested"
        if name in self._created or name in self._directories:
            return "a second member of the same name"
        parts = name.split("/")
        parents = {"/".join(parts[:end]) for end in range(1, len(parts))}
        return "it is inside of a file" if parents & (self._created - self._directories) else ""

    def _unsupported(self, member: tarfile.TarInfo) -> str:
        """Return why a member that is no directory is skipped, "" if it is not."""
        target = member.linkname if member.issym() else self._links.get(member.linkname, "")
        if target and (member.issym() or member.islnk()):
            is_inside = link_stays_inside(member.name[len(self._base) + 1 :], target)
            return "" if is_inside else f"a link that may lead out of it, to {target}"
        if member.islnk():
            exists = member.linkname in self._files
            return "" if exists else f"a hard link to {member.linkname}, which was not copied"
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
            # Others may at most read it: the pod does not know the users of this machine.
            os.fchmod(file.fileno(), 0o600 | member.mode & (0o755 if member.mode & 0o100 else 0o644))
            with suppress(ValueError, OverflowError):  # not a valid time
                os.utime(file.fileno(), (member.mtime, member.mtime))
