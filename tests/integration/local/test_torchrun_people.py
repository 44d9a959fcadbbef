"""Torchrun queues and jobs in the hands of people: restored, used by who may, and at last uninstalled."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from local.home import CHECKOUT
from tests.integration.local import kai
from tests.integration.local.own_api_server import ApiServer
from tests.integration.local.torchrun_controller import Running, Team, controller, kubeconfig, until
from tests.integration.local.torchrun_machine import JOB, Machine, cluster, comes_to, ends, submit
from tests.torchrun_manifests import manifest
from trainyard.k8s import names
from trainyard.kubectl.__main__ import main as plugin_main
from trainyard.kubectl.output import DONE, REFUSED
from trainyard.operator import names as n

pytestmark = [pytest.mark.local, pytest.mark.timeout(300)]

NUMBERS = count(1)
THEIRS = "example.com/theirs"
BLOCKS = re.findall(r"```bash\n(.+?)```", (CHECKOUT / "docs" / "torchrun.md").read_text(), re.DOTALL)
ARCHIVE = {"digest": f"sha256:{'a' * 64}", "sizeBytes": 1}
PRIORITY = f"/apis/scheduling.k8s.io/v1/priorityclasses/{names.PLACEHOLDER_PRIORITY_CLASS}"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


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


@pytest.mark.parametrize("how", [("create",), ("apply", "--server-side")], ids=" ".join)
def test_queue_restored_with_its_finalizer_can_be_deleted(
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


def test_queue_restored_without_kai_loses_its_finalizer(team: Team, working: Running) -> None:
    """Also one that server-side apply owns; its namespace can go."""
    del working
    dump = manifest(n.QUEUE_KIND, "research")
    dump["metadata"] |= {"namespace": team.name, "finalizers": [n.QUEUE_FINALIZER]}
    restored = team.server.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(dump))
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
    """What the API server's authorizer says, which `kubectl auth can-i` asks."""
    resource, _, below = of.partition("/")
    plural, _, group = resource.partition(".")
    attributes = {
        "namespace": team.name,
        "verb": verb,
        "group": group,
        "resource": plural,
        "subresource": below,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": who, "groups": ["system:authenticated"], "resourceAttributes": attributes},
    }
    answer = team.server.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    assert answer.status == 201, answer.message
    return bool(answer.body["status"]["allowed"])


def bound(team: Team, role: str) -> str:
    """The name of somebody who has this role of Kubernetes' in the team's namespace, and nothing else."""
    who = f"{role}-of-{team.name}"
    bind(team, role, f"--user={who}")
    return who


def bind(team: Team, role: str, whom: str) -> None:
    made = team.server.kubectl("create", "rolebinding", role, f"--clusterrole={role}", whom, "-n", team.name)
    assert made.returncode == 0, made.stderr


@pytest.mark.parametrize("role", MAY)
def test_roles_of_kubernetes_have_rights_on_jobs_and_queues(team: Team, role: str) -> None:
    who = bound(team, role)
    until(lambda: may(team, who, "list", JOBS), "the rights are aggregated", 60.0)
    asked = MAY["admin"] | STATUSES
    assert {each for each in asked if may(team, who, *each)} == MAY[role]
    elsewhere = Team(team.server, f"{team.name}-other")
    assert not may(elsewhere, who, "get", JOBS)


def test_role_edit_changes_jobs_and_makes_no_queue(team: Team) -> None:
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


SUBMITTER, EDITOR, OWNER, ADMIN = "torchrun-edit", "edit", "torchrun-admin", "admin"
SECRET = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
OTHERS_ACCOUNT = {"spec": {"serviceAccountName": "others"}}
THEIR_CLAIM = {"enabled": True, "existingClaim": "theirs"}
MERGE = "application/merge-patch+json"
NEEDS_QUEUE, NEEDS_PODS, RESERVED = (
    "permission to update TorchrunQueue",
    "permission to create pods",
    "reserved",
)
# A job's field: who may set it, and the message for the others.
GUARDED: tuple[tuple[str, Any, tuple[str, ...], str], ...] = (
    ("overrides.image", "other:1", (SUBMITTER, EDITOR, OWNER, ADMIN), ""),
    ("overrides.nodeResources", {"gpus": 1}, (SUBMITTER, EDITOR, OWNER, ADMIN), ""),
    ("env", [{"name": "A", "value": "b"}], (SUBMITTER, EDITOR, OWNER, ADMIN), ""),
    ("env", SECRET, (EDITOR, ADMIN), NEEDS_PODS),
    ("overrides.podTemplate", OTHERS_ACCOUNT, (EDITOR, ADMIN), NEEDS_PODS),
    ("overrides.podTemplate.metadata", {"labels": {"app": "x"}}, (EDITOR, ADMIN), NEEDS_PODS),
    ("overrides.podTemplate.metadata", {"labels": {"trainyard.dev/role": "warm"}}, (), RESERVED),
    ("overrides.podTemplate.metadata", {"annotations": {"karpenter.sh/x": "y"}}, (), RESERVED),
    ("overrides.kaiQueue", "theirs", (OWNER, ADMIN), NEEDS_QUEUE),
    ("overrides.scheduling", {"priorityClassName": "high"}, (OWNER, ADMIN), NEEDS_QUEUE),
    ("overrides.scheduling", {"pool": "theirs"}, (OWNER, ADMIN), NEEDS_QUEUE),
    ("overrides.scheduling", {"nodeSelector": {"a": "b"}}, (OWNER, ADMIN), NEEDS_QUEUE),
    ("overrides.storage.datasets", {"existingClaim": "theirs"}, (EDITOR, ADMIN), NEEDS_PODS),
    ("overrides.storage.workspace", {"bucket": "s3://theirs"}, (OWNER, ADMIN), NEEDS_QUEUE),
)


def test_jobs_and_queues_need_the_rights_on_the_pods_that_they_make(team: Team) -> None:
    """As the API server's own CEL decides it, with the rights of each author."""
    people = {role: bound(team, role) for role in (SUBMITTER, EDITOR, OWNER, ADMIN)}
    for role, who in people.items():
        until(lambda who=who: may(team, who, "create", JOBS), f"{role} has its rights", 60.0)  # type: ignore[misc]

    def said(role: str, kind: str, changes: dict[str, Any], *, patch: str = "", dry: bool = True) -> str:
        """Why the API server refuses this person's object, or merge patch of the object of this name."""
        path, content, body = team.path(kind), "application/json", manifest(kind, "a", changes)
        if patch:
            path, content, body = team.path(kind, patch), MERGE, {"spec": changes}
        path += "?dryRun=All" if dry else ""
        answer = team.server.request(
            "PATCH" if patch else "POST", path, body, content=content, user=people[role]
        )
        return "" if answer.status < 300 else answer.message

    def enforced() -> bool:
        return NEEDS_QUEUE in said(SUBMITTER, n.JOB_KIND, {"overrides.kaiQueue": "x"})

    until(enforced, "the policies are in force")
    for path, value, allowed, message in GUARDED:
        for role in people:
            answer = said(role, n.JOB_KIND, {path: value})
            assert (answer == "") == (role in allowed), (role, path, value, answer)
            reason = NEEDS_PODS if message == RESERVED and role in (SUBMITTER, OWNER) else message
            assert not answer or reason in answer, (role, path, answer)
    # Who may not make such a job brings no other code into it either; who stops it needs no more than before.
    whole = {"overrides.podTemplate": OTHERS_ACCOUNT, "workspace": ARCHIVE}
    assert said(ADMIN, n.JOB_KIND, whole, dry=False) == ""
    other = {"workspace": {**ARCHIVE, "digest": f"sha256:{'b' * 64}"}}
    assert NEEDS_PODS in said(SUBMITTER, n.JOB_KIND, other, patch="a")
    assert said(EDITOR, n.JOB_KIND, other, patch="a") == ""
    assert said(SUBMITTER, n.JOB_KIND, {"suspend": True}, patch="a") == ""
    # Nor does a queue make a pod that its author may not make.
    for change in ({}, {"podTemplate": OTHERS_ACCOUNT}, {"storage.datasets": THEIR_CLAIM}):
        assert NEEDS_PODS in said(OWNER, n.QUEUE_KIND, change)
        assert said(ADMIN, n.QUEUE_KIND, change) == ""
    assert said(ADMIN, n.QUEUE_KIND, {"kaiQueue": "ours"}, dry=False) == ""
    assert NEEDS_PODS in said(OWNER, n.QUEUE_KIND, {"image": "other:1"}, patch="a")


def test_plugin_does_for_edit_and_view_what_its_page_says(
    team: Team, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def plugin(role: str, *words: str) -> tuple[int, str]:
        code = plugin_main([*words, "-n", team.name, "--kubeconfig", str(files[role])], os.environ)
        output = capsys.readouterr()
        return code, (output.out + output.err).strip()

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
    for words in (("list",), ("queues",), ("status", "vit")):
        code, said = plugin("view", *words)
        assert (code, "research" in said) == (DONE, True), (words, said)
    for words in (("list", "-A"), ("suspend", "vit"), ("cancel", "vit")):
        code, said = plugin("view", *words)
        assert (code, "you may not" in said) == (REFUSED, True), said
    for words in (("suspend", "vit"), ("resume", "vit"), ("cancel", "vit")):
        code, said = plugin("edit", *words)
        assert code == DONE, said


def test_running_job_that_is_scaled_restarts_in_that_size(team: Team, working: Running) -> None:
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


def typed(server: ApiServer, word: str) -> None:
    """The block that has this in its first line, line by line."""
    (block,) = (each for each in BLOCKS if word in each.partition("\n")[0])
    for line in block.splitlines():
        kubectl, *words = shlex.split(line)
        assert kubectl == "kubectl"
        done = server.kubectl(*words)
        assert done.returncode == 0, f"{line}: {done.stderr}"


def test_uninstall_as_documented_while_a_job_runs_leaves_nothing(
    server: ApiServer, team: Team, working: Running
) -> None:
    """The last one, since nothing is there afterwards."""
    del working
    typed(server, "create priorityclass")
    made = server.request("GET", PRIORITY).body
    assert (made["value"], made["preemptionPolicy"]) == (names.PLACEHOLDER_PRIORITY, "Never")
    gang = {"scheduling.scheduler": n.KAI_SCHEDULER, "kaiQueue": "gpus"}
    team.make(manifest(n.QUEUE_KIND, "research", gang))
    team.make(manifest(n.JOB_KIND, "vit"))
    until(lambda: team.get(team.core("pods")).get("items"), "its workers are made", 60.0)
    assert team.get(f"{kai.QUEUES}/gpus")

    typed(server, "delete torchrunjobs")
    assert not team.get(f"{kai.QUEUES}/gpus")
    assert not team.get(PRIORITY)
    assert not team.get(f"/api/v1/namespaces/{n.CONTROLLER_NAMESPACE}")
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    assert not [each for each in team.get(policies)["items"] if n.GROUP in each["metadata"]["name"]]
    groups = {each["spec"]["group"] for each in team.get(DEFINITIONS)["items"]}
    assert n.GROUP not in groups
    made_for_it = (team.batch(), team.core("pods"), team.core("services"), kai.gangs(team.name))
    until(lambda: not any(team.get(each)["items"] for each in made_for_it), "all goes after the job")
