"""What each shipped stack file's first `up` would make, as the engine writes it down; each is asked for once a run."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from typing import Any

from local.deploy.commands import pinned_sources
from local.deploy.engine import ROOT, Engine
from local.deploy.stack_file import read, with_sources, write
from local.guard import refuse_foreign
from local.home import Home
from local.tools import ensure

HOME = ROOT / ".local-graph"
TOOLS = ("pulumi", "pulumi-language-python", "kubernetes", "helm")
# Stack files that tests make for themselves begin so, and git ignores them.
OF_TESTS = "zz-"


def shipped() -> list[str]:
    """Names of the stack files of the project."""
    names = sorted(path.name.split(".")[1] for path in ROOT.glob("Pulumi.*.yaml"))
    return [name for name in names if not name.startswith(OF_TESTS)]


@cache
def preview(stack: str) -> dict[str, Any]:
    """`pulumi preview --json` on empty state; neither an account nor the local cloud is asked anything."""
    home = Home(HOME)
    refuse_foreign(os.environ, home)
    ensure(TOOLS, home, quiet=True)
    engine = Engine(home.root, stack, {}, state="preview")
    engine.initialise()
    write(with_sources(read(ROOT / f"Pulumi.{stack}.yaml"), pinned_sources()), engine.config_file)
    command = ["pulumi", "preview", "--json", "--stack", stack, "--config-file", str(engine.config_file)]
    answer = subprocess.run(command, cwd=ROOT, env=engine.environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr
    document: dict[str, Any] = json.loads(answer.stdout)
    return document
