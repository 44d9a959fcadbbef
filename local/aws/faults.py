"""The fault plan: which launches lack capacity and which calls fail. Tests and users set it.

`PUT /_trainyard/faults` with `{"faults": [rule, ...]}` replaces the plan. `GET` returns it with the number of times
that each rule fired. The rules are:

- capacity: `{"code": "InsufficientInstanceCapacity" | "VcpuLimitExceeded" | ..., "instanceType": "g5.*", "zone":
  "us-west-2b", "capacityType": "on-demand" | "spot" | "reserved", "available": 2, "times": 3}`. Patterns accept * and
  ?; a missing key matches all. `available` is how many such instances may run at once (0 by default). A fleet that asks
  for more gets as many as are left, and an error. `times` is how often the rule fires before it is used up (unlimited
  by default). A fleet that gets less because of the rule counts once.
- leftovers: `{"code": "NetworkInterfaceLeft", "instanceType": "g5.*", "times": 1}`: when such an instance of a cluster
  ends, a network interface of VPC CNI is left behind (`local.aws.interfaces`).
- calls: `{"action": "ec2:CreateFleet", "code": "RequestLimitExceeded", "status": 503, "times": 2}`: the call fails.
- nodes: `{"condition": "AcceleratedHardwareReady", "code": "NvidiaXID79Error", "instanceId": "i-*", "instanceType":
  "g5.*", "since": 600}`: the node monitoring agent reports this condition as false, since `since` seconds before the
  PUT. `code` is its reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from local.aws.policy import like

DEFAULT_MESSAGES = {
    "InsufficientInstanceCapacity": "We currently do not have sufficient {type} capacity in the Availability Zone you "
    "requested ({zone}). Our system will be working on provisioning additional capacity.",
    "VcpuLimitExceeded": "You have requested more vCPU capacity than your current vCPU limit allows for the instance "
    "bucket that the specified instance type ({type}) belongs to.",
    "RequestLimitExceeded": "Request limit exceeded.",
}
LEFT_INTERFACE = "NetworkInterfaceLeft"
# Conditions of the node monitoring agent (https://docs.aws.amazon.com/eks/latest/userguide/node-health.html).
CONDITIONS = (
    "AcceleratedHardwareReady",
    "ContainerRuntimeReady",
    "KernelReady",
    "NetworkingReady",
    "StorageReady",
)
TEXTS = ("action", "message", "instanceType", "zone", "capacityType", "instanceId")
NUMBERS = ("available", "times", "status", "since")
KEYS = {"code", "condition", *TEXTS, *NUMBERS}
# A call that fails has a status of an error.
STATUSES = range(400, 600)


class BadPlan(ValueError):
    """A fault plan is not valid. The message names the place and the valid values."""


@dataclass
class Fault:
    """A rule of the plan, and as it was set. `fired` counts how often it made a launch or call fail."""

    code: str
    message: str = ""
    action: str | None = None
    status: int = 400
    instance_type: str = "*"
    zone: str = "*"
    capacity_type: str = "*"
    available: int = 0
    times: int | None = None
    fired: int = 0
    condition: str | None = None
    instance_id: str = "*"
    since: float = 0.0
    rule: dict[str, Any] = field(default_factory=dict)

    @property
    def is_of_launches(self) -> bool:
        """Whether it prevents launches."""
        return self.action is None and self.condition is None and self.code != LEFT_INTERFACE

    @property
    def is_spent(self) -> bool:
        """Whether it fired as often as it may."""
        return self.times is not None and self.fired >= self.times

    def matches(self, instance_type: str, zone: str, capacity_type: str) -> bool:
        """Return whether the rule applies to such an instance."""
        return (
            like(self.instance_type, instance_type)
            and like(self.zone, zone)
            and like(self.capacity_type, capacity_type)
        )

    def text(self, instance_type: str, zone: str) -> str:
        """Return the message of the error."""
        template = self.message or DEFAULT_MESSAGES.get(self.code, "Fault of the failure plan: " + self.code)
        # Not `format`, which fails for other braces.
        return template.replace("{type}", instance_type).replace("{zone}", zone)

    def to_json(self) -> dict[str, Any]:
        """Return the rule as it was set, with `fired`."""
        return {**self.rule, "fired": self.fired}


@dataclass
class Plan:
    """The current rules. The first that matches applies."""

    faults: list[Fault] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def replace(self, document: Any) -> None:
        """Replace the plan with the one that `PUT /_trainyard/faults` sends.

        Raises:
            BadPlan: It is not valid. The old plan stays.
        """
        rules = document.get("faults") if isinstance(document, dict) else None
        if not isinstance(rules, list):
            raise BadPlan('faults: must be a list of rules: {"faults": [rule, ...]}')
        parsed = [_parse(f"faults[{i}]", rule) for i, rule in enumerate(rules)]
        with self.lock:
            self.faults = parsed

    def to_json(self) -> dict[str, Any]:
        """Return the plan for `GET /_trainyard/faults`."""
        with self.lock:
            return {"faults": [f.to_json() for f in self.faults]}

    def launch_room(
        self, instance_type: str, zone: str, capacity_type: str, wanted: int, running: Callable[[Fault], int]
    ) -> tuple[int, Fault | None]:
        """Return how many of the `wanted` instances can start, and the rule that prevents the others.

        `running` counts the instances that match a rule.
        """
        room, keeps = wanted, None
        with self.lock:
            for fault in self.faults:
                is_open = fault.is_of_launches and not fault.is_spent
                if is_open and fault.matches(instance_type, zone, capacity_type):
                    free = max(0, fault.available - running(fault))
                    if free < room:
                        room, keeps = free, fault
            if keeps is not None:
                keeps.fired += 1
        return room, keeps

    def left_interface(self, instance_type: str, zone: str, capacity_type: str) -> Fault | None:
        """Return the rule that makes such an instance leave a network interface behind when it ends."""
        return self._fire(
            lambda fault: fault.code == LEFT_INTERFACE and fault.matches(instance_type, zone, capacity_type)
        )

    def conditions(
        self, instance_id: str, instance_type: str, zone: str, capacity_type: str
    ) -> dict[str, Fault]:
        """Return the false conditions of an instance by name. `since` is in seconds since the epoch there."""
        with self.lock:
            return {
                fault.condition: fault
                for fault in reversed(self.faults)
                if fault.condition is not None
                and like(fault.instance_id, instance_id)
                and fault.matches(instance_type, zone, capacity_type)
            }

    def api_fault(self, action: str) -> Fault | None:
        """Return the rule that makes a call fail, with its message filled in."""
        found = self._fire(lambda fault: fault.action is not None and like(fault.action, action))
        return Fault(found.code, found.text("", ""), action, found.status) if found else None

    def _fire(self, applies: Callable[[Fault], bool]) -> Fault | None:
        """Return the first rule that applies and is not used up, and count that it fired."""
        with self.lock:
            found = next((fault for fault in self.faults if not fault.is_spent and applies(fault)), None)
            if found is not None:
                found.fired += 1
        return found


def _parse(place: str, rule: Any) -> Fault:
    if not isinstance(rule, dict) or not isinstance(rule.get("code"), str):
        raise BadPlan(f"{place}: {rule!r} must be an object with a code such as InsufficientInstanceCapacity")
    unknown = sorted(set(rule) - KEYS - {"fired"})
    if unknown:
        raise BadPlan(f"{place}: unknown keys {', '.join(unknown)}; known are {', '.join(sorted(KEYS))}")
    condition = rule.get("condition")
    if condition is not None and condition not in CONDITIONS:
        raise BadPlan(f"{place}.condition: {condition!r} must be one of {', '.join(CONDITIONS)}")
    for key in TEXTS:
        if not isinstance(rule.get(key), str | None):
            raise BadPlan(f"{place}.{key}: {rule[key]!r} must be a text")
    for key in NUMBERS:
        number = rule.get(key)
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
            raise BadPlan(f"{place}.{key}: {number!r} must be a whole number of at least 0")
    if rule.get("status") and rule["status"] not in STATUSES:
        raise BadPlan(f"{place}.status: {rule['status']} must be from {STATUSES[0]} to {STATUSES[-1]}")
    if (rule.get("since") or 0) > time.time():
        raise BadPlan(f"{place}.since: {rule['since']} must be a number of seconds, at most those since 1970")
    return Fault(
        code=rule["code"],
        message=rule.get("message") or "",
        action=rule.get("action"),
        status=rule.get("status") or (503 if rule["code"] == "RequestLimitExceeded" else 400),
        instance_type=rule.get("instanceType") or "*",
        zone=rule.get("zone") or "*",
        capacity_type=rule.get("capacityType") or "*",
        available=rule.get("available") or 0,
        times=rule.get("times"),
        condition=condition,
        instance_id=rule.get("instanceId") or "*",
        since=time.time() - (rule.get("since") or 0),
        rule=rule,
    )


_plan = Plan()


def plan() -> Plan:
    """Return the plan of this process."""
    return _plan
