"""Snapshots that machines take their images from: there, whole, encrypted, and no larger than the disk made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from trainyard.preflight.account import Account
from trainyard.preflight.wanted import Problem, Wanted, WantedPool

NO_SNAPSHOT: Final = ("InvalidSnapshot.NotFound", "InvalidSnapshotID.Malformed")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A snapshot of a disk; `state` is pending, completed, error, recoverable or recovering, `key` its KMS key."""

    state: str
    size_gib: int
    encrypted: bool
    key: str | None = None


def read(account: Account, wanted: Wanted) -> dict[str, Snapshot]:
    """Those of the wanted snapshots that exist. One call each: an unknown id spoils the whole call."""
    result = {}
    for identity in sorted({pool.snapshot_id for pool in wanted.pools if pool.snapshot_id}):
        for found in account.items(
            "ec2", "describe_snapshots", "Snapshots", missing=NO_SNAPSHOT, SnapshotIds=[identity]
        ):
            result[identity] = Snapshot(
                state=found["State"],
                size_gib=int(found["VolumeSize"]),
                encrypted=bool(found.get("Encrypted")),
                key=found.get("KmsKeyId") or None,
            )
    return result


def with_sizes(wanted: Wanted, found: Mapping[str, Snapshot]) -> Wanted:
    """The same, with a disk made of a snapshot as large as that one where the stack file does not say how large."""
    pools = []
    for pool in wanted.pools:
        snapshot = found.get(pool.snapshot_id or "")
        more = snapshot.size_gib if snapshot and pool.data_volume_gib is None else 0
        pools.append(replace(pool, disks_gib=pool.disks_gib + more))
    return replace(wanted, pools=tuple(pools))


def check(wanted: Wanted, found: Mapping[str, Snapshot]) -> list[Problem]:
    """What is wrong with the snapshot of each pool."""
    return [
        problem
        for pool in wanted.pools
        if pool.snapshot_id is not None
        for problem in _check(pool, pool.snapshot_id, found.get(pool.snapshot_id), wanted.region)
    ]


def _check(pool: WantedPool, identity: str, found: Snapshot | None, region: str) -> list[Problem]:
    key, said = f"{pool.key}.dataSnapshotId", f"'{identity}'"
    if found is None:
        right = "it must be a snapshot that this account owns or that is shared with it"
        return [Problem(key=key, message=f"{said} does not exist in {region}; {right}")]
    problems = []
    if found.state != "completed":
        problems.append(Problem(key=key, message=f"{said} is {found.state}; it must be completed"))
    if not found.encrypted:
        problems.append(Problem(key=key, message=f"{said} is not encrypted; it must be, as every disk is"))
    if pool.data_volume_gib is not None and pool.data_volume_gib < found.size_gib:
        problems.append(
            Problem(
                key=f"{pool.key}.dataVolumeGiB",
                message=f"{pool.data_volume_gib} GiB is less than {said} has; it must be at least {found.size_gib}",
            )
        )
    return problems
