"""Decide what starts the processes of a job's command, from the scripts in the workspace.

The plugin decides, because the controller can't read these scripts. Entry points: `choose_launcher` for `submit`,
`check_synced_scripts` for `sync`.
"""

from __future__ import annotations

import posixpath
import re
import stat
from pathlib import Path
from typing import Any, Final

from trainyard.kubectl.output import USAGE, PluginError, say
from trainyard.operator.api.job import NO_LAUNCHER, TORCHRUN, JobSpec, parse_job
from trainyard.operator.api.queue import WORKING_DIRECTORY, WORKSPACE, QueueSpec
from trainyard.operator.api.resolve import Settings, resolve
from trainyard.operator.command import detect_launcher, nested_launcher
from trainyard.operator.command_parser import PYTHON, PYTHON_MODULE
from trainyard.operator.launcher_detection import Detection, find_conflict
from trainyard.operator.resources import InvalidJob, Size, distribute

JsonObject = dict[str, Any]
_MAX_SCRIPT_BYTES: Final = 2**20
_FLAGS: Final = {"spec.command": "command", "spec.env": "--env", "spec.launcher": "--launcher"}
_OVERRIDE: Final = "--launcher torchrun starts it once for each GPU"


class Scripts:
    """Read text files of the workspace at `root`, by their paths in a worker."""

    def __init__(self, root: Path | None, queue: QueueSpec | None = None) -> None:
        self._root = root
        self._mount = self._working = WORKING_DIRECTORY
        if queue is not None:
            volume = queue.volumes.get(WORKSPACE)
            self._mount = volume.mount_path if volume is not None else queue.working_dir
            moved = queue.working_dir == WORKING_DIRECTORY
            self._working = self._mount if moved else queue.working_dir

    def read(self, name: str) -> str | None:
        """Return the text of a file; None if the workspace has no such text file."""
        file = self.path(name)
        if file is None:
            return None
        try:
            # A link may point outside of the workspace, and reading a pipe would block.
            known = file.stat()
            inside = file.resolve().is_relative_to(self._root.resolve()) if self._root else False
            if not inside or not stat.S_ISREG(known.st_mode) or known.st_size > _MAX_SCRIPT_BYTES:
                return None
            data = file.read_bytes()
        except (OSError, ValueError, RuntimeError):
            return None
        return None if b"\0" in data else data.decode("utf-8", "replace")

    def path(self, name: str) -> Path | None:
        """Return the local path of the file; None if it is not in the workspace."""
        whole = posixpath.normpath(posixpath.join(self._working, name))
        mount = posixpath.normpath(self._mount)
        if self._root is None or posixpath.commonpath((whole, mount)) != mount:
            return None
        return self._root / posixpath.relpath(whole, mount)


def choose_launcher(job: JsonObject, root: Path | None, queue: JsonObject | None) -> str:
    """Set the job's `launcher` if the scripts in `root` decide it, and return a line about the decision.

    Raises:
        PluginError: A launcher in the command does not fit the job.
    """
    spec, _ = parse_job(job["spec"])
    if spec is None:  # the API server reports the error
        return ""
    settings, scripts, found = _detect(spec, root, queue)
    if spec.launcher == TORCHRUN and (why := nested_launcher(found)):
        raise PluginError(USAGE, f"--launcher: is {TORCHRUN}, {why}")
    _check(spec, settings, found, scripts)
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
    settings, scripts, found = _detect(spec, root, queue)
    _check(spec, settings, found, scripts)
    decided = spec.launcher or detect_launcher(spec.command, spec.args).launcher
    if decided == TORCHRUN and found.own_launcher:
        raise PluginError(
            USAGE,
            f"job {job['metadata']['name']}: {found.place or 'its command'} starts {found.own_launcher} now, but "
            "torchrun already starts the job's command once for each GPU. Submit another job",
        )
    if decided == NO_LAUNCHER and found.launcher == TORCHRUN and any(each.is_read for each in found.programs):
        say(
            f"job {job['metadata']['name']}: runs its command once on each node, but {_program(found)} starts no "
            "launcher now. For one process on each GPU, submit another job"
        )


def _detect(
    spec: JobSpec, root: Path | None, queue: JsonObject | None
) -> tuple[Settings | None, Scripts, Detection]:
    settings = None if queue is None else resolve(queue.get("spec"), spec)[0]
    scripts = Scripts(root, None if settings is None else settings.queue)
    return settings, scripts, detect_launcher(spec.command, spec.args, scripts.read, spec.literal_variables)


def _check(spec: JobSpec, settings: Settings | None, found: Detection, scripts: Scripts) -> None:
    size = _size(spec, settings)
    if size is None:
        return
    backend = spec.distributed.rdzv_backend if settings is None else settings.rendezvous
    place, wrong = find_conflict(spec, found, size, backend)
    if wrong:
        raise PluginError(USAGE, f"{_FLAGS.get(place) or _script_and_line(scripts, place, wrong)}: {wrong}")


def _size(spec: JobSpec, settings: Settings | None) -> Size | None:
    """Return the job's size. Without a queue, return it only if the job alone determines it."""
    if settings is not None:
        try:
            return distribute(spec, settings.queue)
        except InvalidJob:
            return None
    if spec.elastic is not None:
        nodes, minimum = spec.elastic.max_nodes, spec.elastic.min_nodes
    elif spec.num_nodes is not None or spec.num_gpus < 2:
        nodes = minimum = spec.num_nodes or 1
    else:
        return None
    return Size(nodes=nodes, gpus=spec.num_gpus // nodes, least=minimum)


def _script_and_line(scripts: Scripts, place: str, wrong: str) -> str:
    """Return the script, with the number of the line that contains the wrong flag if it is found."""
    named = re.search(r"--?([\w-]+)", wrong)
    text = scripts.read(place) or ""
    if named:
        flag = re.compile(rf"-{re.sub('[-_]', '[-_]', named[1])}\b")
        for number, line in enumerate(text.splitlines(), 1):
            if flag.search(line) and not line.lstrip().startswith("#"):
                return f"{place}, line {number}"
    return place


def _describe_decision(spec: JobSpec, found: Detection) -> str:
    """Return a line about the decision, its reason, and how to override it."""
    each = "GPU" if spec.num_gpus else "node"
    once = "runs once on each node"
    if spec.launcher:
        effect = f"torchrun starts it once for each {each}" if spec.launcher == TORCHRUN else once
        return f"{effect} (--launcher {spec.launcher})"
    if found.own_launcher:
        where = f"{found.place} starts" if found.place else "starts"
        return f"{where} {found.own_launcher}, so it {once}"
    if found.unread:
        return f"{once}, without torchrun: {found.unknown} is not in the workspace and can't be read; {_OVERRIDE}"
    if found.unknown:
        where = f", which {found.place} runs," if found.place else ""
        return f"{once}, without torchrun: {found.unknown}{where} is not known to be a plain program; {_OVERRIDE}"
    return f"torchrun starts {_program(found)} once for each {each} (--launcher {NO_LAUNCHER}: once on each node)"


def _program(found: Detection) -> str:
    """Return the name of the program that torchrun starts: the script in the workspace, or Python's last program."""
    if script := next((each.file for each in found.programs if each.is_read), ""):
        return script
    name = "it"
    for each in found.programs:
        if each.name.endswith(".py"):
            name = each.word
        elif each.name.startswith(PYTHON_MODULE):
            name = each.name
        elif PYTHON.fullmatch(each.name):
            name = next((word for word in each.arguments if word.endswith(".py")), each.name)
    return name
