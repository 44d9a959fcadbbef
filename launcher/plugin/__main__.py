"""`kubectl torchrun`, the executable `kubectl-torchrun`: torchrun jobs from the current directory.

Exit codes: launcher/plugin/exits.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from launcher.plugin.exits import DONE, INTERRUPTED, PluginError
from launcher.plugin.packing import packing
from launcher.plugin.screen import say
from launcher.plugin.words import PROGRAM, parser


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs one verb and returns the exit code; what is wrong is one line on standard error."""
    try:
        options = parser().parse_args(arguments)
        with packing(options) as packed:
            from launcher.plugin.verbs import run  # this import takes as long as packing does

            return run(options, packed, environment)
    except PluginError as error:
        say(f"{PROGRAM}: {error}")
        return error.code
    except KeyboardInterrupt:
        say(f"{PROGRAM}: interrupted")
        return INTERRUPTED
    except BrokenPipeError:  # who reads us has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE


def entry() -> None:
    """The executable `kubectl-torchrun`."""
    sys.exit(main(sys.argv[1:], os.environ))


if __name__ == "__main__":
    entry()
