"""A Lustre file system in Kubernetes: its volume, the claim to it, the Job that proves the mount. Pure: no Pulumi."""

from __future__ import annotations

from typing import Any, Final

from components.shared.contract import POD_USER

JsonObject = dict[str, Any]

DRIVER: Final = "fsx.csi.aws.com"
# Put on a node by its NodePool and taken off by the driver's pod there
# (https://github.com/kubernetes-sigs/aws-fsx-csi-driver, docs/install.md).
STARTUP_TAINT: Final[JsonObject] = {"key": f"{DRIVER}/agent-not-ready", "effect": "NoExecute"}
# flock: locks hold between machines; noatime: no write for a read; lazystatfs: `df` answers while a server is away
# (https://docs.aws.amazon.com/fsx/latest/LustreGuide/mount-fs-auto-mount-onreboot.html, mount.lustre(8)).
MOUNT_OPTIONS: Final = ("flock", "noatime", "lazystatfs")

# The root of a new file system belongs to root, and the training pods are not root: anyone may make files there, and
# remove none but their own. A file system whose root belongs to somebody else is left as it is.
OPEN: Final = '[ "$(stat -c %u "$0")" != 0 ] || chmod 1777 "$0"'
PROVE: Final = """set -eu
file="$0/.mounted-by-$POD_NAME"
echo "$POD_NAME" > "$file"
[ "$(cat "$file")" = "$POD_NAME" ]
rm "$file"
df -h "$0"
echo "written and read on $0"
"""


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


def proof_spec(
    *,
    image: Any,
    claim: str,
    mount_path: str,
    node_selector: dict[str, str],
    tolerations: list[JsonObject],
) -> JsonObject:
    """The `spec` of the Job that opens the file system's root to the training pods, then writes and reads as one.

    The image, which may be the output of another resource, needs a shell. Of a file system the first container needs
    nothing but to be its owner.
    """
    closed = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    common: JsonObject = {
        "image": image,
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}},
        "volumeMounts": [{"name": "lustre", "mountPath": mount_path}],
    }
    return {
        "backoffLimit": 3,
        "template": {
            "metadata": {"labels": {"trainyard.dev/role": "lustre-proof"}},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "nodeSelector": node_selector,
                "tolerations": tolerations,
                "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                "initContainers": [
                    {
                        "name": "open",
                        "command": ["sh", "-c", OPEN, mount_path],
                        "securityContext": {**closed, "runAsUser": 0, "runAsGroup": 0},
                        **common,
                    }
                ],
                "containers": [
                    {
                        "name": "prove",
                        "command": ["sh", "-c", PROVE, mount_path],
                        "env": [
                            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
                        ],
                        "securityContext": {
                            **closed,
                            "runAsNonRoot": True,
                            "runAsUser": POD_USER,
                            "runAsGroup": POD_USER,
                        },
                        **common,
                    }
                ],
                "volumes": [{"name": "lustre", "persistentVolumeClaim": {"claimName": claim}}],
            },
        },
    }
