"""Who starts the processes of a job's command: decided with the scripts of the workspace, which nobody else can read.

Entry point: `choose`, for `submit`; `check_again`, for `sync`.
"""

from __future__ import annotations

import posixpath
import re
import stat
from pathlib import Path
from typing import Any, Final

from launcher.core.torchrun import command as commands
from launcher.core.torchrun import job_spec
from launcher.core.torchrun.command_parser import PYTHON
from launcher.core.torchrun.distribution import Refused, Size, distribute
from launcher.core.torchrun.job_spec import NO_LAUNCHER, TORCHRUN, JobSpec
from launcher.core.torchrun.launcher_detection import Detection, misfit, shape_of
from launcher.core.torchrun.queue_spec import WORKING_DIRECTORY, WORKSPACE, QueueSpec
from launcher.core.torchrun.resolve import Settings, resolve
from launcher.plugin.exits import USAGE, PluginError
from launcher.plugin.screen import say

JsonObject = dict[str, Any]
_LARGEST_SCRIPT: Final = 2**20
_FLAGS: Final = {"spec.command": "command", "spec.env": "--env", "spec.launcher": "--launcher"}
_OTHERWISE: Final = "--launcher torchrun starts it once for each GPU"


class Scripts:
    """The text files of the workspace at `root`, by the names that they have for a command that runs in a worker."""

    def __init__(self, root: Path | None, queue: QueueSpec | None = None) -> None:
        self._root = root
        self._mount = self._working = WORKING_DIRECTORY
        if queue is not None:
            volume = queue.volumes.get(WORKSPACE)
            self._mount = volume.mount_path if volume is not None else queue.working_directory
            moved = queue.working_directory == WORKING_DIRECTORY
            self._working = self._mount if moved else queue.working_directory

    def read(self, name: str) -> str | None:
        """The text of a file, None where there is no such text file in the workspace."""
        file = self.path(name)
        if file is None:
            return None
        try:
            # A link may lead out of the workspace, and a pipe would be waited for.
            known = file.stat()
            inside = file.resolve().is_relative_to(self._root.resolve()) if self._root else False
            if not inside or not stat.S_ISREG(known.st_mode) or known.st_size > _LARGEST_SCRIPT:
                return None
            data = file.read_bytes()
        except (OSError, ValueError, RuntimeError):
            return None
        return None if b"\0" in data else data.decode("utf-8", "replace")

    def path(self, name: str) -> Path | None:
        """Where the file is here, None for one that is not below the workspace."""
        whole = posixpath.normpath(posixpath.join(self._working, name))
        mount = posixpath.normpath(self._mount)
        if self._root is None or posixpath.commonpath((whole, mount)) != mount:
            return None
        return self._root / posixpath.relpath(whole, mount)


def choose(job: JsonObject, root: Path | None, queue: JsonObject | None) -> str:
    """Sets the job's `launcher` where the scripts in `root` decide it; a line that says what was decided.

    Raises PluginError for a launcher in the command that contradicts the job.
    """
    spec, _ = job_spec.parse(job["spec"])
    if spec is None:  # the API server says what is wrong
        return ""
    settings = _settings(queue, spec)
    scripts = Scripts(root, None if settings is None else settings.queue)
    found = _found(spec, scripts)
    if spec.launcher == TORCHRUN and (why := commands.twice(found)):
        raise PluginError(USAGE, f"--launcher: is {TORCHRUN}, {why}")
    _check(spec, settings, found, scripts)
    if not spec.launcher and any(each.is_read for each in found.commands):
        job["spec"]["launcher"] = found.launcher  # the controller can't read them
    return f"command: {_decided(spec, found)}"


def check_again(job: JsonObject, root: Path, queue: JsonObject | None) -> None:
    """Raises PluginError where the scripts in `root` start what does not fit the job, which is there already."""
    spec, _ = job_spec.parse(job["spec"])
    if spec is None:
        return
    settings = _settings(queue, spec)
    scripts = Scripts(root, None if settings is None else settings.queue)
    found = _found(spec, scripts)
    _check(spec, settings, found, scripts)
    decided = spec.launcher or commands.detected(spec.command, spec.args).launcher
    if decided == TORCHRUN and found.starts:
        raise PluginError(
            USAGE,
            f"job {job['metadata']['name']}: {found.place or 'its command'} starts {found.starts} itself now, and "
            "torchrun starts the job's command once for each GPU. Submit another job",
        )
    if decided == NO_LAUNCHER and found.launcher == TORCHRUN and any(each.is_read for each in found.commands):
        say(
            f"job {job['metadata']['name']}: runs its command once on each node, and {_program(found)} starts no "
            "launcher now; submit another job for one process on each GPU"
        )


def _found(spec: JobSpec, scripts: Scripts) -> Detection:
    return commands.detected(spec.command, spec.args, scripts.read, commands.literals(spec))


def _settings(queue: JsonObject | None, spec: JobSpec) -> Settings | None:
    return None if queue is None else resolve(queue.get("spec"), spec)[0]


def _check(spec: JobSpec, settings: Settings | None, found: Detection, scripts: Scripts) -> None:
    size = _size(spec, settings)
    if size is None:
        return
    backend = spec.rendezvous if settings is None else settings.rendezvous
    place, wrong = misfit(spec, found, shape_of(spec, size, backend))
    if wrong:
        raise PluginError(USAGE, f"{_FLAGS.get(place) or _line(scripts, place, wrong)}: {wrong}")


def _size(spec: JobSpec, settings: Settings | None) -> Size | None:
    """The job's size; where no queue says it, as far as the job does."""
    if settings is not None:
        try:
            return distribute(spec, settings.queue)
        except Refused:
            return None
    if spec.elastic is not None:
        nodes, least = spec.elastic.most, spec.elastic.least
    elif spec.nodes is not None or spec.gpus < 2:
        nodes = least = spec.nodes or 1
    else:
        return None
    return Size(nodes=nodes, gpus=spec.gpus // nodes, least=least)


def _line(scripts: Scripts, place: str, wrong: str) -> str:
    """A script with the number of the line that has the flag, where that can be found."""
    named = re.search(r"--?([\w-]+)", wrong)
    text = scripts.read(place) or ""
    if named:
        flag = re.compile(rf"-{re.sub('[-_]', '[-_]', named[1])}\b")
        for number, line in enumerate(text.splitlines(), 1):
            if flag.search(line) and not line.lstrip().startswith("#"):
                return f"{place}, line {number}"
    return place


def _decided(spec: JobSpec, found: Detection) -> str:
    """What was decided, why, and how to say otherwise."""
    each = "GPU" if spec.gpus else "node"
    once = "runs once on each node"
    if spec.launcher:
        said = f"torchrun starts it once for each {each}" if spec.launcher == TORCHRUN else once
        return f"{said}, as --launcher {spec.launcher} says"
    if found.starts:
        where = f"{found.place} starts" if found.place else "starts"
        return f"{where} {found.starts} itself, and so {once}"
    if found.unread:
        return f"{once}, without torchrun: {found.unknown} is not in the workspace and can't be read here; {_OTHERWISE}"
    if found.unknown:
        where = f", which {found.place} runs," if found.place else ""
        return f"{once}, without torchrun: {found.unknown}{where} is not known to be a plain program; {_OTHERWISE}"
    return f"torchrun starts {_program(found)} once for each {each} (--launcher {NO_LAUNCHER}: once on each node)"


def _program(found: Detection) -> str:
    """What torchrun starts, as a person calls it: the script of the workspace, or what Python runs last."""
    if script := next((each.file for each in found.commands if each.is_read), ""):
        return script
    name = "it"
    for call in (call for command in found.commands for call in command.calls):
        module = call.python[0]
        if call.program.endswith(".py"):
            name = call.word
        elif module and "-m" in call.arguments:
            name = f"python -m {module}"
        elif PYTHON.fullmatch(call.program):
            name = next((word for word in call.arguments if word.endswith(".py")), call.program)
    return name
