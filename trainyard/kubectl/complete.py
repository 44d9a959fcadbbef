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
from trainyard.k8s.client import RetryPolicy
from trainyard.kubectl.cli import parser, value_or_none
from trainyard.kubectl.cluster import Cluster, contexts_of
from trainyard.kubectl.output import PluginError

_QUICK: Final = RetryPolicy(timeout=1.0, initial_delay=0.1, max_delay=0.2)
_FILES, _NO_FILES = 0, 4
_WITH_JOB: Final = frozenset({"logs", "status", "cancel", "suspend", "resume", "sync", "cp"})
# The objects that the values of these flags name.
_OBJECT_FLAGS: Final = {"queue": "queues", "namespace": "namespaces", "context": "contexts"}
_VALUE_FLAGS: Final = ("-n", "--namespace", "--context")
Names = Callable[[str, Sequence[str]], list[str]]


def suggestions(words: Sequence[str], names: Names) -> tuple[list[str], int]:
    """Return the words that may replace the last one, and the directive. `names` lists names in the cluster.

    For `--queue=v`, return the values alone: the shell scripts of cobra keep the flag.
    """
    *before, last = words or [""]
    line = CommandLine(parser(), before)
    if line.ended:
        return [], _FILES
    last = line.split_value(last)
    if line.waits is not None:
        found = [str(choice) for choice in line.waits.choices or ()]
        if line.waits.dest in _OBJECT_FLAGS:
            found = names(_OBJECT_FLAGS[line.waits.dest], before)
        if not found:
            return [], _FILES if line.waits.dest in ("workspace", "kubeconfig") else _NO_FILES
    elif last.startswith("-"):
        found = sorted(line.flags)
    elif not line.command:
        found = sorted(line.commands)
    elif line.command in _WITH_JOB:
        found = [f"{name}:" if line.command == "cp" else name for name in names("jobs", before)]
    else:
        return [], _FILES
    files = line.command == "cp" and line.waits is None
    return [each for each in found if each.startswith(last)], _FILES if files else _NO_FILES


def list_names(kind: str, words: Sequence[str]) -> list[str]:
    """Return names of jobs, queues, namespaces or contexts, none if the cluster does not answer at once."""
    # As on the whole line: "-n x", "-nx", "--namespace=x".
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for names in (("-n", "--namespace"), ("--context",), ("--kubeconfig",)):
        flags.add_argument(*names, type=value_or_none)
    try:
        # The last flag may have no value yet.
        options, _ = flags.parse_known_args(words[:-1] if words and words[-1] in _VALUE_FLAGS else words)
        if kind == "contexts":
            return contexts_of(options.kubeconfig)
        cluster = Cluster.connect(options.kubeconfig, options.context, options.namespace, _QUICK)
        if kind == "namespaces":
            return cluster.namespaces()
        items = cluster.queues() if kind == "queues" else cluster.jobs()
    except (argparse.ArgumentError, PluginError):
        return []
    return [item["metadata"]["name"] for item in items]


def main(words: Sequence[str], names: Names = list_names) -> int:
    """Print the suggestions."""
    found, directive = suggestions(words, names)
    print("".join(f"{each}\n" for each in found) + f":{directive}")
    return 0


def entry() -> None:
    """Run the executable `kubectl_complete-torchrun`."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    entry()
