"""How a machine reaches a Lustre file system over EFA. Pure: no Pulumi. Experimental: docs/decisions/0015.

Sources, 2026-11-21: https://docs.aws.amazon.com/fsx/latest/LustreGuide/configure-efa-clients.html (which machines and
systems, among them AL2023; how many interfaces) and https://docs.aws.amazon.com/eks/latest/userguide/fsx-csi-tuning-efa.html
(the commands, there on Ubuntu); https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html (Nitro versions).
"""

from __future__ import annotations

from typing import Final

# Families of the pools' types that have EFA and a Nitro System of version 4 or newer; FSx leaves out trn2.
FAMILIES: Final = ("g6", "g6e", "p5", "p5e", "p5en", "p6-b200", "trn1", "trn1n")
# FSx's own choice: each is a connection of at most 1024 that a file system takes. Others have two where they have
# several network cards, else one.
INTERFACES: Final = {"p5.48xlarge": 8, "p5e.48xlarge": 8, "p5en.48xlarge": 8, "p6-b200.48xlarge": 8}

# What fails leaves the client as it was: the file system is then reached over TCP, which every mount begins with. The
# modules are the kernel's own. The interface with the machine's address has the first default route.
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
[ "${{#devices[@]}}" -ge {wanted} ]
address=$(ip -4 route show default | awk 'NR == 1 {{ print $5 }}')
modprobe lnet
modprobe kefalnd "ipif_name=$address"
modprobe ksocklnd
lnetctl lnet configure
lnetctl net del --net tcp 2> /dev/null || true
lnetctl net add --net tcp --if "$address"
for ((index = 0; index < {wanted}; index++)); do
  lnetctl net add --net efa --if "${{devices[index * ${{#devices[@]}} / {wanted}]}}" --peer-credits 32
done
lnetctl set discovery 1
lnetctl udsp add --src efa --priority 0
modprobe lustre
lnetctl net show
"""


def interfaces(instance_type: str, efa: int) -> int:
    """How many of the `efa` interfaces of a machine its Lustre client uses; 0 where it can use none."""
    if not efa or instance_type.partition(".")[0] not in FAMILIES:
        return 0
    return min(efa, INTERFACES.get(instance_type, 2))


def script(wanted: int) -> str:
    """The shell script that sets up the client over `wanted` interfaces, spread evenly over the network cards.

    It is for the first boot, before anything mounts; a machine that is restarted reaches the file system over TCP.
    """
    return _SCRIPT.format(wanted=wanted)
