"""The check of a machine: what is read of it, and what is said of what it lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainer import node
from trainer.node import Cuda, Node, inspect_node, run_fi_info
from trainer.node_check import Expected, faults, main, summary

ROOT = Path(__file__).parents[3]
P4D = Expected(instance_type="p4d.24xlarge", resource="nvidia.com/gpu", devices=8, efa=4, lustre="/fsx")
WHOLE = Node(
    devices=8,
    driver="570.86.15",
    cuda=Cuda(devices=8),
    efa_cards=4,
    efa_available=4,
    efa_usable=4,
    file_system="lustre",
    lustre_client=True,
)
FI_INFO = """\
provider: efa
    fabric: efa
    domain: rdmap16s27-rdm
    version: 117.0
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa
    fabric: efa
    domain: rdmap32s27-rdm
    version: 117.0
provider: efa
    fabric: efa
    domain: rdmap16s27-dgrm
    version: 117.0
"""
MOUNTS = """\
22 1 0:20 / / rw - overlay overlay rw
30 22 0:40 / /fsx rw,noatime shared:5 - ext4 /dev/sda rw
31 30 0:41 / /fsx rw,noatime - lustre 10.0.0.5@tcp:/abcdefgh rw,flock
"""


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def card(root: Path, name: str, driver: str) -> None:
    """An RDMA device as sysfs shows it: the driver is a link."""
    (root / f"sys/bus/pci/drivers/{driver}").mkdir(parents=True, exist_ok=True)
    device = root / f"sys/class/infiniband/{name}/device"
    device.mkdir(parents=True)
    (device / "driver").symlink_to(root / f"sys/bus/pci/drivers/{driver}")


def seen(root: Path, resource: str = "nvidia.com/gpu", mount: str | None = "/fsx") -> Node:
    return inspect_node(resource, mount, root=root, cuda=lambda: Cuda(devices=2), fi_info=lambda: FI_INFO)


def test_a_whole_machine_is_read_as_it_is(tmp_path: Path) -> None:
    gpus = {f"dev/{name}": "" for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps")}
    verbs = {f"dev/infiniband/{name}": "" for name in ("uverbs0", "uverbs1", "rdma_cm")}
    driver = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12"
    )
    kernel = {"proc/driver/nvidia/version": driver, "proc/self/mountinfo": MOUNTS}
    tree(tmp_path, {**gpus, **verbs, **kernel, "proc/filesystems": "nodev\tproc\nnodev\tlustre\n"})
    card(tmp_path, "rdmap16s27", "efa")
    card(tmp_path, "rdmap32s27", "efa")
    card(tmp_path, "mlx5_0", "mlx5_core")
    assert seen(tmp_path) == Node(
        devices=2,
        driver="570.86.15",
        cuda=Cuda(devices=2),
        efa_cards=2,
        efa_available=2,
        efa_usable=2,
        file_system="lustre",
        lustre_client=True,
    )


def test_a_bare_machine_has_nothing(tmp_path: Path) -> None:
    found = inspect_node(
        "nvidia.com/gpu", "/fsx", root=tmp_path, cuda=lambda: Cuda(devices=0), fi_info=lambda: ""
    )
    assert found == Node(cuda=Cuda(devices=0), efa_usable=0)
    assert inspect_node("cpu", None, root=tmp_path, fi_info=lambda: None) == Node()


def test_neuron_devices_have_a_driver_of_their_own(tmp_path: Path) -> None:
    tree(tmp_path, {"dev/neuron0": "", "dev/neuron15": "", "sys/module/neuron/version": "2.21.37.0\n"})
    found = seen(tmp_path, "aws.amazon.com/neuron", None)
    assert (found.devices, found.driver, found.cuda, found.file_system) == (2, "2.21.37.0", None, None)


def test_a_machine_with_everything_is_fit() -> None:
    assert faults(P4D, WHOLE) == []
    assert summary(P4D, WHOLE) == (
        "8 nvidia.com/gpu with driver 570.86.15, 4 EFA interfaces (as fi_info says), Lustre at /fsx"
    )
    without = replace(WHOLE, efa_usable=None)
    assert faults(P4D, without) == []
    assert "(fi_info is not in the image)" in summary(P4D, without)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ({"driver": None}, "driver: none of nvidia.com/gpu is loaded; use"),
        ({"devices": 7}, "devices: 7 of nvidia.com/gpu in /dev; p4d.24xlarge has 8"),
        ({"cuda": Cuda(devices=7)}, "CUDA: it can use 7; 8 GPUs must be usable"),
        (
            {"cuda": Cuda(devices=0, problem="cuInit ended with CUDA error 802")},
            "CUDA: cuInit ended with CUDA error 802; ",
        ),
        ({"efa_cards": 3}, "EFA: the kernel has 3 (/sys/class/infiniband); this pool's p4d.24xlarge have 4"),
        ({"efa_available": 0}, "EFA: the pod has 0 (/dev/infiniband); this pool's p4d.24xlarge have 4"),
        ({"efa_usable": 1}, "EFA: fi_info -p efa finds 1; this pool's p4d.24xlarge have 4"),
        (
            {"file_system": None, "lustre_client": False},
            "Lustre: /fsx is not mounted, and the kernel has no Lustre",
        ),
        ({"file_system": "ext4"}, "Lustre: /fsx is ext4, and the kernel knows Lustre; it must be lustre"),
    ],
)
def test_each_missing_thing_is_one_line(missing: dict[str, Any], message: str) -> None:
    (line,) = faults(P4D, replace(WHOLE, **missing))
    assert line.startswith(message)
    assert "\n" not in line


def test_what_is_not_asked_for_is_not_missed() -> None:
    cpu = Expected(instance_type="m5.large", resource="cpu", devices=0, efa=0, lustre=None)
    assert faults(cpu, Node()) == []
    assert summary(cpu, Node()) == "nothing beside cores and memory is asked of it"


RIGHT = {"instanceType": "p4d.24xlarge", "resource": "nvidia.com/gpu", "devices": 8, "efa": 4, "lustre": None}


@pytest.mark.parametrize("text", [None, "{", "[]", '{"instanceType": "p5"}'])
def test_wrong_expectation_is_one_line(text: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {} if text is None else {"TRAINYARD_NODE_CHECK": text}
    assert main(environ, lambda _resource, _mount: WHOLE) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: TRAINYARD_NODE_CHECK is {text}; ")


def test_the_exit_code_says_whether_the_machine_is_fit(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"TRAINYARD_NODE_CHECK": json.dumps(RIGHT), "TRAINYARD_NODE": "n1"}
    assert main(environ, lambda _resource, _mount: WHOLE) == 0
    assert capsys.readouterr().out.startswith("n1 is fit: 8 nvidia.com/gpu")
    assert main(environ, lambda _resource, _mount: replace(WHOLE, devices=7, efa_available=3)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[1].strip() for line in lines[:2]] == ["devices", "EFA"]
    assert lines[2:] == ["n1 is not fit: 2 of its checks failed"]


def tool(directory: Path, script: str) -> None:
    path = directory / "fi_info"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_fi_info_is_asked_for_efa_where_the_image_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "_FI_INFO_PLACES", str(tmp_path))
    assert run_fi_info() is None
    tool(tmp_path, '[ "$*" = "-p efa" ] && echo "    domain: rdmap0s6-rdm"')
    assert run_fi_info() == "    domain: rdmap0s6-rdm\n"
    # What the real one does where there is no interface.
    tool(tmp_path, 'echo "fi_getinfo: -61" >&2; exit 61')
    assert run_fi_info() == ""


def test_the_real_program_says_what_this_machine_lacks() -> None:
    """No machine that runs the tests has a thousand GPUs."""
    environ = {"TRAINYARD_NODE_CHECK": json.dumps({**RIGHT, "devices": 1000, "lustre": "/nowhere"})}
    command = [sys.executable, "-m", "trainer.node_check"]
    answer = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environ}, capture_output=True, text=True, timeout=120
    )
    assert answer.returncode == 1, answer.stderr
    assert answer.stderr == ""
    assert "1000 GPUs must be usable" in answer.stdout
    assert "Lustre: /nowhere is not mounted" in answer.stdout
