"""Evaluation of policy documents, without a server."""

from __future__ import annotations

import json

import pytest

from local.aws.policy import Request, evaluate, evaluate_for


def allowed(statements, action="s3:GetObject", resource="arn:aws:s3:::b/k", **context):
    keys = {
        k.replace("__", "/").replace("_", ":", 1): (v,) if isinstance(v, str) else v
        for k, v in context.items()
    }
    documents = [{"Statement": statements}]
    return evaluate(documents, Request(action, resource, keys)).allowed


def allow(**more):
    return {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*", **more}


def test_nothing_is_granted_by_default():
    assert not allowed([])


def test_actions_match_without_case_and_with_wildcards():
    assert allowed([allow(Action=["S3:get*"])])
    assert not allowed([allow(Action="s3:Put*")])


def test_not_action_and_not_resource_mean_everything_else():
    everything_but = allow(NotAction="s3:PutObject")
    del everything_but["Action"]
    assert allowed([everything_but])
    assert not allowed([everything_but], action="s3:PutObject")
    elsewhere = allow(NotResource="arn:aws:s3:::b/*")
    del elsewhere["Resource"]
    assert not allowed([elsewhere])


def test_a_deny_wins_over_any_allow():
    assert not allowed([allow(), {"Effect": "Deny", "Action": "*", "Resource": "arn:aws:s3:::b/*"}])


def test_an_action_without_resource_needs_a_star():
    assert not allowed([allow(Resource="arn:aws:s3:::b/*")], resource="*")


def test_unknown_resource_matches_any():
    assert allowed([allow(Resource="arn:aws:s3:::other")], resource=None)


@pytest.mark.parametrize(
    ("operator", "expected", "actual", "holds"),
    [
        ("StringEquals", "a", "a", True),
        ("StringEquals", ["b", "a"], "a", True),
        ("StringEquals", "A", "a", False),
        ("StringEquals", "a", None, False),
        ("StringEqualsIfExists", "a", None, True),
        ("StringNotEquals", "a", "b", True),
        ("StringNotEquals", ["a", "b"], "b", False),
        ("StringNotEquals", "a", None, True),
        ("StringLike", "sys*", "system", True),
        ("StringLike", "*", "x", True),
        ("StringLike", "*", None, False),
        ("Null", "true", None, True),
        ("Null", "false", None, False),
        ("ForAllValues:StringEquals", ["a", "b"], ("a", "b"), True),
        ("ForAllValues:StringEquals", ["a", "b"], ("a", "c"), False),
        ("ForAllValues:StringEquals", ["a"], None, True),
        ("ForAnyValue:StringEquals", ["a"], ("a", "c"), True),
        ("ForAnyValue:StringEquals", ["a"], None, False),
        ("IpAddress", "10.0.0.0/8", "10.1.1.1", False),
    ],
)
def test_condition_operators(operator, expected, actual, holds):
    statement = allow(Condition={operator: {"aws:TagKeys": expected}})
    context = {} if actual is None else {"aws_tagkeys": actual}
    assert allowed([statement], **context) is holds


def test_unknown_condition_key_grants_nothing_and_is_named():
    statement = allow(Condition={"StringEqualsIfExists": {"aws:SourceVpce": "vpce-1"}})
    decision = evaluate([{"Statement": statement}], Request("s3:GetObject", "arn:aws:s3:::b/k", {}))
    assert not decision.allowed
    assert decision.unknown_keys == {"aws:SourceVpce"}


ROLE = "arn:aws:iam::1:role/r"


@pytest.mark.parametrize(
    ("principal", "kind", "name", "names"),
    [
        ({"AWS": [ROLE]}, "AWS", ROLE, True),
        ({"AWS": "arn:aws:iam::1:role/*"}, "AWS", ROLE, False),
        ("*", "AWS", ROLE, True),
        ({"AWS": "*"}, "Service", "events.amazonaws.com", True),
        ({"Service": "events.amazonaws.com"}, "Service", "events.amazonaws.com", True),
        ({"Service": "sqs.amazonaws.com"}, "Service", "events.amazonaws.com", False),
        ({"AWS": "provider"}, "Federated", "provider", False),
        ("*", "Federated", "provider", False),
        (None, "AWS", ROLE, False),
    ],
)
def test_resource_policy_applies_to_its_principals(principal, kind, name, names):
    document = {"Statement": {"Effect": "Allow", "Action": "*", "Principal": principal}}
    request = Request("sts:AssumeRole", None, {})
    assert evaluate_for(document, kind, [name], request).allowed is names
    assert evaluate_for(json.dumps(document), kind, [name], request).allowed is names
    assert not evaluate_for(None, kind, [name], request).allowed
    denial = {**document["Statement"], "Effect": "Deny"}
    grant = {**document["Statement"], "Principal": {kind: name}}
    assert evaluate_for({"Statement": [grant, denial]}, kind, [name], request).allowed is not names
    assert not evaluate_for({"Statement": {**grant, "Effect": "allow"}}, kind, [name], request).allowed
