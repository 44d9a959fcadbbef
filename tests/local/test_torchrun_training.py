"""Torchrun jobs on the stack of the main job's story: installed by the three commands, submitted from a directory.

Nothing of the training knows Trainyard: the script is written here, and runs under plain torchrun.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.core.torchrun import names as n
from local.home import CHECKOUT
from tests.faults.place import until
from tests.local.conftest import Stack
from tests.local.test_main_job import gone_within
from tests.local.torchrun_person import (
    LISTENS,
    LISTS,
    SPACE,
    WAIT_SECONDS,
    job,
    logs_of,
    phase,
    reaches,
    torchrun,
    workers_say,
)
from tests.local.torchrun_stack import EXAMPLES, image, installed

__all__ = ["installed"]
pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]

REQUIREMENTS_SUBMIT = """kubectl torchrun submit \\
  --queue h100-training \\
  --gpus 8 \\
  "python train.py --epochs {epochs}"
"""


def test_the_queues_are_ready(installed: Stack) -> None:
    def ready() -> bool:
        items = installed.get("torchrunqueues", *SPACE)["items"]
        told = [
            each["status"]
            for item in items
            for each in (item.get("status") or {}).get("conditions", [])
            if each["type"] == n.READY
        ]
        return told == ["True"] * 4

    until(ready, "all queues are ready", 60)


def test_a_directory_is_trained_in_and_after_an_edit_the_edited_one(installed: Stack, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    listing = "import os; print('here:', *sorted(os.listdir()), flush=True)\n"
    met = "import os; print('met:', os.environ['MASTER_ADDR'], flush=True)\n"
    script.write_text(listing + met + (EXAMPLES / "project" / "train.py").read_text())
    first = torchrun(
        installed, "submit", "--queue", "dev", "--gpus", "2", "--name", "first", "--follow",
        "python train.py --epochs 3", cwd=tmp_path,
    )  # fmt: skip
    assert first.code == 0, first.output
    assert "met: first-0-0.first." in first.output, "node 0 has rank 0, whose log is the one that people read"
    assert "epoch 3 of 3, 2 processes" in first.output
    assert "here: .torchrun-workspace train.py\n" in first.output, "the volume hides what the image has there"
    assert not (CHECKOUT / "train.py").exists()
    assert phase(installed, "first") == n.PHASE_SUCCEEDED
    script.write_text(script.read_text().replace("epoch {epoch + 1}", "edited {epoch + 1}"))
    again = torchrun(
        installed, "submit", "--queue", "dev", "--gpus", "1", "--name", "again", "--follow",
        "python train.py --epochs 2", cwd=tmp_path,
    )  # fmt: skip
    assert again.code == 0, again.output
    assert "edited 2 of 2, 1 processes" in again.output


def test_the_images_own_trainer_runs_beside_a_workspace(installed: Stack, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("of mine")
    done = torchrun(
        installed, "submit", "--queue", "dev", "--gpus", "1", "--name", "beside", "--follow",
        "python -m trainer.train --epochs 1", cwd=tmp_path,
    )  # fmt: skip
    assert done.code == 0, done.output
    assert "result=succeeded" in done.output


def test_the_requirements_commands_from_a_project_s_directory(installed: Stack, tmp_path: Path) -> None:
    """As they stand there, typed into a shell: once, and again after an edit."""
    project = tmp_path / "my-training-project"
    project.mkdir()
    script = project / "train.py"
    script.write_text((EXAMPLES / "project" / "train.py").read_text())
    environment = in_their_namespace(installed, tmp_path)
    for epochs, word in ((10, "epoch"), (20, "edited")):
        script.write_text(script.read_text().replace("epoch {epoch + 1}", f"{word} {{epoch + 1}}"))
        answer = subprocess.run(
            ["bash", "-c", REQUIREMENTS_SUBMIT.format(epochs=epochs)],
            cwd=project, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        name = answer.stdout.split("/")[1].split()[0]
        assert name.startswith("my-training-project-")
        sync_pod = installed.kubectl("logs", *SPACE, n.sync_pod(name))
        assert sync_pod.code == 0, sync_pod.output
        reaches(installed, name, n.PHASE_SUCCEEDED)
        assert f"{word} {epochs} of {epochs}, 8 processes" in logs_of(installed, name)
        # The class of disks gives each of the two workers a claim of its own.
        claims = installed.get("pvc", *SPACE, "-l", f"{n.LABEL_JOB}={name}")["items"]
        bound = {each["metadata"]["name"]: each["status"]["phase"] for each in claims}
        assert bound == {f"{name}-workspace": "Bound", f"{name}-workspace-1": "Bound"}
        workers = installed.get("pods", *SPACE, "-l", f"{n.LABEL_JOB}={name},{n.LABEL_ATTEMPT}")["items"]
        assert {mounted(each, "/app") for each in workers} == bound.keys()


def mounted(pod: dict[str, Any], path: str) -> str:
    """The claim that the worker has there, "" for none."""
    (worker,) = (each for each in pod["spec"]["containers"] if each["name"] == n.WORKER_CONTAINER)
    (mount,) = (each for each in worker["volumeMounts"] if each["mountPath"] == path)
    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == mount["name"])
    return str((volume.get("persistentVolumeClaim") or {}).get("claimName", ""))


def in_their_namespace(stack: Stack, directory: Path) -> dict[str, str]:
    """The environment of a team that has its namespace in its kubeconfig."""
    given = stack.kubectl_environment
    own = directory / "kubeconfig"
    own.write_text(Path(given["KUBECONFIG"]).read_text())
    own.chmod(0o600)
    environment = {**os.environ, **given, "KUBECONFIG": str(own)}
    words = ["kubectl", "config", "set-context", "--current", "--namespace", SPACE[1]]
    subprocess.run(words, env=environment, check=True, capture_output=True, timeout=60)
    return environment


def test_an_edit_reaches_running_workers_and_files_go_both_ways(installed: Stack, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LISTENS)
    (tmp_path / "said.txt").write_text("before")
    made = torchrun(
        installed, "submit", "--queue", "cpu", "--gpus", "0", "--nodes", "1", "--name", "hot",
        "python train.py", cwd=tmp_path,
    )  # fmt: skip
    assert made.code == 0, made.output
    until(lambda: "said before" in logs_of(installed, "hot"), "it works", WAIT_SECONDS)
    # A second job of the same directory gets it from the first one's pod.
    twin = torchrun(
        installed, "submit", "--queue", "cpu", "--gpus", "0", "--nodes", "1", "--name", "twin",
        "python train.py", cwd=tmp_path,
    )  # fmt: skip
    assert twin.code == 0, twin.output
    assert "unchanged, its " in twin.output
    until(lambda: "said before" in logs_of(installed, "twin"), "it works, too", WAIT_SECONDS)
    (tmp_path / "said.txt").write_text("after")
    assert torchrun(installed, "sync", "hot", cwd=tmp_path).code == 0
    edited = torchrun(installed, "sync", "twin", cwd=tmp_path)
    assert edited.code == 0, edited.output
    assert "unchanged, its " in edited.output
    until(lambda: "said after" in logs_of(installed, "twin"), "the edit is there, too", 60)
    assert torchrun(installed, "cancel", "twin").code == 0
    until(lambda: "said after" in logs_of(installed, "hot"), "the edit is there", 60)
    (tmp_path / "weights").write_bytes(bytes(range(256)) * 1000)
    sent = torchrun(installed, "cp", "weights", "hot:/tmp/weights", cwd=tmp_path)
    assert sent.code == 0, sent.output
    fetched = torchrun(installed, "cp", "hot:/tmp/weights", "fetched", cwd=tmp_path)
    assert fetched.code == 0, fetched.output
    assert (tmp_path / "fetched").read_bytes() == (tmp_path / "weights").read_bytes()
    assert "hot" in torchrun(installed, "list").output
    label = f"{n.LABEL_JOB}=hot"
    watched = installed.kubectl("get", "pods", *SPACE, "-l", label, "-w", "--request-timeout=3s").output
    assert re.search(r"^hot-0-0-\w+ +\d/\d +Running ", watched, re.MULTILINE), watched
    described = installed.kubectl("describe", "nodes")
    assert described.code == 0, described.output
    assert re.search(r"Non-terminated Pods:(?s:.*)hot-0-0-", described.output), "what runs on which node"
    sync_pod = installed.kubectl("logs", *SPACE, n.sync_pod("hot"))
    assert sync_pod.code == 0, sync_pod.output
    assert len(set(re.findall(r"sha256:[0-9a-f]{64} was sent to", sync_pod.output))) == 2, (
        "before and after the edit"
    )
    (tmp_path / "said.txt").write_text("end")
    assert torchrun(installed, "sync", "hot", cwd=tmp_path).code == 0
    ended = reaches(installed, "hot", n.PHASE_SUCCEEDED)
    assert (ended["attempt"], ended["restarts"]) == (0, 0)


def test_only_a_sync_that_says_so_starts_the_workers_anew(installed: Stack, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LISTS)
    (tmp_path / "gone.txt").touch()
    submit = ("submit", "--queue", "cpu", "--gpus", "0", "--nodes", "2", "--name", "both", "python train.py")
    sync = ("sync", "both")
    for word, call in (("first", submit), ("second", (*sync, "--restart")), ("third", sync)):
        (tmp_path / "said.txt").write_text(word)
        if word == "third":
            (tmp_path / "gone.txt").unlink()
        done = torchrun(installed, *call, cwd=tmp_path)
        assert done.code == 0, done.output
        files = "said.txt" if word == "third" else "gone.txt said.txt"
        workers_say(installed, "both", 2, f"said {word} of {files}\n")
        assert job(installed, "both")["status"]["attempt"] == (word != "first")
    copied = torchrun(installed, "cp", "said.txt", "both:/tmp/mark", "--rank", "1", cwd=tmp_path)
    assert copied.code == 0, copied.output
    for rank, there in (("1", True), ("0", False)):
        fetched = torchrun(installed, "cp", "both:/tmp/mark", f"mark-{rank}", "--rank", rank, cwd=tmp_path)
        assert (fetched.code == 0, (tmp_path / f"mark-{rank}").exists()) == (there, there), fetched.output
        (tmp_path / f"mark-{rank}").unlink(missing_ok=True)
    (tmp_path / "said.txt").write_text("end")
    assert torchrun(installed, *sync, cwd=tmp_path).code == 0
    ended = reaches(installed, "both", n.PHASE_SUCCEEDED)
    assert (ended["attempt"], ended["restarts"]) == (1, 0)


def test_what_is_over_is_not_trained_again_when_its_objects_are_deleted(installed: Stack) -> None:
    before = job(installed, "first")["status"]
    deleted = installed.kubectl("delete", "jobs", *SPACE, "-l", f"{n.LABEL_JOB}=first", "--wait=true")
    assert deleted.code == 0, deleted.output
    pods = ("pods", *SPACE, "-l", f"{n.LABEL_JOB}=first")
    assert gone_within(60, lambda: [each["metadata"]["name"] for each in installed.get(*pods)["items"]]) == []
    assert gone_within(3, lambda: [job(installed, "first")["status"] == before]) == [True]
    assert installed.get("jobs", *SPACE, "-l", f"{n.LABEL_JOB}=first")["items"] == []


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("single-node", {(1, 4)}),
        ("multi-node", {(2, 2)}),
        ("elastic", {(1, 1), (2, 2)}),  # as many as there is room for
        ("cpu-only", {(2, 0)}),
        ("priority", {(1, 1)}),
        ("checkpoints", {(1, 1)}),
    ],
)
def test_an_example_trains(installed: Stack, name: str, sizes: set[tuple[int, int]]) -> None:
    applied = installed.kubectl("apply", *SPACE, "-f", str(EXAMPLES / f"{name}.yaml"))
    assert applied.code == 0, applied.output
    ended = reaches(installed, name, n.PHASE_SUCCEEDED)
    assert (ended["nodes"], ended["gpus"]) in sizes
    assert "deprecated" not in logs_of(installed, name)
    workers = installed.get("pods", *SPACE, "-l", f"{n.LABEL_JOB}={name},{n.LABEL_ATTEMPT}")["items"]
    assert len(workers) == ended["nodes"]
    urgent = {each["spec"].get("priorityClassName") == "urgent" for each in workers}
    assert urgent == {name == "priority"}
    if name == "priority":
        (worker,) = (each["spec"] for each in workers)
        assert worker["priority"] == 1000
        assert (
            worker["containers"][0]["resources"]["requests"].items() >= {"cpu": "8", "memory": "16Gi"}.items()
        )


def test_the_examples_queues_and_their_first_job_are_applied_as_the_page_says(
    installed: Stack, tmp_path: Path
) -> None:
    """Without a pool Karpenter buys the machine for the worker itself, which the queue's tolerations let there."""
    name = "as-written"
    block = (EXAMPLES / "README.md").read_text().split("```")[1].removeprefix("bash")
    output = "$(pulumi stack output trainerImage --stack <stack>)"
    assert output in block
    block = block.replace(output, image(installed, "trainer")).replace("-n training", f"-n {name}")
    assert installed.kubectl("create", "namespace", name).code == 0
    try:
        answer = subprocess.run(
            ["bash", "-ec", block],
            cwd=EXAMPLES,
            env={**os.environ, **installed.kubectl_environment},
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS,
        )
        assert answer.returncode == 0, answer.stderr
        assert "result=succeeded" in answer.stdout
        space = ("-n", name)
        ended = installed.get("torchrunjob", "single-node", *space)["status"]
        assert (ended["phase"], ended["nodes"], ended["gpus"]) == (n.PHASE_SUCCEEDED, 1, 4)
        queues = yaml.safe_load_all((EXAMPLES / "queues.yaml").read_text())
        for each in queues:
            ready = installed.get("torchrunqueue", each["metadata"]["name"], *space)["status"]["conditions"]
            assert [one["status"] for one in ready if one["type"] == n.READY] == ["True"], ready
    finally:
        installed.kubectl("delete", "namespace", name, "--timeout=120s")


def test_the_examples_project_is_submitted_as_the_page_says(installed: Stack, tmp_path: Path) -> None:
    page = (EXAMPLES / "README.md").read_text()
    block = page.partition("From a directory of one's own")[2].split("```")[1].removeprefix("bash")
    (tmp_path / "project").symlink_to(EXAMPLES / "project")
    answer = subprocess.run(
        ["bash", "-ec", block],
        cwd=tmp_path, env=in_their_namespace(installed, tmp_path), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert "epoch 20 of 20" in answer.stdout
    assert phase(installed, "mine") == n.PHASE_SUCCEEDED


def test_an_elastic_job_begins_with_one_worker_and_takes_in_the_second(installed: Stack) -> None:
    """In a namespace that may have one pod at first, and then two."""
    space = ("-n", "elastic-team")
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}}
    queue = {
        key: value for key, value in installed.get("torchrunqueue", "cpu", *SPACE).items() if key != "status"
    }
    queue["metadata"] = {"name": "cpu"}
    # One that ends is enough for the job, whose other pods Kubernetes removes then, and their logs with them.
    script = (
        "import os, time; n = os.environ['WORLD_SIZE']; print('world', n, flush=True); "
        "time.sleep(900 if n < '2' else 20)"
    )
    spec = {
        "jobQueue": "cpu",
        "numGPUs": 0,
        "elastic": {"minNodes": 1, "maxNodes": 2},
        "command": f'python -c "{script}"',
    }
    made = {"apiVersion": n.API_VERSION, "kind": n.JOB_KIND, "metadata": {"name": "grows"}, "spec": spec}
    space_itself = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space[1]}}

    def allow(pods: int) -> None:
        manifests = [
            space_itself,
            {**quota, "metadata": {"name": "few", "namespace": space[1]}, "spec": {"hard": {"pods": pods}}},
        ]
        applied = installed.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(manifests))
        assert applied.code == 0, applied.output

    def said() -> str:
        return installed.kubectl("logs", *space, "-l", f"{n.LABEL_JOB}=grows", "--tail=-1").output

    def status() -> dict[str, Any]:
        return dict(installed.get("torchrunjob", "grows", *space).get("status") or {})

    try:
        allow(1)
        applied = installed.kubectl("apply", *space, "-f", "-", stdin=yaml.safe_dump_all([queue, made]))
        assert applied.code == 0, applied.output
        until(lambda: "world 1" in said(), "it trains with one worker", WAIT_SECONDS)
        assert status()["phase"] == n.PHASE_RUNNING
        assert "world 2" not in said()
        allow(2)
        until(lambda: said().count("world 2") == 2, "it trains with two", WAIT_SECONDS)
        until(lambda: status()["phase"] == n.PHASE_SUCCEEDED, "it ends", WAIT_SECONDS)
        assert (status()["attempt"], status()["restarts"]) == (0, 0)
    finally:
        installed.kubectl("delete", "namespace", space[1], "--timeout=120s")


def test_checkpoints_outlive_their_job(installed: Stack) -> None:
    deleted = installed.kubectl("delete", "torchrunjob", "checkpoints", *SPACE, "--timeout=60s")
    assert deleted.code == 0, deleted.output
    claim = installed.get("pvc", n.checkpoints_claim("checkpoints"), *SPACE)
    assert "ownerReferences" not in claim["metadata"]
    manifest = yaml.safe_load((EXAMPLES / "checkpoints.yaml").read_text())
    manifest["spec"]["command"] = manifest["spec"]["command"].replace("--steps 100", "--steps 120")
    applied = installed.kubectl("apply", *SPACE, "-f", "-", stdin=json.dumps(manifest))
    assert applied.code == 0, applied.output
    reaches(installed, "checkpoints", n.PHASE_SUCCEEDED)
    assert "checkpoint=loaded step=100 " in logs_of(installed, "checkpoints")
    installed.kubectl("delete", "torchrunjob", "checkpoints", *SPACE, "--timeout=60s")
    installed.kubectl("delete", "pvc", n.checkpoints_claim("checkpoints"), *SPACE, "--timeout=60s")


def test_a_suspended_job_goes_on_from_its_checkpoint(installed: Stack) -> None:
    applied = installed.kubectl("apply", *SPACE, "-f", str(EXAMPLES / "suspend.yaml"))
    assert applied.code == 0, applied.output
    reaches(installed, "suspended", n.PHASE_SUSPENDED)
    assert torchrun(installed, "resume", "suspended").code == 0

    def saved() -> int:
        return int((job(installed, "suspended")["status"].get("progress") or {}).get("checkpointStep", 0))

    until(lambda: saved() >= 50, "its status tells of its first checkpoint", WAIT_SECONDS)
    assert "checkpoint=saved" in logs_of(installed, "suspended")
    assert torchrun(installed, "suspend", "suspended").code == 0
    reaches(installed, "suspended", n.PHASE_SUSPENDED)
    pods = ("pods", *SPACE, "-l", f"{n.LABEL_JOB}=suspended")
    assert gone_within(60, lambda: installed.get(*pods)["items"]) == []
    assert torchrun(installed, "resume", "suspended").code == 0
    until(lambda: "checkpoint=loaded" in logs_of(installed, "suspended"), "it goes on", WAIT_SECONDS)
    assert job(installed, "suspended")["status"]["restarts"] == 0
    assert torchrun(installed, "cancel", "suspended").code == 0
