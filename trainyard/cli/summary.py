"""Choose the lines of a deployment and of its run that matter, and describe their state in a status line. Pure.

`EngineSummary` reads the engine's lines after `progress.Filter`, `PlanSummary` those of a plan, `RunSummary` reads
those of `follow.Follower`.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from launcher.actions import substance
from trainyard.cli.follow import LAUNCHER_LINE, reason_of

STACK = "pulumi:pulumi:Stack"
# The engine's operations on one resource, and the verb of the row that it prints at their end
# (github.com/pulumi/pulumi/pkg/v3@v3.250.0, backend/display/progress.go, getStepDoneDescription).
VERBS = {
    "create": "created",
    "create-replacement": "created",
    "update": "updated",
    "delete": "deleted",
    "delete-replaced": "deleted",
}
# Lines about single resources: in the update of a stack that is up, and where a resource takes long.
MAX_ROWS = 10
SLOW_SECONDS = 30
ROW = re.compile(
    r"^ [ +~-]{1,3} +\S+:\S+ \S+ (?P<verb>created|updated|deleted|replaced|read|imported)( replacement| original)? "
    r"\([\d.]+s\)(\[retain\])? *(\[diff: .*\])?$"
)
PLANNED = re.compile(
    r"^ (?P<sign>[ +~-]{1,3}) +\S+:\S+ \S+ (?P<verb>create|update|delete|replace|read|import|refresh)\b"
)
WAIT = re.compile(
    r"^ [ +~-]{1,3} +(?P<resource>\S+:\S+ \S+) [a-z]+ing( replacement| original)? "
    r"\((?P<seconds>\d+)s\)(\[retain\])? (?!error|warning)\S"
)

TIMED = re.compile(r"^ *[\d.]+ s  (?P<text>.*)$")
NODE = re.compile(r"^node (?P<state>joined|ready|leaving|gone): (?P<name>\S+)")
POD = re.compile(r"^\[(?P<pod>\S+)\] (?P<text>.*)$")
FIELD = re.compile(r"^([a-z]+)=\w*")
# The trainer's lines by their first fields. Those of REPEATED come again and again.
REPEATED = ("step", "epoch", "checkpoint=saved")
SINGLE = ("rank", "model", "checkpoint=loaded", "result")
PROBLEM = re.compile(
    r"(?i)\b(error|warn(ing)?|fail(ed|ure)?|fatal|critical|killed|traceback|\w*exception)\b|\w+(Error|Warning)\b|^alarm=|^checkpoint=(?!saved|loaded)"
)
NODE_TABLE = re.compile(r"^(node  +host |\d+  +\S+  +\d+ x )")


def planned_totals(events: Iterable[str]) -> dict[str, int]:
    """Return how many rows of each verb an update prints, from the lines of the engine's event log of its plan."""
    totals: Counter[str] = Counter()
    for line in events:
        try:
            step = (json.loads(line).get("resourcePreEvent") or {}).get("metadata") or {}
        except ValueError:  # the engine was stopped while it wrote
            continue
        state = step.get("new") or step.get("old") or {}
        if step.get("op") in VERBS and _has_row(state):
            totals[VERBS[step["op"]]] += 1
    return dict(totals)


def stack_outputs(deployment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outputs of the stack in a state; {} if there are none."""
    resources = deployment.get("resources") or []
    stack: dict[str, Any] = next((each for each in resources if each["type"] == STACK), {})
    return stack.get("outputs") or {}


def deletion_total(deployment: Mapping[str, Any]) -> dict[str, int]:
    """Return how many rows a destroy of the whole stack prints, from the stack's state."""
    return {"deleted": sum(_has_row(each) for each in deployment.get("resources") or [])}


def _has_row(state: Mapping[str, Any]) -> bool:
    """Return whether the engine prints a row at the end of an operation.

    It does for the stack itself, and not for components and default providers (same source as `VERBS`).
    """
    kind = str(state.get("type"))
    is_default = kind.startswith("pulumi:providers:") and "::default" in str(state.get("urn"))
    is_custom = bool(state.get("custom")) and not state.get("external") and not is_default
    return is_custom or kind == STACK


class EngineSummary:
    """Counts resources instead of naming each. Lines about other things stay."""

    def __init__(
        self,
        totals: Mapping[str, int] | None = None,
        *,
        rows: int = MAX_ROWS,
        every: int = 25,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Count from zero.

        Args:
            totals: The number of rows of each verb, where it is known.
            rows: How many resources are named before the rest is only counted.
            every: After this many resources of one verb comes a line with their count; 0 means none.
            clock: Seconds.
        """
        self._totals = dict(totals or {})
        self._rows = rows
        self._every = every
        self._clock = clock
        self._started = clock()
        self._counts: Counter[str] = Counter()
        self._slow: set[str] = set()
        self._in_diagnostics = False

    def lines(self, line: str) -> list[str]:
        """Return what to show of a line of the engine."""
        if row := ROW.match(line):
            return self._count(row["verb"], line)
        if wait := WAIT.match(line):
            if int(wait["seconds"]) < SLOW_SECONDS or wait["resource"] in self._slow:
                return []
            self._slow.add(wait["resource"])
            return [line]
        if re.match(r"^\S", line):
            self._in_diagnostics = line == "Diagnostics:"
        return [line] if line.strip() or self._in_diagnostics else []

    def status(self) -> str:
        """Return the counts, such as `created 57 of 155`; another thread may call this."""
        return ", ".join(self._progress(verb) for verb in list(self._counts))

    def _count(self, verb: str, line: str) -> list[str]:
        self._counts[verb] += 1
        if self._rows:
            self._rows -= 1
            return [line]
        if self._every and self._counts[verb] % self._every == 0:
            return [f"    {self._progress(verb)} resources after {self._clock() - self._started:.0f} s"]
        return []

    def _progress(self, verb: str) -> str:
        count, total = self._counts[verb], self._totals.get(verb, 0)
        return f"{verb} {count} of {total}" if count <= total else f"{verb} {count}"


class PlanSummary:
    """Shows the changes and deletions of a plan and its totals. After the first creations, the others are counted."""

    def __init__(self, rows: int = MAX_ROWS, *, is_destroy: bool = False) -> None:
        """`rows` creations are named; of a plan that deletes everything, so many deletions."""
        self._rows = rows
        self._usual = "delete" if is_destroy else "create"

    def lines(self, line: str) -> list[str]:
        """Return what to show of a line of the engine."""
        row = PLANNED.match(line)
        if row is None or row["verb"] != self._usual or row["sign"].strip() not in ("+", "-"):
            return [line] if line.strip() else []
        self._rows -= 1
        return [line] if self._rows >= 0 else []


class RunSummary:
    """Follows one run: nodes, changes of the launcher's state, samples of the loss, each problem."""

    def __init__(self) -> None:
        self._ready: set[str] = set()
        self._node_events: Counter[str] = Counter()
        self._state = ""
        self._reasons: set[str] = set()
        self._pods: dict[str, _PodLog] = {}
        self._figures: dict[str, str] = {}

    def lines(self, line: str) -> list[str]:
        """Return what to show of a line of the follower."""
        timed = TIMED.match(line)
        if timed is None:
            return [line]
        text = timed["text"]
        if node := NODE.match(text):
            return self._node(node["state"], node["name"], line, timed.start("text"))
        pod = POD.match(text)
        if pod is None:
            return [line]
        if pod["pod"].startswith("launch-"):
            return [line] if self._is_news(pod["text"]) else []
        if self._is_main(pod["pod"]):
            self._read_figures(pod["text"])
        # `rank` is in the first line of a process, which may be that of a restart.
        if pod["pod"] not in self._pods or pod["text"].startswith("rank="):
            self._pods[pod["pod"]] = _PodLog(is_main=self._is_main(pod["pod"]))
        return self._pods[pod["pod"]].lines(pod["text"], line)

    def status(self) -> str:
        """Return the run's state in a few words: launcher, nodes, step, loss, throughput."""
        nodes = f"{len(self._ready)} node{'' if len(self._ready) == 1 else 's'} ready"
        figures = [f"{name} {value}" for name, value in self._figures.items()]
        return ", ".join([*([self._state] if self._state else []), nodes, *figures])

    def _node(self, state: str, name: str, line: str, start: int) -> list[str]:
        """Show the first nodes by name, and every tenth of the others by number."""
        self._node_events[state] += 1
        if state == "ready":
            self._ready.add(name)
        else:
            self._ready.discard(name)
        if state == "joined":
            return []
        count = self._node_events[state]
        if count <= MAX_ROWS:
            return [line]
        return [f"{line[:start]}nodes {state}: {count}"] if count % 10 == 0 else []

    def _is_news(self, text: str) -> bool:
        """Return whether a launcher's line has something that earlier lines of the same state did not have."""
        found, reason = LAUNCHER_LINE.match(text), reason_of(text)
        if found is None or reason is None:
            return not text.startswith("INFO ")
        reasons = substance(reason)
        if found["state"] != self._state:
            self._state, self._reasons = found["state"], reasons
            return True
        is_news = not reasons <= self._reasons
        self._reasons |= reasons
        return is_news

    def _is_main(self, pod: str) -> bool:
        return pod.endswith("-master-0")

    def _read_figures(self, text: str) -> None:
        if text.startswith("step="):
            fields = dict(each.split("=", 1) for each in text.split() if "=" in each)
            self._figures = {
                word: fields[name]
                for word, name in (("step", "step"), ("loss", "loss"), ("samples/s", "samples_per_second"))
                if name in fields
            }


class _PodLog:
    """The log of one worker. Workers other than the first show problems only."""

    def __init__(self, *, is_main: bool) -> None:
        self._is_main = is_main
        self._in_traceback = False
        self._seen: Counter[str] = Counter()
        # The last line of each repeated kind that was not shown.
        self._last: dict[str, str] = {}
        self._total = self._next_step = 0

    def lines(self, text: str, line: str) -> list[str]:
        """Return what to show of `text`, which stands in the follower's `line`."""
        kind = _kind(text)
        if kind:
            self._in_traceback = False
        elif self._in_traceback or PROBLEM.search(text):
            self._in_traceback = self._in_traceback or "Traceback" in text
            return [*self._take_last(), line]
        if not self._is_main or NODE_TABLE.match(text):
            return []
        if steps := re.search(r"\bstep=\d+/(\d+)", text):
            self._total = int(steps[1])
        if kind in REPEATED:
            self._last.pop(kind, None)
            if self._is_sample(kind, text):
                return [line]
            self._last[kind] = line
            return []
        if not kind and not text.startswith("world:"):
            # What a trainer of the user's own prints.
            return [line] if self._is_sample(kind, text, at_first=MAX_ROWS) else []
        return [*(self._take_last() if kind == "result" else []), line]

    def _is_sample(self, kind: str, text: str, at_first: int = 1) -> bool:
        """Return whether to show this step: ten in all if their number is known, else 1, 2, 4, 8 and so on."""
        self._seen[kind] += 1
        step = re.match(r"step=(\d+)", text)
        if step and self._total:
            if int(step[1]) < self._next_step:
                return False
            self._next_step = int(step[1]) + max(1, self._total // 10)
            return True
        count = self._seen[kind]
        return count <= at_first or count & (count - 1) == 0

    def _take_last(self) -> list[str]:
        last, self._last = list(self._last.values()), {}
        return last


def _kind(text: str) -> str:
    """Return the kind of a line of the project's trainer; empty for other lines and for warnings."""
    found = FIELD.match(text)
    if found is None:
        return ""
    return next((each for each in (*REPEATED, *SINGLE) if each in (found[0], found[1])), "")
