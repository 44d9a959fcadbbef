"""A Lustre file system in Kubernetes: its volume, the claim to it, the pod that proves the mount. Pure: no Pulumi."""

from __future__ import annotations

from typing import Any, Final

from components.documents import restricted
from components.documents.warm_nodes import REQUESTS
from trainyard.k8s import names

JsonObject = dict[str, Any]

DRIVER: Final = "fsx.csi.aws.com"
# Put on a node by its NodePool and taken off by the driver's pod there
# (https://github.com/kubernetes-sigs/aws-fsx-csi-driver, docs/install.md).
STARTUP_TAINT: Final[JsonObject] = {"key": f"{DRIVER}/agent-not-ready", "effect": "NoExecute"}
# flock: locks hold between machines; noatime: no write for a read; lazystatfs: `df` answers while a server is away
# (https://docs.aws.amazon.com/fsx/latest/LustreGuide/mount-fs-auto-mount-onreboot.html, mount.lustre(8)).
MOUNT_OPTIONS: Final = ("flock", "noatime", "lazystatfs")

# The API server gives these to each pod that says nothing of a node that is lost. Said here, a refresh finds what was
# asked for (https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-based-evictions).
OUTLIVES_ITS_NODE: Final[list[JsonObject]] = [
    {
        "key": f"node.kubernetes.io/{state}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    for state in ("not-ready", "unreachable")
]

# The container of the proof's pod that people enter.
SHELL: Final = "shell"
# In a file system that is given, whose root is its owner's: <this>/<stack>.
OWN_DIRECTORY: Final = "trainyard"
# What is made here belongs to root, as the root of a new file system does, and the training pods are not root: anyone
# may make files there, and remove none but their own. A directory of somebody else is left as it is, and below one it
# is the training pods' user who makes it, if anybody.
OPEN: Final = """[ -d "$0" ] || mkdir -p "$0" || echo "$0 is left to the training pods' user" >&2
[ ! -d "$0" ] || [ "$(stat -c %u "$0")" != 0 ] || chmod 1777 "$0"
"""
PROVE: Final = """set -eu
cd "$0"
mkdir -p "$1"
file="$1/.mounted-by-$POD_NAME"
echo "$POD_NAME" > "$file"
[ "$(cat "$file")" = "$POD_NAME" ]
rm "$file"
df -h "$0"
echo "written and read on $1"
"""


def directory(mount_path: str, stack: str, *, given: bool) -> str:
    """The directory, in pods, that training pods write to: the root, or in a file system that is given their own."""
    return f"{mount_path}/{OWN_DIRECTORY}/{stack}" if given else mount_path


def volume_spec(
    *, file_system_id: Any, dns_name: Any, mount_name: Any, capacity_gib: int, namespace: str, claim: str
) -> JsonObject:
    """The `spec` of the PersistentVolume, kept for one claim and kept when that is deleted.

    https://github.com/kubernetes-sigs/aws-fsx-csi-driver, examples/kubernetes/static_provisioning. Kubernetes wants a
    capacity, which Lustre does not enforce. Id and names may be outputs of other resources.
    """
    return {
        "capacity": {"storage": f"{capacity_gib}Gi"},
        "volumeMode": "Filesystem",
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        # No class: no provisioner is to look at it.
        "storageClassName": "",
        "mountOptions": list(MOUNT_OPTIONS),
        "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": namespace,
            "name": claim,
        },
        "csi": {
            "driver": DRIVER,
            "volumeHandle": file_system_id,
            "volumeAttributes": {"dnsname": dns_name, "mountname": mount_name},
        },
    }


def claim_spec(*, volume: str, capacity_gib: int) -> JsonObject:
    """The `spec` of the PersistentVolumeClaim to exactly that volume."""
    return {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": volume,
        "resources": {"requests": {"storage": f"{capacity_gib}Gi"}},
    }


def opening(name: str, image: Any, volume: str, mount_path: str, directory_: str) -> JsonObject:
    """An init container that opens a directory of a mounted volume to the pod's user; `image` has a shell.

    It needs nothing of the file system but to be its owner.
    """
    root = {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0}
    return {
        "name": name,
        "command": ["sh", "-c", OPEN, directory_],
        "securityContext": {**restricted.container(), **root},
        **_common(image, volume, mount_path),
    }


def _common(image: Any, volume: str, mount_path: str) -> JsonObject:
    return {
        "image": image,
        "resources": {"requests": REQUESTS, "limits": {"memory": "128Mi"}},
        "volumeMounts": [{"name": volume, "mountPath": mount_path}],
    }


def proof_spec(
    *, image: Any, claim: str, mount_path: str, placement: JsonObject, writes: str | None = None
) -> JsonObject:
    """The `spec` of a pod that opens a directory to the training pods, writes and reads as one, and sleeps.

    The directory is `writes`, by default the file system's root. The pod is Ready once the init containers have ended
    well; then people enter the container `shell`. The image, which may be the output of another resource, has a shell
    and `sleep`. `placement` are the parts of the `spec` that say where the pod runs. The first container needs nothing
    of a file system but to be its owner. The pod asks for as little as one that keeps a machine, so that a worker fits
    beside it.
    """
    opened = mount_path if writes is None else writes
    common = _common(image, "lustre", mount_path)
    return {
        **placement,
        "tolerations": [*placement.get("tolerations", []), *OUTLIVES_ITS_NODE],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": restricted.pod(),
        "initContainers": [
            opening("open", image, "lustre", mount_path, opened),
            {
                "name": "prove",
                "command": ["sh", "-c", PROVE, mount_path, opened],
                "env": [
                    {"name": names.ENV_POD_NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
                ],
                "securityContext": restricted.container(),
                **common,
            },
        ],
        "containers": [
            {
                "name": SHELL,
                # As long as an `int` of any `sleep` goes.
                "command": ["sleep", "2147483647"],
                "securityContext": restricted.container(),
                **common,
            }
        ],
        "volumes": [{"name": "lustre", "persistentVolumeClaim": {"claimName": claim}}],
    }
