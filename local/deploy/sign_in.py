"""What each command against AWS needs before it asks anything: the official CLI, a Pulumi login, AWS credentials.

Nothing is started for it: `pulumi` would make ~/.pulumi, and ask for a token that nobody meant to give.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import boto3
from botocore.exceptions import BotoCoreError

from local.backend import STACKS
from local.cloud.record import running
from local.deploy.engine import EngineError, state_file
from local.home import Home

SIGN_IN = "sign in (README, step 3); for the local cloud add CLOUD=local"


def check(stack: str, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse to go on where something of it is missing.

    Raises:
        EngineError: what is missing, and how to mean the local cloud instead.
    """
    missing = _missing(environment)
    if missing:
        here = f"stack {stack} is up on this machine's local cloud; " if is_up_here(Home(), stack) else ""
        raise EngineError(here + missing)


def _missing(environment: Mapping[str, str]) -> str:
    own = Home().bin
    program = shutil.which("pulumi", path=environment.get("PATH", ""))
    if program is None or Path(program).parent.resolve() == own.resolve():
        found = f" (that of {own} is the local cloud's)" if program else ""
        return (
            f"deploying to AWS needs the official Pulumi CLI on PATH{found} (https://www.pulumi.com/docs/install); "
            "to run this stack on this machine instead, add CLOUD=local"
        )
    if not _logged_in(environment):
        return f"nobody is logged in to Pulumi, which keeps the stack's state: {SIGN_IN}"
    try:
        if boto3.session.Session().get_credentials() is None:
            return f"there are no AWS credentials: {SIGN_IN}"
    except BotoCoreError as error:
        return f"the AWS credentials can't be read: {' '.join(str(error).split())}: {SIGN_IN}"
    return ""


def _logged_in(environment: Mapping[str, str]) -> bool:
    """Whether `pulumi` knows where the state is: a variable, or the login that it keeps in its home.

    The places are those of github.com/pulumi/pulumi/sdk/v3@v3.250.0, go/common/workspace/creds.go.
    """
    if environment.get("PULUMI_BACKEND_URL") or environment.get("PULUMI_ACCESS_TOKEN"):
        return True
    kept = environment.get("PULUMI_CREDENTIALS_PATH") or environment.get("PULUMI_HOME") or "~/.pulumi"
    try:
        return bool(json.loads((Path(kept).expanduser() / "credentials.json").read_text())["current"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def is_up_here(home: Home, stack: str) -> bool:
    """Whether the running local cloud has resources of the stack, by its files alone."""
    cloud = home.cloud()
    mark = home.root / STACKS / f"Pulumi.{stack}.generation"
    state = state_file(home.root / STACKS, stack)
    if cloud is None or running(home) is None or not (mark.is_file() and state.is_file()):
        return False
    try:
        resources = (json.loads(state.read_text())["checkpoint"].get("latest") or {}).get("resources") or []
    except (ValueError, KeyError):
        return False
    return mark.read_text() == cloud["generation"] and len(resources) > 1
