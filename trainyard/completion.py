"""Read an incomplete command line of a parser with subcommands, for shell completion: `CommandLine`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


class CommandLine:
    """The words so far: the subcommand, the flags that may follow, and the flag that waits for its value.

    Attributes:
        commands: The parsers of all subcommands, by name.
        command: The name of the subcommand, "" before it is complete.
        flags: The flags that may follow.
        waits: The flag whose value comes next, if any.
        ended: Whether "--" ended the flags.
    """

    def __init__(self, parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
        self.commands: dict[str, argparse.ArgumentParser] = next(
            action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)
        )
        self.command = ""
        self.flags = _flags(parser)
        self.waits: argparse.Action | None = None
        self.ended = False
        for word in words:
            if self.waits is not None:
                self.waits = None
            elif word == "--":
                self.ended = True
                return
            elif word in self.flags:
                self.waits = self.flags[word] if self.flags[word].nargs not in (0, "?") else None
            elif not self.command and word in self.commands:
                self.command, self.flags = word, _flags(self.commands[word])

    def positional(self) -> argparse.Action | None:
        """Return the first positional argument of the subcommand, if there is one."""
        actions = self.commands[self.command]._actions if self.command else []
        return next((action for action in actions if not action.option_strings), None)

    def split_value(self, word: str) -> str:
        """Return the part of a word to complete: of `--flag=part` the part, if the flag takes a value."""
        flag, equals, part = word.partition("=")
        action = self.flags.get(flag)
        if self.waits or not equals or not flag.startswith("--") or action is None or action.nargs == 0:
            return word
        self.waits = action
        return part


def _flags(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {flag: action for action in parser._actions for flag in action.option_strings}
