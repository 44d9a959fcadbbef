"""Torchrun jobs that fail on the second stack, and the messages that their user gets."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.faults.place import until
from tests.integration.local.conftest import INSTALLED_FILES, Command, Stack, image, run
from tests.integration.local.torchrun_person import (
    SPACE,
    WAIT_SECONDS,
    job,
    logs_of,
    reaches,
    submit_edited,
    torchrun,
)
from trainyard.kubectl.onefile import build
from trainyard.operator import names as n

pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]

# The second worker fails in the first attempt, after the first one ended well: its torchrun waits in its exit barrier.
FAILS_ONCE = """
import os, time
import torch.distributed as dist

dist.init_process_group("gloo")
attempt, rank = os.environ["TORCHRUN_ATTEMPT"], dist.get_rank()
run = os.environ["TORCHELASTIC_RUN_ID"]
print("met", run, "attempt", attempt, "rank", rank, "at", time.time(), flush=True)
dist.barrier()
if (attempt, rank) == ("0", 1):
    open("/data/nope")
"""
# Saves at SIGTERM and exits with 0: the trap of a shell that starts torchrun itself.
SAVES = """trap 'echo saved; exit 0' TERM
torchrun --no-python python -c "
import os, time
attempt = os.environ['TORCHRUN_ATTEMPT']
print('begins in attempt', attempt, flush=True)
time.sleep(900 if attempt == '0' else 1)
" &
wait $!
"""
# What submitting takes (docs/kubectl-torchrun.md); the last one where the workspace goes through the job's pod.
SENDING = {"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["get", "create"]}
RIGHTS = [
    {"apiGroups": [n.GROUP], "resources": [n.QUEUE_PLURAL], "verbs": ["get", "list"]},
    {
        "apiGroups": [n.GROUP],
        "resources": [n.JOB_PLURAL],
        "verbs": ["get", "list", "watch", "create", "delete"],
    },
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
]


def test_job_that_fails_has_its_commands_exit_code(installed: Stack, tmp_path: Path) -> None:
    """Its restarts are used up; a wrong command has none."""
    code = tmp_path / "code"
    code.mkdir()
    says = "import os\nprint('of attempt', os.environ['TORCHRUN_ATTEMPT'], flush=True)\n"
    (code / "train.py").write_text(f"{says}raise SystemExit(3)\n")
    (code / "unset.sh").write_text("exit 0\n")
    place = ("--queue", "cpu", "--gpus", "0", "--nodes", "1")
    submit_edited(installed, "fails", {"maxRestarts": 1}, *place, "python train.py", cwd=code)
    wrong = {
        "misspelt": ("pyhton train.py", 127),
        "absent": ("python /app/trian.py", 2),
        "unset": ("./unset.sh", 126),
    }

    def follow(name: str) -> Command:
        command, _ = wrong[name]
        return torchrun(installed, "submit", *place, "--name", name, "--follow", command, cwd=code)

    with ThreadPoolExecutor() as threads:
        for (name, (_, exit_code)), ended in zip(wrong.items(), threads.map(follow, wrong), strict=True):
            assert ended.code == exit_code, ended.output
            has_failed(installed, name, n.REASON_NOT_RESTARTABLE, exit_code, 0)
    reaches(installed, "fails", n.PHASE_FAILED)
    has_failed(installed, "fails", n.REASON_RESTARTS_USED_UP, 3, 1)
    last = torchrun(installed, "logs", "fails", "--attempt", "1")
    assert (last.code, "of attempt 1\n" in last.output) == (0, True)
    gone = torchrun(installed, "logs", "fails", "--attempt", "0")
    assert gone.code == 66, "its pods went when the next one began"
    assert "job fails: has no worker node 0 of attempt 0 now" in gone.output


def has_failed(stack: Stack, name: str, reason: str, exit_code: int, restarts: int) -> None:
    status = job(stack, name)["status"]
    assert (status["phase"], status["reason"]) == (n.PHASE_FAILED, reason)
    assert (status["exitCode"], status.get("restarts", 0)) == (exit_code, restarts)


def test_worker_failure_restarts_all_in_a_new_rendezvous(installed: Stack, tmp_path: Path) -> None:
    """Submitted by the plugin as one file, which has all that it needs in it."""
    plugin, _ = build(tmp_path / "dist")
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(FAILS_ONCE)

    def one_file(*words: str) -> Command:
        # Python without the packages of this environment.
        command = [sys.executable, "-S", "-I", str(plugin), *words, *SPACE]
        environment = {**installed.kubectl_environment, "XDG_CACHE_HOME": str(tmp_path)}
        done = run(command, environment, 600, cwd=code)
        assert done.code == 0, done.output
        return done

    rows = [line.split() for line in one_file("queues").output.splitlines()]
    assert ["cpu", "True", "0", "500m", "2Gi"] in [row[:5] for row in rows]
    done = one_file(
        "submit", "--queue", "cpu", "--gpus", "0", "--nodes", "2", "--name", "again-once", "--follow",
        "python train.py",
    )  # fmt: skip
    status = job(installed, "again-once")["status"]
    assert (status["phase"], status["attempt"], status["restarts"]) == (n.PHASE_SUCCEEDED, 1, 1)
    met = [line.split("met ")[1].split() for line in done.output.splitlines() if "met " in line]
    assert [(words[2], words[4]) for words in met] == [("0", "0"), ("1", "0")], "node 0 has rank 0 both times"
    assert met[0][0] != met[1][0], "one rendezvous for each attempt"
    assert "attempt 1 rank 1" in logs_of(installed, "again-once")
    error = "FileNotFoundError: [Errno 2] No such file or directory: '/data/nope'"
    failure, restart = status["firstFailure"], status["lastRestart"]
    assert (failure["nodeRank"], failure["rank"], failure["error"]) == (1, 1, error)
    assert any("Restarting: " in line and error in line for line in done.output.splitlines())
    decided, failed = (datetime.fromisoformat(each["time"]) for each in (restart, failure))
    assert (decided - failed).total_seconds() <= 15
    first, second = (
        float(line.rpartition(" ")[2])
        for attempt in (0, 1)
        for line in done.output.splitlines()
        if f"attempt {attempt} rank 0" in line
    )
    # On a busy machine both attempts start slowly.
    first_start = first - datetime.fromisoformat(status["startTime"]).timestamp()
    assert second - failed.timestamp() <= 20 + 1.5 * first_start, "the other worker held up the next attempt"
    kept = torchrun(installed, "logs", "again-once", "--attempt", "0")
    assert error in kept.output


def test_elastic_job_with_an_evicted_worker_restarts(installed: Stack) -> None:
    """One that ends well is enough for its batch/v1 Job."""
    made = torchrun(
        installed, "submit", "--queue", "cpu", "--gpus", "0", "--min", "1", "--max", "2", "--name", "drained",
        "--no-workspace", SAVES,
    )  # fmt: skip
    assert made.code == 0, made.output

    def training_workers() -> list[str]:
        return [
            each["metadata"]["name"]
            for each in installed.get("pods", *SPACE, "-l", f"{n.LABEL_JOB}=drained")["items"]
            if "begins in attempt 0" in installed.logs(each["metadata"]["name"])
        ]

    until(lambda: len(training_workers()) == 2, "both workers train", WAIT_SECONDS)
    assert installed.kubectl("delete", "pod", *SPACE, training_workers()[0]).code == 0
    reaches(installed, "drained", n.PHASE_SUCCEEDED)
    status = job(installed, "drained")["status"]
    assert (status["attempt"], status["restarts"]) == (1, 1)


def test_job_without_its_queue_trains_once_it_is_there(installed: Stack, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('trained', flush=True)\n")
    words = (
        "submit",
        "--queue",
        "later",
        "--gpus",
        "0",
        "--nodes",
        "1",
        "--name",
        "early",
        "python train.py",
    )
    refused = torchrun(installed, *words, cwd=tmp_path)
    assert refused.code == 64, refused.output
    assert "queue later does not exist in namespace training" in refused.output
    printed = torchrun(installed, *words, "--dry-run", cwd=tmp_path).output
    (tmp_path / "job.yaml").write_text(printed[printed.index("apiVersion:") :])
    made = installed.kubectl("apply", "-f", str(tmp_path / "job.yaml"))
    assert made.code == 0, made.output
    until(
        lambda: (job(installed, "early").get("status") or {}).get("reason") == n.REASON_QUEUE_NOT_FOUND,
        "so",
        30,
    )
    assert installed.get("pods", *SPACE, "-l", f"{n.LABEL_JOB}=early")["items"] == []
    queue = installed.get("torchrunqueue", "cpu", *SPACE)
    later = {
        "apiVersion": n.API_VERSION,
        "kind": n.QUEUE_KIND,
        "metadata": {"name": "later"},
        "spec": queue["spec"],
    }
    applied = installed.kubectl("apply", *SPACE, "-f", "-", stdin=yaml.safe_dump(later))
    assert applied.code == 0, applied.output
    assert torchrun(installed, "sync", "early", cwd=tmp_path).code == 0
    reaches(installed, "early", n.PHASE_SUCCEEDED)
    assert "trained" in logs_of(installed, "early")


def test_submit_without_pods_exec_is_refused_and_leaves_no_job(installed: Stack, tmp_path: Path) -> None:
    name, space = "sender", SPACE[1]
    meta = {"name": name, "namespace": space}
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": meta}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": space}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    manifests = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {**rbac, "kind": "Role", "rules": RIGHTS},
        {**rbac, "kind": "RoleBinding", "subjects": [subject], "roleRef": role},
    ]
    applied = installed.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))
    assert applied.code == 0, applied.output
    kubeconfig = json.loads(installed.kubectl("config", "view", "--raw", "--minify", "-o", "json").output)
    token = installed.kubectl("create", "token", name, *SPACE).output.strip()
    kubeconfig["users"][0]["user"] = {"token": token}
    place, code = tmp_path / "kubeconfig", tmp_path / "code"
    place.write_text(json.dumps(kubeconfig))
    place.chmod(0o600)
    code.mkdir()
    (code / "train.py").write_text("print('trained')\n")
    words = ("--queue", "cpu", "--gpus", "0", "--nodes", "1", "--kubeconfig", str(place), "python train.py")
    refused = torchrun(installed, "submit", "--name", "unsent", *words, cwd=code)
    assert refused.code == 77, refused.output
    message = refused.output.splitlines()[-1]
    assert message.startswith("kubectl torchrun: ")
    assert "namespace training: you may not get and create pods/exec there" in message
    assert installed.kubectl("get", "torchrunjob", "unsent", *SPACE).code == 1, "the job is there"

    def left() -> list[str]:
        """Its pods that nobody deletes; one that waits for its workspace has 30 s to end."""
        items = installed.get("pods", *SPACE, "-l", f"{n.LABEL_JOB}=unsent")["items"]
        return [each["metadata"]["name"] for each in items if "deletionTimestamp" not in each["metadata"]]

    until(lambda: not left(), "nothing of it is left", 60)
    manifests[1] = {**manifests[1], "rules": [*RIGHTS, SENDING]}
    applied = installed.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))
    assert applied.code == 0, applied.output
    sent = torchrun(installed, "submit", "--name", "sent", *words, cwd=code)
    assert sent.code == 0, sent.output
    reaches(installed, "sent", n.PHASE_SUCCEEDED)


def test_workers_that_can_not_start_are_named_with_the_reason(installed: Stack) -> None:
    spec = {"jobQueue": "cpu", "numGPUs": 0, "numNodes": 1, "command": "python -c 1"}
    absent = f"{image(installed, 'trainer').partition('@')[0]}@sha256:{'0' * 64}"
    rows: tuple[tuple[str, dict[str, Any], str], ...] = (
        ("no-image", {"image": absent}, f"can't get image {absent}: "),
        ("no-room", {"nodeResources": {"memory": "900Gi"}}, "waits for a node: 0/"),
    )
    for name, overrides, _ in rows:
        manifest = {
            "apiVersion": n.API_VERSION,
            "kind": n.JOB_KIND,
            "metadata": {"name": name},
            "spec": {**spec, "overrides": overrides},
        }
        applied = installed.kubectl("apply", *SPACE, "-f", "-", stdin=json.dumps(manifest))
        assert applied.code == 0, applied.output
    for name, _, message in rows:
        until(
            lambda name=name, message=message: message in str(job(installed, name)),  # type: ignore[misc]
            f"{name} says why",
            WAIT_SECONDS,
        )
        shown = torchrun(installed, "status", name).output
        assert f"0 of 1 worker is ready, {name}-0-0-" in shown
        assert torchrun(installed, "cancel", name).code == 0


def test_uninstalled_controller_leaves_no_kind_or_namespace(installed: Stack, installation: Path) -> None:
    """In the order of docs/torchrun.md: jobs and queues first."""
    for words in (
        ("torchrunjobs,torchrunqueues", "--all", "--all-namespaces"),
        *(("-f", str(installation / each)) for each in reversed(INSTALLED_FILES)),
    ):
        deleted = installed.kubectl("delete", *words, "--timeout=120s")
        assert deleted.code == 0, deleted.output
    kinds = installed.kubectl("api-resources", "--api-group", n.GROUP, "-o", "name", "--cached=false")
    assert kinds.output.strip() == ""
    namespaces = [each["metadata"]["name"] for each in installed.get("namespaces")["items"]]
    assert n.CONTROLLER_NAMESPACE not in namespaces
