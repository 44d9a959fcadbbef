"""Run a command of `trainyard` whose arguments are parsed. Entry point: `run()`."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from pathlib import Path
from typing import NoReturn

from botocore.exceptions import BotoCoreError, ClientError

from local.arguments import LOGS, STATUS
from local.cluster.lifecycle import CloudError
from local.guard import ForeignCloudError, NotRunningError
from local.home import CHECKOUT, Home, expand
from local.tools import ToolError
from trainyard.cli import commands
from trainyard.cli.engine_run import Interrupted
from trainyard.cli.errors import CommandError
from trainyard.cli.make_variables import is_yes, nodes
from trainyard.cli.output import OUTPUT
from trainyard.cli.sign_in import aws_reason
from trainyard.cli.stack_file import check_name
from trainyard.k8s.client import ApiUnavailable
from trainyard.stack_files import StackFileError

# The modules that examine an account. Each has its own messages and exit codes.
ACCOUNT_CHECKS = {"preflight": "trainyard.preflight", "verify-clean": "trainyard.preflight.leftovers"}
# `python -m local` runs them.
LOCAL_COMMANDS = (STATUS.name, LOGS.name)
# Variables with a path, which is relative to the user's working directory. Most child processes run in the checkout.
PATHS = ("TRAINYARD_HOME", "TRAINYARD_CACHE", "PULUMI_CONFIG_PASSPHRASE_FILE")
# A user error ends in one line and exit code 1.
EXPECTED = (
    CommandError,
    StackFileError,
    CloudError,
    ForeignCloudError,
    NotRunningError,
    ToolError,
    ApiUnavailable,
)


def message(error: OSError) -> str:
    """Return the message for a user. An error of a full disk does not name its file by itself."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        place = error.filename or Home().root
        return f"the disk of {place} is full: free some space and run the same command again"
    return f"{error.strerror or error}" + (f" ({Path(error.filename)})" if error.filename else "")


def run(arguments: argparse.Namespace) -> int:
    """Run one command. A user error ends in one line and exit code 1."""
    try:
        for name in PATHS:
            if value := os.environ.get(name):
                os.environ[name] = str(expand(name, value))
        if arguments.command in LOCAL_COMMANDS:
            _become("local", *sys.argv[1:])
        check_name(arguments.stack)
        OUTPUT.verbose = getattr(arguments, "verbose", False) or is_yes(
            "VERBOSE", os.environ.get("VERBOSE") or "no"
        )
        return _run(arguments, arguments.stack, arguments.cloud)
    except EXPECTED as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (BotoCoreError, ClientError) as error:
        print(f"error: AWS: {aws_reason(error)}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: {message(error)}", file=sys.stderr)
        return 1
    except Interrupted as stopped:
        print(f"\n{stopped}", file=sys.stderr)
        return 130


def _run(arguments: argparse.Namespace, stack: str, cloud: str) -> int:
    if module := ACCOUNT_CHECKS.get(arguments.command):
        more = commands.local_account(arguments.command, stack) if cloud == "local" else []
        if more is None:
            return 0
        _become(module, "--stack", stack, *more)
    match arguments.command:
        case "up":
            if arguments.no_preflight:
                os.environ["PREFLIGHT"] = "no"
            return commands.up(stack, cloud)
        case "down":
            return commands.down(stack, cloud, arguments.keep_data)
        case "preview":
            return commands.preview(stack, cloud)
        case "drift":
            return commands.drift(stack, cloud)
        case "delete-data":
            return commands.delete_data(stack, cloud, arguments.confirm)
        case "check-nodes":
            return commands.check_nodes(stack, cloud, arguments.pool)
        case "check-fabric":
            return commands.check_fabric(stack, cloud, arguments.pool, nodes("NODES", arguments.nodes))
        case "submit":
            return commands.submit(stack, cloud, nodes("MIN", arguments.min), nodes("MAX", arguments.max))
    raise AssertionError(f"no function runs {arguments.command}")


def _become(*words: str) -> NoReturn:
    """Run a module of the checkout in place of this process. It has messages and exit codes of its own."""
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    # -P: the user's working directory may hold a module of the same name.
    os.execve(sys.executable, [sys.executable, "-P", "-m", *words], environment)  # noqa: S606
