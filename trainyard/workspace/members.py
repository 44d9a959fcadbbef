"""What may stand in a workspace's archive: names that stay inside, and links that do. Pure; both ends ask here."""

from __future__ import annotations

from typing import Final

from trainyard.workspace.ignoring import CONTROL_DIRECTORY

# What removes a tree calls itself once for each directory.
MOST_PARTS: Final = 500
# Code and data pack to a third or a tenth; a file of zeros to less than a thousandth.
_LEAST_BOUND: Final = 4 * 2**30
_MOST_TIMES: Final = 1000
_LEAST_MEMBER: Final = 512


def unpacked_bound(size: int) -> int:
    """How many bytes an archive of `size` bytes may make, so that a small one can't fill a disk."""
    return max(_LEAST_BOUND, _MOST_TIMES * size)


def counted(size: int) -> int:
    """What a member of `size` bytes counts of that bound: an empty one is not for nothing."""
    return max(size, _LEAST_MEMBER)


def name_problem(name: str) -> str:
    """What is wrong with the name of a workspace's member, "" where nothing is."""
    if problem := path_problem(name):
        return problem
    if name.split("/")[0] == CONTROL_DIRECTORY:
        return f"{CONTROL_DIRECTORY} is where a worker keeps what it knows of the workspace"
    return ""


def path_problem(name: str) -> str:
    """What is wrong with the name of any archive's member, "" where it stays where the archive is unpacked."""
    parts = name.split("/")
    if not name or "\0" in name:
        return "an empty name" if not name else "a NUL in its name"
    if name.startswith("/"):
        return "an absolute path"
    if any(part in ("", ".", "..") for part in parts):
        return 'a ".", ".." or empty part in its path'
    if len(parts) > MOST_PARTS:
        return f"{MOST_PARTS} directories or more in one another"
    return ""


def link_stays_inside(name: str, target: str) -> bool:
    """Whether a symbolic link of this name with this target stays in the tree, wherever the tree's other links lead.

    Only its first parts may be "..": what comes after a name may follow another link before it goes up.
    """
    if not target or target.startswith("/") or "\0" in target:
        return False
    ups = 0
    rest = [part for part in target.split("/") if part not in ("", ".")]
    while rest and rest[0] == "..":
        rest.pop(0)
        ups += 1
    return ".." not in rest and ups <= name.count("/")
