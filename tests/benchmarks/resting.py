"""A thousand torchrun jobs at rest: what they cost the controller, and how soon all is right again after a kill -9."""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.figures import Figure, Note
from tests.integration.local.own_api_server import ApiServer, api_server
from tests.integration.local.torchrun_controller import Running, Team, controller, until
from tests.torchrun_manifests import manifest
from trainyard.operator import names as n
from trainyard.operator.controller import RESYNC_SECONDS

SUSPENDED, SUCCEEDED, WAITING = 400, 300, 300
CHANGED = 20  # of the suspended and of the waiting ones, while the controller is down
REST_SECONDS = 60.0
QUIET_SECONDS = 3.0
INSTALL = ("crd/", "config/deployment.yaml", "config/rbac/role.yaml", "config/admission.yaml")
_TICK = os.sysconf("SC_CLK_TCK")


def measure() -> Iterator[Figure | Note]:
    """Everything on one API server, without machines."""
    with api_server() as server, tempfile.TemporaryDirectory(prefix="trainyard-rest-") as place:
        for each in INSTALL:
            applied = server.kubectl("apply", "-f", each)
            assert applied.returncode == 0, applied.stderr
        time.sleep(2)  # the kinds are being established
        team = Team(server, "rest")
        _make(team)
        with controller(server, Path(place) / "first", pod="pod") as running:
            began = time.monotonic()
            _settled(team, running)
            first = time.monotonic() - began
            passed = _processor(running)
            time.sleep(REST_SECONDS)
            resting = (_processor(running) - passed) / REST_SECONDS
            memory = _memory(running)
            running.kill()
        jobs = SUSPENDED + SUCCEEDED + WAITING
        yield Note(
            name=f"{jobs} jobs: the first look at all of them",
            told=f"{first:.1f} s, {passed:.1f} s of a processor",
        )
        yield Figure(name=f"{jobs} jobs at rest: memory", value=memory, limit=250, unit="MB")
        share = 100 * (resting + passed / RESYNC_SECONDS)
        told = f"{100 * resting:.2f} % of a core between the looks at all, every {RESYNC_SECONDS:.0f} s"
        yield Note(name=f"{jobs} jobs at rest: processor", told=told)
        yield Figure(name=f"{jobs} jobs at rest: processor", value=share, limit=5, unit="%", digits=2)
        _change(team)
        began = time.monotonic()
        with controller(server, Path(place) / "second", wait=False, pod="pod"):
            until(lambda: _right(team), "everything is as it should be", 120)
            seconds = time.monotonic() - began
            time.sleep(QUIET_SECONDS)
            wrong = _wrong(team)
        yield Figure(name="kill -9 and start to everything right", value=seconds, limit=30, unit="s")
        yield Figure(name="wrong objects after it", value=wrong, limit=0, unit="", digits=0)


def _make(team: Team) -> None:
    team.make(manifest(n.QUEUE_KIND, "research"))
    for number in range(SUSPENDED):
        team.make(manifest(n.JOB_KIND, f"suspended-{number}", {"suspend": True}))
    for number in range(SUCCEEDED):
        made = team.make(manifest(n.JOB_KIND, f"succeeded-{number}"))
        now = "2026-11-23T00:00:00Z"
        made["status"] = {
            "observedGeneration": 1, "phase": n.PHASE_SUCCEEDED, "reason": n.REASON_SUCCEEDED, "attempt": 0,
            "restarts": 0, "startTime": now, "completionTime": now, "exitCode": 0,
        }  # fmt: skip
        answer = team.server.request("PUT", f"{team.path(n.JOB_KIND, made['metadata']['name'])}/status", made)
        assert answer.status == 200, answer.message
    for number in range(WAITING):
        team.make(manifest(n.JOB_KIND, f"waiting-{number}", {"jobQueue": f"later-{number % 15}"}))


def _settled(team: Team, running: Running) -> None:
    """Every job says where it is, and nothing is done any more."""

    def said() -> bool:
        phases = [
            (each.get("status") or {}).get("phase") for each in _list(team.server, team.path(n.JOB_KIND))
        ]
        counts = {phase: phases.count(phase) for phase in set(phases)}
        return counts == {
            n.PHASE_SUSPENDED: SUSPENDED,
            n.PHASE_SUCCEEDED: SUCCEEDED,
            n.PHASE_PENDING: WAITING,
        }

    until(said, "each job says where it is", 120)
    # What is over is looked at within a minute.
    looks = (f'reconcile_seconds_count{{kind="{n.JOB_KIND}"}} ', SUSPENDED + SUCCEEDED + WAITING)

    def quiet() -> bool:
        before = _value(running, looks[0])
        time.sleep(QUIET_SECONDS)
        return before >= looks[1] and before == _value(running, looks[0])

    until(quiet, "nothing is done any more", 180)


def _change(team: Team) -> None:
    """What a team does while the controller is down: resumes, deletes, and makes a queue that is waited for."""
    for number in range(CHANGED):
        team.merge(team.path(n.JOB_KIND, f"suspended-{number}"), {"spec": {"suspend": False}})
        team.delete(team.path(n.JOB_KIND, f"waiting-{15 * number + 1}"))
    team.make(manifest(n.QUEUE_KIND, "later-0"))


def _expected() -> set[str]:
    begun = [f"suspended-{number}-0" for number in range(CHANGED)]
    return {*begun, *(f"waiting-{number}-0" for number in range(0, WAITING, 15))}


def _right(team: Team) -> bool:
    items = _list(team.server, team.batch())
    return {each["metadata"]["name"] for each in items if not each["spec"].get("suspend")} == _expected()


def _wrong(team: Team) -> int:
    """Objects that are there and should not be, and those that are missing."""
    jobs = {each["metadata"]["name"] for each in _list(team.server, team.batch())}
    services = {each["metadata"]["name"] for each in _list(team.server, team.core("services"))}
    others = [
        *_list(team.server, team.core("pods")),
        *_list(team.server, team.core("persistentvolumeclaims")),
    ]
    begun = {name.rpartition("-")[0] for name in _expected()}
    astray = [
        name
        for each in _list(team.server, team.path(n.JOB_KIND))
        if (each.get("status") or {}).get("phase") != _phase(name := each["metadata"]["name"], begun)
    ]
    return len(list(itertools.chain(jobs ^ _expected(), services ^ begun, others, astray)))


def _phase(job: str, begun: set[str]) -> str:
    """Where a job should say that it is, of these that have begun: nothing runs their pods here."""
    if job in begun:
        return n.PHASE_PROVISIONING
    first = job.partition("-")[0]
    return {"suspended": n.PHASE_SUSPENDED, "succeeded": n.PHASE_SUCCEEDED}.get(first, n.PHASE_PENDING)


def _list(server: ApiServer, path: str) -> list[dict[str, Any]]:
    answer = server.request("GET", path)
    assert answer.status == 200, answer.message
    return list(answer.body["items"])


def _value(running: Running, named: str) -> float:
    line = next((each for each in running.scrape().splitlines() if named in each), "x 0")
    return float(line.rpartition(" ")[2])


def _processor(running: Running) -> float:
    """Seconds of a processor that it has used (proc_pid_stat(5): fields 14 and 15)."""
    fields = Path(f"/proc/{running.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def _memory(running: Running) -> float:
    """The most that it had, in MB (proc_pid_status(5): VmHWM)."""
    for line in Path(f"/proc/{running.process.pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise AssertionError("no VmHWM")
