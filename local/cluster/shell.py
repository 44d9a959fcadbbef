"""The commands `status`, `logs`, `env`, `exec` and `kubectl` on a running local cloud."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import IO, Any, NoReturn

from local import backend
from local.cluster.lifecycle import CloudError
from local.cluster.namespaces import enter_prefix
from local.cluster.record import running
from local.guard import NotRunningError, cloud_environment
from local.home import CHECKOUT, Home, local_command, program_command

FOLLOW_SECONDS = 0.5
MEGABYTE = 1e6


def print_status(home: Home, found: dict[str, Any] | None, *, as_json: bool) -> None:
    """Print a table, or JSON with at least `kubeconfig`, `awsEndpoint` and `processes`."""
    if as_json:
        stopped: dict[str, Any] = {
            "ready": False,
            "awsEndpoint": None,
            "kubeconfig": str(home.kubeconfig),
            "processes": [],
        }
        print(json.dumps(found if found is not None else stopped, indent=2))
        return
    if found is None:
        print(f"local cloud: not running; `{program_command(home, 'up')}` starts it")
        return
    state = "ready" if found["ready"] else "starting"
    print(f"local cloud: {state}, process {found['pid']}, AWS at {found['awsEndpoint']}")
    for cluster in found["clusters"]:
        print(
            f"cluster {cluster['name']}: Kubernetes {cluster['servedVersion']} at https://127.0.0.1:{cluster['apiPort']}"
        )
    for process in found["processes"]:
        running_as = f"{process['rssBytes'] / MEGABYTE:5.0f} MB" if process["alive"] else "not running"
        print(f"  {process['name']:40} {running_as:>12}  {process['log']}")
    total = found["total"]
    print(f"all {total['processes']} processes with those of pods: {total['rssBytes'] / MEGABYTE:.0f} MB")
    print(f"kubeconfig: {found['kubeconfig']}")


def kubeconfig_variable(home: Home, own: str) -> str:
    """Return KUBECONFIG: the user's own files first, then the contexts of the local cloud."""
    files = [file for file in own.split(os.pathsep) if file]
    return os.pathsep.join(files if str(home.kubeconfig) in files else [*files, str(home.kubeconfig)])


def tool_environment(home: Home) -> dict[str, str]:
    """Return `cloud_environment` with the kubeconfig, and with the tools on PATH.

    Raises:
        NotRunningError: No local cloud is running.
    """
    if running(home) is None:
        raise NotRunningError(
            f"no local cloud is running in {home.root}; `{program_command(home, 'up')}` starts it"
        )
    return {
        **cloud_environment(home),
        "KUBECONFIG": kubeconfig_variable(home, os.environ.get("KUBECONFIG", "")),
        "PATH": os.pathsep.join([str(home.bin), os.environ.get("PATH", "/usr/bin:/bin")]),
    }


def print_environment(home: Home) -> None:
    """Print lines for `eval "$(python -m local env)"`."""
    for name, value in tool_environment(home).items():
        print(f"export {name}={shlex.quote(value)}")


def execute(home: Home, words: list[str], *, as_administrator: bool = False) -> NoReturn:
    """Replace this process by a command with the variables and the network of the running local cloud.

    The user's own KUBECONFIG stays, except with `as_administrator`.

    Raises:
        CloudError: The command does not exist.
    """
    if not words:
        raise CloudError(f"exec: COMMAND is missing. Run: {local_command(home, 'exec -- COMMAND ...')}")
    # The user's own shell does not get backend.variables: there `pulumi` is for AWS.
    environment = {**os.environ, **tool_environment(home), **backend.variables(home.root)}
    environment["TRAINYARD_HOME"] = str(home.root)  # the plugins' own
    # Pulumi's language host uses the first Python on PATH. The plugins' directory is last, because it also contains a
    # replacement of the AWS CLI.
    environment["VIRTUAL_ENV"] = str(CHECKOUT / ".venv")
    places = [str(home.bin), str(CHECKOUT / ".venv" / "bin"), environment["PATH"], str(backend.PLUGINS)]
    environment["PATH"] = os.pathsep.join(places)
    if as_administrator:
        environment["KUBECONFIG"] = str(home.kubeconfig)
    elif environment["KUBECONFIG"] != str(home.kubeconfig):
        print(
            f"local cloud: using your KUBECONFIG; the contexts of {home.kubeconfig} are added to it",
            file=sys.stderr,
        )
    if words[0] == "kubectl" and not any(home.clusters.iterdir()):
        raise CloudError(
            f"the local cloud has no cluster yet; `{program_command(home, 'up')}` deploys a stack that makes one"
        )
    process = running(home)
    prefix = enter_prefix(process) if process else []
    program = shutil.which(words[0], path=environment["PATH"])
    if program is None:
        raise CloudError(f"there is no command {words[0]}")
    command = [*prefix, program, *words[1:]]
    sys.stdout.flush()
    os.execvpe(command[0], command, environment)  # noqa: S606  (the user's own command, no shell)


def log_files(home: Home, name: str | None) -> list[Path]:
    """Return the logs of one process or of all.

    Raises:
        CloudError: No log has this name.
    """
    # Not a folder, a socket or a link to nowhere.
    files = sorted(file for file in home.logs.glob("*.log") if file.is_file())
    if name is None:
        return files
    chosen = [file for file in files if file.stem == name]
    if not chosen:
        names = ", ".join(file.stem for file in files) or "none yet"
        raise CloudError(f"no log is called {name}; there are: {names}")
    return chosen


def show_logs(home: Home, name: str | None, *, follow: bool) -> None:
    """Print logs, until interrupted with `follow`.

    Each line starts with the name of its process, unless `name` is set.
    """
    opened: dict[Path, IO[str]] = {}
    try:
        while True:
            for file in log_files(home, name):
                if file not in opened:
                    opened[file] = file.open(errors="replace")
                for line in opened[file]:
                    sys.stdout.write(line if name else f"{file.stem}: {line}")
            sys.stdout.flush()
            if not follow:
                return
            time.sleep(FOLLOW_SECONDS)
    except KeyboardInterrupt:
        return
    finally:
        for each in opened.values():
            each.close()
