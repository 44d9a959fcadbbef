"""The whole preflight: everything at once, and a missing permission stops nothing else."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, NoCredentialsError

from infra.stack_file import load
from tests.unit.emulator import REGION, SESSION, Cloud
from tests.unit.preflight.accounts import NOW, Given, Session, account, checks, pool, wanted
from trainyard.preflight import __main__
from trainyard.preflight.__main__ import lines
from trainyard.preflight.account import Account
from trainyard.preflight.run import CHECKS, Report, examine
from trainyard.preflight.wanted import Caution, Problem, Unasked, WantedBucket

pytestmark = pytest.mark.unit


def test_everything_that_is_wrong_is_told_at_once(cloud: Cloud) -> None:
    given = Given(cloud)
    given.ec2.modify_vpc_attribute(VpcId=given.vpc, EnableDnsHostnames={"Value": False})
    report = given.report(
        vpc={"worker_group": "sg-0123456789abcdef0"},
        pools=(pool(instance_type="g5.13xlarge"),),
        administrators=("arn:aws:iam::123456789012:role/platform",),
    )
    assert [problem.key for problem in report.problems] == [
        "trainyard:cluster.administrators",
        "trainyard:cluster.administrators[0]",
        "trainyard:network.vpcId",
        "trainyard:network.workerSecurityGroupId",
        "trainyard:pools[0].instanceType",
    ]


def test_a_missing_permission_is_named_and_stops_no_other_check(cloud: Cloud) -> None:
    given = Given(cloud)
    given.ec2.modify_vpc_attribute(VpcId=given.vpc, EnableDnsHostnames={"Value": False})
    everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    but = {"Effect": "Deny", "Action": ["ec2:DescribeSubnets", "servicequotas:*"], "Resource": "*"}
    session = cloud.session("platform", everything, but)
    wanted = given.wanted(administrators=("arn:aws:iam::123456789012:role/platform",))
    report = examine(account(cloud, session), wanted, NOW)
    assert [problem.key for problem in report.problems] == ["trainyard:network.vpcId"]
    assert ("subnets", "ec2:DescribeSubnets") in report.not_checked
    assert ("service quotas", "servicequotas:GetServiceQuota") in report.not_checked
    assert report.checked == len(CHECKS) - len(report.not_checked)


def test_a_caller_without_any_permission_is_told_each_one(cloud: Cloud) -> None:
    given = Given(cloud)
    session = cloud.session("nobody")
    report = examine(account(cloud, session), given.wanted(administrators=(cloud_role("nobody"),)), NOW)
    permissions = {permission for _, permission in report.not_checked}
    assert {
        "ec2:DescribeVpcs",
        "ec2:DescribeSecurityGroups",
        "eks:DescribeCluster",
        "sqs:GetQueueUrl",
    } <= permissions
    assert report.problems == []


@pytest.mark.parametrize(
    ("action", "code", "of"),
    [
        (
            "service-quotas:GetServiceQuota",
            "TooManyRequestsException",
            ("service quotas", "network interfaces"),
        ),
        ("ec2:DescribeInstanceTypeOfferings", "InternalError", ("instance types",)),
        ("eks:DescribeClusterVersions", "ServiceUnavailable", ("Kubernetes version",)),
        ("ec2:DescribeSecurityGroups", "AuthFailure", ("security groups",)),
        ("ec2:DescribeAvailabilityZones", "OptInRequired", ("zones",)),
    ],
)
def test_an_error_that_is_no_missing_right_is_told_and_stops_no_other_check(
    cloud: Cloud, action: str, code: str, of: tuple[str, ...]
) -> None:
    given = Given(cloud)
    given.ec2.modify_vpc_attribute(VpcId=given.vpc, EnableDnsHostnames={"Value": False})
    rule = {"action": action, "code": code, "message": "Try again.", "status": 503}
    cloud.call("PUT", "faults", {"faults": [rule]})
    report = given.report()
    assert [problem.key for problem in report.problems] == ["trainyard:network.vpcId"]
    assert report.failed == [(check, f"{code} Try again.") for check in of]
    assert report.checked == len(CHECKS) - len(of)


def test_parameters_that_the_client_refuses_itself_are_told_by_their_check(cloud: Cloud) -> None:
    bucket = WantedBucket(key="trainyard:serviceAccounts[0].bucket", name="a b")
    report = examine(account(cloud), wanted(buckets=(bucket,)), NOW, checks("given buckets", "zones"))
    ((name, error),) = report.failed
    assert (name, report.checked) == ("given buckets", 1)
    assert error.startswith("ParamValidationError")


@pytest.mark.parametrize("code", ["ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId"])
def test_credentials_that_are_not_good_end_the_preflight(cloud: Cloud, code: str) -> None:
    cloud.call("PUT", "faults", {"faults": [{"action": "sts:GetCallerIdentity", "code": code}]})
    with pytest.raises(ClientError, match=code):
        examine(account(cloud), wanted(), NOW)


def test_without_any_credentials_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    with pytest.raises(NoCredentialsError):
        examine(Account(REGION, boto3.session.Session()), wanted(), NOW, checks("who deploys"))


@pytest.mark.parametrize(
    "names",
    [("Kubernetes version", "free names: EKS cluster"), ("free names: EKS cluster", "Kubernetes version")],
)
def test_a_service_that_is_not_reached_is_asked_once_and_the_others_all_the_same(
    cloud: Cloud, names: tuple[str, str]
) -> None:
    class Elsewhere(Session):
        def client(self, service: str, **more: Any) -> Any:
            if service != "eks":
                return super().client(service, **more)
            nowhere = Config(retries={"total_max_attempts": 1})
            return SESSION.client(
                "eks",
                region_name=REGION,
                endpoint_url="http://127.0.0.1:1",
                aws_access_key_id="x",
                aws_secret_access_key="x",
                config=nowhere,
            )

    asking, tries = Account(REGION, Elsewhere(cloud)), []
    asking.client("eks").meta.events.register("before-send", lambda **_: tries.append(1))
    report = examine(asking, wanted(), NOW, checks(*names, "zones"))
    assert [name for name, _ in report.failed] == [*names]
    assert all(error.startswith("EndpointConnectionError") for _, error in report.failed)
    assert (report.checked, len(tries)) == (1, 1)


def cloud_role(name: str) -> str:
    return f"arn:aws:iam::123456789012:role/{name}"


def test_what_a_person_reads_has_a_line_per_thing_and_the_sum() -> None:
    report = Report(
        problems=[Problem(key="a.b", message="is wrong"), Problem(key="c", message="is missing")],
        cautions=[Caution(key="e", message="has not begun")],
        not_checked=[("subnets", "ec2:DescribeSubnets")],
        unasked=[Unasked(key="d", message="is of another account")],
        checked=3,
    )
    assert lines("train", report) == [
        "missing: a.b: is wrong",
        "missing: c: is missing",
        "caution: e: has not begun",
        "not checked: subnets: needs ec2:DescribeSubnets",
        "not asked: d: is of another account",
        "preflight of stack train: 3 checks, 2 things are missing",
    ]
    assert lines("train", Report(checked=1))[-1] == "preflight of stack train: 1 checks, nothing is missing"


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (Report(checked=1, not_checked=[("subnets", "ec2:DescribeSubnets")]), 0),
        (Report(checked=1, failed=[("zones", "InternalError x")]), 1),
    ],
)
def test_what_could_not_be_checked_is_not_told_as_being_there(
    monkeypatch: pytest.MonkeyPatch, report: Report, code: int
) -> None:
    end = "preflight of stack train: 1 checks, nothing is missing of what could be checked"
    assert lines("train", report)[-1] == end
    assert (
        lines("train", Report(failed=[("zones", "InternalError x")]))[0]
        == "not checked: zones: InternalError x"
    )
    monkeypatch.setattr(__main__, "examine", lambda *_: report)
    assert __main__.ask(load("local"), Account("us-west-2")) == code


def test_nothing_is_changed_by_asking(cloud: Cloud) -> None:
    given = Given(cloud)
    calls: list[str] = []
    asking = account(cloud)
    for service in ("ec2", "iam", "eks", "fsx", "sqs", "ecr", "kms", "logs", "service-quotas", "sts", "s3"):
        events = asking.client(service).meta.events
        events.register(
            "before-call", lambda model, **_: calls.append(model.name), unique_id=f"seen-{service}"
        )
    examine(asking, given.wanted(), datetime.now(UTC))
    for service in ("ec2", "iam", "eks", "fsx", "sqs", "ecr", "kms", "logs", "service-quotas", "sts", "s3"):
        asking.client(service).meta.events.unregister("before-call", unique_id=f"seen-{service}")
    assert calls
    assert all(name.startswith(("Describe", "List", "Get", "Head")) for name in calls), json.dumps(calls)
