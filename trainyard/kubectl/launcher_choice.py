"""Decide what starts the processes of a job's command, from the scripts in the workspace.

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
from trainyard.operator.api.queue import WORKING_DIRECTORY, WORKSPACE, QueueSpec
from trainyard.operator.api.resolve import resolve
from trainyard.operator.command import nested_launcher
from trainyard.operator.launcher_detection import (
    PYTHON,
    PYTHON_MODULE,
    Detection,
    Read,
    detect_launcher,
)
from trainyard.operator.launcher_flags import find_conflict
from trainyard.operator.resources import InvalidJob, Size, distribute

JsonObject = dict[str, Any]
_MAX_SCRIPT_BYTES: Final = 2**20
_FLAGS: Final = {"spec.command": "command", "spec.env": "--env"}
_OVERRIDE: Final = "--launcher torchrun starts it once for each GPU"


def script_reader(root: Path | None, queue: QueueSpec | None = None) -> Read:
    """Return a function that reads text files of the workspace at `root`, by their paths in a worker."""
    mount = working = WORKING_DIRECTORY
    if queue is not None:
        volume = queue.volumes.get(WORKSPACE)
        mount = volume.mount_path if volume is not None else queue.working_dir
        working = mount if queue.working_dir == WORKING_DIRECTORY else queue.working_dir

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
    if not spec.launcher and any(each.is_read for each in found.programs):
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
    decided = spec.launcher or detect_launcher(spec.command, spec.args).launcher
    if decided == TORCHRUN and found.own_launcher:
        raise PluginError(
            USAGE,
            f"{name}: {found.place or 'its command'} starts {found.own_launcher} now, but torchrun already starts the "
            "job's command once for each GPU. Submit another job",
        )
    if decided == NO_LAUNCHER and found.launcher == TORCHRUN and any(each.is_read for each in found.programs):
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
    return found


def _own_size(spec: JobSpec) -> Size | None:
    """Return the job's size if the job alone determines it, without its queue."""
    if spec.elastic is not None:
        nodes, minimum = spec.elastic.max_nodes, spec.elastic.min_nodes
    elif spec.num_nodes is not None or spec.num_gpus < 2:
        nodes = minimum = spec.num_nodes or 1
    else:
        return None
    return Size(nodes=nodes, gpus=spec.num_gpus // nodes, least=minimum)


def _describe_decision(spec: JobSpec, found: Detection) -> str:
    """Return a line about the decision, its reason, and how to override it."""
    each = "GPU" if spec.num_gpus else "node"
    once = "runs once on each node"
    if spec.launcher:
        effect = f"torchrun starts it once for each {each}" if spec.launcher == TORCHRUN else once
        return f"{effect} (--launcher {spec.launcher})"
    if found.own_launcher:
        return f"{found.place} starts {found.own_launcher}, so it {once}".lstrip()
    if found.unread:
        return f"{once}, without torchrun: {found.unknown} is not in the workspace and can't be read; {_OVERRIDE}"
    if found.unknown:
        where = f", which {found.place} runs," if found.place else ""
        return f"{once}, without torchrun: {found.unknown}{where} is not known to be a plain program; {_OVERRIDE}"
    return f"torchrun starts {_program(found)} once for each {each} (--launcher {NO_LAUNCHER}: once on each node)"


def _program(found: Detection) -> str:
    """Return the name of the program that torchrun starts: the script in the workspace, or Python's last program."""
    name = "it"
    for each in found.programs:
        if each.is_read:
            return each.file
        if each.name.endswith(".py") or each.name.startswith(PYTHON_MODULE):
            name = each.name
        elif PYTHON.fullmatch(each.name):
            name = next((word for word in each.arguments if word.endswith(".py")), each.name)
    return name
