"""Whose a flag is that stands behind the words of a command. Pure."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence


def doubtful_flag(words: Sequence[str], flags: Mapping[str, argparse.Action]) -> str:
    """The first of our flags behind a command of several words, which the command may have, too; "" for none.

    A command in quotes is one word, and flags behind it are ours. What stands behind "--" is the command's. A flag in
    front of the command that is not known is the fault to tell of: the word behind it may be its value.
    """
    of_command, index = 0, 0
    while index < len(words) and words[index] != "--":
        word = words[index]
        name, equals, _ = word.partition("=")
        action = flags.get(name)
        if action is None and word.startswith("-") and not word.startswith("--"):
            action, equals = flags.get(word[:2]), word[2:]
        if action is None and word.startswith("-") and not of_command:
            return ""
        if action is None:
            of_command += not word.startswith("-")
        elif of_command > 1:
            return name
        elif action.nargs != 0 and not equals:
            index += 1
        index += 1
    return ""
