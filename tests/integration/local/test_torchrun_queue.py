"""A queue that a stack is given while it runs: with it come the controller, and workspaces in the stack's bucket."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.place import until
from tests.integration.local.conftest import Stack
from tests.integration.local.torchrun_person import (
    LISTENS,
    SPACE,
    WAIT_SECONDS,
    job,
    logs_of,
    phase,
    reaches,
    submit_edited,
    torchrun,
)
from trainyard.operator import names as n
from trainyard.workspace.archive import pack
from trainyard.workspace.bucket import parse_url

pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]

QUEUE = "research"
# The stack's claim to its Lustre file system (components/lustre.py).
SHARED = {"enabled": True, "existingClaim": "lustre"}
PORT = 29778
# Both workers write to the directory that they share, and one a checkpoint; then they wait for an edit.
SHARES = f"""
import errno, os, pathlib, socket, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
socket.create_connection((os.environ["MASTER_ADDR"], {PORT}), 10).close()
pathlib.Path(f"by-{{rank}}").touch()
if rank == 0:
    torch.save(torch.arange(5.0), "/checkpoints/step.pt")
dist.barrier()
try:
    pathlib.Path("/datasets/mine").touch()
    refused = "nothing"
except OSError as error:
    refused = errno.errorcode[error.errno]
files = sorted(each.name for each in pathlib.Path().glob("by-*"))
read = [float(torch.load(f"{{place}}/step.pt").sum()) for place in ("/checkpoints", "/datasets")]
print("rank", rank, *files, "read", *read, "refused", refused, flush=True)
while pathlib.Path("said.txt").read_text() != "end":
    time.sleep(0.2)
print("rank", rank, "saw the edit beside", *sorted(each.name for each in pathlib.Path().glob("by-*")), flush=True)
"""


def take(config: dict[str, Any]) -> None:
    """What was given."""
    for key in ("trainyard:queues", "trainyard:storage"):
        del config[key]


@pytest.fixture(scope="module")
def queued(second_stack: Stack) -> Iterator[Stack]:
    """As a person gives it, and a file system that machines share: an edit of the stack file, and `pulumi up`."""

    def give(config: dict[str, Any]) -> None:
        config["trainyard:queues"] = [
            {
                "name": QUEUE,
                "pool": config["trainyard:pools"][0]["name"],
                "storage": {"workspace": {"bucket": "models"}},
            }
        ]
        config["trainyard:storage"] = {"lustre": {"deploymentType": "SCRATCH_2", "capacityGiB": 1200}}

    stack = second_stack
    stack.update(give)
    yield stack
    if "trainyard:queues" in stack.settings()["config"]:  # the last test takes it away
        stack.kubectl("delete", "torchrunjobs,torchrunqueues", "--all", "--all-namespaces", "--timeout=120s")
        stack.update(take)


def write_as_an_attacker(stack: Stack, workspace: dict[str, Any], uid: str, scratch: Path) -> None:
    """Put other code, and a pointer to it, where everybody with write access to the bucket could put it."""
    code = scratch.parent / "evil"
    code.mkdir()
    (code / "said.txt").write_text("evil")
    archive = pack(code, directory=scratch.parent)
    s3 = stack.aws("s3")
    bucket, key = parse_url(workspace["url"])
    assert key.startswith(f"torchrun/workspaces/{SPACE[1]}/")
    other = f"{key.rpartition('/')[0]}/{archive.digest.removeprefix('sha256:')}.tar.zst"
    s3.put_object(Bucket=bucket, Key=other, Body=archive.file.read_bytes())
    pointer = {"digest": archive.digest, "size": archive.size, "url": f"s3://{bucket}/{other}"}
    for place in (f"torchrun/jobs/{uid}/current", f"torchrun/{SPACE[1]}/jobs/{uid}/current"):
        s3.put_object(Bucket=bucket, Key=place, Body=json.dumps(pointer).encode())


def test_bucket_workspace_reaches_a_running_job_with_its_edit(queued: Stack, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LISTENS)
    (tmp_path / "said.txt").write_text("before")
    submit = ("submit", "--queue", QUEUE, "--gpus", "1", "python train.py")
    made = torchrun(queued, *submit, "--name", "stored", cwd=tmp_path)
    assert made.code == 0, made.output
    workspace = job(queued, "stored")["spec"]["workspace"]
    assert workspace["url"].startswith("s3://")
    until(lambda: "said before" in logs_of(queued, "stored"), "it works", WAIT_SECONDS)
    assert n.sync_pod("stored") not in queued.kubectl("get", "pods", *SPACE, "-o", "name").output
    write_as_an_attacker(queued, workspace, job(queued, "stored")["metadata"]["uid"], tmp_path)
    (tmp_path / "said.txt").write_text("after")
    assert torchrun(queued, "sync", "stored", cwd=tmp_path).code == 0
    # A kubelet writes a changed annotation to its file once a minute.
    until(lambda: "said after" in logs_of(queued, "stored"), "the edit is there", 120)
    (tmp_path / "said.txt").write_text("end")
    assert torchrun(queued, "sync", "stored", cwd=tmp_path).code == 0
    ended = reaches(queued, "stored", n.PHASE_SUCCEEDED)
    assert ended["restarts"] == 0
    # One node until now, at Karpenter's price.
    cost = ended["cost"]
    assert 0 <= cost["idleNodeHours"] < cost["nodeHours"] < 1, cost
    assert 0.01 < cost["usd"] / cost["nodeHours"] < 100, cost
    assert "evil" not in logs_of(queued, "stored"), "what lies in the bucket decided what runs"
    gone = queued.kubectl("delete", "pods", *SPACE, "-l", f"{n.LABEL_JOB}=stored", "--wait")
    assert gone.code == 0, gone.output
    kept = torchrun(queued, "logs", "stored")
    assert kept.code == 0, kept.output
    assert re.findall(r"said (\w+)$", kept.output, re.M) == ["before", "after", "end"]
    again = torchrun(queued, *submit, "--name", "again", cwd=tmp_path)
    assert "unchanged" in again.output
    assert torchrun(queued, "cancel", "again").code == 0


def test_workers_on_two_machines_share_workspace_and_checkpoints(queued: Stack, tmp_path: Path) -> None:
    """On one volume of the stack's Lustre file system; data sets are the same one, and nobody writes there.

    They meet at the port that the queue's fields say.
    """
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SHARES)
    (code / "said.txt").write_text("before")
    volumes = {each: SHARED for each in ("workspace", "datasets", "checkpoints")}
    fields = {"overrides": {"storage": volumes, "networking": {"port": PORT}}}
    submit_edited(
        queued, "shared", fields, "--queue", QUEUE, "--gpus", "2", "--nodes", "2",
        "python train.py", cwd=code,
    )  # fmt: skip
    lines = [f"rank {rank} by-0 by-1 read 10.0 10.0 refused EROFS\n" for rank in (0, 1)]

    def both_said_it() -> bool:
        assert phase(queued, "shared") not in n.FINAL_PHASES, job(queued, "shared")["status"]
        said = logs_of(queued, "shared")
        return all(each in said for each in lines)

    until(both_said_it, " and ".join(lines), WAIT_SECONDS)
    pods = queued.get("pods", *SPACE, "-l", f"{n.LABEL_JOB}=shared,{n.LABEL_ATTEMPT}")["items"]
    assert len({each["spec"]["nodeName"] for each in pods}) == 2
    sync_pod = queued.get("pod", n.sync_pod("shared"), *SPACE)
    node = queued.get("node", sync_pod["spec"]["nodeName"])
    assert "karpenter.sh/nodepool" not in node["metadata"]["labels"]
    (code / "said.txt").write_text("end")
    assert torchrun(queued, "sync", "shared", cwd=code).code == 0
    assert reaches(queued, "shared", n.PHASE_SUCCEEDED)["restarts"] == 0
    for rank in (0, 1):
        assert f"rank {rank} saw the edit beside by-0 by-1\n" in logs_of(queued, "shared")


def test_status_of_a_running_job_has_its_progress(queued: Stack) -> None:
    """The queue's own image tells it by its metrics, and the controller asks for them."""
    submitted = torchrun(
        queued, "submit", "--queue", QUEUE, "--gpus", "1", "--name", "reported", "--no-workspace",
        "python -m trainer.train --device cpu --steps 1000000",
    )  # fmt: skip
    assert submitted.code == 0, submitted.output

    def read_status() -> dict[str, Any]:
        status = job(queued, "reported").get("status") or {}
        assert status.get("phase") not in n.FINAL_PHASES, status
        return dict(status.get("progress") or {})

    until(lambda: read_status().get("step", 0) > 0, "its first step is reported", WAIT_SECONDS)
    first = read_status()
    assert first["loss"] > 0
    assert (first["throughput"] > 0, first["unit"]) == (True, "samples/s")
    until(lambda: read_status()["step"] > first["step"], "it goes on", 60)


def test_queues_taken_away_while_a_job_runs_leave_nothing(queued: Stack) -> None:
    """As the page says."""
    assert phase(queued, "reported") == n.PHASE_RUNNING
    ended = queued.kubectl(
        "delete", "torchrunjobs,torchrunqueues", "--all", "--all-namespaces", "--timeout=120s"
    )
    assert ended.code == 0, ended.output
    queued.update(take)
    assert queued.kubectl("get", "torchrunjobs", "-A").code == 1, "the definition is there"
    assert queued.kubectl("get", "namespace", n.CONTROLLER_NAMESPACE).code == 1

    def left() -> str:
        found = queued.kubectl("get", "pods,jobs.batch,services,pvc", *SPACE, "-l", n.LABEL_JOB, "-o", "name")
        return found.output.replace("No resources found in training namespace.", "").strip()

    until(lambda: left() == "", "what was made for jobs is gone", 60)
