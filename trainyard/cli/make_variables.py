"""Read the values of make variables: yes, no, and numbers of nodes. Name commands and variables in messages as the user
does, who runs make or `trainyard`.
"""

from __future__ import annotations

import argparse
import re

from local.home import Home, program_command, user_program
from trainyard.cli.errors import CommandError

YES = ("1", "yes", "true", "on")
NO = ("0", "no", "false", "off")
WANTED = f"it must be {', '.join(YES[:-1])} or {YES[-1]}, or {', '.join(NO[:-1])} or {NO[-1]}"


def is_yes(name: str, text: str) -> bool:
    """Return whether the value of a variable is yes, in upper or lower case.

    Raises:
        CommandError: It is neither yes nor no.
    """
    word = text.strip().lower()
    if word not in (*YES, *NO):
        raise CommandError(f"{name} is {text!r}; {WANTED}")
    return word in YES


def keep_data(text: str) -> bool:
    """Return the value of --keep-data, for argparse."""
    try:
        return is_yes(user_variable("KEEP_DATA"), text)
    except CommandError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def nodes(name: str, text: str) -> int:
    """Return the number of nodes in a variable. int() would also accept 1_0 and the digits of other scripts.

    Raises:
        CommandError: It is not a number.
    """
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise CommandError(
            f"{user_variable(name, repr(text))} is no number of nodes; it must be one such as 4"
        )
    return int(text)


def user_variable(name: str, value: str = "") -> str:
    """Return a variable of make for a message, with its value if there is one: `CLOUD=local`, or `--cloud local`."""
    if user_program() == "make":
        return f"{name}={value}" if value else name
    if name == "PREFLIGHT":
        return "--no-preflight"
    flag = f"--{name.lower().replace('_', '-')}"
    return f"{flag} {value}" if value and name != "KEEP_DATA" else flag


def user_command(target: str, stack: str, cloud: str, **variables: str) -> str:
    """Return a command for a stack: `make up STACK=dev`, or `trainyard up --stack dev`.

    Args:
        target: The target of make, which is the command of `trainyard`.
        cloud: local or aws. A command on the local cloud names a home that is not the default.
        variables: Other variables of make and their values.
    """
    words = [program_command(Home(), target) if cloud == "local" else f"{user_program()} {target}"]
    # `local` is the default stack.
    if stack != "local" or variables:
        words.append(user_variable("STACK", stack))
    if cloud == "local" and stack != "local":
        words.append(user_variable("CLOUD", "local"))
    return " ".join([*words, *(user_variable(name, value) for name, value in variables.items())])
