"""`kubectl_complete-torchrun`: shell completion for `kubectl torchrun`. The entry point is `entry`.

One suggestion per line, then a directive for the shell (kubectl, pkg/cmd/plugin_completion.go; ShellCompDirective of
cobra: 0 complete files if there is no suggestion, 4 no files).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Final

from trainyard.completion import CommandLine
from trainyard.k8s.client import ApiUnavailable, RetryPolicy
from trainyard.k8s.kubeconfig import contexts_of
from trainyard.kubectl.cli import parser, value_or_none
from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.output import PluginError
from trainyard.operator import names as n

_QUICK: Final = RetryPolicy(timeout=1.0, initial_delay=0.1, max_delay=0.2)
_FILES, _NO_FILES = 0, 4
# The objects that the values of these flags and arguments name.
_OBJECTS: Final = {
    **{"queue": n.QUEUE_PLURAL, "namespace": "namespaces", "context": "contexts"},
    **{"JOB": n.JOB_PLURAL, "FROM": n.JOB_PLURAL},
}
_TAKE_FILES: Final = ("DIRECTORY", "kubeconfig", "COMMAND", "FROM")
Names = Callable[[str, Sequence[str]], list[str]]


def suggestions(words: Sequence[str], names: Names) -> tuple[list[str], int]:
    """Return the words that may replace the last one, and the directive. `names` lists names in the cluster.

    For `--queue=v`, return the values alone: the shell scripts of cobra keep the flag.
    """
    *before, last = words or [""]
    line, name = CommandLine(parser(), before), ""
    if line.ended:
        return [], _FILES
    last = line.split_value(last)
    argument = line.waits or line.positional()
    if line.waits is None and last.startswith("-"):
        found = sorted(line.flags)
    elif argument is None:
        found = [] if line.command else sorted(line.commands)
    else:
        name, found = str(argument.metavar or argument.dest), list(argument.choices or ())
        if name in _OBJECTS:
            found = [f"{value}:" if name == "FROM" else value for value in names(_OBJECTS[name], before)]
    return [value for value in found if value.startswith(last)], _FILES if name in _TAKE_FILES else _NO_FILES


def list_names(kind: str, words: Sequence[str]) -> list[str]:
    """Return names of objects or contexts, none if the cluster does not answer at once."""
    # As on the whole line: "-n x", "-nx", "--namespace=x".
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for names in (("-n", "--namespace"), ("--context",), ("--kubeconfig",)):
        flags.add_argument(*names, type=value_or_none)
    try:
        # The last flag may have no value yet.
        is_open = words and words[-1] in ("-n", "--namespace", "--context")
        options, _ = flags.parse_known_args(words[:-1] if is_open else words)
        if kind == "contexts":
            return contexts_of(options.kubeconfig)
        cluster = Cluster.connect(options.kubeconfig, options.context, options.namespace, _QUICK)
        items = cluster.items(kind, everywhere=kind == "namespaces")
    except (argparse.ArgumentError, PluginError, ApiUnavailable):
        return []
    return [item["metadata"]["name"] for item in items]


def main(words: Sequence[str]) -> int:
    found, directive = suggestions(words, list_names)
    print("".join(f"{value}\n" for value in found) + f":{directive}")
    return 0


def entry() -> None:
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    entry()
