"""A local cloud of a test file's own, started and ended by the command line, and Pulumi programs on it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import boto3
import yaml
from botocore.exceptions import ClientError

from local.guard import cloud_environment
from local.home import Home
from tests.integration.local.conftest import Command, run
from trainyard.cli.engine import Engine

REGION = "us-west-2"


class OwnCloud:
    """One running local cloud in a home of its own."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.record: dict[str, Any] = home.cloud() or {}
        self.environment = cloud_environment(home)
        self._subnets: list[str] = []

    def local(self, *arguments: str) -> Command:
        """`python -m local ...`."""
        return run(
            [sys.executable, "-m", "local", *arguments], {"TRAINYARD_HOME": str(self.home.root)}, seconds=120
        )

    def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.local("status", "--json").output)
        return answer

    def client(self, service: str, **more: Any) -> Any:
        """A boto3 client, as the deployer unless `more` says otherwise."""
        return boto3.client(
            service,
            **{
                "region_name": REGION,
                "endpoint_url": self.record["awsEndpoint"],
                "aws_access_key_id": self.record["accessKeyId"],
                "aws_secret_access_key": self.record["secretAccessKey"],
                **more,
            },
        )

    def kubectl(self, cluster: str, *arguments: str) -> str:
        """Output of kubectl as the administrator of one cluster."""
        answer = self.local("kubectl", "--context", cluster, *arguments)
        assert answer.code == 0, answer.output
        return answer.output.strip()

    def faults(self, *rules: dict[str, Any]) -> None:
        """Put these rules in place of the failure plan."""
        body = json.dumps({"faults": list(rules)}).encode()
        headers = {"Authorization": f"Bearer {self.record['emulatorToken']}"}
        url = f"{self.record['awsEndpoint']}/_trainyard/faults"
        request = Request(url, body, headers, method="PUT")  # noqa: S310
        with urlopen(request, timeout=10) as answer:  # noqa: S310
            assert answer.status == 200

    def role(self, name: str, trust: dict[str, Any]) -> str:
        document = json.dumps({"Version": "2012-10-17", "Statement": [trust]})
        role = self.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=document)
        return str(role["Role"]["Arn"])

    def create_cluster(self, name: str, **more: Any) -> dict[str, Any]:
        """Create an EKS cluster and wait until it is ACTIVE. `more` are arguments of CreateCluster."""
        eks = self.client("eks")
        service = {
            "Effect": "Allow",
            "Principal": {"Service": "eks.amazonaws.com"},
            "Action": "sts:AssumeRole",
        }
        network = {"subnetIds": self._network()}
        role = self.role(f"{name}-eks", service)
        eks.create_cluster(name=name, roleArn=role, resourcesVpcConfig=network, **more)
        eks.get_waiter("cluster_active").wait(name=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        cluster: dict[str, Any] = eks.describe_cluster(name=name)["cluster"]
        return cluster

    def delete_cluster(self, name: str) -> None:
        """Delete a cluster and wait until EKS knows it no more."""
        eks = self.client("eks")
        eks.delete_cluster(name=name)
        eks.get_waiter("cluster_deleted").wait(name=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
        self.client("iam").delete_role(RoleName=f"{name}-eks")

    def _network(self) -> list[str]:
        if not self._subnets:
            ec2 = self.client("ec2")
            vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
            for number, zone in enumerate("ab"):
                subnet = ec2.create_subnet(
                    VpcId=vpc, CidrBlock=f"10.0.{number}.0/24", AvailabilityZone=REGION + zone
                )
                self._subnets.append(subnet["Subnet"]["SubnetId"])
        return self._subnets


def processes_that_name(text: str) -> list[str]:
    """Command lines on this machine that hold `text`, this process's own left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if text in line:
                found.append(line)
    return found


@contextmanager
def own_cloud(root: Path) -> Iterator[OwnCloud]:
    """Start a cloud in `root`; end it and see that no process of it is left."""
    environment = {"TRAINYARD_HOME": str(root)}
    started = run([sys.executable, "-m", "local", "up"], environment, seconds=120)
    try:
        assert started.code == 0, started.output
        yield OwnCloud(Home(root))
    finally:
        ended = run([sys.executable, "-m", "local", "down"], environment, seconds=120)
    assert ended.code == 0, ended.output
    assert processes_that_name(str(root)) == []


class Program:
    """A Pulumi program in a directory of its own, with the engine and the plugins of the local cloud."""

    def __init__(self, cloud: OwnCloud, directory: Path, text: str) -> None:
        self.directory = directory
        engine = Engine(cloud.home.root, directory.name, cloud.environment)
        self.environment = {**engine.environment, "KUBECONFIG": str(cloud.home.kubeconfig)}
        directory.mkdir(parents=True, exist_ok=True)
        project = {"name": directory.name, "runtime": "python"}
        (directory / "Pulumi.yaml").write_text(yaml.safe_dump(project))
        (directory / "__main__.py").write_text(text)
        assert self.pulumi("stack", "init", "test").code == 0

    def pulumi(self, *arguments: str, **variables: str) -> Command:
        command = [
            "pulumi",
            *arguments,
            "--non-interactive",
            "--color",
            "never",
            "--cwd",
            str(self.directory),
        ]
        return run(command, {**self.environment, **variables}, seconds=100)

    def up(self, *arguments: str) -> Command:
        return self.pulumi("up", "--yes", "--skip-preview", "--stack", "test", *arguments)

    def export(self) -> str:
        """The state as the engine gives it away, secrets encrypted."""
        return self.pulumi("stack", "export", "--stack", "test").output

    def resources(self) -> dict[str, dict[str, Any]]:
        """The resources of the state by `<type> <name>`."""
        found = json.loads(self.export())["deployment"].get("resources") or []
        return {f"{each['type']} {each['urn'].rsplit('::', 1)[1]}": each for each in found}


def refusal(error: ClientError) -> str:
    """The code of a refused AWS call."""
    return str(error.response["Error"]["Code"])
