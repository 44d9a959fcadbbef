"""What a worker on the second stack sees of its job's fields: the script prints it.

The job is made the way in which `submit` gives every field: its dry run, edited, applied, and its workspace sent.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.faults.place import Place, until
from tests.integration.local.conftest import Command, Stack
from tests.integration.local.torchrun_person import SPACE, job, logs_of, reaches, submit_edited, torchrun
from trainyard.operator import names as n

pytestmark = [pytest.mark.local, pytest.mark.timeout(1200)]

MEBIBYTE = 2**20
PORT = 29777
# It says in one line what it has found out.
LOOKS = f"""
import json, os, socket, sys
import torch
import torch.distributed as dist

def open_ports(host):
    found = []
    for port in ({n.RENDEZVOUS_PORT}, {PORT}):
        with socket.socket() as tried:
            tried.settimeout(5)
            if tried.connect_ex((host, port)) == 0:
                found.append(port)
    return found

dist.init_process_group(os.environ["{n.ENV_BACKEND}"])
total = torch.ones(1)
dist.all_reduce(total)
env = {{k: os.environ.get(k) for k in ("A", "WORLD", "POD_IP", "CPUS",
        "{n.ENV_NCCL_INTERFACE}", "{n.ENV_GLOO_INTERFACE}")}}
os.environ["{n.ENV_GLOO_INTERFACE}"] = "none0"
try:
    dist.new_group(backend="gloo")
    refused = ""
except RuntimeError as error:
    refused = str(error)
shared = os.statvfs("/dev/shm")
first = os.environ["MASTER_ADDR"]
print("seen " + json.dumps({{
    "rank": dist.get_rank(),
    "total": total.item(),
    "backend": dist.get_backend(),
    "argv": sys.argv,
    "cwd": os.getcwd(),
    "mounts": [path for path in ("/work", "/work/code", "/app", "/dev/shm") if os.path.ismount(path)],
    "shared": shared.f_blocks * shared.f_frsize,
    "first": first,
    "ports": open_ports(first),
    "env": env,
    "refused": refused,
}}), flush=True)
dist.barrier()
"""
EDITED: dict[str, Any] = {
    "env": [
        {"name": "WORLD", "value": f"$({n.ENV_JOB})"},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
    ],
    "args": ["--text", "two words", "$HOME", "it's"],
    "distributed": {"port": PORT},
    "maxRestarts": 0,
    "ttlSecondsAfterFinished": 3600,
    "overrides": {
        "workingDir": "/work/code",
        "networking": {"interface": "=lo", "port": 29778},
        "storage": {
            "workspace": {"enabled": True, "size": "1Gi", "mountPath": "/work"},
            "shmSizePerGPU": "96Mi",
        },
    },
}


@pytest.fixture(scope="module")
def seen(installed: Stack, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the two workers of the job saw, by rank."""
    project = tmp_path_factory.mktemp("project")
    (project / "code").mkdir()
    (project / "code" / "look.py").write_text(LOOKS)
    submit_edited(
        installed, "inside", EDITED, "--queue", "cpu", "--gpus", "0", "--nodes", "2", "--env", "A=b c",
        "python look.py", cwd=project,
    )  # fmt: skip
    reaches(installed, "inside", n.PHASE_SUCCEEDED)
    said = [
        json.loads(line.partition("seen ")[2])
        for line in logs_of(installed, "inside").splitlines()
        if "seen " in line
    ]
    return sorted(said, key=lambda each: int(each["rank"]))


def test_edited_job_trains_with_the_workspace_sent_to_it(
    installed: Stack, seen: list[dict[str, Any]]
) -> None:
    assert [(each["rank"], each["total"]) for each in seen] == [(0, 2.0), (1, 2.0)]
    made = job(installed, "inside")
    assert made["spec"]["ttlSecondsAfterFinished"] == EDITED["ttlSecondsAfterFinished"]
    assert (made["status"]["attempt"], made["status"]["workspaceDigest"]) == (
        0,
        made["spec"]["workspace"]["digest"],
    )


def test_command_has_its_arguments_and_working_directory(
    seen: list[dict[str, Any]],
) -> None:
    for each in seen:
        assert each["argv"] == ["look.py", *EDITED["args"]]
        assert each["cwd"] == "/work/code"
        assert each["mounts"] == ["/work", "/dev/shm"]


def test_variables_have_their_values_from_where_they_come(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        assert (each["env"]["A"], each["env"]["WORLD"], each["env"]["CPUS"]) == ("b c", "inside", "500")
    assert len({each["env"]["POD_IP"] for each in seen}) == 2


def test_shared_memory_has_the_size_that_was_said(seen: list[dict[str, Any]]) -> None:
    assert [each["shared"] for each in seen] == [96 * MEBIBYTE] * 2


def test_the_workers_meet_at_the_jobs_own_port_of_the_first_one(seen: list[dict[str, Any]]) -> None:
    assert [each["ports"] for each in seen] == [[PORT]] * 2
    assert {each["first"].partition(".")[0] for each in seen} == {"inside-0-0"}


def test_nccl_and_gloo_have_the_interface_in_their_own_syntax(seen: list[dict[str, Any]]) -> None:
    for each in seen:
        assert (each["env"][n.ENV_NCCL_INTERFACE], each["env"][n.ENV_GLOO_INTERFACE]) == ("=lo", "lo")
        assert each["backend"] == "gloo"


def test_gloo_of_an_interface_that_no_node_has_fails(seen: list[dict[str, Any]]) -> None:
    """Or the variable would be there and nothing more."""
    for each in seen:
        assert re.search(r"\bnone0\b", each["refused"])


def apply(stack: Stack, name: str, spec: dict[str, Any]) -> Command:
    made = {"apiVersion": n.API_VERSION, "kind": n.JOB_KIND, "metadata": {"name": name}, "spec": spec}
    return stack.kubectl("apply", *SPACE, "-f", "-", stdin=json.dumps(made))


def of_type(gpu_type: str) -> dict[str, Any]:
    """A job of two GPUs of this type on one node, whose script prints its shared memory."""
    script = "; ".join(
        (
            "import os",
            "import torch.distributed as d",
            f"d.init_process_group(os.environ['{n.ENV_BACKEND}'])",
            "s = os.statvfs('/dev/shm')",
            "print('of', d.get_world_size(), d.get_backend(), s.f_blocks * s.f_frsize, os.getcwd(), flush=True)",
        )
    )
    return {
        "jobQueue": "dev",
        "numGPUs": 2,
        "command": f'python -c "{script}"',
        "distributed": {"backend": "gloo"},
        "overrides": {
            "nodeResources": {"gpus": 2, "gpuType": gpu_type},
            "workingDir": "/srv/own",
            "storage": {"shmSizePerGPU": "48Mi"},
        },
    }


def test_gpu_type_of_the_pool_is_bought_and_trained_on(installed: Stack) -> None:
    """Two of them have twice the shared memory, and exchange through what the job says."""
    Place(installed.home, installed.outputs).without_machines()
    applied = apply(installed, "right-type", of_type("a10g-24gb"))
    assert applied.code == 0, applied.output
    reaches(installed, "right-type", n.PHASE_SUCCEEDED)
    assert logs_of(installed, "right-type").count(f"of 2 gloo {96 * MEBIBYTE} /srv/own\n") == 2
    (worker,) = installed.get("pods", *SPACE, "-l", f"{n.LABEL_JOB}=right-type,{n.LABEL_ATTEMPT}")["items"]
    node = installed.get("node", worker["spec"]["nodeName"])["metadata"]["labels"]
    assert node["karpenter.k8s.aws/instance-gpu-name"] == "a10g"


def test_gpu_type_that_no_pool_has_tells_what_karpenter_says(installed: Stack) -> None:
    """Also beside the idle machine of the job before, which has the GPUs that the pool has."""
    # For a pool at its limit Karpenter reports only the limit.
    ceiling = installed.settings()["config"]["trainyard:pools"][0]["maxNodes"]
    place = Place(installed.home, installed.outputs)
    until(lambda: len(place.claims()) < ceiling, "the pool may have another machine")
    applied = apply(installed, "wrong-type", of_type("h100-80gb"))
    assert applied.code == 0, applied.output

    def condition() -> dict[str, Any]:
        return dict(job(installed, "wrong-type").get("status") or {})

    until(lambda: condition().get("reason") == n.REASON_CAPACITY_IMPOSSIBLE, "it is reported", 60)
    status = condition()
    assert status["phase"] == n.PHASE_PENDING
    assert "no instance type met all requirements" in status["message"]
    assert "karpenter.k8s.aws/instance-gpu-name In [h100]" in status["message"]
    assert torchrun(installed, "cancel", "wrong-type").code == 0
