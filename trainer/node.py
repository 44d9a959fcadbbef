"""Find out what this container can use of its node: devices, drivers, network interfaces and mounts.

The sources are files of the kernel below `root` (`/` except in tests), the library of the NVIDIA driver, and
libfabric's `fi_info` if the image has it. The entry point is `inspect_node`.
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
# Resource -> names of its devices in /dev, and the file with the version of their driver.
_DEVICES: Final = {GPU: "nvidia[0-9]*", NEURON: "neuron[0-9]*"}
_DRIVERS: Final = {GPU: "proc/driver/nvidia/version", NEURON: "sys/module/neuron/version"}
# Where the images and the installer of AWS put it (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html).
_FI_INFO_PLACES: Final = f"{os.environ.get('PATH', '')}:/opt/amazon/efa/bin"
_FI_INFO_SECONDS: Final = 60
# In a domain such as `rdmap16s27-rdm`, the part before the type of the endpoint is the interface.
_DOMAIN: Final = re.compile(r"^\s*domain:\s*(\S+?)(?:-(?:rdm|dgrm))?\s*$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Cuda:
    """The GPUs that the library of the driver can use, or why it failed."""

    devices: int
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node as a container sees it.

    Attributes:
        devices: Devices in /dev.
        driver: The version of their driver, None without one.
        cuda: What CUDA can use, None if the resource is not a GPU.
        efa_cards: EFA devices of the kernel.
        efa_available: EFA devices that the container can open.
        efa_usable: EFA devices that libfabric finds, None if the image has no `fi_info`.
        file_system: The type of the file system at the mount path, None if nothing is mounted.
        lustre_client: Whether the kernel supports Lustre.
    """

    devices: int = 0
    driver: str | None = None
    cuda: Cuda | None = None
    efa_cards: int = 0
    efa_available: int = 0
    efa_usable: int | None = None
    file_system: str | None = None
    lustre_client: bool = False


def inspect_node(
    resource: str,
    mount: str | None,
    *,
    root: Path = Path("/"),
    cuda: Callable[[], Cuda] | None = None,
    fi_info: Callable[[], str | None] | None = None,
) -> Node:
    """Inspect this node for devices of `resource` and a file system at `mount`.

    In tests, `cuda` and `fi_info` replace the library of the driver and the tool of libfabric.
    """
    listed = (fi_info or run_fi_info)()
    return Node(
        devices=len(list((root / "dev").glob(_DEVICES[resource]))) if resource in _DEVICES else 0,
        driver=driver_version(resource, root),
        cuda=(cuda or ask_cuda)() if resource == GPU else None,
        efa_cards=_efa_cards(root),
        efa_available=len(list((root / "dev/infiniband").glob("uverbs*"))),
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
    """Return the version of the kernel's driver for this resource; None without one."""
    if resource not in _DRIVERS:
        return None
    found = re.search(r"\b[0-9]+(\.[0-9]+)+\b", _text(root / _DRIVERS[resource]))
    return found[0] if found else None


def _efa_cards(root: Path) -> int:
    """Count the RDMA devices of the EFA driver. A node may have others, for instance NVLink controllers."""
    drivers = (entry / "device/driver" for entry in (root / "sys/class/infiniband").glob("*"))
    return sum(driver.resolve().name == "efa" for driver in drivers)


def _file_system(root: Path, mount: str) -> str | None:
    """Return the type of the last mount at a path (https://docs.kernel.org/filesystems/proc.html, mountinfo)."""
    found = None
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[4] == mount:
            found = after.split()[0]
    return found


def ask_cuda() -> Cuda:
    """Count the GPUs that CUDA can use, with the library of the driver, which every pod with a GPU has."""
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
    """Return the output of `fi_info -p efa`, empty without an interface; None if the image has no such tool."""
    tool = shutil.which("fi_info", path=_FI_INFO_PLACES)
    if tool is None:
        return None
    try:
        answer = subprocess.run([tool, "-p", "efa"], capture_output=True, text=True, timeout=_FI_INFO_SECONDS)
    except subprocess.TimeoutExpired:
        return ""
    return answer.stdout
