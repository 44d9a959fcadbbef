"""Write docs/commands.md, the page of all commands, from their parser: `python -m trainyard.cli.reference`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from textwrap import fill
from typing import Final

from local.arguments import COMMANDS as LOCAL_COMMANDS
from local.arguments import EXIT_USAGE, HOME, Argument, Command
from local.home import CHECKOUT
from local.standard_output import CLOSED_PIPE
from trainyard.cli.arguments import COMMANDS, WHERE

PAGE: Final = CHECKOUT / "docs" / "commands.md"
HEAD: Final = f"""\
# Commands

<!-- Written by `make reference` from trainyard/cli/arguments.py and local/arguments.py; edits here are lost. -->

`make environment` writes `.venv/bin/trainyard`. It works in every directory, and so does a link to it:

```console
$ make environment && ln -s "$PWD/.venv/bin/trainyard" ~/.local/bin/
$ trainyard up --stack dev
$ source <(trainyard completion bash)    # complete commands, options and stacks: also for zsh and fish
```

The make targets of the same names call these commands, and install the environment first: `make up STACK=dev` is
`trainyard up --stack dev`. `pip install .` installs a `trainyard` that runs the checkout around the working directory.

Results go to stdout, errors to stderr. Exit codes: 0 for success, 1 for an error or a failed run, {EXIT_USAGE} for a
wrong command line, 130 after Ctrl-C, {CLOSED_PIPE} if the reader of stdout closes it, as `| head` does; others are
in the descriptions below.

| Command | What it does |
|---|---|
"""
_TABLE: Final = "| Argument | Meaning |\n|---|---|\n"
_LOCAL_HEAD: Final = f"""
## The local cloud alone

`.venv/bin/python -m local COMMAND` works on the local cloud without a stack ([local-cloud.md](local-cloud.md)).
`--home HOME COMMAND` names another {HOME.settings["help"]}.

| Command | What it does |
|---|---|
"""


def render() -> str:
    """Return the text of the page."""
    rows = "".join(f"| [`{each.name}`](#{each.name}) | {each.summary} |\n" for each in COMMANDS)
    common = f"\nAll of them but status, logs and completion take:\n\n{_TABLE}{_rows(WHERE)}"
    local_rows = "".join(
        f"| `{each.name}` | {each.summary} |\n{_rows(each.arguments, f'{each.name} ')}"
        for each in LOCAL_COMMANDS
    )
    return HEAD + rows + common + "".join(_section(each) for each in COMMANDS) + _LOCAL_HEAD + local_rows


def _section(command: Command) -> str:
    rows = _rows([each for each in command.arguments if each not in WHERE])
    return f"\n## {command.name}\n\n{fill(command.description, 120)}\n" + (rows and f"\n{_TABLE}{rows}")


def _rows(arguments: Sequence[Argument], before: str = "") -> str:
    """Return the rows of a table of arguments. `before` stands before each."""
    scratch = argparse.ArgumentParser(add_help=False)
    return "".join(_row(scratch.add_argument(*each.names, **each.settings), before) for each in arguments)


def _row(action: argparse.Action, before: str) -> str:
    names = ", ".join(action.option_strings)
    choices = "{" + ",".join(map(str, action.choices)) + "}" if action.choices else ""
    value = "" if action.nargs == 0 else str(action.metavar or choices or (action.dest.upper()))
    if action.nargs == "?":
        value = f"[={value}]" if names else f"[{value}]"
    elif names and value:
        value = f" {value}"
    needed = " (required)" if action.required and names else ""
    return f"| `{before}{names}{value}` | {action.help}{needed} |\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(render())
    print(f"wrote {PAGE.relative_to(CHECKOUT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
