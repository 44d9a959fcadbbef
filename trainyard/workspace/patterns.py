"""One line of a .gitignore as a question about one entry of a directory. Pure.

git asks a pattern about each entry by itself, and never looks into a directory that is ignored
(https://git-scm.com/docs/gitignore; dir.c and wildmatch.c of git). It compares bytes, and so does this.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

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
