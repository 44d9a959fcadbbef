"""Thousands of TorchrunJobs on an API server without nodes: what they cost the operator.

Entry point: `measure()`. Rows: the first reconcile of 1,000 jobs, a restart after `kill -9`, 5,000 jobs at rest, and
the growth of a job's cost from 100 to 5,000 jobs.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Figure, Note
from tests.integration.local.own_api_server import ApiServer, api_server
from tests.integration.local.torchrun_controller import Running, Team, controller, until
from tests.torchrun_manifests import manifest
from trainyard.k8s.client import RetryPolicy
from trainyard.k8s.kubeconfig import connect
from trainyard.operator import names as n
from trainyard.operator.controller import RESYNC_SECONDS

FEW, THOUSAND, MANY = 100, 1000, 5000
# The kinds of ten jobs in a row. A suspended job has no workers, and a waiting one no queue.
KINDS = (*["suspended"] * 4, *["succeeded"] * 3, *["waiting"] * 3)
PHASES = {
    "suspended": n.PHASE_SUSPENDED,
    "succeeded": n.PHASE_SUCCEEDED,
    "waiting": n.PHASE_PENDING,
    "started": n.PHASE_PROVISIONING,
}
QUEUE = "research"
# Queues that waiting jobs name.
MISSING_QUEUES = 15
# Suspended jobs that are resumed while the operator is down.
RESUMED = 20
WARM_UP, STARTED = 10, 50
REST_SECONDS = 30.0
QUIET_SECONDS = 3.0
POLL_SECONDS = 0.2
LONGEST_SECONDS = 600.0
WRITERS = 4
INSTALL = ("crd/", "config/deployment.yaml", "config/rbac/role.yaml", "config/admission.yaml")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def measure() -> Iterator[Figure | Note]:
    """Measure all rows on two API servers, one after the other."""
    with _installed() as (server, directory):
        team = Team(server, "few")
        _create(team, FEW)
        with controller(server, directory / "few", pod="pod") as running:
            _wait_quiet(running, FEW)
            few = _cost_of_a_start(team, running, _use(running, REST_SECONDS / 3))
    with _installed() as (server, directory):
        team = Team(server, "thousand")
        _create(team, THOUSAND)
        began = time.monotonic()
        with controller(server, directory / "first", pod="pod") as running:
            _wait_reconciled(running, THOUSAND)
            until(lambda: _has_phases(team, range(THOUSAND)), "each job has its phase", LONGEST_SECONDS)
            seconds, processor = time.monotonic() - began, _processor_seconds(running)
            _wait_quiet(running, THOUSAND)
            running.kill()
        name = f"first reconcile of {THOUSAND} jobs after a start"
        yield Figure(name=name, value=seconds, limit=15, unit="s")
        yield Note(name=f"{name}: processor", text=f"{processor:.1f} s")

        deleted = _change(team)
        began = time.monotonic()
        with controller(server, directory / "second", wait=False, pod="pod") as running:
            until(lambda: _is_right(team), "everything is as it should be", 120)
            seconds = time.monotonic() - began
            time.sleep(QUIET_SECONDS)
            wrong = _wrong(team)
        yield Figure(name="kill -9 and start to everything right", value=seconds, limit=30, unit="s")
        yield Figure(name="wrong objects after it", value=wrong, limit=0, unit="", digits=0)

        others = Team(server, "many")
        count = MANY - THOUSAND + deleted
        _create(others, count)
        with controller(server, directory / "third", pod="pod") as running:
            _wait_reconciled(running, MANY)
            until(lambda: _has_phases(others, range(count)), "each job has its phase", LONGEST_SECONDS)
        # Its first reconcile writes nothing, like the one every RESYNC_SECONDS.
        with controller(server, directory / "fourth", pod="pod") as running:
            _wait_quiet(running, MANY)
            pass_seconds = _processor_seconds(running)
            rest = _use(running, REST_SECONDS)
            memory = _peak_megabytes(running)
            many = _cost_of_a_start(others, running, rest)
        yield Figure(name=f"{MANY} jobs at rest: peak memory", value=memory, limit=250, unit="MB")
        name = f"{MANY} jobs at rest: processor"
        text = f"{100 * rest:.2f} % of a core, and {pass_seconds:.1f} s for all jobs every {RESYNC_SECONDS:.0f} s"
        yield Note(name=name, text=text)
        share = 100 * (rest + pass_seconds / RESYNC_SECONDS)
        yield Figure(name=name, value=share, limit=4, unit="%", digits=2)
        text = f"{1000 * few:.1f} ms of a processor beside {FEW} jobs, {1000 * many:.1f} ms beside {MANY}"
        yield Note(name="start of a job", text=text)
        name = f"growth of a job's cost, {FEW} to {MANY} jobs"
        yield Figure(name=name, value=many / few, limit=1.2, unit="", digits=2)


@contextmanager
def _installed() -> Iterator[tuple[ApiServer, Path]]:
    """Start an API server with the operator's manifests; yield it and an empty directory."""
    with api_server() as server, tempfile.TemporaryDirectory(prefix="trainyard-idle-") as directory:
        for each in INSTALL:
            applied = server.kubectl("apply", "-f", each)
            assert applied.returncode == 0, applied.stderr
        server.established(*(f"crd/{plural}.{n.GROUP}" for plural in (n.JOB_PLURAL, n.QUEUE_PLURAL)))
        yield server, Path(directory)


# -- jobs


def kind_of(number: int) -> str:
    """Return what job `number` is: suspended, succeeded or waiting for its queue."""
    return KINDS[number % len(KINDS)]


def name_of(number: int) -> str:
    """Return the name of job `number`."""
    return f"{kind_of(number)}-{number}"


def missing_queue(number: int) -> int:
    """Return the number of the queue that waiting job `number` names."""
    return number // len(KINDS) % MISSING_QUEUES


def waiting_for(queue: int) -> list[int]:
    """Return the jobs of the first thousand that wait for a queue."""
    return [each for each in range(THOUSAND) if kind_of(each) == "waiting" and missing_queue(each) == queue]


def resumed() -> list[int]:
    """Return the suspended jobs that are resumed while the operator is down."""
    return [each for each in range(THOUSAND) if kind_of(each) == "suspended"][:RESUMED]


def _create(team: Team, count: int) -> None:
    """Create a queue and so many jobs, of each kind its share."""
    changes = {
        "suspended": lambda number: {"suspend": True},
        "succeeded": lambda number: {},
        "waiting": lambda number: {"jobQueue": f"later-{missing_queue(number)}"},
    }
    team.make(manifest(n.QUEUE_KIND, QUEUE))
    jobs = [manifest(n.JOB_KIND, name_of(each), changes[kind_of(each)](each)) for each in range(count)]
    _create_all(team, jobs)


def _create_all(team: Team, jobs: Iterable[dict[str, Any]]) -> None:
    """Create jobs over a few connections that stay open; those called succeeded get a final status."""
    api, _ = connect(str(team.server.kubeconfig), None, RetryPolicy())
    path, now = team.path(n.JOB_KIND), "2026-11-23T00:00:00Z"
    final = {
        "observedGeneration": 1, "phase": n.PHASE_SUCCEEDED, "reason": n.REASON_SUCCEEDED, "attempt": 0,
        "restarts": 0, "startTime": now, "completionTime": now, "exitCode": 0,
    }  # fmt: skip

    def create(job: dict[str, Any]) -> None:
        made = api.request("POST", path, body=job)
        name = made["metadata"]["name"]
        if name.startswith("succeeded-"):
            api.request("PUT", f"{path}/{name}/status", body={**made, "status": final})

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(create, jobs))


def _change(team: Team) -> int:
    """Resume jobs, create a queue that jobs wait for, delete jobs of another one; return how many are deleted."""
    for each in resumed():
        team.merge(team.path(n.JOB_KIND, name_of(each)), {"spec": {"suspend": False}})
    deleted = waiting_for(1)
    for each in deleted:
        team.delete(team.path(n.JOB_KIND, name_of(each)))
    team.make(manifest(n.QUEUE_KIND, "later-0"))
    return len(deleted)


def _cost_of_a_start(team: Team, running: Running, rest: float) -> float:
    """Return the seconds of a processor for a job from its creation until nothing is done any more.

    What the operator uses at rest meanwhile (`rest`, as a part of a core) is not counted.
    """
    _start(team, running, "warm-up", WARM_UP)
    began, before = time.monotonic(), _processor_seconds(running)
    _start(team, running, "started", STARTED)
    return (_processor_seconds(running) - before - rest * (time.monotonic() - began)) / STARTED


def _start(team: Team, running: Running, name: str, count: int) -> None:
    names = {f"{name}-{number}" for number in range(count)}
    _create_all(team, [manifest(n.JOB_KIND, each) for each in names])
    until(
        lambda: names <= {each.rpartition("-")[0] for each in _started_jobs(team)},
        f"{count} jobs have their workers",
        LONGEST_SECONDS,
    )
    _wait_quiet(running, 0)


# -- what is there


def expected_jobs() -> set[str]:
    """Return the names of the batch Jobs that there must be after the restart."""
    return {f"{name_of(each)}-0" for each in (*resumed(), *waiting_for(0))}


def _started_jobs(team: Team) -> set[str]:
    items = _list(team.server, team.batch())
    return {each["metadata"]["name"] for each in items if not each["spec"].get("suspend")}


def _is_right(team: Team) -> bool:
    return _started_jobs(team) == expected_jobs()


def _has_phases(team: Team, numbers: Iterable[int]) -> bool:
    """Return whether each job has the phase of its kind."""
    items = _list(team.server, team.path(n.JOB_KIND))
    found = Counter((each.get("status") or {}).get("phase") for each in items)
    return found == Counter(PHASES[kind_of(each)] for each in numbers)


def _wrong(team: Team) -> int:
    """Return the number of objects that are there and should not be, or are missing, or have another phase."""
    started = {name.rpartition("-")[0] for name in expected_jobs()}
    jobs = {each["metadata"]["name"] for each in _list(team.server, team.batch())}
    services = {each["metadata"]["name"] for each in _list(team.server, team.core("services"))}
    others = [
        *_list(team.server, team.core("pods")),
        *_list(team.server, team.core("persistentvolumeclaims")),
    ]
    phases = {
        each["metadata"]["name"]: (each.get("status") or {}).get("phase")
        for each in _list(team.server, team.path(n.JOB_KIND))
    }
    astray = [
        name
        for name, phase in phases.items()
        if phase != PHASES["started" if name in started else name.partition("-")[0]]
    ]
    return len(jobs ^ expected_jobs()) + len(services ^ started) + len(others) + len(astray)


def _list(server: ApiServer, path: str) -> list[dict[str, Any]]:
    answer = server.request("GET", path)
    assert answer.status == 200, answer.message
    return list(answer.body["items"])


# -- the operator's process


def _reconciles(running: Running) -> float:
    """Return the number of reconciles of jobs since the operator started."""
    name = f'reconcile_seconds_count{{kind="{n.JOB_KIND}"}} '
    line = next((each for each in running.scrape().splitlines() if name in each), "x 0")
    return float(line.rpartition(" ")[2])


def _wait_reconciled(running: Running, count: int) -> None:
    end = time.monotonic() + LONGEST_SECONDS
    while _reconciles(running) < count:
        assert time.monotonic() < end, f"not {count} reconciles within {LONGEST_SECONDS:.0f} s"
        time.sleep(POLL_SECONDS)


def _wait_quiet(running: Running, count: int) -> None:
    """Wait for so many reconciles, and until no job is reconciled for QUIET_SECONDS."""
    _wait_reconciled(running, count)
    end = time.monotonic() + LONGEST_SECONDS
    before, now = -1.0, _reconciles(running)
    while before != now:
        assert time.monotonic() < end, f"jobs are still reconciled after {LONGEST_SECONDS:.0f} s"
        time.sleep(QUIET_SECONDS)
        before, now = now, _reconciles(running)


def _use(running: Running, seconds: float) -> float:
    """Return the part of a core that the operator uses for the next seconds."""
    began, before = time.monotonic(), _processor_seconds(running)
    time.sleep(seconds)
    return (_processor_seconds(running) - before) / (time.monotonic() - began)


def _processor_seconds(running: Running) -> float:
    """Return the operator's processor time (proc_pid_stat(5): utime and stime, fields 14 and 15)."""
    fields = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def _peak_megabytes(running: Running) -> float:
    """Return the operator's peak memory in MB (proc_pid_status(5): VmHWM)."""
    for line in Path(f"/proc/{running.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError("no VmHWM")
