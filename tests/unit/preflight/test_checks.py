"""The whole preflight: all findings together, and a check that is not possible stops no other one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, NoCredentialsError

from infra.stack_file import load
from tests.shipped import shipped
from tests.unit.emulator import REGION, SESSION, Cloud
from tests.unit.preflight.accounts import (
    ACCOUNT,
    Answers,
    ExistingVpc,
    Session,
    account,
    checks,
    recorded_calls,
    stack,
)
from trainyard.preflight import __main__
from trainyard.preflight.aws import Aws
from trainyard.preflight.checks import CHECKS, Report, examine
from trainyard.preflight.findings import SKIPPED, WARNING, Finding
from trainyard.stack_files import ROOT

ROLE = f"arn:aws:iam::{ACCOUNT}:role"


def test_all_findings_are_reported_together(existing: ExistingVpc) -> None:
    existing.ec2.modify_vpc_attribute(VpcId=existing.vpc, EnableDnsHostnames={"Value": False})
    report = existing.report(
        {"instanceType": "trn1.32xlarge"},
        of=CHECKS,
        network={"workerSecurityGroupId": "sg-0123456789abcdef0"},
        cluster={"administrators": [f"{ROLE}/platform"]},
    )
    assert [each.key for each in report.of()] == [
        "trainyard:cluster.administrators",
        "trainyard:cluster.administrators[0]",
        "trainyard:network.vpcId",
        "trainyard:network.workerSecurityGroupId",
        "trainyard:pools[0].instanceType",
    ]


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_stack_file_can_be_checked(name: str) -> None:
    report = examine(load(name), Answers(get_caller_identity={"Arn": f"{ROLE}/nobody"}, describe_key={}))
    assert (report.failed, report.denied) == ([], [])


def test_missing_permission_is_named_and_stops_no_other_check(cloud: Cloud, existing: ExistingVpc) -> None:
    existing.ec2.modify_vpc_attribute(VpcId=existing.vpc, EnableDnsHostnames={"Value": False})
    everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    but = {"Effect": "Deny", "Action": ["ec2:DescribeSubnets", "servicequotas:*"], "Resource": "*"}
    session = cloud.session("platform", everything, but)
    settings = existing.settings(cluster={"administrators": [f"{ROLE}/platform"]})
    report = examine(settings, account(cloud, session))
    assert [each.key for each in report.of()] == ["trainyard:network.vpcId"]
    assert ("subnets", "ec2:DescribeSubnets") in report.denied
    assert ("service quotas", "servicequotas:GetServiceQuota") in report.denied
    assert report.checked == len(CHECKS) - len(report.denied)


def test_caller_without_any_permission_gets_no_findings(cloud: Cloud) -> None:
    session = cloud.session("nobody")
    settings = ExistingVpc(cloud).settings(cluster={"administrators": [f"{ROLE}/nobody"]})
    report = examine(settings, account(cloud, session))
    permissions = {permission for _, permission in report.denied}
    assert {
        "ec2:DescribeVpcs",
        "ec2:DescribeSecurityGroups",
        "eks:DescribeCluster",
        "sqs:GetQueueUrl",
    } <= permissions
    assert report.of() == []


@pytest.mark.parametrize(
    ("action", "code", "names"),
    [
        ("service-quotas:GetServiceQuota", "TooManyRequestsException", ("service quotas", "network interface quota")),
        ("ec2:DescribeInstanceTypeOfferings", "InternalError", ("instance types",)),
        ("ec2:DescribeSecurityGroups", "AuthFailure", ("worker security group",)),
        ("ec2:DescribeAvailabilityZones", "OptInRequired", ("zones",)),
    ],
)  # fmt: skip
def test_other_error_is_reported_and_stops_no_other_check(
    cloud: Cloud, existing: ExistingVpc, action: str, code: str, names: tuple[str, ...]
) -> None:
    existing.ec2.modify_vpc_attribute(VpcId=existing.vpc, EnableDnsHostnames={"Value": False})
    rule = {"action": action, "code": code, "message": "Try again.", "status": 503}
    cloud.call("PUT", "faults", {"faults": [rule]})
    report = examine(existing.settings(), account(cloud))
    assert [each.key for each in report.of()] == ["trainyard:network.vpcId"]
    assert report.failed == [(name, f"{code} Try again.") for name in names]
    assert report.checked == len(CHECKS) - len(names)


@pytest.mark.parametrize("code", ["ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId"])
def test_bad_credentials_end_the_preflight(cloud: Cloud, code: str) -> None:
    cloud.call("PUT", "faults", {"faults": [{"action": "sts:GetCallerIdentity", "code": code}]})
    with pytest.raises(ClientError, match=code):
        examine(stack(), account(cloud))


def test_missing_credentials_end_the_preflight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/dev/null")
    with pytest.raises(NoCredentialsError):
        examine(stack(), Aws(REGION, boto3.session.Session()), checks("caller"))


def test_unreachable_service_is_called_once(cloud: Cloud) -> None:
    class Elsewhere(Session):
        def client(self, service: str, **more: Any) -> Any:
            if service != "eks":
                return super().client(service, **more)
            return SESSION.client(
                "eks",
                region_name=REGION,
                endpoint_url="http://127.0.0.1:1",
                aws_access_key_id="x",
                aws_secret_access_key="x",
                config=Config(retries={"total_max_attempts": 1}),
            )

    aws, tries = Aws(REGION, Elsewhere(cloud)), []
    aws.client("eks").meta.events.register("before-send", lambda **_: tries.append(1))
    names = ("Kubernetes version", "free name: EKS cluster")
    report = examine(stack(), aws, checks(*names, "zones"))
    assert [name for name, _ in report.failed] == [*names]
    assert all(error.startswith("EndpointConnectionError") for _, error in report.failed)
    assert (report.checked, len(tries)) == (1, 1)


def test_same_data_is_read_once_and_nothing_is_changed(cloud: Cloud, existing: ExistingVpc) -> None:
    aws = account(cloud)
    services = ("ec2", "iam", "eks", "fsx", "sqs", "ecr", "kms", "logs", "service-quotas", "sts", "s3", "ssm")
    with recorded_calls(aws, *services) as calls:
        examine(existing.settings(), aws)
    assert all(name.startswith(("Describe", "List", "Get", "Head")) for name in calls), calls
    assert [
        calls.count(name) for name in ("GetCallerIdentity", "DescribeSubnets", "DescribeRouteTables")
    ] == [1, 1, 1]


def test_output_has_a_line_per_finding_and_a_summary() -> None:
    report = Report(
        findings=[
            Finding("d", "is of another account", SKIPPED),
            Finding("a.b", "is wrong"),
            Finding("e", "has not started", WARNING),
            Finding("c", "is missing"),
        ],
        denied=[("subnets", "ec2:DescribeSubnets")],
        failed=[("zones", "InternalError x")],
        checked=3,
    )
    assert report.lines("train") == [
        "missing: a.b: is wrong",
        "missing: c: is missing",
        "warning: e: has not started",
        "not checked: subnets: needs ec2:DescribeSubnets",
        "not checked: zones: InternalError x",
        "skipped: d: is of another account",
        "preflight of stack train: 3 checks, 2 problems",
    ]
    assert Report(checked=1).lines("train") == ["preflight of stack train: 1 check, no problems"]


@pytest.mark.parametrize(
    ("report", "code", "summary"),
    [
        (Report(), 0, "no problems"),
        (Report(denied=[("subnets", "x")]), 0, "no problems in what could be checked"),
        (Report(failed=[("zones", "x")]), 1, "no problems in what could be checked"),
        (Report(failed=[("caller", "x")]), 3, "no problems in what could be checked"),
        (Report(findings=[Finding("a", "b")]), 1, "1 problem"),
        (Report(findings=[Finding("a", "b", WARNING)]), 0, "no problems"),
    ],
)
def test_exit_code_follows_the_report(
    monkeypatch: pytest.MonkeyPatch, report: Report, code: int, summary: str
) -> None:
    monkeypatch.setattr(__main__, "examine", lambda *_: report)
    monkeypatch.setattr(__main__, "check_state", lambda *_: None)
    assert __main__.run(stack(), Answers()) == code
    assert report.lines("train")[-1].endswith(f"checks, {summary}")


def table(page: Path) -> dict[str, str]:
    """Return the rows of the table of checks in a page: the first cell, and the others."""
    text = page.read_text().split("| Check", 1)[1]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    return {row[1].strip(): "|".join(row[2:]) for row in rows}


def test_readme_and_page_list_every_check() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    readme = table(ROOT / "trainyard" / "preflight" / "README.md")
    for check in CHECKS:
        module = f"`{check.run.__module__.rpartition('.')[2]}.py`"
        assert check.name in [name.strip() for name in readme[module].strip(" |").split(",")], check.name
    page = table(ROOT / "docs" / "preflight.md")
    assert {check.name for check in CHECKS} == set(page) - {__main__.FIXED}
