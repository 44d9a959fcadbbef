"""The whole preflight: everything at once, and a missing permission stops nothing else."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from infra.preflight.__main__ import lines
from infra.preflight.run import CHECKS, Report, examine
from infra.preflight.wanted import Problem, Unasked
from tests.unit.emulator import Cloud
from tests.unit.preflight.accounts import NOW, Given, account, pool

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


def cloud_role(name: str) -> str:
    return f"arn:aws:iam::123456789012:role/{name}"


def test_what_a_person_reads_has_a_line_per_thing_and_the_sum() -> None:
    report = Report(
        problems=[Problem(key="a.b", message="is wrong"), Problem(key="c", message="is missing")],
        not_checked=[("subnets", "ec2:DescribeSubnets")],
        unasked=[Unasked(key="d", message="is of another account")],
        checked=3,
    )
    assert lines("train", report) == [
        "missing: a.b: is wrong",
        "missing: c: is missing",
        "not checked: subnets: needs ec2:DescribeSubnets",
        "not asked: d: is of another account",
        "preflight of stack train: 3 checks, 2 things are missing",
    ]
    assert lines("train", Report(checked=1))[-1] == "preflight of stack train: 1 checks, nothing is missing"


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
