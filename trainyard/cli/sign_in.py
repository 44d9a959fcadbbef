"""Check that commands against AWS have the official Pulumi CLI, a Pulumi login and AWS credentials.

The check runs no program: `pulumi` would create ~/.pulumi and prompt for a token.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from local.backend import STACKS
from local.cluster.record import running
from local.home import Home
from trainyard.cli.disk_space import read_checkpoint
from trainyard.cli.engine import EngineError, is_current, state_file
from trainyard.cli.make_variables import user_variable
from trainyard.preflight.aws import error_line, has_bad_credentials

SIGN_IN = f"sign in (README, step 3); for the local cloud add {user_variable('CLOUD', 'local')}"


def check(stack: str) -> None:
    """Check the CLI, the login and the credentials.

    Raises:
        EngineError: One of them is missing. The message also names the option for the local cloud.
    """
    if missing := _missing():
        here = f"stack {stack} is up on this machine's local cloud; " if _is_up_here(stack) else ""
        raise EngineError(here + missing)


def aws_reason(error: BotoCoreError | ClientError) -> str:
    """Return an error of AWS in one line, with the advice to sign in if the credentials have ended."""
    return error_line(error) + (". Sign in (README, step 3)" if has_bad_credentials(error) else "")


def _missing() -> str:
    own = Home().bin
    program = shutil.which("pulumi")
    if program is None or Path(program).parent.resolve() == own.resolve():
        found = f" (that of {own} is the local cloud's)" if program else ""
        return (
            f"deploying to AWS needs the official Pulumi CLI on PATH{found} (https://www.pulumi.com/docs/install); "
            f"to run this stack on this machine instead, add {user_variable('CLOUD', 'local')}"
        )
    if not _is_logged_in():
        return f"pulumi is not logged in to the backend with the stack's state: {SIGN_IN}"
    try:
        if boto3.session.Session().get_credentials() is None:
            return f"there are no AWS credentials: {SIGN_IN}"
    except BotoCoreError as error:
        return f"the AWS credentials can't be read: {' '.join(str(error).split())}: {SIGN_IN}"
    return ""


def _is_logged_in() -> bool:
    """Return whether `pulumi` has a backend, from a variable or from the login in its home directory.

    Source of the paths: github.com/pulumi/pulumi/sdk/v3@v3.250.0, go/common/workspace/creds.go.
    """
    if os.environ.get("PULUMI_BACKEND_URL") or os.environ.get("PULUMI_ACCESS_TOKEN"):
        return True
    home = os.environ.get("PULUMI_CREDENTIALS_PATH") or os.environ.get("PULUMI_HOME") or "~/.pulumi"
    try:
        return bool(json.loads((Path(home).expanduser() / "credentials.json").read_text())["current"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):  # a RuntimeError: `~` of an unknown user
        return False


def _is_up_here(stack: str) -> bool:
    """Return whether the running local cloud has resources of the stack. Only its files are read."""
    home = Home()
    if running(home) is None or not is_current(home, stack):
        return False
    checkpoint = read_checkpoint(state_file(home.root / STACKS, stack)) or {}
    return len((checkpoint.get("latest") or {}).get("resources") or []) > 1
