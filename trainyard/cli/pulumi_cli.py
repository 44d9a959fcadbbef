"""Run the official Pulumi CLI for a stack in AWS, with the same short output as on the local cloud.

Entry points: `query()` reads the stack, `change()` shows a plan, asks, and carries it out. Pulumi asks for a passphrase
and a confirmation only if its output goes to a terminal
(github.com/pulumi/pulumi/sdk/v3@v3.250.0, go/common/util/cmdutil/console.go). Its output goes to a file here, so that
this module asks instead.
"""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from local.home import Home
from trainyard.cli.drift import EVENT_LOG, EVENT_LOG_VARIABLES, PREVIEW
from trainyard.cli.engine import ROOT, EngineError, engine_summary, shown_by
from trainyard.cli.engine_run import Interrupted, run_command
from trainyard.cli.next_steps import shown, stopped
from trainyard.cli.output import OUTPUT
from trainyard.cli.summary import PlanSummary, planned_totals
from trainyard.stack_files import SALT, display_name, is_example, path_of, read

# pulumi.com/docs/iac/cli/environment-variables
KEYS_OF_STATE = "PULUMI_FALLBACK_TO_STATE_SECRETS_MANAGER"
SKIP_CONFIRMATIONS = "PULUMI_SKIP_CONFIRMATIONS"
PASSPHRASE = "PULUMI_CONFIG_PASSPHRASE"  # noqa: S105  (the name of a variable)
PASSPHRASE_FILE = "PULUMI_CONFIG_PASSPHRASE_FILE"  # noqa: S105
NO_STACK = "no stack named"
ACTIONS = {"up": "update", "destroy": "destroy"}

# Given to Pulumi alone, not to the other programs that a command starts.
_secrets: dict[str, str] = {}


class NoStackError(EngineError):
    """Pulumi's backend has no stack of this name."""


def query(stack: str, *arguments: str) -> dict[str, Any]:
    """Return the JSON that `pulumi stack ...` prints of a stack.

    Raises:
        NoStackError: There is no such stack.
        EngineError: It can't be read.
    """
    words = ["pulumi", "stack", *arguments, "--stack", stack]
    result = subprocess.run(words, cwd=ROOT, env=_environment(), capture_output=True, text=True)
    if result.returncode != 0:
        reason = " ".join(result.stderr.split())
        kind = NoStackError if NO_STACK in reason else EngineError
        raise kind(
            f"stack {stack} can't be read: pulumi stack {arguments[0]}: {reason} (`pulumi stack ls` lists those"
            " that there are)"
        )
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def change(
    stack: str,
    command: str,
    *arguments: str,
    deployment: Mapping[str, Any],
    variables: Mapping[str, str] | None = None,
) -> None:
    """Show the plan of `up` or `destroy`, ask for a confirmation, and carry it out.

    Args:
        command: `up` or `destroy`.
        deployment: The stack's state.
        variables: Further variables of Pulumi's environment.

    Raises:
        EngineError: The plan or the command failed, or nobody confirmed it.
        Interrupted: A person stopped it.
    """
    asks = must_confirm(command)
    summary = PlanSummary(is_destroy=command == "destroy")
    plan: list[str] = []

    def choose(line: str) -> list[str]:
        plan.append(line)
        return summary.lines(line)

    planning = ("preview",) if command == "up" else (command, *PREVIEW)
    with tempfile.TemporaryDirectory() as directory:
        events = Path(directory) / "events"
        words = (*planning, *arguments, EVENT_LOG, str(events))
        run(
            stack,
            *words,
            label="plan",
            choose=choose,
            variables={**(variables or {}), **EVENT_LOG_VARIABLES},
        )
        totals = planned_totals(events.read_text(errors="replace").splitlines()) if events.exists() else {}
    if asks:
        _confirm(stack, command, plan)
    progress = engine_summary(command, deployment, totals)
    words = (command, *arguments, "--yes", "--skip-preview")
    run(stack, *words, choose=progress.lines, status=progress.status, variables=variables)


def run(
    stack: str,
    command: str,
    *arguments: str,
    label: str | None = None,
    choose: Callable[[str], list[str]] | None = None,
    status: Callable[[], str] = str,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run one command on the stack's resources; its whole output is in a log of its own.

    Pulumi finds `Pulumi.<stack>.yaml` by itself, another file by the option `--config-file`. `pulumi stack` commands
    read no settings and do not have the option (pulumi.com/docs/iac/cli/commands). Therefore `pulumi stack init` did
    not write the keys of the stack's secrets into an example. Pulumi takes them from the state and adds them.

    Ctrl-C asks Pulumi to stop; this function waits for its end. A second Ctrl-C makes Pulumi stop at once.

    Args:
        label: What the log and the messages call it (default: the command).
        choose: What to print of a line (default: all of it).
        status: The state in the last row of a terminal.
        variables: Further variables of Pulumi's environment.

    Raises:
        EngineError: The command failed.
        Interrupted: A person stopped it.
    """
    file = path_of(stack)
    words = ["pulumi", command, *arguments, "--suppress-outputs", "--non-interactive", "--color", "never"]
    words += ["--stack", stack]
    environment = _environment(variables)
    if is_example(file):
        words += ["--config-file", display_name(file)]
        environment[KEYS_OF_STATE] = "true"
    name = label or command
    log = log_file(f"pulumi-{stack}.aws.{name}.log")
    reads = name in ("plan", "preview", "drift")
    try:
        with OUTPUT.stage(f"pulumi {name}", status):
            code = run_command(words, ROOT, environment, log, None, shown_by(command, choose))
    except Interrupted:
        raise Interrupted(stopped(stack, "preview" if reads else command, "aws")) from None
    if code != 0:
        nothing = "nothing was changed" if reads else "run the same command again to go on"
        raise EngineError(
            f"stack {stack}: pulumi {command} failed with exit code {code}; {nothing}. See above, or {shown(log)}"
        )


def replace_state(stack: str, file: Path) -> None:
    """Replace the stack's state with an edited export.

    Raises:
        EngineError: Pulumi refused it.
    """
    words = ["pulumi", "stack", "import", "--stack", stack, "--file", str(file)]
    result = subprocess.run(words, cwd=ROOT, env=_environment(), capture_output=True, text=True)
    if result.returncode != 0:
        raise EngineError(f"stack {stack}: pulumi stack import: {' '.join(result.stderr.split())}")


def log_file(name: str) -> Path:
    """Return the path of a log in the project's home, whose directory exists afterwards.

    Raises:
        OSError: The directory can't be written.
    """
    home = Home()
    home.claim()
    path = home.logs / name
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def is_interactive() -> bool:
    """Return whether a person can be asked, by the rules of Pulumi's own questions."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    return is_terminal and os.environ.get("TERM", "").lower() != "dumb" and not _is_true("CI")


def must_confirm(command: str) -> bool:
    """Return whether a person has to confirm a change.

    Raises:
        EngineError: A confirmation is needed, and nobody can be asked.
    """
    if _is_true(SKIP_CONFIRMATIONS):
        return False
    if not is_interactive():
        raise EngineError(
            f"pulumi {command} must be confirmed, and this is not a terminal. Run it in a terminal, or set "
            f"{SKIP_CONFIRMATIONS}=true"
        )
    return True


def unlock(stack: str, deployment: Mapping[str, Any]) -> None:
    """Ask for the passphrase of a stack's secrets, if it has one that the environment does not name."""
    is_set = PASSPHRASE in os.environ or os.environ.get(PASSPHRASE_FILE) or PASSPHRASE in _secrets
    if is_set or not is_interactive() or not _has_passphrase(stack, deployment):
        return
    try:
        _secrets[PASSPHRASE] = getpass.getpass(
            f"Enter your passphrase to unlock config/secrets for stack {stack}\n"
            f"    (set {PASSPHRASE} or {PASSPHRASE_FILE} to remember): "
        )
    except EOFError:
        raise EngineError(
            f"stack {stack}: no passphrase was entered; set {PASSPHRASE}, or enter it"
        ) from None


def offer_new(stack: str) -> None:
    """Create a stack that Pulumi's backend does not have, if a person agrees.

    Raises:
        EngineError: There is nobody to ask, or Pulumi did not create it.
    """
    message = f"stack {stack} does not exist in Pulumi's backend"
    if not is_interactive():
        raise EngineError(f"{message}. Create it: pulumi stack init {stack}")
    try:
        input(f"{message}. Press Enter to create it, or Ctrl-C to stop: ")
    except EOFError:
        raise EngineError(f"{message}. Create it: pulumi stack init {stack}") from None
    # With the terminal: Pulumi itself asks for a new passphrase.
    code = subprocess.run(["pulumi", "stack", "init", stack], cwd=ROOT).returncode
    if code != 0:
        raise EngineError(f"stack {stack}: pulumi stack init failed with exit code {code}; see above")


def _confirm(stack: str, command: str, plan: list[str]) -> None:
    """Ask until the answer is yes or no.

    Raises:
        EngineError: The answer is no.
    """
    answer = ""
    while answer != "yes":
        try:
            answer = (
                input(f"Do you want to perform this {ACTIONS[command]}? (yes, no, details): ").strip().lower()
            )
        except EOFError:
            answer = "no"
        if answer == "details":
            print("\n".join(plan), flush=True)
        elif answer == "no":
            raise EngineError(f"stack {stack}: the {ACTIONS[command]} was declined; no resource was changed")


def _has_passphrase(stack: str, deployment: Mapping[str, Any]) -> bool:
    provider = (deployment.get("secrets_providers") or {}).get("type")
    file = path_of(stack)
    return provider == "passphrase" or (provider is None and file.exists() and bool(read(file).get(SALT)))


def _environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    return {**os.environ, **_secrets, **(variables or {})}


def _is_true(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true")
