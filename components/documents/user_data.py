"""What a new machine of a pool is told before it joins the cluster. Pure: no Pulumi.

Karpenter puts its own configuration first and merges ours into it (website/content/en/docs/concepts/nodeclasses.md,
AL2023). A script runs after the container runtime is configured and before it is started, since `nodeadm-run.service`
comes after cloud-init (github.com/awslabs/amazon-eks-ami, templates/al2023/runtime/rootfs/etc/systemd/system).
"""

from __future__ import annotations

from typing import Final

from components.documents import lustre_client

# Several connections per image and unpacking in parallel, which needs a machine of the size 2xlarge and a fast disk:
# https://github.com/awslabs/amazon-eks-ami/blob/main/nodeadm/doc/examples.md
FAST_IMAGE_PULL_LEAST_VCPUS: Final = 8
FAST_IMAGE_PULL: Final = """\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  featureGates:
    FastImagePull: true
"""

DATA_DEVICE: Final = "/dev/xvdb"

# The runtime's directory comes from the snapshot, everything else of the local disks as usual (nodeadm's
# `disabledMounts`). FastImagePull stays off: its snapshotter has a directory of its own, and would not see the images.
_KEEP_RUNTIME_OFF_LOCAL_DISKS: Final = """\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0
      disabledMounts: [Containerd]
"""

# A disk without the runtime's directory is left alone: the machine then pulls its images, as others do.
_MOUNT_IMAGES: Final = f"""\
#!/bin/bash
set -euo pipefail
device={DATA_DEVICE} store=/var/lib/containerd
for _ in $(seq 60); do [ -b "$device" ] && break; sleep 1; done
found=$(mktemp -d)
mount "$device" "$found"
if [ ! -e "$found/io.containerd.metadata.v1.bolt/meta.db" ]; then
  echo "trainyard: $device holds no directory of containerd, the images will be pulled" >&2
  umount "$found"
  exit 1
fi
case "$(findmnt --noheadings --output FSTYPE "$found")" in
  xfs) xfs_growfs "$found" ;;
  *) resize2fs "$(readlink -f "$device")" ;;
esac
umount "$found"
echo "$device $store auto defaults 0 2" >> /etc/fstab
mount "$store"
"""

_BOUNDARY: Final = "trainyard"


def user_data(
    *, vcpus: int, local_disks: bool, images_from_snapshot: bool, lustre_interfaces: int = 0
) -> str | None:
    """User data of a machine, None where there is nothing to tell.

    `lustre_interfaces` is how many EFA interfaces its Lustre client uses (0: it has none to set up).
    """
    scripts = [_MOUNT_IMAGES] if images_from_snapshot else []
    if lustre_interfaces:
        scripts.append(lustre_client.script(lustre_interfaces))
    config = _node_config(vcpus, local_disks, images_from_snapshot)
    if not scripts:
        return config
    parts = [("text/x-shellscript", text) for text in scripts]
    if config is not None:
        parts.append(("application/node.eks.aws", config))
    body = "".join(f"--{_BOUNDARY}\nContent-Type: {kind}\n\n{text}\n" for kind, text in parts)
    return (
        f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="{_BOUNDARY}"\n\n{body}--{_BOUNDARY}--\n'
    )


def _node_config(vcpus: int, local_disks: bool, images_from_snapshot: bool) -> str | None:
    if images_from_snapshot:
        return _KEEP_RUNTIME_OFF_LOCAL_DISKS if local_disks else None
    return FAST_IMAGE_PULL if vcpus >= FAST_IMAGE_PULL_LEAST_VCPUS else None
