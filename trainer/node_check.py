"""`python -m trainer.node_check`: check that this node has the devices that a run will need.

The variable TRAINYARD_NODE_CHECK has the requirements, which the Pulumi program takes from its table of instance types.
The command prints one line for each missing thing. The exit code is 0 for a node that is fit, 1 for one that is not,
and 2 if TRAINYARD_NODE_CHECK is wrong.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from trainer import contract
from trainer.contract import CheckExit
from trainer.node import GPU, Node, inspect_node

_EFA_PLACE = "/sys/class/infiniband"


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a node of `instance_type` must have: `devices` of `resource`, `efa` interfaces, Lustre at `lustre`."""

    instance_type: str
    resource: str
    devices: int
    efa: int
    lustre: str | None


def expected(environ: Mapping[str, str]) -> Expected:
    """Read the requirements from the environment. Raise ValueError with a one-line message."""
    try:
        document = json.loads(environ[contract.NODE_CHECK])
        return Expected(
            instance_type=document["instanceType"],
            resource=document["resource"],
            devices=document["devices"],
            efa=document["efa"],
            lustre=document["lustre"],
        )
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"{contract.NODE_CHECK} is {environ.get(contract.NODE_CHECK)}; the CronJob of the pool's check must set it "
            "to a JSON object with instanceType, resource, devices, efa and lustre"
        ) from None


def faults(required: Expected, found: Node) -> list[str]:
    """Return a line for each missing thing: what was found, what must be there, and where to look."""
    lines = []
    if required.devices:
        has = f"{required.instance_type} has {required.devices}"
        if found.driver is None:
            lines.append(
                f"driver: none of {required.resource} is loaded; use an image with this driver (cluster.ami)"
            )
        if found.devices != required.devices:
            lines.append(
                f"devices: {found.devices} of {required.resource} in /dev; {has}:"
                " look at the device plugin's log and at dmesg"
            )
        if required.resource == GPU and found.cuda is not None and found.cuda.devices != required.devices:
            said = found.cuda.problem or f"it can use {found.cuda.devices}"
            lines.append(f"CUDA: {said}; {required.devices} GPUs must be usable")
    if required.efa:
        has = f"this pool's {required.instance_type} have {required.efa}"
        if found.efa_cards != required.efa:
            lines.append(
                f"EFA: the kernel has {found.efa_cards} ({_EFA_PLACE}); {has}:"
                " look at networkInterfaces of the EC2NodeClass"
            )
        if found.efa_available != required.efa:
            lines.append(
                f"EFA: the pod has {found.efa_available} (/dev/infiniband); {has}:"
                " look at the EFA device plugin's log"
            )
        if found.efa_usable is not None and found.efa_usable != required.efa:
            lines.append(
                f"EFA: fi_info -p efa finds {found.efa_usable}; {has}: look at its security group and at dmesg"
            )
    if required.lustre is not None and found.file_system != "lustre":
        client = "the kernel knows Lustre" if found.lustre_client else "the kernel has no Lustre client"
        is_ = f"is {found.file_system}" if found.file_system else "is not mounted"
        lines.append(
            f"Lustre: {required.lustre} {is_}, and {client}; it must be lustre: see the log of the FSx CSI driver"
        )
    return lines


def summary(required: Expected, found: Node) -> str:
    """Return what was found on a node that is fit, and what could not be checked."""
    parts = []
    if required.devices:
        parts.append(f"{found.devices} {required.resource} with driver {found.driver}")
    if required.efa:
        source = "as fi_info says" if found.efa_usable is not None else "fi_info is not in the image"
        parts.append(f"{found.efa_available} EFA interfaces ({source})")
    if required.lustre is not None:
        parts.append(f"Lustre at {required.lustre}")
    return ", ".join(parts) or "nothing beside cores and memory is asked of it"


def main(environ: Mapping[str, str], inspect: Callable[[str, str | None], Node] = inspect_node) -> int:
    """Check this node and print what is missing. Return the exit code."""
    try:
        required = expected(environ)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return int(CheckExit.CONFIGURATION)
    found = inspect(required.resource, required.lustre)
    node = environ.get(contract.NODE) or "this node"
    missing = faults(required, found)
    for line in missing:
        print(f"{node}: {line}", flush=True)
    if missing:
        print(f"{node} is not fit: {len(missing)} of its checks failed", flush=True)
        return int(CheckExit.UNFIT)
    print(f"{node} is fit: {summary(required, found)}", flush=True)
    return int(CheckExit.FIT)


if __name__ == "__main__":
    sys.exit(main(os.environ))
