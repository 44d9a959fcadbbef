"""The launcher as a process of its own, as its Job's pod runs it, with a proxy in the place of the API server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from trainyard.cli.engine import ROOT

# The launcher's own program, with less patience for the training operator: 60 s are too long for a test.
_HASTY = """
import os, sys
from launcher import state_machine
state_machine.UNRECONCILED_SECONDS = {seconds}
from launcher.__main__ import main
sys.exit(main(["--verbose"], os.environ))
"""


class Launched:
    """One launcher process; its output goes to `log`.

    `unreconciled_seconds` is how long it waits for the operator before it says so, None for as long as it always does.
    """

    def __init__(
        self,
        server: str,
        token: str,
        document: dict[str, Any],
        log: Path,
        unreconciled_seconds: float | None = None,
    ) -> None:
        kubeconfig = log.with_suffix(".kubeconfig")
        kubeconfig.write_text(yaml.safe_dump(_kubeconfig(server, token)))
        hasty = unreconciled_seconds is not None
        program = (
            ["-c", _HASTY.format(seconds=unreconciled_seconds)] if hasty else ["-m", "launcher", "--verbose"]
        )
        self.log = log
        with log.open("w") as sink:
            self.process = subprocess.Popen(
                [sys.executable, *program],
                env={
                    "PATH": os.environ["PATH"],
                    "PYTHONPATH": str(ROOT),
                    "KUBECONFIG": str(kubeconfig),
                    "TRAINYARD_REQUEST": json.dumps(document),
                },
                cwd=ROOT,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace")

    @property
    def states(self) -> list[str]:
        """Its lines of state, the debug lines among them."""
        return re.findall(r"launcher state=.*", self.output)

    @property
    def last(self) -> str:
        """Its last line of state, empty before the first."""
        return (self.states or [""])[-1]

    @property
    def submitted(self) -> list[int]:
        """The number of nodes of each submit."""
        return [int(each) for each in re.findall(r"state=submitting nodes=(\d+)/", self.output)]

    def wait(self, seconds: float) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        code = self.process.wait(seconds)
        print(self.output)
        return code

    def kill(self) -> None:
        """SIGKILL; it is gone when this returns."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM, as when its pod is deleted."""
        self.process.send_signal(signal.SIGTERM)


def _kubeconfig(server: str, token: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "proxy",
        "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "launcher"}}],
        "clusters": [{"name": "proxy", "cluster": {"server": server}}],
        "users": [{"name": "launcher", "user": {"token": token}}],
    }
