"""The volumes that a queue gives its jobs."""

from __future__ import annotations

from typing import Final

from trainyard.operator.api import words
from trainyard.operator.api.fields import Field, Rule, choice, group, quantity, yes_or_no

VOLUMES: Final = ("workspace", "datasets", "checkpoints")
ACCESS_MODES: Final = ("ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany")


def storage() -> Field:
    """`storage` of a queue."""
    return group(
        "Volumes of the jobs.",
        {
            "workspace": _volume(
                "workspace",
                "The submitted directory, unpacked in a directory of the claim that is named by the job's uid. A job "
                "without a workspace mounts the whole claim, an existing one read-only.",
                mounted_at="workingDir",
                more={
                    "bucket": words.bucket_prefix(
                        "Bucket and prefix of the archives, which are below workspaces/<namespace>.",
                        "storage.workspace.bucket",
                        absent="a pod of the job holds the archive",
                    )
                },
            ),
            "datasets": _volume(
                "datasets",
                "Data to train on, mounted read-only. Jobs share what is in the claim that existingClaim names; a "
                "claim of the job's own is empty, and its workers can't write there.",
                default_path="/datasets",
            ),
            "checkpoints": _volume(
                "checkpoints", "Checkpoints, which all workers read and write.", default_path="/checkpoints"
            ),
            "shmSizePerGPU": quantity(
                "Shared memory at /dev/shm for each GPU of a node; it counts as memory.",
                "storage.shmSizePerGPU",
                "8Gi",
                unit="bytes",
                absent="the container runtime's own, mostly 64 MiB",
            ),
        },
        absent="no volumes",
    )


def _volume(
    name: str,
    about: str,
    *,
    default_path: str | None = None,
    mounted_at: str = "",
    more: dict[str, Field] | None = None,
) -> Field:
    place = f"storage.{name}"
    return group(
        about,
        {
            "enabled": yes_or_no("Whether jobs have this volume.", default=False),
            "size": quantity(
                "Size of the volume.", f"{place}.size", "100Gi", unit="bytes", absent="sizePerGPU says it"
            ),
            "sizePerGPU": quantity(
                "Size of the volume for each GPU of the job.",
                f"{place}.sizePerGPU",
                "10Gi",
                unit="bytes",
                absent="size says it",
            ),
            "storageClass": words.object_name(
                "Class of the volume.", f"{place}.storageClass", absent="the cluster's default class"
            ),
            "accessMode": choice(
                "Who may mount the volume: with ReadWriteOnce one node alone.",
                ACCESS_MODES,
                absent="ReadWriteMany for classes of fsx.csi.aws.com and efs.csi.aws.com, else ReadWriteOnce",
            ),
            "existingClaim": words.object_name(
                "A claim of the job's namespace that is used as it is, instead of a new one.",
                f"{place}.existingClaim",
                absent="each job gets a claim of its own",
            ),
            "retain": yes_or_no(
                "Whether the claim outlives its job; a change holds for claims that are made after it.",
                default=False,
            ),
            "mountPath": words.directory(
                "Directory of the volume in the workers.",
                f"{place}.mountPath",
                default_path or "/app",
                default=default_path,
                absent=mounted_at,
            ),
            **(more or {}),
        },
        rules=_sizes(place),
        absent="no such volume",
    )


def _sizes(place: str) -> tuple[Rule, ...]:
    return (
        Rule(
            check="!(has(self.size) && has(self.sizePerGPU))",
            message=f"{place}: size and sizePerGPU exclude each other; give one of them",
            path=".sizePerGPU",
        ),
        Rule(
            check="!has(self.existingClaim) || !(has(self.size) || has(self.sizePerGPU) || has(self.storageClass))",
            message=f"{place}: existingClaim is used as it is; leave out size, sizePerGPU and storageClass",
            path=".existingClaim",
        ),
        Rule(
            check="!self.enabled || has(self.size) || has(self.sizePerGPU) || has(self.existingClaim)",
            message=f"{place} is enabled: give size, sizePerGPU or existingClaim",
            path=".enabled",
            whole=True,
        ),
    )
