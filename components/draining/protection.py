"""EKS's own guard of a cluster, which a stack with `protectData` has: turned off when the stack itself goes.

The engine refuses to destroy such a stack unless it is told to leave the data; only then does a drain run. Until then
nobody deletes the cluster by the console or the AWS CLI, with machines that nobody would give back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from botocore.exceptions import ClientError

from components.draining.steps import POLL_SECONDS, Clock, DrainError

# An update of a cluster takes minutes, and there is one at a time.
UPDATE_SECONDS: Final = 900.0
BUSY: Final = ("ResourceInUseException", "ThrottlingException")


def turn_off(eks: Any, cluster: str, *, say: Callable[[str], None], clock: Clock) -> None:
    """Let a cluster be deleted; one that may be already, or that is gone, is no error. `eks` is a boto3 client.

    Raises:
        DrainError: EKS did not come to an end with it in a quarter of an hour, or failed.
    """
    end = clock.now() + UPDATE_SECONDS
    update = _begin(eks, cluster, clock, end)
    if update is None:
        return
    say("turning off the cluster's deletion protection")
    while update["status"] == "InProgress":
        if clock.now() >= end:
            raise _refused(cluster, f"update {update['id']} is still in progress")
        clock.sleep(POLL_SECONDS)
        update = eks.describe_update(name=cluster, updateId=update["id"])["update"]
    if update["status"] != "Successful":
        reasons = "; ".join(str(each.get("errorMessage")) for each in update.get("errors") or [])
        raise _refused(
            cluster, f"update {update['id']} is {update['status']}: {reasons or 'without a reason'}"
        )


def _begin(eks: Any, cluster: str, clock: Clock, end: float) -> Any:
    """EKS's update of the cluster; None where none is needed."""
    while True:
        try:
            if not eks.describe_cluster(name=cluster)["cluster"].get("deletionProtection"):
                return None
            return eks.update_cluster_config(name=cluster, deletionProtection=False)["update"]
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code == "ResourceNotFoundException":
                return None
            if code not in BUSY or clock.now() >= end:
                raise _refused(cluster, error.response["Error"]["Message"]) from error
        clock.sleep(POLL_SECONDS)


def _refused(cluster: str, reason: str) -> DrainError:
    return DrainError(
        f"the deletion protection of cluster {cluster} can't be turned off: {reason}; "
        f"`aws eks update-cluster-config --name {cluster} --no-deletion-protection`, then run the destroy again"
    )
