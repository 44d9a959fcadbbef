"""`python -m trainer.node_check`: whether the machine that it runs on has what a training will need.

What must be there stands in TRAINYARD_NODE_CHECK, which the program fills from its table of instance types. One line
tells each thing that is missing; the exit code is 0 for a machine that is fit, 1 for one that is not, 2 where
TRAINYARD_NODE_CHECK is wrong.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainer import contract
from trainer.contract import CheckExit
from trainer.machine import GPU, Machine, look

_EFA_PLACE = "/sys/class/infiniband"


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a machine of `instance_type` must have: `devices` of `resource`, `efa` interfaces, Lustre at `lustre`."""

    instance_type: str
    resource: str
    devices: int
    efa: int
    lustre: str | None


def expected(environ: Mapping[str, str]) -> Expected:
    """The expectation in this environment. Raises ValueError with one line that says what is wrong."""
    place = contract.NODE_CHECK
    try:
        document: Any = json.loads(environ[place])
    except KeyError:
        raise ValueError(f"{place} is not set; the CronJob of the pool's check must set it") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{place} is no JSON: {error}") from None
    kinds = {
        "instanceType": (str,), "resource": (str,), "devices": (int,), "efa": (int,), "lustre": (str, type(None)),
    }  # fmt: skip
    if not isinstance(document, dict) or set(document) != set(kinds):
        raise ValueError(f"{place} is {environ[place]}; it must be an object with {', '.join(kinds)}")
    for key, allowed in kinds.items():
        value = document[key]
        if (
            not isinstance(value, allowed)
            or isinstance(value, bool)
            or (isinstance(value, int) and value < 0)
        ):
            wanted = "a whole number" if allowed == (int,) else "a text"
            raise ValueError(f"{place}.{key} is {json.dumps(value)}; it must be {wanted}")
    return Expected(
        instance_type=document["instanceType"],
        resource=document["resource"],
        devices=document["devices"],
        efa=document["efa"],
        lustre=document["lustre"],
    )


def faults(wanted: Expected, found: Machine) -> list[str]:
    """What the machine lacks, one line each: what was found, what would be right, and where to look."""
    return [*_devices(wanted, found), *_efa(wanted, found), *_lustre(wanted, found)]


def _devices(wanted: Expected, found: Machine) -> list[str]:
    if not wanted.devices:
        return []
    lines = []
    has = f"{wanted.instance_type} has {wanted.devices}"
    if found.driver is None:
        lines.append(
            f"driver: none of {wanted.resource} is loaded; use an image with this driver (cluster.ami)"
        )
    if found.devices != wanted.devices:
        lines.append(
            f"devices: {found.devices} of {wanted.resource} in /dev; {has}:"
            " look at the device plugin's log and at dmesg"
        )
    if wanted.resource == GPU and found.cuda is not None and found.cuda.devices != wanted.devices:
        said = found.cuda.problem or f"it can use {found.cuda.devices}"
        lines.append(f"CUDA: {said}; {wanted.devices} GPUs must be usable")
    return lines


def _efa(wanted: Expected, found: Machine) -> list[str]:
    if not wanted.efa:
        return []
    has = f"this pool's {wanted.instance_type} have {wanted.efa}"
    lines = []
    if found.efa_cards != wanted.efa:
        lines.append(
            f"EFA: the kernel has {found.efa_cards} ({_EFA_PLACE}); {has}:"
            " look at networkInterfaces of the EC2NodeClass"
        )
    if found.efa_given != wanted.efa:
        lines.append(
            f"EFA: the pod has {found.efa_given} (/dev/infiniband); {has}: look at the EFA device plugin's log"
        )
    if found.efa_usable is not None and found.efa_usable != wanted.efa:
        lines.append(
            f"EFA: fi_info -p efa finds {found.efa_usable}; {has}: look at its security group and at dmesg"
        )
    return lines


def _lustre(wanted: Expected, found: Machine) -> list[str]:
    if wanted.lustre is None or found.file_system == "lustre":
        return []
    client = "the kernel knows Lustre" if found.lustre_client else "the kernel has no Lustre client"
    is_ = f"is {found.file_system}" if found.file_system else "is not mounted"
    return [
        f"Lustre: {wanted.lustre} {is_}, and {client}; it must be lustre: see the log of the FSx CSI driver"
    ]


def summary(wanted: Expected, found: Machine) -> str:
    """What was found on a machine that is fit, and what could not be asked."""
    parts = []
    if wanted.devices:
        parts.append(f"{found.devices} {wanted.resource} with driver {found.driver}")
    if wanted.efa:
        asked = "as fi_info says" if found.efa_usable is not None else "fi_info is not in the image"
        parts.append(f"{found.efa_given} EFA interfaces ({asked})")
    if wanted.lustre is not None:
        parts.append(f"Lustre at {wanted.lustre}")
    return ", ".join(parts) or "nothing beside cores and memory is asked of it"


def main(environ: Mapping[str, str], look_at: Callable[[str, str | None], Machine] = look) -> int:
    """Check this machine and say what is missing. Returns the exit code."""
    try:
        wanted = expected(environ)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return int(CheckExit.CONFIGURATION)
    found = look_at(wanted.resource, wanted.lustre)
    node = environ.get(contract.NODE) or "this machine"
    missing = faults(wanted, found)
    for line in missing:
        print(f"{node}: {line}", flush=True)
    if missing:
        print(f"{node} is not fit: {len(missing)} of its checks failed", flush=True)
        return int(CheckExit.UNFIT)
    print(f"{node} is fit: {summary(wanted, found)}", flush=True)
    return int(CheckExit.FIT)


if __name__ == "__main__":
    sys.exit(main(os.environ))
