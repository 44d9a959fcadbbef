"""`POST /_trainyard/interruptions`: EC2 interrupts a spot instance, as on AWS when it needs the capacity.

`{"instanceId": "i-...", "seconds": 120}`: the warning goes to EventBridge at once, and the instance ends after that
many seconds if it is still running. The default is 120, as on EC2
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html).
"""

from __future__ import annotations

from typing import Any

from moto.ec2.models import ec2_backends

from local.aws import events, serial
from local.aws.account import ACCOUNT_ID
from local.aws.ec2_utils import capacity_type

NOTICE_SECONDS = 120.0


def begin(asked: dict[str, Any]) -> dict[str, Any]:
    """Send the warning of an instance's end, and end it after the time of the request.

    Raises:
        ValueError: It is not a running spot instance.
    """
    seconds = asked.get("seconds", NOTICE_SECONDS)
    if (
        isinstance(seconds, bool)
        or not isinstance(seconds, int | float)
        or not 0 <= seconds <= NOTICE_SECONDS
    ):
        raise ValueError(f"seconds: {seconds!r} must be a number from 0 to {NOTICE_SECONDS:g}")
    wanted = asked.get("instanceId")
    instance = _running_spot(wanted)
    if instance is None:
        raise ValueError(f"instanceId: {wanted!r} must be the id of a running Spot Instance")
    backend = instance.ec2_backend
    # Only in this event, the ARN has the zone and no account.
    arn = f"arn:aws:ec2:{instance.placement.zone}:instance/{instance.id}"
    detail = {"instance-id": instance.id, "instance-action": "terminate"}
    events.publish(backend.region_name, "aws.ec2", "EC2 Spot Instance Interruption Warning", [arn], detail)

    def end() -> None:
        if _running_spot(instance.id) is not None:
            backend.terminate_instances([instance.id])

    serial.later(seconds, end)
    return {"instanceId": instance.id, "endsInSeconds": seconds}


def _running_spot(instance_id: Any) -> Any:
    for backend in list(ec2_backends[ACCOUNT_ID].values()):
        for instance in backend.all_instances():
            if instance.id == instance_id and instance.state in ("pending", "running"):
                return instance if capacity_type(instance) == "spot" else None
    return None
