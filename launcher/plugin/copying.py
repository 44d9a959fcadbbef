"""`cp`: a file or a directory from or to a worker, as a tar over exec; what broke in between is an error.

`kubectl cp` takes a stream that ends early for its end (kubernetes/kubernetes#60140): here the archive's own end
and the exit code of the command in the pod have to be seen.
"""

from __future__ import annotations

import argparse
import os
import posixpath
import shlex
import tarfile
import tempfile
from pathlib import Path
from typing import IO, Final

from launcher.core.torchrun import names as n
from launcher.kube.execute import Execution
from launcher.plugin.begun import has_ended
from launcher.plugin.cluster import Cluster, explained
from launcher.plugin.download import AS_IT_IS, download, failed
from launcher.plugin.exits import DONE, NOT_FOUND, UNAVAILABLE, USAGE, WORKSPACE, PluginError
from launcher.plugin.following import worker
from launcher.plugin.names import object_name, sendable
from launcher.plugin.ranks import beyond
from launcher.plugin.screen import Bar, say
from launcher.workspace.selection import size_in_words

_CHUNK: Final = 2**16
_DIRECTORY: Final = "directory"


def copy(options: argparse.Namespace, cluster: Cluster) -> int:
    """Copies in the direction that the words say. Raises PluginError."""
    source, target = _split(options.source), _split(options.target)
    if bool(source) == bool(target) or not (options.source and options.target):
        raise PluginError(USAGE, "cp: one of FROM and TO should be JOB:PATH, and the other a path here")
    job, path = source or target or ("", "")
    found = cluster.job(job)
    pod = worker(cluster, found, options.rank)
    if pod is None:
        if wrong := beyond(found, options.rank):
            raise PluginError(NOT_FOUND, wrong)
        phase = found.get("status", {}).get("phase") or "not known yet"
        raise PluginError(NOT_FOUND, f"job {job}: has no worker {options.rank} now; its phase is {phase}")
    if has_ended(pod):
        raise PluginError(
            NOT_FOUND,
            f"job {job}: its worker {options.rank} has ended, and cp needs one that runs; what a claim has is read by "
            "a pod of yours that mounts it",
        )
    name = pod["metadata"]["name"]
    with explained("get and create pods/exec", cluster.namespace):
        if source:
            return download(cluster, name, path, Path(options.target))
        _upload(cluster, name, Path(options.source), path)
    return DONE


def _split(word: str) -> tuple[str, str] | None:
    """Job and path; None for a path here, which has a slash before any colon."""
    job, colon, path = word.partition(":")
    if not colon or "/" in job or not job:
        return None
    if not path:
        raise PluginError(USAGE, f"cp: {word}: a path should follow the colon")
    try:
        name = object_name(job)
    except ValueError as error:
        raise PluginError(USAGE, f"cp: {word}: job {error}") from None
    try:
        return name, sendable(path)
    except ValueError as error:
        raise PluginError(USAGE, f"cp: {job}: path {error}") from None


def _upload(cluster: Cluster, pod: str, source: Path, path: str) -> None:
    # A path that ends with a slash is the directory to copy into.
    into, base = (path, "") if posixpath.basename(path) in (".", "..") else posixpath.split(path)
    name = base or os.path.basename(os.path.abspath(source))
    if not name:
        raise PluginError(USAGE, f"cp: {source}: should end with the name of a file or a directory")
    try:
        if not source.exists():
            raise PluginError(WORKSPACE, f"cp: {source} does not exist here")
        if not (source.is_file() or source.is_dir()):
            raise PluginError(WORKSPACE, f"cp: {source} is neither a file nor a directory")
        with tempfile.TemporaryFile(prefix="kubectl-torchrun-") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as members:
                members.add(source.resolve(), name)  # what a link names
                contents = sum(each.size for each in members.getmembers() if each.isreg())
            size = file.tell()
            file.seek(0)
            is_file = not source.is_dir()
            if not _send(cluster, pod, file, size, into or ".", unless=name if is_file else ""):
                where = posixpath.join(into, name)
                raise PluginError(
                    WORKSPACE,
                    f"cp: {where} of {pod} is a directory; right would be {where}/, to copy into it",
                )
    except OSError as error:
        what = f"can't read {error.filename}" if error.filename else f"can't pack {source}"
        raise PluginError(WORKSPACE, f"cp: {what}: {error.strerror or error}") from None
    say(f"{size_in_words(contents)} of {source} are at {path} of {pod}")


def _send(cluster: Cluster, pod: str, file: IO[bytes], size: int, into: str, *, unless: str) -> bool:
    """False, and nothing is done, where this is a directory: tar would put a file in the place of an empty one."""
    # A WebSocket's one direction can't be closed in every version: the pod is told how many bytes there are.
    as_it_is = AS_IT_IS if "\\" in into else "raw=; "
    script = f"{as_it_is}head -c {size} | tar xf - $raw -C {shlex.quote(into)} && echo done"
    if unless:
        there = shlex.quote(posixpath.join(into, unless))
        script = f"if [ -d {there} ]; then head -c {size} >/dev/null; echo {_DIRECTORY}; exit; fi; {script}"
    command = ["sh", "-c", script]
    with (
        Execution(cluster.rest, cluster.namespace, pod, n.WORKER_CONTAINER, command, stdin=True) as running,
        Bar("sending") as bar,
    ):
        done = 0
        while data := file.read(_CHUNK):
            running.write(data)
            done += len(data)
            bar(done, size)
        answer = running.line()
        code, said = running.result()
    if code:
        raise failed(pod, into, code, said)
    if answer not in ("done", _DIRECTORY):
        raise PluginError(UNAVAILABLE, f"pod {pod}: did not say that it has all")
    return answer == "done"
