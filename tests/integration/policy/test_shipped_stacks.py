"""Previews of the stack files (those of the tests, too), checked by the project's rules and by checkov."""

from __future__ import annotations

from functools import cache

import pytest

from tests.integration.policy import checkov
from tests.integration.policy.checkov import Verdict
from tests.integration.policy.left_to_checkov import LEFT_TO_CHECKOV
from tests.integration.policy.previews import preview
from tests.previews import every, sample
from tests.unit.policies import own_pods
from trainyard.policies import waivers
from trainyard.policies.evaluate import Evaluation, evaluate
from trainyard.policies.model import Stack
from trainyard.policies.waivers import Waiver

# They need the engine, and checkov is installed for them.
pytestmark = [pytest.mark.local, pytest.mark.timeout(900)]

WAIVERS = waivers.load()
STACKS = sample(every())
# Stacks that checkov gets beside the stack files: pods of ours, and one resource for each check that we rely on.
OWN_PODS, REJECTED = "own pods", "rejected"
BESIDE = {
    OWN_PODS: Stack(
        [
            *own_pods.launcher_pods(),
            *own_pods.debug_pods(),
            *own_pods.torchrun_controller(),
            own_pods.torchrun_queue(),
            own_pods.training_operator(),
        ]
    ),
    REJECTED: Stack([each for resources in LEFT_TO_CHECKOV.values() for each in resources]),
}
# Probes of pods that serve nobody, tokens that are needed, NetworkPolicies of namespaces that this stack lacks.
NOT_FOR_OWN_PODS = {"CKV_K8S_8", "CKV_K8S_9", "CKV_K8S_38", "CKV2_K8S_6"}


@cache
def by_rules(stack: str) -> Evaluation:
    return evaluate(preview(stack), WAIVERS)


@pytest.fixture(scope="module")
def dockerfiles(tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    return checkov.check_dockerfiles(tmp_path_factory.mktemp("dockerfiles"))


@pytest.fixture(scope="module")
def by_checkov(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Verdict]:
    return checkov.check_stacks(
        {stack: preview(stack) for stack in STACKS} | BESIDE, tmp_path_factory.mktemp("stacks")
    )


@pytest.mark.parametrize("stack", STACKS)
def test_a_stack_file_violates_no_rule(stack: str) -> None:
    assert [str(each) for each in by_rules(stack).violations] == []


@pytest.mark.parametrize("stack", STACKS)
def test_checkov_finds_nothing_that_is_not_waived(stack: str, by_checkov: dict[str, Verdict]) -> None:
    verdict = by_checkov[stack]
    assert [str(each) for each in verdict.unwaived(WAIVERS)] == []
    assert verdict.passed > 50, "checkov checked next to nothing"


def test_checkov_finds_nothing_in_the_dockerfiles_that_is_not_waived(dockerfiles: Verdict) -> None:
    assert [str(each) for each in dockerfiles.unwaived(WAIVERS)] == []


def test_every_waiver_matches_something(by_checkov: dict[str, Verdict], dockerfiles: Verdict) -> None:
    used: set[Waiver] = set()
    for stack in STACKS:
        used |= {waiver for _, waiver in by_rules(stack).waived}
    for verdict in (dockerfiles, *(by_checkov[stack] for stack in STACKS)):
        used |= verdict.used(WAIVERS)
    assert [str(waiver) for waiver in WAIVERS if waiver not in used] == []


@pytest.mark.parametrize("stack", STACKS)
def test_the_objects_of_charts_are_checked(stack: str) -> None:
    checked = {each.name for each in preview(stack).of("kubernetes:apps/v1:Deployment")}
    assert "karpenter:kube-system/karpenter" in checked


def test_checkov_accepts_pods_that_are_created_later(by_checkov: dict[str, Verdict]) -> None:
    """The pods of the launcher, of queues and of the operators; the controllers create most of them."""
    found = {(each.name, each.check) for each in by_checkov[OWN_PODS].unwaived(WAIVERS)}
    # The code of users writes caches and temporary files.
    assert {each for each in found if each[1] not in NOT_FOR_OWN_PODS} <= {("training", "CKV_K8S_22")}


@pytest.mark.parametrize("check", LEFT_TO_CHECKOV)
def test_checkov_finds_what_we_have_no_rule_for(check: str, by_checkov: dict[str, Verdict]) -> None:
    """Each check stands in for a rule of ours, and for an adapter that says nothing."""
    failures = by_checkov[REJECTED].failures
    assert check in {each.check for each in failures if each.name.startswith(f"{check} ")}
