"""What each stack file's first `up` would make, as the engine writes it down; each is asked for once a run."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from local.home import Home
from local.tools import ensure
from tests.seed import of_run
from tests.shipped import shipped
from trainyard.cli.commands import pinned_sources
from trainyard.cli.engine import ROOT, Engine, EngineError
from trainyard.cli.stack_file import with_sources, write
from trainyard.stack_files import find, read

HOME = ROOT / ".local-previews"
# Stack files that show settings which no shipped one has.
UNSHIPPED = ROOT / "tests" / "stacks" / "files"
TOOLS = ("pulumi", "pulumi-language-python", "kubernetes", "helm")
# Of each row TRAINYARD_SEED draws one for a test run: they differ in values, and the engine takes seconds of processor
# time for each. `make policy` and `make lives` take all.
ALIKE = (
    ("dev", "large", "local"),
    ("g4dn", "p4de-odcr", "p5"),
    ("g4dn-existing-vpc", "p4de-odcr-existing-vpc"),
)


def every() -> list[str]:
    """Return the names of all stack files of the project and of its tests. Together they show all profiles."""
    return [*shipped(), *sorted(path.name.split(".")[1] for path in UNSHIPPED.glob("Pulumi.*.yaml"))]


def sample(of: list[str]) -> list[str]:
    """Return the stack files of a list without those of ALIKE that this test run leaves out."""
    chance = random.Random(of_run())  # noqa: S311  (stack files, not keys)
    left_out: set[str] = set()
    for row in ALIKE:
        left_out.update(set(row) - {chance.choice(row)})
    return [stack for stack in of if stack not in left_out]


def stack_file(stack: str) -> Path:
    """Where a stack file is."""
    own = UNSHIPPED / f"Pulumi.{stack}.yaml"
    return own if own.exists() else find(stack)


@cache
def preview(stack: str) -> dict[str, Any]:
    """`pulumi preview --json` on empty state; neither an account nor the local cloud is asked anything.

    Raises:
        EngineError: the preview failed; the message has what Pulumi said.
        StackFileError: there is no such stack file, or it can't be read.
    """
    home = Home(HOME)
    document = read(stack_file(stack))
    ensure(TOOLS, home, quiet=True)
    return preview_of(stack, with_sources(document, pinned_sources(document)), home)


def preview_of(stack: str, document: Mapping[str, Any], home: Home) -> dict[str, Any]:
    """The same of a stack file's content, whose sources are local directories already.

    Raises:
        EngineError: the preview failed; the message has what Pulumi said.
    """
    engine = Engine(home.root, stack, {}, state="preview")
    engine.initialise()
    write(document, engine.config_file)
    command = ["pulumi", "preview", "--json", "--stack", stack, "--config-file", str(engine.config_file)]
    answer = subprocess.run(command, cwd=ROOT, env=engine.environment, capture_output=True, text=True)
    if answer.returncode != 0:
        raise EngineError(f"the preview of stack {stack} failed:\n{_reason(answer.stdout)}{answer.stderr}")
    steps: dict[str, Any] = json.loads(answer.stdout)
    return steps


def _reason(output: str) -> str:
    """What a failed preview says; with `--json` that stands in its diagnostics."""
    try:
        found = json.loads(output).get("diagnostics", [])
    except json.JSONDecodeError:
        return output
    return "".join(each["message"] for each in found if each.get("severity") == "error")
