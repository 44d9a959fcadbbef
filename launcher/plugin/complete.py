"""`kubectl_complete-torchrun`: what kubectl asks when Tab is pressed after `kubectl torchrun`.

One suggestion per line, at last a line with what the shell should do besides (kubectl, pkg/cmd/plugin_completion.go;
cobra's ShellCompDirective: 0 files if nothing was suggested, 4 no files).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Final

from launcher.kube.rest import Patience
from launcher.plugin.cluster import Cluster
from launcher.plugin.exits import PluginError
from launcher.plugin.words import parser

_QUICK: Final = Patience(total=1.0, first=0.1, longest=0.2)
_FILES, _NO_FILES = 0, 4
_WITH_JOB: Final = frozenset({"logs", "status", "cancel", "suspend", "resume", "sync", "cp"})
Names = Callable[[str, Sequence[str]], list[str]]


def suggestions(words: Sequence[str], names: Names) -> tuple[list[str], int]:
    """What may come in place of the last word, and the directive; `names` looks up jobs or queues of the cluster."""
    *before, last = words or [""]
    whole = parser()
    verbs: dict[str, argparse.ArgumentParser] = next(
        action.choices for action in whole._actions if isinstance(action, argparse._SubParsersAction)
    )
    verb = next((word for word in before if word in verbs), "")
    flags = {
        flag: action for action in (verbs[verb] if verb else whole)._actions for flag in action.option_strings
    }
    previous = flags.get(before[-1]) if before else None
    if previous is not None and previous.nargs != 0:
        if previous.choices:
            found = [str(choice) for choice in previous.choices]
        elif previous.dest == "queue":
            found = names("queues", before)
        else:
            return [], _FILES if previous.dest in ("workspace", "kubeconfig") else _NO_FILES
    elif last.startswith("-"):
        found = sorted(flags)
    elif not verb:
        found = sorted(verbs)
    elif verb in _WITH_JOB:
        found = [f"{name}:" if verb == "cp" else name for name in names("jobs", before)]
    else:
        return [], _FILES
    return [each for each in found if each.startswith(last)], _FILES if verb == "cp" else _NO_FILES


def look_up(kind: str, words: Sequence[str]) -> list[str]:
    """Names of jobs or queues, none where the cluster does not answer at once."""
    # As argparse reads them of the whole line: "-n x", "-nx", "--namespace=x".
    flags = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for names in (("-n", "--namespace"), ("--context",), ("--kubeconfig",)):
        flags.add_argument(*names)
    try:
        given, _ = flags.parse_known_args(words)
        cluster = Cluster.connect(given.kubeconfig, given.context, given.namespace, _QUICK)
        items = cluster.queues() if kind == "queues" else cluster.jobs()
    except (argparse.ArgumentError, PluginError):
        return []
    return [item["metadata"]["name"] for item in items]


def main(words: Sequence[str], names: Names = look_up) -> int:
    """Prints the suggestions."""
    found, directive = suggestions(words, names)
    print("".join(f"{each}\n" for each in found) + f":{directive}")
    return 0


def entry() -> None:
    """The executable `kubectl_complete-torchrun`."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    entry()
