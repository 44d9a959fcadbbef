"""What a person may write for yes, for no and for a number of machines in a variable of make."""

from __future__ import annotations

import argparse
import re

YES = ("1", "yes", "true", "on")
NO = ("0", "no", "false", "off")
WANTED = f"it must be {', '.join(YES[:-1])} or {YES[-1]}, or {', '.join(NO[:-1])} or {NO[-1]}"


class AnswerError(Exception):
    """A word that is neither yes nor no, or no number; one line."""


def is_yes(name: str, text: str) -> bool:
    """Whether the text of a variable says yes; its case counts for nothing.

    Raises:
        AnswerError: it says neither yes nor no.
    """
    word = text.strip().lower()
    if word not in (*YES, *NO):
        raise AnswerError(f"{name} is {text!r}; {WANTED}")
    return word in YES


def keep_data(text: str) -> bool:
    """The value of --keep-data, for argparse."""
    try:
        return is_yes("KEEP_DATA", text)
    except AnswerError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def nodes(name: str, text: str) -> int:
    """The number of machines in a variable. Python itself also reads 1_0 and the digits of other scripts.

    Raises:
        AnswerError: it is none.
    """
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise AnswerError(f"{name}={text!r} is no number of nodes; it must be one such as 4")
    return int(text)
