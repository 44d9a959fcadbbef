"""Run a manager of controller-runtime with its listeners on the pod's address: `manager.py ADDRESS PROGRAM [ARG...]`.

On a node of AWS each pod has its own network. Here all pods share the machine's, so a manager that listens on all
addresses would take a port from the next one. JobSet and Kubeflow Trainer read these addresses from their configuration
file alone (pkg/config of kubernetes-sigs/jobset v0.12.0 and kubeflow/trainer v2.3.0). The changed copy is in memory,
because a pod may have no place to write.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import yaml

OPTION = "--config="


def listening_on(address: str, configuration: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration with all listeners on one address, and their ports as they were."""
    found = dict(configuration)
    for section, key, default in (
        ("health", "healthProbeBindAddress", ":8081"),
        ("metrics", "bindAddress", ":8443"),
    ):
        own = found.get(section) or {}
        port = str(own.get(key) or default).rpartition(":")[2]
        found[section] = own | {key: f"{address}:{port}"}
    found["webhook"] = {"port": 9443} | (found.get("webhook") or {}) | {"host": address}
    return found


def main() -> None:
    """Replace this process by the manager, with the changed copy of its configuration file."""
    address, program, *arguments = sys.argv[1:]
    for index, word in enumerate(arguments):
        if word.startswith(OPTION):
            original = Path(word.removeprefix(OPTION)).read_text()
            # Without MFD_CLOEXEC: the manager reads it.
            descriptor = os.memfd_create("configuration", 0)
            os.write(descriptor, yaml.safe_dump(listening_on(address, yaml.safe_load(original))).encode())
            arguments[index] = f"{OPTION}/proc/self/fd/{descriptor}"
    os.execv(program, [program, *arguments])  # noqa: S606  (the manager itself, without a shell)


if __name__ == "__main__":
    main()
