"""Write the home's `kubectl torchrun`: the plugin of this checkout, which kubectl finds on PATH."""

from __future__ import annotations

import shlex
import sys

from local.home import CHECKOUT, Home, write_program

PROGRAMS = {
    "kubectl-torchrun": "trainyard.kubectl.__main__",
    "kubectl_complete-torchrun": "trainyard.kubectl.complete",
}
# Isolated (-I), because a file in the user's working directory may have the name of a module. The checkout is
# last on the path. It is not in PYTHONPATH, which programs that the plugin starts (`aws eks get-token`) would
# inherit.
SCRIPT = """#!/bin/sh
# Written by local/tools/plugin.py.
exec {python} -I -c 'import sys; sys.path.append(sys.argv.pop(1)); from {module} import entry; entry()' {checkout} "$@"
"""


def write_scripts(home: Home) -> None:
    """Write the plugin and its completion in the home's `bin`. Do nothing if they exist already."""
    for name, module in PROGRAMS.items():
        text = SCRIPT.format(
            python=shlex.quote(sys.executable), module=module, checkout=shlex.quote(str(CHECKOUT))
        )
        write_program(home.bin / name, text)
