"""Map an image name to a program of this machine (`Images.find`). Write the programs and the library for pods."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from local.home import read_record
from local.nodes import dockerfile
from local.nodes.environment import Object, expand
from local.tools import ToolError, cache_directory

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KARPENTER = re.compile(r"(^|/)karpenter/controller(:|@|$)")
OPERATOR = re.compile(r"(^|/)(kubeflow/)?(training-v1/)?training-operator(:|@|$)")
# Both managers of the launcher's backend `trainjob`, by the name of their program in the directory of tools.
MANAGERS = {
    "trainer-controller-manager": re.compile(r"(^|/)kubeflow/trainer/trainer-controller-manager(:|@|$)"),
    "jobset-manager": re.compile(r"(^|/)jobset/jobset(:|@|$)"),
}
# The image of the debug pod (components/debug_pod.py). Its network tools come from this machine or from `programs`.
NETWORK_TOOLS = re.compile(r"(^|/)agnhost(:|@|$)")
LOOKUP_CONTAINER = "init-pytorch"
PROGRAMS = Path(__file__).with_name("programs")
# Here the hosts file of a pod replaces DNS, and no other nslookup reads it. Not every other ping works without
# CAP_NET_RAW.
ALWAYS = ("nslookup", "ping")
IF_MISSING = ("nc", "wget")
# How `local.nodes.images` starts managers; no command of a pod.
MANAGER = "manager.py"
PODBIND = Path(__file__).with_name("podbind.c")
COMPILERS = ("cc", "gcc", "clang", "c++", "g++")


class PullError(Exception):
    """The image is not available. The message has the reason, as in a kubelet's ErrImagePull."""


@dataclass(frozen=True)
class Program:
    """How a container runs here. A `simulated` one has no process.

    `forced` are variables that override the pod's own. `user` is the image's USER, and `users` are the users that the
    image creates. `binary` is a program that the command line starts.
    """

    kind: Literal["process", "simulated"]
    argv: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    forced: dict[str, str] = field(default_factory=dict)
    context: str = ""
    workdir: str = "/"
    user: str = ""
    users: dict[str, int] = field(default_factory=dict)
    binary: str = ""


def image_environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """Return PATH with this project's interpreter first, and the image's other variables.

    The image's own PATH is ignored, because its directories are not on this machine.
    """
    path = f"{Path(sys.prefix) / 'bin'}:{SYSTEM_PATH}"
    return {"PYTHONUNBUFFERED": "1"} | (extra or {}) | {"PATH": path}


def command_line(container: Object, entrypoint: tuple[str, ...], command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command line of a container.

    `command` replaces the image's entry point and drops its default arguments. `args` replaces only the arguments.
    """
    given, arguments = container.get("command"), container.get("args")
    if given:
        return (*given, *(arguments or ()))
    return (*entrypoint, *(arguments if arguments is not None else command))


def built(container: Object, entry: Object) -> Program:
    """Return the program of an image that the docker-build plugin recorded: its entry point, in its build context."""
    file = Path(entry["dockerfile"])
    try:
        image = dockerfile.parse(file.read_text(), entry.get("target"))
    except (OSError, ValueError) as error:
        raise PullError(f"image {container['image']}: {file}: {error}") from error
    argv = command_line(container, image.entrypoint, image.command)
    if not argv:
        raise PullError(
            f"image {container['image']}: {file} has no ENTRYPOINT and no CMD, and no command is given"
        )
    return Program(
        "process",
        argv,
        image_environment(image.environment),
        context=str(entry["context"]),
        workdir=image.workdir,
        user=image.user,
        users=image.users,
    )


def karpenter(
    container: Object, binary: Path, environment: dict[str, str], free_port: Callable[[int], int]
) -> Program:
    """Return the program of Karpenter.

    It listens on all addresses, on ports from its environment. So each pod gets its own ports.
    """
    argv = (str(binary), *(container.get("args") or ()))
    defaults = {"METRICS_PORT": 8080, "HEALTH_PROBE_PORT": 8081}
    ports = {name: str(free_port(int(environment.get(name, port)))) for name, port in defaults.items()}
    return Program("process", argv, image_environment(), forced=ports)


def operator(container: Object, binary: Path, pod_ip: str, free_port: Callable[[int], int]) -> Program:
    """Return the program of the training operator.

    Two of its listeners have an option for the address. Its webhook has none, so the webhook's port changes.
    """
    given = tuple(container.get("command") or ())[1:] + tuple(container.get("args") or ())
    listeners = (
        f"--metrics-bind-address={pod_ip}:8080",
        f"--health-probe-bind-address={pod_ip}:8081",
        f"--webhook-server-port={free_port(9443)}",
    )
    return Program("process", (str(binary), *given, *listeners), image_environment())


def manager(container: Object, binary: Path, helpers: Path, pod_ip: str) -> Program:
    """Return the program of a manager whose listeners only its configuration file names (programs/manager.py)."""
    given = tuple(container.get("command") or ())[1:] + tuple(container.get("args") or ())
    argv = (sys.executable, "-I", str(helpers / "manager.py"), pod_ip, str(binary), *given)
    return Program("process", argv, image_environment(), binary=str(binary))


@dataclass(frozen=True)
class Images:
    """Finds the program of a container.

    `file` is images.json, `tools` the directory of the tools' links, `helpers` that of this package's programs.
    """

    file: Path
    tools: Path
    helpers: Path
    account: str

    def find(
        self, container: Object, pod_ip: str, environment: dict[str, str], free_port: Callable[[int], int]
    ) -> Program:
        """Return the program of a container.

        Args:
            environment: The variables that the pod declares.
            free_port: Returns a free port to use instead of another.

        Raises:
            PullError: The image is from the stack's own registry, but was not built.
        """
        image = container["image"]
        container = container | {
            key: [expand(word, environment) for word in container[key]]
            for key in ("command", "args")
            if container.get(key)
        }
        entry = self.recorded(image)
        if entry is not None:
            return built(container, entry)
        bare = image.split("@")[0]
        if KARPENTER.search(bare):
            return karpenter(container, self.tools / "karpenter", environment, free_port)
        if OPERATOR.search(bare):
            return operator(container, self.tools / "training-operator", pod_ip, free_port)
        for program, pattern in MANAGERS.items():
            if pattern.search(bare):
                return manager(container, self.tools / program, self.helpers, pod_ip)
        looks_up = container["name"] == LOOKUP_CONTAINER or NETWORK_TOOLS.search(bare)
        if looks_up and container.get("command"):
            # The operator's script and the debug pod get our `nslookup`, which reads the pod's hosts file.
            found = image_environment()
            path = {"PATH": f"{self.helpers}:{found['PATH']}"}
            return Program("process", command_line(container, (), ()), found | path)
        if image.startswith(f"{self.account}.dkr.ecr."):
            raise PullError(f"image {image}: not in {self.file}; no build of this stack made it")
        return Program("simulated")

    def recorded(self, image: str) -> Object | None:
        """Return the docker-build plugin's record of a reference: `repo:tag`, `repo@digest` or both."""
        known = read_record(self.file) or {}
        repository, at, digest = image.partition("@")
        untagged = re.sub(r":[^/:]+$", "", repository)
        names = [image, f"{untagged}{at}{digest}"] if at else [image]
        return next((known[name] for name in names if name in known), None)


def simulated(container: Object, images: Images) -> bool:
    """Return whether a container certainly has no process. It does not read the container's environment."""
    try:
        program = images.find(container, "127.0.0.1", {}, lambda port: port)
    except (PullError, OSError):  # its start reports the error
        return False
    return program.kind == "simulated"


def missing_helpers(path: str = SYSTEM_PATH) -> list[str]:
    """Return the programs that pods get from this package, because `path` does not have them."""
    return [*ALWAYS, *(name for name in IF_MISSING if shutil.which(name, path=path) is None)]


def write_helpers(directory: Path) -> Path:
    """Write the programs into the directory, each with a command that runs it. Return the directory.

    They are copies, because a pod sees this directory but may not see the checkout.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for name in missing_helpers():
        source = directory / f"{name}.py"
        shutil.copyfile(PROGRAMS / source.name, source)
        command = directory / name
        command.write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -I -S {shlex.quote(str(source))} "$@"\n'
        )
        command.chmod(0o755)
    shutil.copyfile(PROGRAMS / MANAGER, directory / MANAGER)
    return directory


def preload_library() -> Path:
    """Return the path of the library. Build it if it does not exist yet.

    Raises:
        ToolError: There is no compiler, or it failed. Without the library two pods can't listen on the same port.
        OSError: The cache can't be written.
    """
    key = f"podbind-{hashlib.sha256(PODBIND.read_bytes()).hexdigest()[:12]}"
    path = cache_directory() / "tools" / key / "podbind.so"
    if path.exists():
        return path
    compiler = next((name for name in COMPILERS if shutil.which(name)), None)
    if compiler is None:
        raise ToolError(
            f"a C or C++ compiler is needed to build {PODBIND.name}, which gives pods addresses of their own; install "
            f"one (Debian and Ubuntu: `apt-get install gcc`, Fedora: `dnf install gcc`); none of "
            f"{', '.join(COMPILERS)} is on PATH"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may do this at the same time. Each builds its own file and renames it.
    with tempfile.TemporaryDirectory(dir=path.parent) as own:
        built = Path(own) / path.name
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(built), str(PODBIND), "-ldl"]
        answer = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if answer.returncode != 0:
            lines = answer.stderr.strip().splitlines() or [""]
            reason = next((line for line in lines if "error" in line), lines[-1])
            failed = f"building {PODBIND.name} with {compiler} failed (exit code {answer.returncode})"
            raise ToolError(f"{failed}: {reason.strip()}")
        built.chmod(0o755)
        os.replace(built, path)
    return path
