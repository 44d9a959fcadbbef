"""Torchrun queues and jobs in the hands of people: what they restore can be deleted, and who may do what."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from launcher.core.torchrun import names as n
from launcher.plugin.exits import DONE, REFUSED
from local.home import CHECKOUT
from tests.local import kai
from tests.local.own_api_server import ApiServer
from tests.local.torchrun_controller import Running, Team, controller, kubeconfig, until
from tests.local.torchrun_machine import JOB, Machine, cluster, comes_to, ends, submit
from tests.torchrun_manifests import manifest

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

NUMBERS = count(1)
THEIRS = "example.com/theirs"


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    with cluster(with_kai=True) as running:
        yield running


@pytest.fixture(scope="module")
def working(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with controller(server, tmp_path_factory.mktemp("controller")) as running:
        yield running


@pytest.fixture
def team(server: ApiServer) -> Team:
    return Team(server, f"people-{next(NUMBERS)}")


def finalizers(team: Team) -> list[str]:
    """Of its queue."""
    metadata: dict[str, Any] = team.get(team.path(n.QUEUE_KIND, "research"))["metadata"]
    return list(metadata.get("finalizers") or [])


@pytest.mark.parametrize("how", [("create",), ("apply",), ("apply", "--server-side")], ids=" ".join)
def test_a_queue_that_was_restored_with_its_finalizer_can_be_deleted(
    team: Team, working: Running, how: tuple[str, ...]
) -> None:
    """As a dump has it, and so as its author's own; another program's finalizer is left to that program."""
    del working
    dump = manifest(n.QUEUE_KIND, "research", {"kaiQueue": f"{team.name}-gpus"})
    dump["metadata"] |= {"namespace": team.name, "finalizers": [THEIRS, n.QUEUE_FINALIZER]}
    restored = team.server.kubectl(*how, "-f", "-", stdin=json.dumps(dump))
    assert restored.returncode == 0, restored.stderr
    above = f"{kai.QUEUES}/{team.name}-gpus"
    until(lambda: team.get(above), "KAI's queue is made")
    path = team.path(n.QUEUE_KIND, "research")
    team.delete(path)
    until(lambda: finalizers(team) == [THEIRS], "the controller's finalizer is taken away, and no other")
    assert not team.get(above)
    team.merge(path, {"metadata": {"finalizers": None}})
    until(lambda: not team.get(path), "it is gone")


@pytest.mark.parametrize("how", [("create",), ("apply", "--server-side")], ids=" ".join)
def test_one_without_a_queue_of_kai_needs_no_finalizer_that_it_was_restored_with(
    team: Team, working: Running, how: tuple[str, ...]
) -> None:
    del working
    dump = manifest(n.QUEUE_KIND, "research")
    dump["metadata"] |= {"namespace": team.name, "finalizers": [n.QUEUE_FINALIZER]}
    restored = team.server.kubectl(*how, "-f", "-", stdin=json.dumps(dump))
    assert restored.returncode == 0, restored.stderr
    until(lambda: finalizers(team) == [], "it is taken away")
    team.server.kubectl("delete", "namespace", team.name, "--wait=false")
    until(lambda: not team.get(f"/api/v1/namespaces/{team.name}"), "the namespace is gone", 60.0)


# What people may do in their own namespace, by Kubernetes' role that they are bound to.
JOBS, QUEUES = f"{n.JOB_PLURAL}.{n.GROUP}", f"{n.QUEUE_PLURAL}.{n.GROUP}"
READ = {(verb, of) for verb in ("get", "list", "watch") for of in (JOBS, QUEUES)}
READ |= {("get", f"{JOBS}/scale"), ("get", f"{JOBS}/status"), ("get", f"{QUEUES}/status")}
CHANGE = ("create", "delete", "deletecollection", "patch", "update")
SUBMIT = {*((verb, JOBS) for verb in CHANGE), ("patch", f"{JOBS}/scale"), ("update", f"{JOBS}/scale")}
MAY = {"view": READ, "edit": READ | SUBMIT, "admin": READ | SUBMIT | {(verb, QUEUES) for verb in CHANGE}}
STATUSES = {(verb, f"{of}/status") for verb in ("patch", "update") for of in (JOBS, QUEUES)}


def may(team: Team, who: str, verb: str, of: str) -> bool:
    resource, _, below = of.partition("/")
    sub = [f"--subresource={below}"] if below else []
    asked = team.server.kubectl("auth", "can-i", verb, resource, *sub, "-n", team.name, f"--as={who}")
    return asked.stdout.strip() == "yes"


def bound(team: Team, role: str) -> str:
    """The name of somebody who has this role of Kubernetes' in the team's namespace, and nothing else."""
    who = f"{role}-of-{team.name}"
    bind(team, role, f"--user={who}")
    return who


def bind(team: Team, role: str, whom: str) -> None:
    made = team.server.kubectl("create", "rolebinding", role, f"--clusterrole={role}", whom, "-n", team.name)
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("role", MAY)
def test_kubernetes_own_roles_have_the_rights_on_jobs_and_queues(team: Team, role: str) -> None:
    who = bound(team, role)
    until(lambda: may(team, who, "list", JOBS), "the rights are aggregated", 60.0)
    asked = MAY["admin"] | STATUSES
    assert {each for each in asked if may(team, who, *each)} == MAY[role]
    elsewhere = Team(team.server, f"{team.name}-other")
    assert not may(elsewhere, who, "get", JOBS)


def test_who_may_edit_submits_resizes_and_deletes_jobs_and_makes_no_queue(team: Team) -> None:
    who, reader = bound(team, "edit"), bound(team, "view")
    until(lambda: may(team, who, "create", JOBS), "the rights are aggregated", 60.0)
    until(lambda: may(team, reader, "list", JOBS), "the rights are aggregated", 60.0)

    def said(user: str, *words: str, kind: str = "") -> str:
        body = json.dumps(manifest(kind, "a", {})) if kind else None
        done = team.server.kubectl(*words, "-n", team.name, f"--as={user}", stdin=body)
        return done.stderr if done.returncode else ""

    make = ("create", "-f", "-")
    assert "cannot create resource" in said(reader, *make, kind=n.JOB_KIND)
    assert said(who, *make, kind=n.JOB_KIND) == ""
    assert "cannot create resource" in said(who, *make, kind=n.QUEUE_KIND)
    assert "cannot patch resource" in said(reader, "scale", "torchrunjob/a", "--replicas=4")
    assert said(who, "scale", "torchrunjob/a", "--replicas=4") == ""
    assert said(reader, "get", "torchrunjobs,torchrunqueues") == ""
    assert "cannot delete resource" in said(reader, "delete", "torchrunjob", "a")
    assert said(who, "delete", "torchrunjob", "a") == ""
    # What sending a workspace takes is Kubernetes' own.
    for verb in ("get", "create"):
        assert may(team, who, verb, "pods/exec")
        assert not may(team, reader, verb, "pods/exec")


def test_the_plugin_does_for_edit_and_view_what_its_page_says(team: Team, tmp_path: Path) -> None:
    def plugin(role: str, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "launcher.plugin",
                *words,
                "-n",
                team.name,
                "--kubeconfig",
                str(files[role]),
            ],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, (done.stdout + done.stderr).strip()

    files = {}
    for role in ("edit", "view"):
        made = team.server.kubectl("create", "serviceaccount", role, "-n", team.name)
        assert made.returncode == 0, made.stderr
        bind(team, role, f"--serviceaccount={team.name}:{role}")
        files[role] = kubeconfig(team.server, tmp_path, namespace=team.name, account=role)
    team.make(manifest(n.QUEUE_KIND, "research"))
    submitted = (
        "submit",
        "--queue",
        "research",
        "--gpus",
        "16",
        "--no-workspace",
        "--name",
        "vit",
        "python train.py",
    )
    until(lambda: plugin("edit", "list")[0] == DONE, "the rights are aggregated", 60.0)
    until(lambda: plugin("view", "list")[0] == DONE, "the rights are aggregated", 60.0)

    code, said = plugin("view", *submitted)
    assert (code, "you may not" in said) == (REFUSED, True), said
    code, said = plugin("edit", *submitted)
    assert code == DONE, said
    for role in files:
        for words in (("list",), ("queues",), ("status", "vit")):
            code, said = plugin(role, *words)
            assert (code, "research" in said) == (DONE, True), (role, words, said)
        code, said = plugin(role, "list", "-A")
        assert (code, "you may not" in said) == (REFUSED, True), said
    for words in (("suspend", "vit"), ("resume", "vit"), ("cancel", "vit")):
        code, said = plugin("view", *words)
        assert (code, "you may not" in said) == (REFUSED, True), said
        code, said = plugin("edit", *words)
        assert code == DONE, said


def test_a_job_that_is_scaled_while_it_runs_begins_anew_in_that_size_and_has_no_restart(
    team: Team, working: Running
) -> None:
    del working
    machine = Machine(team)
    team.make(manifest(n.QUEUE_KIND, "research"))
    submit(team)
    comes_to(team, machine, n.PHASE_RUNNING)
    # 16 GPUs are four nodes with four of the queue's eight.
    scaled = team.server.kubectl("scale", f"torchrunjob/{JOB}", "--replicas=4", "-n", team.name)
    assert scaled.returncode == 0, scaled.stderr
    comes_to(team, machine, n.PHASE_RUNNING, attempt=1)
    status, made = team.status(JOB), team.get(team.batch(f"{JOB}-1"))["spec"]
    assert (status["nodes"], status["gpusPerNode"], status["restarts"]) == (4, 4, 0)
    assert (made["completions"], made["parallelism"]) == (4, 4)
    assert "Resized" in {each["reason"] for each in team.events(JOB)}
    assert not team.get(team.batch(f"{JOB}-0"))
    ends(team, machine, attempt=1)
