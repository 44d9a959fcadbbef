"""Decide what starts the processes of a job's command, from the scripts in the workspace. Refuse a missing script.

The plugin decides, because the controller can't read these scripts. Entry points: `choose_launcher` for `submit`,
`check_synced_scripts` for `sync`.
"""

from __future__ import annotations

import posixpath
import re
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from trainyard.kubectl.output import USAGE, PluginError, say
from trainyard.operator.api.job import NO_LAUNCHER, TORCHRUN, JobSpec, parse_job
from trainyard.operator.api.queue import WORKING_DIRECTORY, QueueSpec
from trainyard.operator.api.resolve import resolve
from trainyard.operator.command import nested_launcher
from trainyard.operator.launcher_detection import (
    PYTHON,
    PYTHON_MODULE,
    SOURCES,
    Detection,
    Program,
    Read,
    detect_launcher,
)
from trainyard.operator.launcher_flags import find_conflict
from trainyard.operator.resources import InvalidJob, Size, distribute
from trainyard.workspace.errors import WorkspaceError
from trainyard.workspace.ignore import effective_file
from trainyard.workspace.selection import is_ignored

JsonObject = dict[str, Any]
_MAX_SCRIPT_BYTES: Final = 2**20
_FLAGS: Final = {"spec.command": "command", "spec.env": "--env"}
_OVERRIDE: Final = "--launcher torchrun starts it once for each GPU"
# Programs before a script that create no scripts.
_PREPARATIONS: Final = frozenset(
    ("export", "mkdir", "nvidia-smi", "pip", "pip3", f"{PYTHON_MODULE}pip", "set", "true", "ulimit")
)
# After these options of Python and of launchers, no script follows.
_NO_SCRIPT: Final = re.compile(r"-|-[bBdEiIOPqRsSuvx]*[cm].*|--module|--no[-_]python|.*[$`].*", re.DOTALL)
# A relative path without expansions of the shell.
_PLAIN_PATH: Final = re.compile(r"[^-/~$`*?\[{][^$`*?\[{]*")


def script_reader(root: Path | None, queue: QueueSpec | None = None) -> Read:
    """Return a function that reads text files of the workspace at `root`, by their paths in a worker."""
    mount = queue.workspace_directory if queue is not None else WORKING_DIRECTORY
    working = queue.command_directory if queue is not None else WORKING_DIRECTORY

    def read(name: str) -> str | None:
        path = posixpath.relpath(posixpath.join(working, name), mount)
        if root is None or path.startswith(".."):
            return None
        try:
            # A link may point outside of the workspace, and reading a pipe would block.
            file = (root / path).resolve()
            status = file.stat()
            is_file = file.is_relative_to(root.resolve()) and stat.S_ISREG(status.st_mode)
            data = file.read_bytes() if is_file and status.st_size <= _MAX_SCRIPT_BYTES else b"\0"
        except (OSError, ValueError, RuntimeError):
            return None
        return None if b"\0" in data else data.decode("utf-8", "replace")

    return read


def choose_launcher(job: JsonObject, root: Path | None, queue: JsonObject | None) -> str:
    """Set the job's `launcher` if the scripts in `root` decide it, and return a line about the decision.

    Raises:
        PluginError: A launcher in the command does not fit the job.
    """
    spec, _ = parse_job(job["spec"])
    if spec is None:  # the API server reports the error
        return ""
    found = _detect(spec, root, queue)
    if spec.launcher == TORCHRUN and (why := nested_launcher(found)):
        raise PluginError(USAGE, f"--launcher: is {TORCHRUN}, {why}")
    if not spec.launcher and any(program.is_read for program in found.programs):
        job["spec"]["launcher"] = found.launcher  # the controller can't read them
    return f"command: {_describe_decision(spec, found)}"


def check_synced_scripts(job: JsonObject, root: Path, queue: JsonObject | None) -> None:
    """Check the scripts in `root` against a job that exists.

    Raises:
        PluginError: The scripts start a launcher that does not fit the job.
    """
    spec, _ = parse_job(job["spec"])
    if spec is None:
        return
    found = _detect(spec, root, queue)
    name = f"job {job['metadata']['name']}"
    decided = spec.launcher
    if not decided:
        decided = detect_launcher(spec.command, spec.args, variables=spec.literal_variables).launcher
    if decided == TORCHRUN and found.own_launcher:
        raise PluginError(
            USAGE,
            f"{name}: {found.place or 'its command'} starts {found.own_launcher} now, but torchrun already starts the "
            "job's command once for each GPU. Submit another job",
        )
    if (
        decided == NO_LAUNCHER
        and found.launcher == TORCHRUN
        and any(program.is_read for program in found.programs)
    ):
        say(
            f"{name}: runs its command once on each node, but {_program(found)} starts no launcher now. "
            "For one process on each GPU, submit another job"
        )


def _detect(spec: JobSpec, root: Path | None, queue: JsonObject | None) -> Detection:
    """Return what the command and the scripts in `root` start. Raise PluginError if it does not fit the job."""
    settings = None if queue is None else resolve(queue.get("spec"), spec)[0]
    read = script_reader(root, None if settings is None else settings.queue)
    found = detect_launcher(spec.command, spec.args, read, spec.literal_variables)
    size, backend = _own_size(spec), spec.distributed.rdzv_backend
    if settings is not None:
        size, backend = None, settings.rendezvous
        with suppress(InvalidJob):  # `submit` checks the size itself
            size = distribute(spec, settings.queue)
    place, wrong = find_conflict(spec, found, size, backend) if size else ("", "")
    if wrong:
        flag = re.search(r"-[\w-]+", wrong)
        lines = enumerate((read(place) or "").splitlines(), 1)
        code = ((at, line) for at, line in lines if not line.lstrip().startswith("#"))
        numbers = [at for at, line in code if flag and re.search(rf"{flag[0]}\b", line)]
        place = _FLAGS.get(place, f"{place}, line {numbers[0]}" if numbers else place)
        raise PluginError(USAGE, f"{place}: {wrong}")
    if root is not None and settings is not None:
        _check_script(found, root, settings.queue)
    return found


def _check_script(found: Detection, root: Path, queue: QueueSpec) -> None:
    """Refuse a script that workers can't find, because it is not sent. Raise PluginError.

    A script that the image, a volume or an earlier program of the command may have is not checked.
    """
    directory, name = "", ""
    for program in found.programs:
        words = program.arguments
        if program.name == "cd" and len(words) == 1 and _PLAIN_PATH.fullmatch(words[0]):
            directory = posixpath.join(directory, words[0])
        elif program.name not in _PREPARATIONS:
            name = _script(program)
            directory = "" if program.is_read else directory  # the path of a script that was read includes it
            break
    mount = queue.workspace_directory
    place = posixpath.normpath(posixpath.join(queue.command_directory, directory, name))
    path = posixpath.relpath(place, mount)
    if not _PLAIN_PATH.fullmatch(name) or path.startswith("..") or _is_mounted(place, mount, queue):
        return
    with suppress(OSError, WorkspaceError):  # the process that packs the workspace reports it
        base = root.resolve(strict=True)
        problem = f"is not in the workspace {base}"
        if (base / path).exists():
            real = (base / path).resolve()
            if not real.is_relative_to(base) or not is_ignored(base, str(real.relative_to(base))):
                return
            problem = f"is ignored by {effective_file(base)}, so it is not sent with the workspace {base}"
        rule = "It must be a file of the workspace, or an absolute path in the image"
        raise PluginError(USAGE, f"command: script {posixpath.join(directory, name)!r} {problem}. {rule}")


def _is_mounted(place: str, mount: str, queue: QueueSpec) -> bool:
    """Return whether another volume, or an init container of the queue, may have a file at this place."""
    template = queue.pod_template.spec
    mounts = [
        item for container in template.get("containers") or () for item in container.get("volumeMounts") or ()
    ]
    paths = [
        *(volume.mount_path for volume in queue.volumes.values()),
        *(item["mountPath"] for item in mounts),
    ]
    inner = (path for path in paths if len(path) > len(mount))
    return bool(template.get("initContainers")) or any(f"{place}/".startswith(f"{path}/") for path in inner)


def _script(program: Program) -> str:
    """Return the script that a program runs if it needs to be a file, "" if that is not known."""
    name, words = program.name, list(program.arguments)
    if name in SOURCES:
        return ""
    if program.file or (name.endswith(".py") and "/" in name):  # without a slash, it may be in PATH
        return program.file or name
    if PYTHON.fullmatch(name):
        words = words[: next((at for at, word in enumerate(words, 1) if not word.startswith("-")), 0)]
    elif not program.launcher or "mpi" in program.launcher:
        return ""
    end = next((at for at, word in enumerate(words) if word.endswith(".py")), 0)
    is_script = words and not any(map(_NO_SCRIPT.fullmatch, words[:end]))
    return words[end] if is_script and words[end].endswith(".py") else ""


def _own_size(spec: JobSpec) -> Size | None:
    """Return the job's size if the job alone determines it, without its queue."""
    if spec.elastic is not None:
        nodes, minimum = spec.elastic.max_nodes, spec.elastic.min_nodes
    elif spec.num_nodes is not None or spec.num_gpus < 2:
        nodes = minimum = spec.num_nodes or 1
    else:
        return None
    return Size(nodes=nodes, gpus=spec.num_gpus // nodes, minimum=minimum)


def _describe_decision(spec: JobSpec, found: Detection) -> str:
    """Return a line about the decision, its reason, and how to override it."""
    unit = "GPU" if spec.num_gpus else "node"
    once = "runs once on each node"
    if spec.launcher:
        effect = f"torchrun starts it once for each {unit}" if spec.launcher == TORCHRUN else once
        return f"{effect} (--launcher {spec.launcher})"
    if found.own_launcher:
        return f"{found.place} starts {found.own_launcher}, so it {once}".lstrip()
    if found.unread:
        return f"{once}, without torchrun: {found.unknown} is not in the workspace and can't be read; {_OVERRIDE}"
    if found.unknown:
        where = f", which {found.place} runs," if found.place else ""
        return f"{once}, without torchrun: {found.unknown}{where} is not known to be a plain program; {_OVERRIDE}"
    return f"torchrun starts {_program(found)} once for each {unit} (--launcher {NO_LAUNCHER}: once on each node)"


def _program(found: Detection) -> str:
    """Return the name of the program that torchrun starts: the script in the workspace, or Python's last program."""
    name = "it"
    for program in found.programs:
        if program.is_read:
            return program.file
        if program.name.endswith(".py") or program.name.startswith(PYTHON_MODULE):
            name = program.name
        elif PYTHON.fullmatch(program.name):
            name = next((word for word in program.arguments if word.endswith(".py")), program.name)
    return name
