"""What was typed, as a TorchrunJob. Pure."""

from __future__ import annotations

import re
import secrets
import shlex
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.core.torchrun import names

_ENDING = 5
_LETTERS = (
    "bcdfghjklmnpqrstvwxz2456789"  # those of Kubernetes' own random endings: no words, nothing to confuse
)


class UsageError(ValueError):
    """What was typed can't be a job; the text names the flag, its value and what would be right."""


def torchrun_job(options: Namespace, namespace: str, workspace: Mapping[str, Any] | None) -> dict[str, Any]:
    """The object to be made. Raises UsageError for what flags contradict; the API server judges the rest."""
    spec: dict[str, Any] = {"jobQueue": options.queue, **_size(options), "command": command(options.command)}
    if options.env:
        spec["env"] = [{"name": name, "value": value} for name, value in dict(options.env).items()]
    if workspace is not None:
        spec["workspace"] = dict(workspace)
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.JOB_KIND,
        "metadata": {"name": job_name(options), "namespace": namespace},
        "spec": spec,
    }


def command(words: list[str]) -> str:
    """One quoted command as it is; several words as one command that is split into the same words again."""
    text = words[0] if len(words) == 1 else shlex.join(words)
    if not text.strip():
        raise UsageError('COMMAND is empty; right would be, for example, "python train.py"')
    return text


def job_name(options: Namespace) -> str:
    """The given name, or one from the directory's with a random ending. Raises UsageError for no DNS label."""
    longest = names.JOB_NAME_MAX_LENGTH
    if options.name is None:
        stem = re.sub(r"[^a-z0-9]+", "-", Path(options.workspace).resolve().name.lower()).strip("-")
        stem = stem if stem[:1].isalpha() else f"job-{stem}".rstrip("-")
        ending = "".join(secrets.choice(_LETTERS) for _ in range(_ENDING))
        return f"{stem[: longest - _ENDING - 1].rstrip('-')}-{ending}"
    name: str = options.name
    if len(name) > longest or not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        shown = name if len(name) <= 2 * longest else f"{name[: 2 * longest]}... ({len(name)} characters)"
        raise UsageError(
            f"--name: {shown!r} is no name of a job; right would be at most {longest} lower-case letters, digits "
            "and '-', a letter first"
        )
    return name


def _size(options: Namespace) -> dict[str, Any]:
    least, most = options.least, options.most
    if (least is None) != (most is None):
        given, missing = ("--min", "--max") if most is None else ("--max", "--min")
        raise UsageError(f"{given} without {missing}: an elastic job needs both")
    if least is not None and least > most:
        raise UsageError(f"--min: {least} is more than --max: {most}")
    if options.gpus is None and options.nodes is None and least is None:
        raise UsageError(
            "--gpus is missing: give the GPUs of all workers together, or --nodes for a job on CPUs"
        )
    if least is not None and options.nodes is not None:
        raise UsageError("--nodes: an elastic job has --min to --max nodes; leave --nodes out")
    gpus = options.gpus or 0
    nodes = most or options.nodes or 0
    if gpus and nodes and gpus % nodes:
        flag = "--max" if most else "--nodes"
        raise UsageError(f"--gpus: {gpus} can't be spread evenly over {nodes} nodes ({flag})")
    size: dict[str, Any] = {"numGPUs": gpus}
    if options.nodes is not None:
        size["numNodes"] = options.nodes
    if least is not None:
        size["elastic"] = {"minNodes": least, "maxNodes": most}
    return size
