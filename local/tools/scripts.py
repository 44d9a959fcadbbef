"""Write the home's `kubectl` and this checkout's `kubectl torchrun`, which kubectl finds on PATH: scripts in `bin`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from local.home import CHECKOUT, Home, write_program

# For an ordinary user, the local cloud has its own network namespace. Processes outside it can't reach its addresses.
# The script enters that namespace if necessary, and only for the home's own kubeconfig, because another cluster may be
# anywhere. `supervisor.json` names the process whose network it is (local/cluster/record.py). kubectl's discovery cache
# is in the home too.
KUBECTL = """#!/bin/sh
# Written by local/tools/scripts.py.
program={program} home={home}
if [ "${{KUBECONFIG:-}}" -ef "$home/kubeconfig" ]; then
  own=yes
  export KUBECACHEDIR="${{KUBECACHEDIR:-$home/kube-cache}}"
fi
pid=$(sed -n 's/.*"pid": *\\([0-9][0-9]*\\).*/\\1/p' "$home/run/supervisor.json" 2>/dev/null)
if [ -n "$pid" ] && [ -n "${{own:-}}" ]; then
  there=$(readlink "/proc/$pid/ns/net") here=$(readlink /proc/self/ns/net)
  if [ -n "$there" ] && [ "$there" != "$here" ]; then
    exec nsenter --target="$pid" --user --preserve-credentials --net -- "$program" "$@"
  fi
fi
exec "$program" "$@"
"""
PROGRAMS = {
    "kubectl-torchrun": "trainyard.kubectl.__main__",
    "kubectl_complete-torchrun": "trainyard.kubectl.complete",
}
# Isolated (-I), because a file in the user's working directory may have the name of a module. The checkout is
# last on the path. It is not in PYTHONPATH, which programs that the plugin starts (`aws eks get-token`) would
# inherit.
PLUGIN = """#!/bin/sh
# Written by local/tools/scripts.py.
exec {python} -I -c 'import sys; sys.path.append(sys.argv.pop(1)); from {module} import entry; entry()' {checkout} "$@"
"""


def write_script(home: Home, name: str, program: Path) -> None:
    """Write the script `name` in the home's `bin` that starts the program. Do nothing if it exists already."""
    text = KUBECTL.format(program=shlex.quote(str(program)), home=shlex.quote(str(home.root)))
    write_program(home.bin / name, text)


def write_plugin(home: Home) -> None:
    """Write the plugin and its completion in the home's `bin`. Do nothing if they exist already."""
    for name, module in PROGRAMS.items():
        text = PLUGIN.format(
            python=shlex.quote(sys.executable), module=module, checkout=shlex.quote(str(CHECKOUT))
        )
        write_program(home.bin / name, text)
