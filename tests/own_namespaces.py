"""`python -m tests.own_namespaces ARGUMENTS`: Python with these arguments, as root at least of namespaces of its own.

The tests of the local cloud mount a small disk and call the local cloud's addresses. For an ordinary user both need
a user, a mount and a network namespace that all of them share; root's tests run where they are.
"""

from __future__ import annotations

import os
import sys

from local.cluster.namespaces import bring_loopback_up

INSIDE = "TRAINYARD_TESTS_INSIDE"


def main() -> None:
    """Become the program."""
    command = [sys.executable, *sys.argv[1:]]
    if os.geteuid() != 0:
        os.environ[INSIDE] = "1"
        unshare = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
        command = [*unshare, sys.executable, "-m", "tests.own_namespaces", *sys.argv[1:]]
    elif os.environ.pop(INSIDE, None):
        bring_loopback_up()
    os.execvp(command[0], command)  # noqa: S606  (Python or unshare, with our own arguments)


if __name__ == "__main__":
    main()
