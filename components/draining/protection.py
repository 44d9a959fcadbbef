"""Turns off the deletion protection of a stack's EKS cluster (`protectData`) when the stack is destroyed.

The engine only destroys such a stack if it keeps the data; only then a drain runs. The protection prevents that the
cluster is deleted in the console or with the AWS CLI, which would leave its nodes without a controller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from botocore.exceptions import ClientError

from .cluster_api import DrainError
from .steps import POLL_SECONDS, Clock

# An update of a cluster takes minutes, and there is one at a time.
UPDATE_SECONDS: Final = 900.0
BUSY: Final = ("ResourceInUseException", "ThrottlingException")


def turn_off(eks: Any, cluster: str, *, report: Callable[[str], None], clock: Clock) -> None:
    """Turn off the protection. It is no error if it is off, or if there is no cluster. `eks` is a boto3 client.

    Raises:
        DrainError: EKS failed, or did not finish within 15 minutes.
    """
    end = clock.now() + UPDATE_SECONDS
    update = _begin(eks, cluster, clock, end)
    if update is None:
        return
    report("turning off the cluster's deletion protection")
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
    """Start the update of the cluster and return it; None if it is not necessary."""
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
