"""The home's `kubectl torchrun`: the checkout's own plugin, which kubectl finds beside itself on PATH."""

from __future__ import annotations

import shlex
import sys

from local.home import CHECKOUT, Home, write_program

PROGRAMS = {
    "kubectl-torchrun": "trainyard.kubectl.__main__",
    "kubectl_complete-torchrun": "trainyard.kubectl.complete",
}
# Isolated (-I), since it is started in a person's directory, where any file may be called like a module. The checkout
# comes last, and not by PYTHONPATH, which programs that the plugin starts (`aws eks get-token`) would have, too.
SCRIPT = """#!/bin/sh
# Written by local/tools/plugin.py.
exec {python} -I -c 'import sys; sys.path.append(sys.argv.pop(1)); from {module} import entry; entry()' {checkout} "$@"
"""


def write_scripts(home: Home) -> None:
    """Make the plugin and its completion in the home's `bin`; nothing is written where they are."""
    for name, module in PROGRAMS.items():
        text = SCRIPT.format(
            python=shlex.quote(sys.executable), module=module, checkout=shlex.quote(str(CHECKOUT))
        )
        write_program(home.bin / name, text)
