"""The `helm` binary: arguments, environment, errors in one line.

https://helm.sh/docs/helm/
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from local.plugins.kubernetes.kubeconfig import Connection
from local.plugins.provider import ProviderError
from local.plugins.values import Props

# Helm's own default (https://helm.sh/docs/helm/helm_install/), in seconds.
DEFAULT_TIMEOUT = 300


class HelmError(ProviderError):
    """Helm exited with an error. `text` is its output without log lines."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(f"{what}: {text}")
        self.text = text


class Helm:
    """Helm for one cluster. While a command runs, `progress` is called with the elapsed seconds."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(
        self, arguments: list[str], *, stdin: str = "", progress: Callable[[float], None] | None = None
    ) -> str:
        """Return the standard output of `helm <arguments>`.

        Raises:
            HelmError: The command failed.
            ProviderError: There is no helm.
        """
        what = f"helm {arguments[0]} {arguments[1] if len(arguments) > 1 else ''}".strip()
        with _in_memory(json.dumps(self._connection.document)) as kubeconfig, _in_memory(stdin) as values:
            command = ["helm", *[_path(values) if part == VALUES else part for part in arguments]]
            environment = {**os.environ, "KUBECONFIG": _path(kubeconfig)}
            try:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=(kubeconfig, values),
                    text=True,
                )
            except FileNotFoundError as error:
                raise ProviderError(
                    "helm is not on PATH; the local cloud's tools have it in .local/bin"
                ) from error
            return _finish(process, what, progress)

    def json(self, arguments: list[str]) -> Any:
        """Return the output of a command as JSON; None if the release does not exist."""
        try:
            return json.loads(self.run([*arguments, "--output", "json"]))
        except HelmError as error:
            if "not found" in error.text:
                return None
            raise


VALUES = "\0values"


@contextmanager
def _in_memory(text: str) -> Iterator[int]:
    """Yield a file without a name, so that no secret stays on disk if the command is killed."""
    descriptor = os.memfd_create("helm")
    try:
        with os.fdopen(os.dup(descriptor), "w") as file:
            file.write(text)
        yield descriptor
    finally:
        os.close(descriptor)


def _path(descriptor: int) -> str:
    """Return a path that a child process with this file can open, from its beginning."""
    return f"/proc/self/fd/{descriptor}"


def install_arguments(inputs: Props, *, upgrade: bool) -> list[str]:
    """Return the arguments of `helm install` or `helm upgrade --install`.

    `VALUES` is the placeholder for the file with the values.
    """
    name, chart = inputs["name"], inputs["chart"]
    arguments = ["upgrade", name, chart, "--install"] if upgrade else ["install", name, chart]
    arguments += ["--namespace", inputs["namespace"], "--values", VALUES, "--wait"]
    if inputs.get("atomic"):
        arguments.append("--atomic")
    if inputs.get("skipCrds"):
        arguments.append("--skip-crds")
    if inputs.get("version"):
        arguments += ["--version", str(inputs["version"])]
    return [*arguments, "--timeout", f"{int(inputs.get('timeout') or DEFAULT_TIMEOUT)}s"]


def _finish(process: subprocess.Popen[str], what: str, progress: Callable[[float], None] | None) -> str:
    started = time.monotonic()
    while True:
        try:
            out, err = process.communicate(timeout=5)
            break
        except subprocess.TimeoutExpired:
            if progress is not None:
                progress(time.monotonic() - started)
    if process.returncode:
        lines = [line for line in err.splitlines() if line.strip() and not _is_log(line)]
        text = " ".join(lines).removeprefix("Error: ") or f"exit code {process.returncode}"
        raise HelmError(what, text)
    return out


def _is_log(line: str) -> bool:
    """Return whether a line is a warning or klog line (`W1121 12:00:00 ...`), not the error itself."""
    return line.startswith("WARNING:") or (len(line) > 5 and line[0] in "IWE" and line[1:5].isdigit())
