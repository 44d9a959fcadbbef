"""Jobs and queues as a person reads them. Pure; `now` is in seconds since the epoch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import yaml

from launcher.core.torchrun import names

Item = dict[str, Any]
Column = tuple[str, Callable[[Item], object]]


def table(columns: Sequence[Column], items: Sequence[Item]) -> str:
    """Columns as wide as they have to be; what is not there is a dash."""
    rows = [[title for title, _ in columns], *([_cell(of(item)) for _, of in columns] for item in items)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(columns))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _cell(value: object) -> str:
    return "-" if value in (None, "") else str(value)


def documents(output: str, items: Sequence[Item], *, alone: bool) -> str:
    """As YAML, JSON or names: the one item, or a List of all."""
    if output == "name":
        return "".join(f"{item['kind'].lower()}.{names.GROUP}/{item['metadata']['name']}\n" for item in items)
    whole = items[0] if alone else {"apiVersion": "v1", "kind": "List", "items": list(items)}
    if output == "json":
        return f"{json.dumps(whole, indent=4)}\n"
    return str(yaml.safe_dump(whole, sort_keys=False))


def jobs(items: Sequence[Item], now: float, *, wide: bool, everywhere: bool) -> str:
    """The table of jobs, the newest last."""
    columns: list[Column] = [
        ("NAME", lambda item: item["metadata"]["name"]),
        ("QUEUE", lambda item: item["spec"].get("jobQueue")),
        ("PHASE", phase),
        ("NODES", lambda item: _status(item).get("nodes")),
        ("GPUS", lambda item: item["spec"].get("numGPUs")),
        ("STEP", lambda item: _progress(item).get("step")),
        ("LOSS", lambda item: _number(_progress(item).get("loss"))),
        ("RESTARTS", lambda item: _status(item).get("restarts")),
        ("AGE", lambda item: age(item["metadata"]["creationTimestamp"], now)),
    ]
    if wide:
        columns += [("THROUGHPUT", _throughput), ("REASON", lambda item: _status(item).get("reason"))]
    ordered = sorted(items, key=lambda item: str(item["metadata"]["creationTimestamp"]))
    return table(_with_namespace(columns, everywhere), ordered)


def queues(items: Sequence[Item], now: float, *, wide: bool, everywhere: bool) -> str:
    """The table of queues, by name."""
    columns: list[Column] = [
        ("NAME", lambda item: item["metadata"]["name"]),
        ("READY", lambda item: _condition(item, names.READY).get("status")),
        ("GPUS", lambda item: item["spec"].get("nodeResources", {}).get("gpus")),
        ("TYPE", lambda item: item["spec"].get("nodeResources", {}).get("gpuType")),
        ("ACTIVE", lambda item: _status(item).get("jobs", {}).get("active")),
        ("PENDING", lambda item: _status(item).get("jobs", {}).get("pending")),
        ("AGE", lambda item: age(item["metadata"]["creationTimestamp"], now)),
    ]
    if wide:
        columns += [
            ("KAI-QUEUE", lambda item: item["spec"].get("kaiQueue")),
            ("POOL", lambda item: item["spec"].get("scheduling", {}).get("pool")),
            ("IMAGE", lambda item: item["spec"].get("image")),
        ]
    ordered = sorted(items, key=lambda item: str(item["metadata"]["name"]))
    return table(_with_namespace(columns, everywhere), ordered)


def _with_namespace(columns: list[Column], everywhere: bool) -> list[Column]:
    return [("NAMESPACE", lambda item: item["metadata"]["namespace"]), *columns] if everywhere else columns


def status(item: Item, now: float) -> str:
    """One job, a line for each thing that there is to say."""
    told, meta, spec = _status(item), item["metadata"], item["spec"]
    lines = [
        ("Job", f"{meta['namespace']}/{meta['name']}, {age(meta['creationTimestamp'], now)} old"),
        ("Queue", str(spec.get("jobQueue"))),
        ("Phase", state(item)),
    ]
    if told.get("nodes"):
        gpus = told.get("gpusPerNode", 0)
        lines.append(
            ("Nodes", f"{told['nodes']} x {gpus} GPUs" if gpus else f"{told['nodes']}, without GPUs")
        )
    if told.get("attempt") or told.get("restarts"):
        lines.append(("Attempt", f"{told.get('attempt', 0)}, after {told.get('restarts', 0)} restarts"))
    if progress := progress_of(item):
        lines.append(("Progress", progress))
    if (saved := _progress(item).get("checkpointStep")) is not None:
        when = _progress(item).get("checkpointTime")
        lines.append(("Checkpoint", f"of step {saved}" + (f", {age(when, now)} ago" if when else "")))
    if told.get("phase") == names.PHASE_FAILED and told.get("exitCode") is not None:
        lines.append(("Exit code", str(told["exitCode"])))
    lines += [
        (each["type"], f"{each['status']} {each.get('reason', '')}: {each.get('message', '')}".rstrip(" :"))
        for each in told.get("conditions", ())
        if each["type"] in (names.RENDEZVOUS_SUBSTITUTED, names.SCHEDULER_NOT_INSTALLED)
        and each["status"] == "True"
    ]
    width = max(len(name) for name, _ in lines)
    return "".join(f"{name.ljust(width)}  {text}\n" for name, text in lines)


def phase(item: Item) -> str:
    """The job's phase; one that no controller has seen yet is Pending."""
    return str(_status(item).get("phase") or names.PHASE_PENDING)


def state(item: Item) -> str:
    """The phase, its reason and what the controller says of it, in one line."""
    told = _status(item)
    if not told.get("phase"):
        return f"{names.PHASE_PENDING}: no controller has looked at it yet"
    reason = f" ({told['reason']})" if told.get("reason") else ""
    message = f": {told['message']}" if told.get("message") else ""
    return f"{told['phase']}{reason}{message}"


def progress_of(item: Item) -> str:
    """How far the training is, "" where it does not say."""
    told = _progress(item)
    parts = [f"step {told['step']}"] if told.get("step") is not None else []
    parts += [f"loss {_number(told['loss'])}"] if told.get("loss") is not None else []
    parts += [_throughput(item)] if told.get("throughput") is not None else []
    return ", ".join(parts)


def age(stamp: str, now: float) -> str:
    """The time since then, as kubectl shorts it: 42s, 17m, 5h, 3d."""
    seconds = max(0, int(now - datetime.fromisoformat(stamp).timestamp()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _status(item: Item) -> Item:
    told: Item = item.get("status") or {}
    return told


def _progress(item: Item) -> Item:
    told: Item = _status(item).get("progress") or {}
    return told


def _condition(item: Item, kind: str) -> Item:
    return next((each for each in _status(item).get("conditions", ()) if each["type"] == kind), {})


def _number(value: object) -> str | None:
    return None if value is None else f"{float(str(value)):.4g}"


def _throughput(item: Item) -> str:
    told = _progress(item)
    return "" if told.get("throughput") is None else f"{_number(told['throughput'])} {told.get('unit', '')}/s"
