"""A member as tarfile reads it: what stands before its content is read into memory, and so has a bound."""

from __future__ import annotations

import tarfile
from typing import Final, Self

# A path or a link's target of Linux has at most 4096 bytes; extended attributes come beside them.
_MOST_BYTES: Final = 2**20
_IN_MEMORY: Final = frozenset(
    {tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK}
)


class Member(tarfile.TarInfo):
    """For `tarfile.open(tarinfo=...)`."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Raises tarfile.ReadError for a head that no tar of a directory makes."""
        member = super().frombuf(buf, encoding, errors)
        if member.type == tarfile.XGLTYPE:  # each adds to what is remembered until the end
            raise tarfile.ReadError("a head that is for all members")
        if member.type in _IN_MEMORY and member.size > _MOST_BYTES:
            raise tarfile.ReadError(f"a head of {member.size} bytes, and at most {_MOST_BYTES} are read")
        return member
