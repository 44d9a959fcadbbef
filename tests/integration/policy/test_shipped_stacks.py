"""Previews of the stack files (those of the tests, too), checked by the project's rules and by checkov."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.integration.policy import checkov
from tests.integration.policy.checkov import Verdict
from tests.integration.policy.previews import preview
from tests.previews import every, sample
from trainyard.policies import waivers
from trainyard.policies.judge import Judgement, judge
from trainyard.policies.waivers import Waiver

# They need the engine, and checkov is installed for them.
pytestmark = [pytest.mark.local, pytest.mark.timeout(900)]

WAIVERS = waivers.load()
STACKS = sample(every())


@cache
def by_rules(stack: str) -> Judgement:
    return judge(preview(stack), WAIVERS)


@pytest.fixture(scope="module")
def dockerfiles(tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    return checkov.check_dockerfiles(tmp_path_factory.mktemp("dockerfiles"))


@pytest.fixture(scope="module")
def by_checkov(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    return checkov.check_stacks(
        {stack: preview(stack) for stack in STACKS}, tmp_path_factory.mktemp("stacks")
    )


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_file_violates_no_rule(stack: str) -> None:
    assert [str(each) for each in by_rules(stack).violations] == []


@pytest.mark.parametrize("stack", STACKS)
def test_checkov_finds_nothing_that_is_not_waived(stack: str, by_checkov: dict[str, Verdict]) -> None:
    verdict = by_checkov[stack]
    assert [str(each) for each in verdict.unwaived(WAIVERS)] == []
    assert verdict.passed > 50, "checkov judged next to nothing"


def test_checkov_finds_nothing_in_the_dockerfiles_that_is_not_waived(dockerfiles: Verdict) -> None:
    assert [str(each) for each in dockerfiles.unwaived(WAIVERS)] == []


def test_every_waiver_is_about_something(by_checkov: dict[str, Verdict], dockerfiles: Verdict) -> None:
    used: set[Waiver] = set()
    for stack in STACKS:
        used |= {waiver for _, waiver in by_rules(stack).waived}
    for verdict in (dockerfiles, *by_checkov.values()):
        used |= verdict.used(WAIVERS)
    assert [str(waiver) for waiver in WAIVERS if waiver not in used] == []


@pytest.mark.parametrize("stack", STACKS)
def test_the_objects_of_charts_are_judged(stack: str) -> None:
    judged = {each.name for each in preview(stack).of("kubernetes:apps/v1:Deployment")}
    assert "karpenter:kube-system/karpenter" in judged


def test_checkov_notices_what_is_wrong(tmp_path: Path) -> None:
    """Without this, an adapter that says nothing would pass."""
    from tests.unit.policies.building import made
    from trainyard.policies.model import Stack

    open_rule = made(
        "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule",
        "open",
        cidrIpv4="0.0.0.0/0",
        fromPort=22,
        toPort=22,
        ipProtocol="tcp",
        description="d",
    )
    bucket = made("aws:s3/bucket:Bucket", "plain")
    root_pod = made(
        "kubernetes:core/v1:Pod",
        "root",
        metadata={"name": "root", "namespace": "a"},
        spec={"containers": [{"name": "c", "image": "a:latest", "securityContext": {"privileged": True}}]},
    )
    failures = {
        (each.check, each.name)
        for each in checkov.check_stack(Stack([open_rule, bucket, root_pod]), tmp_path).failures
    }
    assert ("CKV_AWS_24", "open") in failures
    assert ("CKV_AWS_21", "plain") in failures
    assert ("CKV_K8S_16", "root") in failures
