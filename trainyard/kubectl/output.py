"""What a person sees of jobs and queues. Pure: the clock is passed in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from trainyard.kubectl.progress import plain
from trainyard.operator import names as n
from trainyard.workspace.selection import size_in_words

JsonObject = dict[str, Any]
_WIDE: Final = ("THROUGHPUT", "CHECKPOINT", "REASON")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they must be, three spaces between, as kubectl has them."""
    lines = [tuple(header), *(tuple(plain(cell) for cell in row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "".join(
        "   ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in lines
    )


def jobs(items: Sequence[JsonObject], now: datetime, *, namespaces: bool = False, wide: bool = False) -> str:
    """One line for each job."""
    header = ["NAME", "QUEUE", "PHASE", "NODES", "GPUS", "STEP", "LOSS", "RESTARTS", "AGE"]
    header = [*(["NAMESPACE"] if namespaces else []), *header, *(_WIDE if wide else [])]
    rows = []
    for item in items:
        meta, spec, status = item["metadata"], item["spec"], item.get("status", {})
        progress = status.get("progress", {})
        row = [
            meta["name"],
            spec["jobQueue"],
            status.get("phase") or "-",
            _text(status.get("nodes")),
            _text(status.get("gpus", spec["numGPUs"])),
            _text(progress.get("step")),
            _number(progress.get("loss")),
            _text(status.get("restarts", 0)),
            age(meta.get("creationTimestamp"), now),
        ]
        checkpoint = _text(progress.get("checkpointStep"))
        more = [_throughput(progress), checkpoint, status.get("reason") or "-"] if wide else []
        rows.append([*([meta["namespace"]] if namespaces else []), *row, *more])
    return table(header, rows)


def queues(
    items: Sequence[JsonObject], now: datetime, *, namespaces: bool = False, wide: bool = False
) -> str:
    """One line for each queue; GPUs, CPUs and memory are those of a node."""
    header = ["NAME", "READY", "GPUS", "CPUS", "MEMORY", "TYPE", "ACTIVE", "PENDING", "AGE"]
    header = [*(["NAMESPACE"] if namespaces else []), *header, *(["IMAGE", "REASON"] if wide else [])]
    rows = []
    for item in items:
        meta, spec, status = item["metadata"], item.get("spec", {}), item.get("status", {})
        node, counted = spec.get("nodeResources", {}), status.get("jobs", {})
        ready = condition(item, "Ready")
        row = [
            meta["name"],
            ready.get("status", "-"),
            _text(node.get("gpus", 0)),
            _text(node.get("cpus")),
            _text(node.get("memory")),
            _text(node.get("gpuType")),
            _text(counted.get("active", 0)),
            _text(counted.get("pending", 0)),
            age(meta.get("creationTimestamp"), now),
        ]
        more = [_text(spec.get("image")), ready.get("reason") or "-"] if wide else []
        rows.append([*([meta["namespace"]] if namespaces else []), *row, *more])
    return table(header, rows)


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
        ("Workers", ", ".join(f"{count} {word}" for word, count in workers.items() if count)),
        ("Attempt", _attempt(seen)),
        ("Restarted", _joined(last.get("time"), restart if restart != message else "")),
        *_first_failure(failure, f"{message}\n{restart}"),
        ("Log", log),
        ("Progress", _progress(progress)),
        ("Checkpoint", _joined(progress.get("checkpointStep"), progress.get("checkpointTime"))),
        ("Workspace", _workspace(item)),
        ("Started", seen.get("startTime")),
        ("Ended", seen.get("completionTime")),
        ("Exit code", _text(seen.get("exitCode"))),
        ("Age", age(meta.get("creationTimestamp"), now)),
    ]
    width = max(len(name) for name, _ in lines) + 2
    text = "".join(
        f"{name + ':':<{width}}{plain(str(value))}\n" for name, value in lines if value and value != "-"
    )
    conditions, told = [], {seen.get("message")}
    for each in seen.get("conditions", ()):
        said = "" if each.get("message") in told else each.get("message") or ""
        conditions.append((each["type"], each["status"], each.get("reason") or "-", said))
        told.add(said)
    return text + (
        "\n" + table(("CONDITION", "STATUS", "REASON", "MESSAGE"), conditions) if conditions else ""
    )


def _launcher(spec: JsonObject) -> str:
    """Return the job's launcher, with a note if it is detected."""
    if launcher := spec.get("launcher"):
        return str(launcher)
    from trainyard.operator.command import detect_launcher  # only `status` needs it

    try:
        found = detect_launcher(str(spec["command"]), tuple(map(str, spec.get("args") or ())))
    except ValueError:  # quotes that are not closed
        return "-"
    why = found.own_launcher or found.unknown
    return found.launcher + (f" ({why} runs once on each node)" if why else "")


def condition(item: JsonObject, kind: str) -> JsonObject:
    """The condition of this type, {} where there is none."""
    found = item.get("status", {}).get("conditions", ())
    return next((each for each in found if each.get("type") == kind), {})


def age(since: str | None, now: datetime) -> str:
    """How long ago, in the words of kubectl: 45s, 12m, 5h, 3d."""
    if not since:
        return "-"
    seconds = max(0, int((now - datetime.fromisoformat(since.replace("Z", "+00:00"))).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _size(spec: JsonObject, seen: JsonObject) -> str:
    gpus = seen.get("gpus", spec["numGPUs"])
    nodes, each = seen.get("nodes"), seen.get("gpusPerNode")
    if nodes is None:
        return _counted(gpus, "GPU") if gpus else "on CPUs"
    several = f" ({each} on each)" if each and nodes > 1 else ""
    return f"{_counted(nodes, 'node')}, {_counted(gpus, 'GPU')}{several}"


def _workspace(item: JsonObject) -> str | None:
    """The archive that the workers have or get; the size is known of the one that the job names."""
    spec, seen = item["spec"], item.get("status", {})
    named, followed = spec.get("workspace", {}), seen.get("workspaceDigest")
    digest = followed or named.get("digest")
    size = named.get("sizeBytes") if digest == named.get("digest") else None
    shown = digest if size is None else f"{digest}, {size_in_words(size)}"
    # The queue was looked for, and never a job made of it: so there was no pod that could have taken the archive.
    found = condition(item, n.QUEUE_FOUND).get("status")
    if digest and found and not (named.get("url") or followed or condition(item, n.ACCEPTED)):
        is_right = "is there" if found == "False" else "is right"
        return f"{shown}; not sent yet: sync sends it when queue {spec['jobQueue']} {is_right}"
    return shown


def _counted(count: Any, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _attempt(seen: JsonObject) -> str:
    if "attempt" not in seen:
        return ""
    return f"{seen['attempt']} (restarts: {seen.get('restarts', 0)})"


def _log_command(meta: JsonObject, failure: JsonObject) -> str:
    """Return the command that shows the log of the first failure, as the controller's messages have it."""
    if failure.get("nodeRank") is None:
        return ""
    which = f"--node-rank {failure['nodeRank']} --attempt {failure['attempt']}"
    return f"kubectl torchrun logs {meta['name']} -n {meta.get('namespace', '')} {which}"


def _first_failure(failure: JsonObject, told: str) -> list[tuple[str, str]]:
    """Return the rows about the first failure of the last failed attempt, without those whose facts are in `told`."""
    if not failure:
        return []
    code, means = failure.get("exitCode"), failure.get("meaning")
    ranks = [
        ("rank", failure.get("rank")),
        ("node rank", failure.get("nodeRank")),
        ("attempt", failure["attempt"]),
    ]
    which = ", ".join(f"{name} {number}" for name, number in ranks if number is not None)
    ended = "" if code is None else f"exit code {code}"
    where = f"pod {failure['pod']} on node {failure.get('node') or 'unknown'}"
    end = f"{ended} ({means})" if means else ended
    rows = []
    if failure["pod"] not in told or not re.search(rf"{ended}\b", told):
        rows.append(("First failure", ", ".join(each for each in (which, where, end) if each)))
    name, line = _error(failure)
    return rows if line in told else [*rows, (name, line)]


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


def _text(value: object) -> str:
    return "-" if value is None or value == "" else str(value)


def _joined(*values: object) -> str:
    return ": ".join(str(value) for value in values if value not in (None, ""))
