"""What a user sees: errors with their exit codes, lines and a progress bar on standard error, tables, JSON and YAML.

Tables are pure: the clock is passed in.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, TextIO

from trainyard.operator import names as n
from trainyard.workspace.errors import format_size

JsonObject = dict[str, Any]
PROGRAM: Final = "kubectl torchrun"
VERSION: Final = "0.1.0"  # as in pyproject.toml, which a single file does not have
DONE: Final = 0
JOB_FAILED: Final = 1  # with an unknown exit code
# As in BSD's sysexits.h. A training ends with none of them.
USAGE: Final = 64
WORKSPACE: Final = 65
NOT_FOUND: Final = 66
UNAVAILABLE: Final = 69
OUTPUT: Final = 74
REMOVED: Final = 75  # a followed job, whose end was not seen
REFUSED: Final = 77
NO_KUBECONFIG: Final = 78
INTERRUPTED: Final = 130
_WIDTH: Final = 30
_MIN_WIDTH: Final = 5
# For a terminal that does not know its width, such as a serial line.
_DEFAULT_COLUMNS: Final = 80
# Return to the start of the line and clear it.
_CLEAR: Final = "\r\x1b[K"
_EVERY_SECONDS: Final = 0.1
_JOBS: Final = ("NAME", "QUEUE", "PHASE", "NODES", "GPUS", "STEP", "LOSS", "RESTARTS", "AGE")
_WIDE_JOBS: Final = ("THROUGHPUT", "CHECKPOINT", "REASON")
_QUEUES: Final = ("NAME", "READY", "GPUS", "CPUS", "MEMORY", "TYPE", "ACTIVE", "PENDING", "AGE")
_WIDE_QUEUES: Final = ("IMAGE", "REASON")


class PluginError(Exception):
    """A message for the user, and the exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def sanitize(text: str) -> str:
    """Return text of the cluster as one line, without control characters: they could rewrite the user's terminal."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each.isspace() else "?" for each in text)


def say(line: str) -> None:
    """Print one line on standard error, if that is open."""
    with suppress(OSError):
        print(sanitize(line), file=sys.stderr, flush=True)


class Bar:
    """A progress bar, on a terminal that can clear a line (not `TERM=dumb`). A context manager, which clears it."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what = what
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = 0.0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and self._drawn:
            self._stream.write(_CLEAR)
            self._stream.flush()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._live or (now - self._drawn < _EVERY_SECONDS and done < total):
            return
        self._drawn = now
        self._stream.write(_CLEAR + render_bar(self._what, done, total, self._columns()))
        self._stream.flush()

    def _columns(self) -> int:
        """Return the present width, which may change."""
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _DEFAULT_COLUMNS
        except (OSError, ValueError):
            return _DEFAULT_COLUMNS


def render_bar(what: str, done: int, total: int, columns: int) -> str:
    """Return one line that fits into `columns`: with less room without the bar, then without the sizes."""
    room = columns - 1  # some terminals wrap after the last column
    sizes = f"{format_size(done)} of {format_size(total)}"
    width = min(_WIDTH, room - len(f"{what} [] {sizes}"))
    if width >= _MIN_WIDTH:
        full = width * done // total if total else width
        return f"{what} [{'#' * full}{'.' * (width - full)}] {sizes}"
    share = f"{100 * done // total if total else 100} %"
    fitting = (each for each in (f"{what} {sizes}", f"{what} {share}", share) if len(each) <= room)
    return next(fitting, "")


def serialize(item: JsonObject, output: str) -> str:
    """Return an object, or a List, as JSON, YAML or a name, without the `managedFields` of the API server."""
    if output == "name":
        return f"{job_reference(item['metadata']['name'])}\n"
    for each in (item, *item.get("items", ())):
        each.get("metadata", {}).pop("managedFields", None)
    if output == "json":
        return json.dumps(item, indent=2) + "\n"
    import yaml

    return str(yaml.safe_dump(item, sort_keys=False, allow_unicode=True))


def job_reference(name: str) -> str:
    """Return the job as `kubectl get -o name` prints it."""
    return f"{n.JOB_SINGULAR}.{n.GROUP}/{name}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return aligned columns with three spaces between them, as kubectl prints them."""
    lines = [tuple(header), *(tuple(sanitize(cell) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    padded = (
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    )
    return "".join(f"{line.rstrip()}\n" for line in padded)


def jobs(items: Sequence[JsonObject], now: datetime, *, namespaces: bool = False, wide: bool = False) -> str:
    """Return a table with one line for each job."""
    rows = []
    for item in items:
        meta, spec, status = item["metadata"], item["spec"], item.get("status", {})
        progress = status.get("progress", {})
        row = [
            *([meta["namespace"]] if namespaces else []),
            *(meta["name"], spec["jobQueue"], status.get("phase") or "-", _text(status.get("nodes"))),
            *(_text(status.get("gpus", spec["numGPUs"])), _text(progress.get("step"))),
            *(_number(progress.get("loss")), _text(status.get("restarts", 0)), age(meta, now)),
        ]
        more = [_throughput(progress), _text(progress.get("checkpointStep")), status.get("reason") or "-"]
        rows.append([*row, *(more if wide else [])])
    return table([*(["NAMESPACE"] if namespaces else []), *_JOBS, *(_WIDE_JOBS if wide else [])], rows)


def queues(
    items: Sequence[JsonObject], now: datetime, *, namespaces: bool = False, wide: bool = False
) -> str:
    """Return a table with one line for each queue. GPUs, CPUs and memory are those of a node."""
    rows = []
    for item in items:
        meta, spec, counts = item["metadata"], item.get("spec", {}), item.get("status", {}).get("jobs", {})
        node, ready = spec.get("nodeResources", {}), condition(item, "Ready")
        row = [
            *([meta["namespace"]] if namespaces else []),
            *(meta["name"], ready.get("status", "-"), _text(node.get("gpus", 0))),
            *(_text(node.get(each)) for each in ("cpus", "memory", "gpuType")),
            *(_text(counts.get(each, 0)) for each in ("active", "pending")),
            age(meta, now),
        ]
        rows.append([*row, *([_text(spec.get("image")), ready.get("reason") or "-"] if wide else [])])
    return table([*(["NAMESPACE"] if namespaces else []), *_QUEUES, *(_WIDE_QUEUES if wide else [])], rows)


def status(item: JsonObject, now: datetime) -> str:
    """Return the fields of a job, then its conditions. A message that several of them have is shown once."""
    meta, spec, seen = item["metadata"], item["spec"], item.get("status", {})
    progress, workers = seen.get("progress", {}), seen.get("workers", {})
    last, failure = seen.get("lastRestart", {}), seen.get("firstFailure", {})
    log = _log_command(meta, failure)
    # The command has a row of its own.
    message, restart = (
        str(each.get("message") or "").replace(f"; its log: {log}", "") for each in (seen, last)
    )
    lines = [
        ("Name", f"{meta.get('namespace', '')}/{meta['name']}"),
        ("Queue", spec["jobQueue"]),
        ("Command", spec["command"]),
        ("Launcher", _launcher(spec)),
        ("Phase", seen.get("phase") or "not seen by the controller yet"),
        ("Reason", _joined(seen.get("reason"), message)),
        ("Size", _size(spec, seen)),
        ("Workers", ", ".join(f"{count} {state}" for state, count in workers.items() if count)),
        ("Attempt", f"{seen['attempt']} (restarts: {seen.get('restarts', 0)})" if "attempt" in seen else ""),
        ("Restarted", _joined(last.get("time"), restart if restart != message else "")),
        *_first_failure(failure, f"{message}\n{restart}"),
        ("Log", log),
        ("Progress", _progress(progress)),
        ("Checkpoint", _joined(progress.get("checkpointStep"), progress.get("checkpointTime"))),
        ("Workspace", _workspace(item)),
        ("Started", seen.get("startTime")),
        ("Ended", seen.get("completionTime")),
        ("Exit code", _text(seen.get("exitCode"))),
        ("Age", age(meta, now)),
    ]
    width = max(len(name) for name, _ in lines) + 2
    shown = ((name, sanitize(str(value))) for name, value in lines if value and value != "-")
    text = "".join(f"{name + ':':<{width}}{value}\n" for name, value in shown)
    conditions, messages = [], {seen.get("message")}
    for each in seen.get("conditions", ()):
        new = "" if each.get("message") in messages else each.get("message") or ""
        conditions.append((each["type"], each["status"], each.get("reason") or "-", new))
        messages.add(new)
    return text + (
        "\n" + table(("CONDITION", "STATUS", "REASON", "MESSAGE"), conditions) if conditions else ""
    )


def condition(item: JsonObject, kind: str) -> JsonObject:
    """Return the condition of this type, {} if there is none."""
    found = item.get("status", {}).get("conditions", ())
    return next((each for each in found if each.get("type") == kind), {})


def age(meta: JsonObject, now: datetime) -> str:
    """Return the age of an object as kubectl prints it: 45s, 12m, 5h, 3d."""
    if not (since := meta.get("creationTimestamp")):
        return "-"
    seconds = max(0, int((now - datetime.fromisoformat(since.replace("Z", "+00:00"))).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _launcher(spec: JsonObject) -> str:
    """Return the job's launcher, with a note if it is detected."""
    from trainyard.operator.command import detect_launcher  # a fifth of the time of `list`

    if launcher := spec.get("launcher"):
        return str(launcher)
    try:
        found = detect_launcher(str(spec["command"]), tuple(map(str, spec.get("args") or ())))
    except ValueError:  # an open quotation
        return "-"
    why = found.own_launcher or found.unknown
    return found.launcher + (f" ({why} runs once on each node)" if why else "")


def _size(spec: JsonObject, seen: JsonObject) -> str:
    gpus, nodes, each = seen.get("gpus", spec["numGPUs"]), seen.get("nodes"), seen.get("gpusPerNode")
    if nodes is None:
        return _counted(gpus, "GPU") if gpus else "on CPUs"
    several = f" ({each} on each)" if each and nodes > 1 else ""
    return f"{_counted(nodes, 'node')}, {_counted(gpus, 'GPU')}{several}"


def _workspace(item: JsonObject) -> str | None:
    """Return the archive that the workers use, with its size if it is the one in the spec."""
    spec, seen = item["spec"], item.get("status", {})
    named, followed = spec.get("workspace", {}), seen.get("workspaceDigest")
    digest = followed or named.get("digest")
    size = named.get("sizeBytes") if digest == named.get("digest") else None
    shown = digest if size is None else f"{digest}, {format_size(size)}"
    # The controller has looked for the queue and not accepted the job, so no pod could receive the archive.
    found = condition(item, n.QUEUE_FOUND).get("status")
    if digest and found and not (named.get("url") or followed or condition(item, n.ACCEPTED)):
        state = "exists" if found == "False" else "is valid"
        return f"{shown}; not sent yet: run sync when queue {spec['jobQueue']} {state}"
    return shown


def _log_command(meta: JsonObject, failure: JsonObject) -> str:
    """Return the command that shows the log of the first failure, as in the controller's messages."""
    if failure.get("nodeRank") is None:
        return ""
    which = f"--node-rank {failure['nodeRank']} --attempt {failure['attempt']}"
    return f"kubectl torchrun logs {meta['name']} -n {meta.get('namespace', '')} {which}"


def _first_failure(failure: JsonObject, shown: str) -> list[tuple[str, str]]:
    """Return the rows about the first failure of the last failed attempt, without facts that are `shown`."""
    if not failure:
        return []
    code, meaning = failure.get("exitCode"), failure.get("meaning")
    names = {"rank": "rank", "node rank": "nodeRank", "attempt": "attempt"}
    parts = [f"{name} {failure[key]}" for name, key in names.items() if failure.get(key) is not None]
    exited = "" if code is None else f"exit code {code}"
    parts += [f"pod {failure['pod']} on node {failure.get('node') or 'unknown'}"]
    parts += [f"{exited} ({meaning})" if meaning else exited]
    rows = []
    if failure["pod"] not in shown or not re.search(rf"{exited}\b", shown):
        rows.append(("First failure", ", ".join(filter(None, parts))))
    name, line = _error(failure)
    return rows if line in shown else [*rows, (name, line)]


def _error(failure: JsonObject) -> tuple[str, str]:
    lines = str(failure.get("logTail") or "").splitlines()
    if failure.get("error") or not lines:
        return "Error", str(failure.get("error") or "")
    return "Last line", " ".join(lines[-1].split())


def _progress(progress: JsonObject) -> str:
    parts = [f"step {progress['step']}"] if "step" in progress else []
    parts += [f"loss {_number(progress['loss'])}"] if "loss" in progress else []
    parts += [_throughput(progress)] if "throughput" in progress else []
    return ", ".join(parts)


def _throughput(progress: JsonObject) -> str:
    if "throughput" not in progress:
        return "-"
    return f"{_number(progress['throughput'])} {progress.get('unit') or ''}".rstrip()


def _number(value: object) -> str:
    try:
        return f"{float(str(value)):.4g}" if value is not None else "-"
    except ValueError:
        return str(value)


def _counted(count: Any, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _text(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def _joined(*values: object) -> str:
    return ": ".join(str(value) for value in values if value not in (None, ""))
