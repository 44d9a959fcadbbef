"""The user data of a pool's nodes, and the script that configures Lustre over EFA (experimental).

Karpenter puts its own configuration first and merges ours into it (website/content/en/docs/concepts/nodeclasses.md,
AL2023). A script runs after the container runtime is configured and before it starts, because `nodeadm-run.service`
comes after cloud-init (github.com/awslabs/amazon-eks-ami, templates/al2023/runtime/rootfs/etc/systemd/system).

Sources for Lustre over EFA, 2026-11-21: https://docs.aws.amazon.com/fsx/latest/LustreGuide/configure-efa-clients.html
(instance types, operating systems, number of interfaces), https://docs.aws.amazon.com/eks/latest/userguide/fsx-csi-tuning-efa.html
(the commands, for Ubuntu), https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html (Nitro versions). See
docs/decisions/0015-lustre-over-efa.md.
"""

from __future__ import annotations

from typing import Final

# Several connections per image and parallel unpacking, which need an instance of size 2xlarge and a fast disk:
# https://github.com/awslabs/amazon-eks-ami/blob/main/nodeadm/doc/examples.md
FAST_IMAGE_PULL_MINIMUM_VCPUS: Final = 8
FAST_IMAGE_PULL: Final = """\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  featureGates:
    FastImagePull: true
"""

DATA_DEVICE: Final = "/dev/xvdb"

# The runtime's directory comes from the snapshot, everything else of the local disks as usual (nodeadm's
# `disabledMounts`). FastImagePull stays off: its snapshotter uses another directory, and would not find the images.
_KEEP_RUNTIME_OFF_LOCAL_DISKS: Final = """\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0
      disabledMounts: [Containerd]
"""

# A disk without the runtime's directory is not used. The node then pulls its images.
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

# Families of the pools' types that have EFA and a Nitro System of version 4 or newer; FSx leaves out trn2.
FAMILIES: Final = ("g6", "g6e", "p5", "p5e", "p5en", "p6-b200", "trn1", "trn1n")
# From FSx's guide: each interface is one of at most 1024 connections of a file system. Other types have two with
# several network cards, else one.
INTERFACES: Final = {"p5.48xlarge": 8, "p5e.48xlarge": 8, "p5en.48xlarge": 8, "p6-b200.48xlarge": 8}

# A failure leaves the client unchanged: it then reaches the file system over TCP, with which every mount begins. The
# modules are the kernel's own. The interface with the node's address has the first default route.
_SCRIPT: Final = """\
#!/bin/bash
set -euo pipefail
over_tcp() {{
  echo "trainyard: the Lustre client is not set up for EFA, the file system will be reached over TCP" >&2
  lustre_rmmod 2> /dev/null || true
}}
trap over_tcp ERR
dnf install --assumeyes lustre-client
modinfo kefalnd > /dev/null
devices=()
for device in /sys/class/infiniband/*; do
  driver=$(basename "$(readlink -f "$device/device/driver")")
  if [ "$driver" = efa ]; then devices+=("$(basename "$device")"); fi
done
[ "${{#devices[@]}}" -ge {count} ]
address=$(ip -4 route show default | awk 'NR == 1 {{ print $5 }}')
modprobe lnet
modprobe kefalnd "ipif_name=$address"
modprobe ksocklnd
lnetctl lnet configure
lnetctl net del --net tcp 2> /dev/null || true
lnetctl net add --net tcp --if "$address"
for ((index = 0; index < {count}; index++)); do
  lnetctl net add --net efa --if "${{devices[index * ${{#devices[@]}} / {count}]}}" --peer-credits 32
done
lnetctl set discovery 1
lnetctl udsp add --src efa --priority 0
modprobe lustre
lnetctl net show
"""


def user_data(
    *, vcpus: int, local_disks: bool, images_from_snapshot: bool, lustre_interfaces: int = 0
) -> str | None:
    """Return the user data of a node, or None if there is none.

    `lustre_interfaces` is the number of EFA interfaces of its Lustre client (0: there is nothing to configure).
    """
    scripts = [_MOUNT_IMAGES] if images_from_snapshot else []
    if lustre_interfaces:
        scripts.append(script(lustre_interfaces))
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
    return FAST_IMAGE_PULL if vcpus >= FAST_IMAGE_PULL_MINIMUM_VCPUS else None


def interfaces(instance_type: str, efa: int) -> int:
    """Return how many of a node's `efa` interfaces its Lustre client uses; 0 if it can use none."""
    if not efa or instance_type.partition(".")[0] not in FAMILIES:
        return 0
    return min(efa, INTERFACES.get(instance_type, 2))


def script(count: int) -> str:
    """Return the shell script that configures the client over `count` interfaces, spread evenly over the network
    cards.

    It runs at the first boot, before any mount. A node that reboots reaches the file system over TCP.
    """
    return _SCRIPT.format(count=count)
