"""A stack that is up on a local cloud of its own, and what is asked of it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from components.documents.instance_types import TYPES
from local.guard import cloud_environment
from tests.integration.graph.agreement import contradictions
from tests.integration.graph.recordings import recorded
from tests.integration.policy import previews
from tests.integration.policy.settled import unsettled
from tests.previews import preview_of
from tests.stacks.pods import holder
from tests.world import World
from trainyard.cli.engine import Engine
from trainyard.policies.model import Stack as Resources
from trainyard.stack_files import read

# A machine may have to be bought, and then shows its devices.
MACHINE_SECONDS = 240
EFA = "vpc.amazonaws.com/efa"


class Life:
    """A stack that is up, and what its life has to show."""

    def __init__(self, made: World) -> None:
        self.made = made
        variables = cloud_environment(made.home)
        self.engine = Engine(made.home.root, made.stack, variables)
        self.pools: list[dict[str, Any]] = made.settings["trainyard:pools"]

    def unchanged(self, command: str) -> None:
        """`pulumi up` or `pulumi refresh` that has to find nothing to do; raises EngineError otherwise."""
        self.engine.run(command, "--yes", "--skip-preview", "--expect-no-changes")

    @cached_property
    def foreseen(self) -> dict[str, Any]:
        """The first preview of the stack file that is up, as the engine writes it down."""
        document = {"config": read(self.engine.config_file)["config"]}
        return preview_of(self.made.stack, document, self.made.home)

    def surprises(self) -> list[str]:
        """Where the state is not what its preview said: recordings of previews then say nothing of stacks."""
        return contradictions(recorded(self.foreseen), recorded(self.engine.deployment()))

    def breaches(self) -> list[str]:
        """Rules of the policy pack that what was made violates, or that nothing has decided."""
        return unsettled(previews.resources(self.foreseen, self.made.home), self.resources())

    def resources(self) -> Resources:
        """What was made, the objects of charts among it."""
        return previews.resources(self.engine.deployment(), self.made.home)

    def get(self, *arguments: str) -> list[dict[str, Any]]:
        """`kubectl get ... -o json` as the cluster's administrator: the list's items."""
        items: list[dict[str, Any]] = self.one(*arguments)["items"]
        return items

    def one(self, *arguments: str) -> dict[str, Any]:
        """The same of a single object."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def apply(self, manifest: dict[str, Any]) -> None:
        """`kubectl apply` of one object."""
        self.kubectl("apply", "--filename", "-", text=json.dumps(manifest))

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """What kubectl prints as the cluster's administrator; raises AssertionError with what it says otherwise."""
        home = self.made.home
        words = [str(home.root / "bin" / "kubectl"), "--kubeconfig", str(home.kubeconfig), *arguments]
        limit = MACHINE_SECONDS + 60
        answer = subprocess.run(words, input=text, capture_output=True, text=True, timeout=limit)
        assert answer.returncode == 0, f"kubectl {' '.join(arguments)}: {answer.stderr}"
        return answer.stdout

    def warm_nodes(self, pool: dict[str, Any]) -> int:
        """How many machines of the pool are kept without a job, each by a running pod of the stack."""
        chosen = f"trainyard.dev/role=warm,trainyard.dev/pool={pool['name']}"
        pods = self.get("pods", "--all-namespaces", "--selector", chosen)
        return len({pod["spec"]["nodeName"] for pod in pods if pod["status"]["phase"] == "Running"})

    def await_kept(self, pool: dict[str, Any]) -> None:
        """Wait for the pool's warm nodes and for their devices: no resource of `up` waits for either.

        After the time they are as they are, which the caller judges.
        """
        deadline = time.monotonic() + MACHINE_SECONDS
        while time.monotonic() < deadline:
            shown = [node["status"]["allocatable"] for node in self.nodes(pool)]
            is_complete = all(
                each.get(name) == number for each in shown for name, number in expected_devices(pool).items()
            )
            if is_complete and self.warm_nodes(pool) >= pool.get("warmNodes", 0):
                return
            time.sleep(1)

    def system_nodes(self) -> list[str]:
        """Return the instance type of each system node."""
        nodes = self.get("nodes", "--selector", "trainyard.dev/role=system")
        return [node["metadata"]["labels"]["node.kubernetes.io/instance-type"] for node in nodes]

    def nodes(self, pool: dict[str, Any]) -> list[dict[str, Any]]:
        """The pool's nodes."""
        return self.get("nodes", "--selector", f"karpenter.sh/nodepool={pool['name']}")

    def instance(self, node: dict[str, Any]) -> dict[str, Any]:
        """A node's machine, as EC2 knows it."""
        identity = node["spec"]["providerID"].rsplit("/", 1)[1]
        answer = self.made.client("ec2").describe_instances(InstanceIds=[identity])
        instance: dict[str, Any] = answer["Reservations"][0]["Instances"][0]
        return instance

    def buy(self, pool: dict[str, Any]) -> None:
        """Have Karpenter buy one machine of a pool that no run and no setting has bought one of."""
        self.apply(holder(pool["name"], expected_devices(pool)))
        try:
            self.kubectl("wait", "pod/holder", "--for=condition=Ready", f"--timeout={MACHINE_SECONDS}s")
        except AssertionError as error:
            events = self.kubectl("events", "--for", "pod/holder", "--namespace", "default")
            claims = self.kubectl("get", "nodeclaims", "-o", "wide")
            raise AssertionError(f"{error}\n{events}\n{claims}") from None
        self.kubectl("delete", "pod/holder", "--wait")

    @contextmanager
    def other_bucket(self) -> Iterator[str]:
        """A bucket of the account that is not the stack's, for a while."""
        s3, name = self.made.client("s3"), f"not-of-{self.made.stack}"
        # The region that an endpoint stands for by itself is not named.
        region = self.made.settings["aws:region"]
        where = {} if region == "us-east-1" else {"LocationConstraint": region}
        s3.create_bucket(Bucket=name, **({"CreateBucketConfiguration": where} if where else {}))
        try:
            yield name
        finally:
            for found in s3.list_objects_v2(Bucket=name).get("Contents", []):
                s3.delete_object(Bucket=name, Key=found["Key"])
            s3.delete_bucket(Bucket=name)


def expected_devices(pool: dict[str, Any]) -> dict[str, str]:
    """The devices that a machine of the pool shows, by the names that pods ask for."""
    kind = TYPES[pool["instanceType"]]
    devices = {kind.resource: str(kind.accelerators)} if kind.accelerators else {}
    # EFA is used wherever the type has it, unless the pool says none.
    return {**devices, EFA: str(kind.efa)} if kind.efa and pool.get("efa") != "none" else devices


def differences(pool: dict[str, Any], node: dict[str, Any], instance: dict[str, Any]) -> list[str]:
    """What a machine of the pool is that the settings do not say, a line each."""
    here, placement = f"pool {pool['name']}: {instance['InstanceId']}", instance["Placement"]
    is_reserved = pool.get("purchase") == "reserved"
    allocatable = node["status"]["allocatable"]
    facts = [
        ("type", instance["InstanceType"], pool["instanceType"]),
        ("zone", placement["AvailabilityZone"], pool["zone"]),
        ("reserved", "CapacityReservationId" in instance, is_reserved),
        ("placement group", bool(placement.get("GroupName")), pool.get("placementGroup", False)),
        *((name, allocatable.get(name), count) for name, count in expected_devices(pool).items()),
    ]
    return [f"{here}: {what} is {is_so}, not {said}" for what, is_so, said in facts if is_so != said]
