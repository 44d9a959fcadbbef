"""Read the values of make variables: yes, no, and numbers of nodes."""

from __future__ import annotations

import argparse
import re

YES = ("1", "yes", "true", "on")
NO = ("0", "no", "false", "off")
WANTED = f"it must be {', '.join(YES[:-1])} or {YES[-1]}, or {', '.join(NO[:-1])} or {NO[-1]}"


class AnswerError(Exception):
    """The value is not yes or no, or not a number."""


def is_yes(name: str, text: str) -> bool:
    """Return whether the value of a variable is yes, in upper or lower case.

    Raises:
        AnswerError: It is neither yes nor no.
    """
    word = text.strip().lower()
    if word not in (*YES, *NO):
        raise AnswerError(f"{name} is {text!r}; {WANTED}")
    return word in YES


def keep_data(text: str) -> bool:
    """Return the value of --keep-data, for argparse."""
    try:
        return is_yes("KEEP_DATA", text)
    except AnswerError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def nodes(name: str, text: str) -> int:
    """Return the number of nodes in a variable. int() would also accept 1_0 and the digits of other scripts.

    Raises:
        AnswerError: It is not a number.
    """
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise AnswerError(f"{name}={text!r} is no number of nodes; it must be one such as 4")
    return int(text)
