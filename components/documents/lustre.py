"""FSx for Lustre: the file systems that AWS accepts, and their Kubernetes objects.

Sources, 2026-11-21: Amazon FSx API reference, CreateFileSystem (`StorageCapacity`),
CreateFileSystemLustreConfiguration (throughput, drive cache, EFA) and
CreateFileSystemLustreMetadataConfiguration (IOPS);
https://docs.aws.amazon.com/fsx/latest/LustreGuide/increase-storage-capacity.html (steps with EFA).
"""

from __future__ import annotations

from typing import Any, Final

from trainyard.k8s import names

from . import JsonObject, pods

SCRATCH_2: Final = "SCRATCH_2"
PERSISTENT_1: Final = "PERSISTENT_1"
PERSISTENT_2: Final = "PERSISTENT_2"
SSD: Final = "SSD"
HDD: Final = "HDD"
STORAGE_TYPES: Final = (SSD, HDD)
# For HDD: READ adds an SSD cache for reads, of a fifth of the capacity.
DRIVE_CACHES: Final = ("NONE", "READ")
COMPRESSIONS: Final = ("LZ4", "NONE")

# Deployment and storage type -> supported throughput in MB/s per TiB. SCRATCH_2 always has 200.
THROUGHPUT: Final[dict[tuple[str, str], tuple[int, ...]]] = {
    (SCRATCH_2, SSD): (200,),
    (PERSISTENT_1, SSD): (50, 100, 200),
    (PERSISTENT_1, HDD): (12, 40),
    (PERSISTENT_2, SSD): (125, 250, 500, 1000),
}
DEPLOYMENTS: Final = (SCRATCH_2, PERSISTENT_1, PERSISTENT_2)
# On SSD: 1200 GiB, or a multiple of 2400.
SMALLEST_GIB: Final = 1200
STEP_GIB: Final = 2400
# Throughput in MB/s per TiB -> the step of the capacity in GiB, which is also the minimum.
HDD_STEP_GIB: Final = {12: 6000, 40: 1800}
EFA_STEP_GIB: Final = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
# Supported metadata operations per second on SSD: these, and multiples of the last one.
METADATA_IOPS: Final = (1500, 3000, 6000, 12000)
MAXIMUM_METADATA_IOPS: Final = 192000

DRIVER: Final = "fsx.csi.aws.com"
# flock: locks are valid across nodes; noatime: reads cause no writes; lazystatfs: `df` works without a server
# (https://docs.aws.amazon.com/fsx/latest/LustreGuide/mount-fs-auto-mount-onreboot.html, mount.lustre(8)).
MOUNT_OPTIONS: Final = ("flock", "noatime", "lazystatfs")

# The tolerations that the API server adds to a pod without its own. With them in the spec, a refresh finds no change
# (https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-based-evictions).
DEFAULT_NODE_TOLERATIONS: Final[list[JsonObject]] = [
    {
        "key": f"node.kubernetes.io/{state}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
    for state in ("not-ready", "unreachable")
]

# The container of the test pod that users enter.
SHELL: Final = "shell"
# The directory in an existing file system is <this>/<stack>, because its root belongs to its owner.
OWN_DIRECTORY: Final = "trainyard"
# The created directory belongs to root, as the root of a new file system does, and the training pods are not root: each
# user can create files there, and delete only their own. A directory of another owner is not changed. Below one, only
# the training pods' user may be able to create the directory.
OPEN_SCRIPT: Final = """[ -d "$0" ] || mkdir -p "$0" || echo "$0 is left to the training pods' user" >&2
[ ! -d "$0" ] || [ "$(stat -c %u "$0")" != 0 ] || chmod 1777 "$0"
"""
MOUNT_TEST_SCRIPT: Final = """set -eu
cd "$0"
mkdir -p "$1"
file="$1/.mounted-by-$POD_NAME"
echo "$POD_NAME" > "$file"
[ "$(cat "$file")" = "$POD_NAME" ]
rm "$file"
df -h "$0"
echo "written and read on $1"
"""


def storage_problem(deployment: str, storage: str) -> str | None:
    """Return the problem of a storage type for a deployment type, as the end of a sentence, or None."""
    if (deployment, storage) in THROUGHPUT:
        return None
    return f"{deployment} is available only on {SSD}; deploymentType must be {PERSISTENT_1}, or storageType {SSD}"


def least_capacity(deployment: str, storage: str, throughput: int) -> int:
    """Return the minimum capacity in GiB without EFA. For an unknown throughput, it is that of SSD."""
    if (deployment, storage) == (PERSISTENT_1, HDD):
        return HDD_STEP_GIB.get(throughput, SMALLEST_GIB)
    return SMALLEST_GIB


def capacity_problem(deployment: str, storage: str, capacity_gib: int, throughput: int) -> str | None:
    """Return what is wrong with a capacity in GiB without EFA, or None. An unknown throughput is not reported here."""
    if (deployment, storage) == (PERSISTENT_1, HDD):
        step = HDD_STEP_GIB.get(throughput)
        if step is None or _is_multiple(capacity_gib, step):
            return None
        return (
            f"{storage} with {throughput} MB/s per TiB does not offer it; it must be a multiple of {step} GiB,"
            f" such as {_near(capacity_gib, step)}"
        )
    if capacity_gib == SMALLEST_GIB or _is_multiple(capacity_gib, STEP_GIB):
        return None
    near = f"{SMALLEST_GIB}" if capacity_gib < SMALLEST_GIB else _near(capacity_gib, STEP_GIB, SMALLEST_GIB)
    return f"no file system has it; it must be {SMALLEST_GIB} or a multiple of {STEP_GIB} GiB, such as {near}"


def _is_multiple(number: int, step: int) -> bool:
    return number > 0 and number % step == 0


def _near(number: int, step: int, least: int | None = None) -> str:
    """Return the two nearest steps around a number, or the minimum."""
    below, above = number // step * step, (number // step + 1) * step
    return f"{below or least} or {above}" if below or least else f"{above}"


def throughput_problem(deployment: str, storage: str, throughput: int) -> str | None:
    """Return the problem of a throughput in MB/s per TiB for a deployment and storage type, or None."""
    offered = THROUGHPUT[deployment, storage]
    if throughput in offered:
        return None
    kind = deployment if storage == SSD else f"{deployment} on {storage}"
    return f"{kind} does not offer it; it must be one of {', '.join(map(str, offered))} MB/s per TiB"


def efa_problem(deployment: str, storage: str, capacity_gib: int, throughput: int) -> str | None:
    """Return the reason why a file system can't have EFA, or None."""
    if deployment != PERSISTENT_2 or storage != SSD:
        kind = deployment if storage == SSD else f"{deployment} on {storage}"
        return f"{kind} has no EFA; deploymentType must be {PERSISTENT_2}, on {SSD}"
    step = EFA_STEP_GIB.get(throughput)
    if step is None or _is_multiple(capacity_gib, step):
        return None
    return (
        f"EFA at {throughput} MB/s per TiB needs a capacityGiB that is a multiple of {step}, such as"
        f" {_near(capacity_gib, step)}, and it is {capacity_gib}"
    )


def metadata_problem(deployment: str, iops: int) -> str | None:
    """Return the problem of a number of metadata operations per second, or None. 0 requests no number."""
    if not iops:
        return None
    if deployment != PERSISTENT_2:
        return f"{deployment} has no such setting; it must be 0, or deploymentType {PERSISTENT_2}"
    if iops in METADATA_IOPS or (iops <= MAXIMUM_METADATA_IOPS and _is_multiple(iops, METADATA_IOPS[-1])):
        return None
    first = ", ".join(map(str, METADATA_IOPS))
    multiple = f"a multiple of {METADATA_IOPS[-1]} up to {MAXIMUM_METADATA_IOPS}"
    return f"FSx does not offer it; it must be {first} or {multiple}"


def cache_problem(storage: str, cache: str) -> str | None:
    """Return the problem of a drive cache for a storage type, or None."""
    if storage == HDD or cache == DRIVE_CACHES[0]:
        return None
    return f"{storage} has no drive cache; it must be {DRIVE_CACHES[0]}, or storageType {HDD}"


def keeps_backups(deployment: str) -> bool:
    """Return whether a deployment type supports backups. Scratch file systems do not."""
    return deployment != SCRATCH_2


def directory(mount_path: str, stack: str, *, existing: bool) -> str:
    """Return the directory that training pods write to: the root, or the stack's own on an existing one."""
    return f"{mount_path}/{OWN_DIRECTORY}/{stack}" if existing else mount_path


def volume_spec(
    *, file_system_id: Any, dns_name: Any, mount_name: Any, capacity_gib: int, namespace: str, claim: str
) -> JsonObject:
    """Return the `spec` of the PersistentVolume, reserved for one claim and retained after the claim's deletion.

    See https://github.com/kubernetes-sigs/aws-fsx-csi-driver, examples/kubernetes/static_provisioning. Kubernetes
    requires a capacity, which Lustre does not enforce. Id and names may be outputs of other resources.
    """
    return {
        "capacity": {"storage": f"{capacity_gib}Gi"},
        "volumeMode": "Filesystem",
        "accessModes": ["ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        # No class, so that no provisioner handles it.
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
    """Return the `spec` of the PersistentVolumeClaim for exactly that volume."""
    return {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "volumeName": volume,
        "resources": {"requests": {"storage": f"{capacity_gib}Gi"}},
    }


def opening(name: str, image: Any, volume: str, mount_path: str, directory_: str) -> JsonObject:
    """Return an init container that makes a directory of a volume writable for the pod's user. `image` has a shell.

    The container must own the directory. It needs no other permission on the file system.
    """
    root = {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0}
    return {
        "name": name,
        "command": ["sh", "-c", OPEN_SCRIPT, directory_],
        "securityContext": {**pods.container(), **root},
        **_common(image, volume, mount_path),
    }


def _common(image: Any, volume: str, mount_path: str) -> JsonObject:
    return {
        "image": image,
        "resources": {"requests": pods.SMALL_REQUESTS, "limits": {"memory": "128Mi"}},
        "volumeMounts": [{"name": volume, "mountPath": mount_path}],
    }


def proof_spec(
    *, image: Any, claim: str, mount_path: str, placement: JsonObject, writes: str | None = None
) -> JsonObject:
    """Return the `spec` of a pod that opens a directory to the training pods, writes and reads as one, and sleeps.

    The directory is `writes`, by default the file system's root. The pod is Ready after the init containers have
    succeeded. Users then enter the container `shell`. The image, which may be the output of another resource, has a
    shell and `sleep`. `placement` has the parts of the `spec` that select the node. The first container needs no
    permission on the file system except to be its owner. The pod has small requests, like the pod that keeps a warm
    node, so that a worker fits on the same node.
    """
    opened = mount_path if writes is None else writes
    common = _common(image, "lustre", mount_path)
    return {
        **placement,
        "tolerations": [*placement.get("tolerations", []), *DEFAULT_NODE_TOLERATIONS],
        **pods.helper_spec(),
        "initContainers": [
            opening("open", image, "lustre", mount_path, opened),
            {
                "name": "prove",
                "command": ["sh", "-c", MOUNT_TEST_SCRIPT, mount_path, opened],
                "env": [
                    {"name": names.ENV_POD_NAME, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
                ],
                "securityContext": pods.container(),
                **common,
            },
        ],
        "containers": [
            {
                "name": SHELL,
                # The maximum that every `sleep` supports (an `int`).
                "command": ["sleep", "2147483647"],
                "securityContext": pods.container(),
                **common,
            }
        ],
        "volumes": [{"name": "lustre", "persistentVolumeClaim": {"claimName": claim}}],
    }
