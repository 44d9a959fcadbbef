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
# As in BSD's sysexits.h. A job's command may use the same codes.
USAGE: Final = 64
WORKSPACE: Final = 65
NOT_FOUND: Final = 66
UNAVAILABLE: Final = 69
OUTPUT: Final = 74
REMOVED: Final = 75  # a followed job, whose end was not seen
REFUSED: Final = 77
NO_KUBECONFIG: Final = 78
INTERRUPTED: Final = 130
_BAR_WIDTH: Final = 30
_MIN_BAR_WIDTH: Final = 5
# For a terminal that does not know its width, such as a serial line.
_DEFAULT_COLUMNS: Final = 80
# Return to the start of the line and clear it.
_CLEAR: Final = "\r\x1b[K"
_EVERY_SECONDS: Final = 0.1
# The columns after AGE are those of `-o wide`, the first one is that of `-A`.
_JOBS: Final = (
    *("NAMESPACE", "NAME", "QUEUE", "PHASE", "NODES", "GPUS", "STEP", "LOSS", "RESTARTS", "AGE"),
    *("THROUGHPUT", "CHECKPOINT", "USD", "REASON"),
)
_QUEUES: Final = (
    *("NAMESPACE", "NAME", "READY", "GPUS", "CPUS", "MEMORY", "TYPE", "ACTIVE", "PENDING", "AGE"),
    *("IMAGE", "REASON"),
)


class PluginError(Exception):
    """A message for the user, and the exit code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def sanitize(text: str) -> str:
    """Return text of the cluster as one line, without control characters: they could rewrite the user's terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char.isspace() else "?" for char in text)


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
        if self._drawn:
            self._write("")

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._live or (now - self._drawn < _EVERY_SECONDS and done < total):
            return
        self._drawn = now
        columns = 0
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(self._stream.fileno()).columns  # may have changed
        self._write(render_bar(self._what, done, total, columns or _DEFAULT_COLUMNS))

    def _write(self, text: str) -> None:
        self._stream.write(_CLEAR + text)
        self._stream.flush()


def render_bar(what: str, done: int, total: int, columns: int) -> str:
    """Return one line that fits into `columns`, with less room a percentage without the bar."""
    room = columns - 1  # some terminals wrap after the last column
    sizes = f"{format_size(done)} of {format_size(total)}"
    width = min(_BAR_WIDTH, room - len(f"{what} [] {sizes}"))
    if width < _MIN_BAR_WIDTH:
        return f"{100 * done // total if total else 100} % {what}"[:room]
    full = width * done // total if total else width
    return f"{what} [{'#' * full}{'.' * (width - full)}] {sizes}"


def serialize(item: JsonObject, output: str) -> str:
    """Return an object, or a List, as JSON, YAML or a name, without the `managedFields` of the API server."""
    if output == "name":
        return f"{job_reference(item['metadata']['name'])}\n"
    for entry in (item, *item.get("items", ())):
        entry.get("metadata", {}).pop("managedFields", None)
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
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("   ".join(map(str.ljust, line, widths)) for line in lines)
    return "".join(f"{line.rstrip()}\n" for line in padded)


def listing(
    verb: str, items: Sequence[JsonObject], now: datetime, *, namespaces: bool = False, wide: bool = False
) -> str:
    """Return the table of `list` or `queues`, with one line for each item."""
    header, cells = (_JOBS, _job_cells) if verb == "list" else (_QUEUES, _queue_cells)
    shown = slice(0 if namespaces else 1, None if wide else header.index("AGE") + 1)
    return table(header[shown], [[_text(cell) for cell in cells(item, now)[shown]] for item in items])


def _job_cells(item: JsonObject, now: datetime) -> tuple[object, ...]:
    meta, spec, seen = item["metadata"], item["spec"], item.get("status", {})
    progress, usd = seen.get("progress", {}), seen.get("cost", {}).get("usd")
    return (
        *(meta.get("namespace"), meta["name"], spec["jobQueue"], seen.get("phase"), seen.get("nodes")),
        *(seen.get("gpus", spec["numGPUs"]), progress.get("step"), _number(progress.get("loss"))),
        *(seen.get("restarts", 0), age(item, now)),
        *(_throughput(progress), progress.get("checkpointStep")),
        *(None if usd is None else f"{usd:.2f}", seen.get("reason")),
    )


def _queue_cells(item: JsonObject, now: datetime) -> tuple[object, ...]:
    """GPUs, CPUs and memory are those of a node."""
    meta, spec, counts = item["metadata"], item.get("spec", {}), item.get("status", {}).get("jobs", {})
    node, ready = spec.get("nodeResources", {}), condition(item, "Ready")
    return (
        *(meta.get("namespace"), meta["name"], ready.get("status"), node.get("gpus", 0)),
        *(node.get("cpus"), node.get("memory"), node.get("gpuType")),
        *(counts.get("active", 0), counts.get("pending", 0), age(item, now)),
        *(spec.get("image"), ready.get("reason")),
    )


def status(item: JsonObject, now: datetime) -> str:
    """Return the fields of a job, then its conditions. A message that several of them have is shown once.

    A False condition without a message of its own is left out: the phase and the reason say as much.
    """
    meta, spec, seen = item["metadata"], item["spec"], item.get("status", {})
    progress, last, failure = (seen.get(key, {}) for key in ("progress", "lastRestart", "firstFailure"))
    log = ""
    if failure.get("nodeRank") is not None:  # as in the controller's messages
        which = f"--node-rank {failure['nodeRank']} --attempt {failure['attempt']}"
        log = f"kubectl torchrun logs {meta['name']} -n {meta.get('namespace', '')} {which}"
    # The command has a row of its own.
    message, restart = (
        str(section.get("message") or "").replace(f"; its log: {log}", "") for section in (seen, last)
    )
    steps = [f"step {progress['step']}"] if "step" in progress else []
    steps += [f"loss {_number(progress['loss'])}"] if "loss" in progress else []
    steps += [_throughput(progress)] if "throughput" in progress else []
    workers = [f"{count} {state}" for state, count in seen.get("workers", {}).items() if count]
    rows = [
        ("Name", f"{meta.get('namespace', '')}/{meta['name']}"),
        ("Queue", spec["jobQueue"]),
        ("Command", spec["command"]),
        ("Launcher", _launcher(spec)),
        ("Phase", seen.get("phase") or "not seen by the controller yet"),
        ("Reason", _joined(seen.get("reason"), message)),
        ("Size", _size(spec, seen)),
        ("Workers", ", ".join(workers)),
        ("Attempt", f"{seen['attempt']} (restarts: {seen.get('restarts', 0)})" if "attempt" in seen else ""),
        ("Restarted", _joined(last.get("time"), restart if restart != message else "")),
        *_first_failure(failure, f"{message}\n{restart}"),
        ("Log", log),
        ("Progress", ", ".join(steps)),
        ("Checkpoint", _joined(progress.get("checkpointStep"), progress.get("checkpointTime"))),
        ("Cost", _cost(seen.get("cost") or {})),
        ("Workspace", _workspace(item)),
        ("Started", seen.get("startTime")),
        ("Ended", seen.get("completionTime")),
        ("Exit code", _text(seen.get("exitCode"))),
        ("Age", age(item, now)),
    ]
    width = max(len(name) for name, _ in rows) + 2
    shown = ((f"{name}:", sanitize(str(value))) for name, value in rows if value and value != "-")
    text = "".join(f"{name:<{width}}{value}\n" for name, value in shown)
    conditions, messages = [], {seen.get("message")}
    for found in seen.get("conditions", ()):
        new = "" if found.get("message") in messages else found.get("message") or ""
        if new or found["status"] != "False":
            conditions.append((found["type"], found["status"], found.get("reason") or "-", new))
        messages.add(new)
    header = ("CONDITION", "STATUS", "REASON", "MESSAGE")
    return text + (f"\n{table(header, conditions)}" if conditions else "")


def condition(item: JsonObject, kind: str) -> JsonObject:
    """Return the condition of this type, {} if there is none."""
    found = item.get("status", {}).get("conditions", ())
    return next((entry for entry in found if entry.get("type") == kind), {})


def age(item: JsonObject, now: datetime) -> str:
    """Return the age of an object as kubectl prints it: 45s, 12m, 5h, 3d."""
    if not (since := item["metadata"].get("creationTimestamp")):
        return "-"
    seconds = max(0, int((now - datetime.fromisoformat(since.replace("Z", "+00:00"))).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _launcher(spec: JsonObject) -> str:
    """Return the job's launcher, with a note if it is detected."""
    if launcher := spec.get("launcher"):
        return str(launcher)
    # Their imports take a fifth of the time of `list`.
    from trainyard.operator.api.job import read_job
    from trainyard.operator.launcher_detection import detect_launcher

    job, _ = read_job(spec)
    try:
        found = detect_launcher(job.command, job.args, variables=job.literal_variables)
    except ValueError:  # an open quotation
        return "-"
    why = found.own_launcher or found.unknown
    return found.launcher + (f" ({why} runs once on each node)" if why else "")


def _size(spec: JsonObject, seen: JsonObject) -> str:
    def counted(count: Any, noun: str) -> str:
        return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

    gpus, nodes, per_node = seen.get("gpus", spec["numGPUs"]), seen.get("nodes"), seen.get("gpusPerNode")
    if nodes is None:
        return counted(gpus, "GPU") if gpus else "on CPUs"
    several = f" ({per_node} on each)" if per_node and nodes > 1 else ""
    return f"{counted(nodes, 'node')}, {counted(gpus, 'GPU')}{several}"


def _cost(cost: JsonObject) -> str:
    hours, idle, usd = (cost.get(key) for key in ("nodeHours", "idleNodeHours", "usd"))
    least = "at least" if cost.get("unpricedNodeHours") else "about"
    shown = "" if hours is None else f"{hours:.2f} node-hours"
    shown += "" if hours is None or idle is None else f" ({idle:.2f} idle)"
    return ", ".join(filter(None, (shown, "" if usd is None else f"{least} {usd:.2f} USD")))


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
    name, line = "Error", str(failure.get("error") or "")
    if not line and (lines := str(failure.get("logTail") or "").splitlines()):
        name, line = "Last line", " ".join(lines[-1].split())
    return rows if line in shown else [*rows, (name, line)]


def _throughput(progress: JsonObject) -> str:
    if "throughput" not in progress:
        return "-"
    return f"{_number(progress['throughput'])} {progress.get('unit') or ''}".rstrip()


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _text(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def _joined(*values: object) -> str:
    return ": ".join(str(value) for value in values if value not in (None, ""))
