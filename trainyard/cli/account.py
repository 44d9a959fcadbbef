"""Run the preflight or the check for leftovers on the local cloud.

`python -m trainyard.cli.account preflight|leftovers --stack NAME`. `make preflight` and `make verify-clean` call it
with CLOUD=local. It runs `trainyard.preflight` and `trainyard.preflight.leftovers` with the variables of the local
cloud.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from local import standard_output
from local.backend import STACKS
from local.cluster.record import running
from local.guard import ForeignCloudError, refuse_foreign
from local.home import Home
from local.tools import ToolError
from trainyard.cli.commands import pinned_sources, report
from trainyard.cli.engine import ROOT, is_current, state_file
from trainyard.cli.errors import CommandError
from trainyard.cli.existing_resources import with_existing_resources
from trainyard.cli.stack_file import check_name, for_local_cloud, write
from trainyard.stack_files import StackFileError, find, read

LEFTOVERS = "leftovers"
MODULES = {"preflight": "trainyard.preflight", LEFTOVERS: "trainyard.preflight.leftovers"}
NOTHING_THERE = "the local cloud is not running; its account ended with it, so that nothing is left"


def settings_file(question: str, home: Home, stack: str, cloud: dict[str, Any]) -> Path:
    """Return the stack file for the local cloud.

    Leftovers are checked with the engine's copy of the file, the preflight with the present file. As in `make up`,
    resources that the file names as existing are created in the emulated account first.

    Raises:
        CommandError: The account refused to create something.
    """
    deployed = home.root / STACKS / f"Pulumi.{stack}.yaml"
    if question == LEFTOVERS and is_current(home, stack) and deployed.is_file():
        return deployed
    made = home.root / "checks" / f"Pulumi.{stack}.yaml"
    document = with_existing_resources(read(find(stack)), report)
    write(for_local_cloud(document, pinned_sources(document), cloud["deployerArn"]), made)
    return made


def ask(question: str, stack: str, home: Home) -> int:
    """Run a check on the local cloud and return its exit code. The preflight starts the cloud.

    Raises:
        CommandError: The local cloud did not start. The reason has been printed.
        ForeignCloudError: The environment has credentials of an AWS account.
        StackFileError: There is no such stack file.
        ToolError: A module with charts or manifests can't be downloaded.
    """
    check_name(stack)
    refuse_foreign(os.environ, home)
    document = read(find(stack))
    if running(home) is None:
        if question == LEFTOVERS:
            report(f"verify-clean of stack {stack}: {NOTHING_THERE}")
            return 0
        if subprocess.run([sys.executable, "-m", "local", "up"], cwd=ROOT).returncode != 0:
            raise CommandError("the local cloud did not start; see above")
    # In the network of an ordinary user's local cloud nothing can be downloaded.
    pinned_sources(document)
    # On in the local cloud's network, with its variables.
    words = ["-m", "local", "exec", "--", sys.executable, "-m", "trainyard.cli.account", question]
    return subprocess.run([sys.executable, *words, "--stack", stack, "--inside"], cwd=ROOT).returncode


def ask_inside(question: str, stack: str, home: Home) -> int:
    """Run a check in a process that has the variables of the local cloud.

    Raises:
        CommandError: The local cloud has ended meanwhile.
        CommandError: The account refused what the stack file names as existing.
    """
    cloud = home.cloud()
    if cloud is None:
        raise CommandError(
            f"the local cloud's record {home.cloud_file} is missing; run the same command again"
        )
    file = settings_file(question, home, stack, cloud)
    # Ignore the state of an earlier local cloud: the other directory has no such file.
    states = home.root / (STACKS if is_current(home, stack) else "checks")
    words = ["-m", MODULES[question], "--stack", stack, "--file", str(file)]
    words += ["--state", str(state_file(states, stack))]
    return subprocess.run([sys.executable, *words], cwd=ROOT).returncode


def main() -> int:
    """Run one check. A user error ends in one line and exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m trainyard.cli.account", description=__doc__)
    parser.add_argument("question", choices=("preflight", LEFTOVERS))
    parser.add_argument("--stack", required=True)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        run = ask_inside if arguments.inside else ask
        return run(arguments.question, arguments.stack, Home())
    except (CommandError, ForeignCloudError, StackFileError, ToolError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; nothing was changed", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(standard_output.run(main))
