"""What is not the workspace's own where the workspace has something else now: moved aside, never lost."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from trainyard.workspace.pack import DIGEST_PREFIX
from trainyard.workspace.unpack import DIRECTORY_MODE, digest_of

_PREFIX: Final = "kept-"
# Stands in no name and no target of a link.
_OR: Final = "\0"


def either(*contents: str) -> str:
    """What may be at a path while an archive is being applied: one of these. It is never equal to one of them."""
    return _OR + _OR.join(dict.fromkeys(each for one in contents for each in one.split(_OR) if each))


def is_own(place: Path, known: str) -> bool:
    """Whether what is here is still what an archive put here: `known`, or one of several (`either`).

    What can't be read is another one: an archive's files can be.
    """
    found = [each.split(" ", 1) for each in known.split(_OR) if each]
    try:
        mode = os.lstat(place).st_mode
        if stat.S_ISLNK(mode):
            return ["link", os.readlink(place)] in found
        digests = {rest.rpartition(" ")[2] for kind, rest in found if kind == "file"}
        # A pipe would be waited for.
        return stat.S_ISREG(mode) and digest_of(place).removeprefix(DIGEST_PREFIX) in digests
    except OSError:
        return False


class Kept:
    """What one archive's application moves aside, each at its own path in a directory in `control`."""

    def __init__(self, into: Path, control: Path) -> None:
        self._into, self._control = into, control
        self._directory: Path | None = None
        self.places: list[str] = []

    def take(self, path: str) -> None:
        """Moves what is at this path aside, a directory with all that is in it."""
        place = self._room(path)
        try:
            os.rename(self._into / path, place)
        except FileNotFoundError:  # another worker of the same volume has
            return
        self.places.append(str(place.relative_to(self._into)))

    def _room(self, path: str) -> Path:
        """A place where nothing is yet: of `a` and `a/b`, both of which may be taken, the second gets another one."""
        for _ in range(2):
            if self._directory is None:
                self._directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._control))
                self._directory.chmod(DIRECTORY_MODE)
            place = self._directory / path
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError):
                self._directory = None
                continue
            if not os.path.lexists(place):
                break
            self._directory = None
        return place
