"""Torchrun jobs on the second stack: installed by the three commands, submitted from a directory.

Nothing of the training knows Trainyard: the script is written here, and runs under plain torchrun.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.home import CHECKOUT
from tests.faults.place import until
from tests.integration.local.conftest import EXAMPLES, Stack, image
from tests.integration.local.test_main_job import gone_within
from tests.integration.local.torchrun_person import (
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
from trainyard.operator import names as n

pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]

REQUIREMENTS_SUBMIT = """kubectl torchrun submit \\
  --queue h100-training \\
  --gpus {gpus} \\
  "python train.py --epochs {epochs}"
"""
# What the script finds, before it trains.
SEES = """import os
print('here:', *sorted(os.listdir()), flush=True)
print('met:', os.environ['MASTER_ADDR'], flush=True)
"""


def test_the_queues_are_ready(installed: Stack) -> None:
    def ready() -> bool:
        items = installed.get("torchrunqueues", *SPACE)["items"]
        found = [
            each["status"]
            for item in items
            for each in (item.get("status") or {}).get("conditions", [])
            if each["type"] == n.READY
        ]
        return found == ["True"] * 4

    until(ready, "all queues are ready", 60)


def test_requirement_commands_train_a_directory_and_its_edit(installed: Stack, tmp_path: Path) -> None:
    """As they stand there, typed into a shell: once, and again with one GPU after an edit."""
    project = tmp_path / "my-training-project"
    project.mkdir()
    script = project / "train.py"
    script.write_text(SEES + (EXAMPLES / "project" / "train.py").read_text())
    environment = in_their_namespace(installed, tmp_path)
    for gpus, epochs, word, claims in (
        (8, 2, "epoch", ("workspace", "workspace-1")),
        (1, 3, "edited", ("workspace",)),
    ):
        script.write_text(script.read_text().replace("epoch {epoch + 1}", f"{word} {{epoch + 1}}"))
        answer = subprocess.run(
            ["bash", "-c", REQUIREMENTS_SUBMIT.format(gpus=gpus, epochs=epochs)],
            cwd=project, env=environment, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert answer.returncode == 0, answer.stderr
        name = answer.stdout.split("/")[1].split()[0]
        assert name.startswith("my-training-project-")
        sync_pod = installed.kubectl("logs", *SPACE, n.sync_pod(name))
        assert sync_pod.code == 0, sync_pod.output
        reaches(installed, name, n.PHASE_SUCCEEDED)
        # Node 0 has rank 0, whose log is the one that people read.
        log = torchrun(installed, "logs", name).output
        assert f"{word} {epochs} of {epochs}, {gpus} processes" in log
        assert f"met: {name}-0-0.{name}." in log
        assert "here: .torchrun-workspace train.py\n" in log, "the volume hides what the image has there"
        # The class of disks gives each worker a claim of its own.
        found = installed.get("pvc", *SPACE, "-l", f"{n.LABEL_JOB}={name}")["items"]
        bound = {each["metadata"]["name"]: each["status"]["phase"] for each in found}
        assert bound == {f"{name}-{each}": "Bound" for each in claims}
        workers = installed.get("pods", *SPACE, "-l", f"{n.LABEL_JOB}={name},{n.LABEL_ATTEMPT}")["items"]
        assert {mounted(each, "/app") for each in workers} == bound.keys()

    assert not (CHECKOUT / "train.py").exists()


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


def test_sync_edits_running_workers_and_restarts_on_request(installed: Stack, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LISTS)
    (tmp_path / "gone.txt").touch()

    def types(*words: str) -> str:
        done = torchrun(installed, *words, cwd=tmp_path)
        assert done.code == 0, done.output
        return done.output

    def says(name: str, text: str) -> None:
        until(lambda: f"said {text}\n" in logs_of(installed, name), f"{name} says {text}", WAIT_SECONDS)

    submit = ("submit", "python train.py")
    (tmp_path / "said.txt").write_text("first")
    types(*submit, "--queue", "cpu", "--gpus", "0", "--nodes", "2", "--name", "both")
    # A second job of the same directory gets it from the first one's pod.
    assert "unchanged, its " in types(*submit, "--queue", "dev", "--gpus", "1", "--name", "twin")
    says("twin", "first of gone.txt said.txt")
    workers_say(installed, "both", 2, "said first of gone.txt said.txt\n")
    (tmp_path / "said.txt").write_text("second")
    (tmp_path / "gone.txt").unlink()
    types("sync", "both")
    assert "unchanged, its " in types("sync", "twin")
    says("twin", "second of said.txt")
    types("cancel", "twin")
    workers_say(installed, "both", 2, "said second of said.txt\n")
    assert job(installed, "both")["status"]["attempt"] == 0
    seen_by_kubectl(installed, "both")
    files_go_both_ways(installed, "both", tmp_path)
    (tmp_path / "said.txt").write_text("third")
    types("sync", "both", "--restart")
    workers_say(installed, "both", 2, "said third of said.txt\n")
    assert job(installed, "both")["status"]["attempt"] == 1
    (tmp_path / "said.txt").write_text("end")
    types("sync", "both")
    ended = reaches(installed, "both", n.PHASE_SUCCEEDED)
    assert (ended["attempt"], ended["restarts"]) == (1, 0)


def seen_by_kubectl(stack: Stack, name: str) -> None:
    """Its pods, their node and the two workspaces that its sync pod was sent, as kubectl shows them."""
    assert name in torchrun(stack, "list").output
    label = f"{n.LABEL_JOB}={name}"
    watched = stack.kubectl("get", "pods", *SPACE, "-l", label, "-w", "--request-timeout=3s").output
    assert re.search(rf"^{name}-0-0-\w+ +\d/\d +Running ", watched, re.MULTILINE), watched
    described = stack.kubectl("describe", "nodes")
    assert described.code == 0, described.output
    assert re.search(rf"Non-terminated Pods:(?s:.*){name}-0-0-", described.output), "what runs on which node"
    sync_pod = stack.kubectl("logs", *SPACE, n.sync_pod(name))
    assert sync_pod.code == 0, sync_pod.output
    sent = set(re.findall(r"sha256:[0-9a-f]{64} was sent to", sync_pod.output))
    assert len(sent) == 2, "before and after the edit"


def files_go_both_ways(stack: Stack, name: str, directory: Path) -> None:
    """To and from the worker that is meant, and no other."""
    weights, fetched = directory / "weights", directory / "fetched"
    weights.write_bytes(bytes(range(256)) * 1000)
    sent = torchrun(stack, "cp", "weights", f"{name}:/tmp/weights", "--node-rank", "1", cwd=directory)
    assert sent.code == 0, sent.output
    for rank, there in (("0", False), ("1", True)):
        done = torchrun(stack, "cp", f"{name}:/tmp/weights", "fetched", "--node-rank", rank, cwd=directory)
        assert (done.code == 0, fetched.exists()) == (there, there), done.output
    assert fetched.read_bytes() == weights.read_bytes()


def test_project_and_image_trainer_run_in_a_workspace(installed: Stack, tmp_path: Path) -> None:
    """The examples' project as their page submits it; the image's own trainer beside somebody's files."""
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "notes.txt").write_text("of mine")
    beside = torchrun(
        installed, "submit", "--queue", "dev", "--gpus", "1", "--name", "beside",
        "python -m trainer.train --epochs 1", cwd=notes,
    )  # fmt: skip
    assert beside.code == 0, beside.output
    page = (EXAMPLES / "README.md").read_text()
    block = page.partition("To submit your own directory")[2].split("```")[1].removeprefix("bash")
    (tmp_path / "project").symlink_to(EXAMPLES / "project")
    answer = subprocess.run(
        ["bash", "-ec", block],
        cwd=tmp_path, env=in_their_namespace(installed, tmp_path), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    assert "epoch 20 of 20" in answer.stdout
    assert phase(installed, "mine") == n.PHASE_SUCCEEDED
    reaches(installed, "beside", n.PHASE_SUCCEEDED)
    assert "result=succeeded" in logs_of(installed, "beside")


def test_finished_job_whose_objects_are_deleted_stays_finished(installed: Stack) -> None:
    before = job(installed, "mine")["status"]
    deleted = installed.kubectl("delete", "jobs", *SPACE, "-l", f"{n.LABEL_JOB}=mine", "--wait=true")
    assert deleted.code == 0, deleted.output
    pods = ("pods", *SPACE, "-l", f"{n.LABEL_JOB}=mine")
    assert gone_within(60, lambda: [each["metadata"]["name"] for each in installed.get(*pods)["items"]]) == []
    assert gone_within(3, lambda: [job(installed, "mine")["status"] == before]) == [True]
    assert installed.get("jobs", *SPACE, "-l", f"{n.LABEL_JOB}=mine")["items"] == []


def test_examples_page_commands_make_queues_and_train(installed: Stack, tmp_path: Path) -> None:
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


def test_suspended_job_resumes_from_its_checkpoint(installed: Stack) -> None:
    applied = installed.kubectl("apply", *SPACE, "-f", str(EXAMPLES / "suspend.yaml"))
    assert applied.code == 0, applied.output
    reaches(installed, "suspended", n.PHASE_SUSPENDED)
    assert torchrun(installed, "resume", "suspended").code == 0

    def saved() -> int:
        return int((job(installed, "suspended")["status"].get("progress") or {}).get("checkpointStep", 0))

    until(lambda: saved() >= 50, "its status has its first checkpoint", WAIT_SECONDS)
    assert "checkpoint=saved" in logs_of(installed, "suspended")
    assert torchrun(installed, "suspend", "suspended").code == 0
    reaches(installed, "suspended", n.PHASE_SUSPENDED)
    pods = ("pods", *SPACE, "-l", f"{n.LABEL_JOB}=suspended")
    assert gone_within(60, lambda: installed.get(*pods)["items"]) == []
    assert torchrun(installed, "resume", "suspended").code == 0
    until(lambda: "checkpoint=loaded" in logs_of(installed, "suspended"), "it goes on", WAIT_SECONDS)
    assert job(installed, "suspended")["status"]["restarts"] == 0
    assert torchrun(installed, "cancel", "suspended").code == 0
