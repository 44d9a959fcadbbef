"""Write the home's `kubectl`: a script around kubectl that reaches the API server from every shell.

For an ordinary user, the local cloud has its own network namespace. Processes outside it can't reach its addresses. The
script enters that namespace if necessary, and only for the home's own kubeconfig, because another cluster may be
anywhere. kubectl's discovery cache is in the home too.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from local.home import Home, write_program

# `supervisor.json` names the process whose network it is (local/cluster/record.py).
SCRIPT = """#!/bin/sh
# Written by local/tools/entering.py.
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


def write_script(home: Home, name: str, program: Path) -> None:
    """Write the script `name` in the home's `bin` that starts the program. Do nothing if it exists already."""
    text = SCRIPT.format(program=shlex.quote(str(program)), home=shlex.quote(str(home.root)))
    write_program(home.bin / name, text)
