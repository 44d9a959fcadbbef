"""What this machine gives the container it is asked from: devices, their drivers, network interfaces, mounts.

Everything is read from the kernel's files below `root` (`/` but in tests), from the NVIDIA driver's own library, and
from libfabric's `fi_info` where the image has it. Nothing here judges.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

GPU: Final = "nvidia.com/gpu"
NEURON: Final = "aws.amazon.com/neuron"
# Resource -> names of its devices in /dev, and the file that tells the version of their driver.
_DEVICES: Final = {GPU: "nvidia[0-9]*", NEURON: "neuron[0-9]*"}
_DRIVERS: Final = {GPU: "proc/driver/nvidia/version", NEURON: "sys/module/neuron/version"}
# Where AWS's own images and installer put it (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html).
_FI_INFO_PLACES: Final = f"{os.environ.get('PATH', '')}:/opt/amazon/efa/bin"
_FI_INFO_SECONDS: Final = 60
# Of a domain such as `rdmap16s27-rdm` the part before the kind of endpoint names the interface.
_DOMAIN: Final = re.compile(r"^\s*domain:\s*(\S+?)(?:-(?:rdm|dgrm))?\s*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Cuda:
    """What the driver's library says: how many GPUs it can use, or why it can't tell."""

    devices: int
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One machine as a container sees it.

    `devices` are those in /dev; `driver` is its version, None without one; `cuda` None where no GPU was asked for.
    `efa_cards` are the kernel's EFA devices, `efa_given` those that the container may open, `efa_usable` those that
    libfabric finds (None: the image has no `fi_info`). `file_system` is the type of what is mounted at the path that
    was asked for, None where nothing is; `lustre_client` says whether the kernel knows Lustre.
    """

    devices: int = 0
    driver: str | None = None
    cuda: Cuda | None = None
    efa_cards: int = 0
    efa_given: int = 0
    efa_usable: int | None = None
    file_system: str | None = None
    lustre_client: bool = False


def look(
    resource: str,
    mount: str | None,
    *,
    root: Path = Path("/"),
    cuda: Callable[[], Cuda] | None = None,
    fi_info: Callable[[], str | None] | None = None,
) -> Machine:
    """Look at this machine for devices named `resource` and a file system at `mount`.

    `cuda` and `fi_info` stand in for the driver's library and for libfabric's tool.
    """
    listed = (fi_info or run_fi_info)()
    return Machine(
        devices=len(list((root / "dev").glob(_DEVICES[resource]))) if resource in _DEVICES else 0,
        driver=driver_version(resource, root),
        cuda=(cuda or ask_cuda)() if resource == GPU else None,
        efa_cards=_efa_cards(root),
        efa_given=len(list((root / "dev/infiniband").glob("uverbs*"))),
        efa_usable=None if listed is None else len(set(_DOMAIN.findall(listed))),
        file_system=_file_system(root, mount) if mount else None,
        lustre_client="lustre" in _text(root / "proc/filesystems").split(),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def driver_version(resource: str, root: Path = Path("/")) -> str | None:
    """The version of the kernel's driver for this kind of device; None without one."""
    if resource not in _DRIVERS:
        return None
    found = re.search(r"\b[0-9]+(\.[0-9]+)+\b", _text(root / _DRIVERS[resource]))
    return found[0] if found else None


def _efa_cards(root: Path) -> int:
    """RDMA devices of the EFA driver; a machine may have others, for instance NVLink controllers."""
    drivers = (entry / "device/driver" for entry in (root / "sys/class/infiniband").glob("*"))
    return sum(driver.resolve().name == "efa" for driver in drivers)


def _file_system(root: Path, mount: str) -> str | None:
    """The type of what was mounted at a path last (https://docs.kernel.org/filesystems/proc.html, mountinfo)."""
    found = None
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[4] == mount:
            found = after.split()[0]
    return found


def ask_cuda() -> Cuda:
    """The GPUs that CUDA can use. Asks the driver's library alone, which every pod with a GPU has; no torch."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return Cuda(devices=0, problem="libcuda.so.1 is not in the container")
    count = ctypes.c_int()
    for name, argument in (("cuInit", 0), ("cuDeviceGetCount", ctypes.byref(count))):
        code = getattr(library, name)(argument)
        if code != 0:
            return Cuda(devices=0, problem=f"{name} ended with CUDA error {code}")
    return Cuda(devices=count.value)


def run_fi_info() -> str | None:
    """What `fi_info -p efa` lists, empty where it finds no interface; None where the image has no such tool."""
    tool = shutil.which("fi_info", path=_FI_INFO_PLACES)
    if tool is None:
        return None
    try:
        answer = subprocess.run([tool, "-p", "efa"], capture_output=True, text=True, timeout=_FI_INFO_SECONDS)
    except subprocess.TimeoutExpired:
        return ""
    return answer.stdout
