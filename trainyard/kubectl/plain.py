"""Text of a cluster as a terminal may show it. Pure."""

from __future__ import annotations


def plain(text: str) -> str:
    """In one line, without what moves the cursor or changes colours: who writes a message does not rule a screen."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each.isspace() else "?" for each in text)
