"""The emulator as a process: what `up`, a run and `down` call, again and again, leaves its size as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig

from local.home import CHECKOUT, Home
from tests.unit.emulator import Cloud, FakeSupervisor

pytestmark = [pytest.mark.emulator, pytest.mark.long]
MODEL = os.urandom(24 * 2**20)
PARTS = TransferConfig(multipart_chunksize=6 * 2**20, max_concurrency=4)
CYCLES, GROWTH_MEGABYTES, MEGABYTES = 3, 30, 300


class Emulator:
    """The process, and clients of it."""

    def __init__(self, home: Home) -> None:
        home.make()
        self.supervisor = FakeSupervisor(home.control_socket)
        command = [sys.executable, "-m", "local.aws", "--home", str(home.root), "--port", "0"]
        self.process = subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.DEVNULL)
        while not home.aws_file.exists():
            assert self.process.poll() is None, "the emulator ended"
            time.sleep(0.05)
        record = json.loads(home.aws_file.read_text())
        self.cloud = Cloud(
            record["endpoint"], self.supervisor, record["accessKeyId"], record["secretAccessKey"]
        )

    @property
    def megabytes(self) -> int:
        """The resident size."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


@pytest.fixture
def emulator(tmp_path: Path, over_http: None) -> Iterator[Emulator]:
    found = Emulator(Home(tmp_path))
    yield found
    found.process.terminate()
    found.process.wait()
    found.supervisor.server.shutdown()


def cycle(cloud: Cloud) -> None:
    """Calls of each kind that a cycle of `up`, a run and `down` makes, fewer of each."""
    ec2, s3, sqs = cloud.client("ec2"), cloud.client("s3"), cloud.client("sqs")
    cluster = cloud.cluster("main")
    instances = machines(cloud, cluster)
    arn = cloud.role("trainer", {"Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]})
    for _ in range(5):
        cloud.client("sts").assume_role(RoleArn=arn, RoleSessionName="run")
    queue = sqs.create_queue(QueueName="main")["QueueUrl"]
    for number in range(20):
        sqs.send_message(QueueUrl=queue, MessageBody=str(number))
    for message in sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10)["Messages"]:
        sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
    run_of_training(s3)
    ec2.terminate_instances(InstanceIds=instances)
    sqs.delete_queue(QueueUrl=queue)
    cloud.client("eks").delete_cluster(name="main")
    cloud.client("iam").delete_role_policy(RoleName="trainer", PolicyName="inline")
    for role in ("trainer", "main-cluster"):
        cloud.client("iam").delete_role(RoleName=role)


def machines(cloud: Cloud, cluster: dict[str, Any]) -> list[str]:
    """A node of the cluster, as Karpenter buys it."""
    ec2 = cloud.client("ec2")
    ec2.describe_instance_types(Filters=[{"Name": "instance-type", "Values": ["g5.*"]}])
    data = {"InstanceType": "g5.xlarge", "ImageId": "ami-12c6146b"}
    template = ec2.create_launch_template(LaunchTemplateName="node", LaunchTemplateData=data)[
        "LaunchTemplate"
    ]
    chosen = {"LaunchTemplateId": template["LaunchTemplateId"], "Version": "$Latest"}
    fleet = ec2.create_fleet(
        Type="instant",
        LaunchTemplateConfigs=[
            {
                "LaunchTemplateSpecification": chosen,
                "Overrides": [{"InstanceType": "g5.xlarge", "SubnetId": cluster["subnets"][0]}],
            }
        ],
        TargetCapacitySpecification={"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"},
    )
    ec2.describe_instances()
    ec2.delete_launch_template(LaunchTemplateId=template["LaunchTemplateId"])
    return [each for part in fleet["Instances"] for each in part["InstanceIds"]]


def run_of_training(s3: Any) -> None:
    """Checkpoints that replace each other, a model, and the end of the bucket."""
    s3.create_bucket(Bucket="models", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    s3.put_bucket_versioning(Bucket="models", VersioningConfiguration={"Status": "Enabled"})
    for key in ("checkpoint", "checkpoint", "model"):
        s3.upload_fileobj(BytesIO(MODEL), "models", key, Config=PARTS)
    s3.download_fileobj("models", "model", BytesIO(), Config=PARTS)
    versions = s3.list_object_versions(Bucket="models")["Versions"]
    names = [{"Key": each["Key"], "VersionId": each["VersionId"]} for each in versions]
    s3.delete_objects(Bucket="models", Delete={"Objects": names})
    s3.delete_bucket(Bucket="models")


def test_cycles_of_up_run_and_down_do_not_grow_the_emulator(emulator: Emulator) -> None:
    cycle(emulator.cloud)
    before = emulator.megabytes
    for _ in range(CYCLES):
        cycle(emulator.cloud)
    after = emulator.megabytes
    assert after < before + GROWTH_MEGABYTES, (
        f"{before} MB before {CYCLES} more cycles, {after} MB after them"
    )
    assert after < MEGABYTES
