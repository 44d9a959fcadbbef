"""What can't be read as a policy document, and what can."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.policies.building import Cases, document, made
from trainyard.policies import interruptions as q
from trainyard.policies import registry as r
from trainyard.policies import storage as s
from trainyard.policies.documents import POLICY, ROLE, ROLE_POLICY
from trainyard.policies.model import Resource

ALLOW = {"Effect": "Allow", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/p/*"}


def policy(text: Any) -> Resource:
    return made(POLICY, policy=text)


def statement(**change: Any) -> Resource:
    return policy(json.dumps({"Statement": [{**ALLOW, **change}]}))


CASES: dict[str, Cases] = {
    "policy-document-readable": Cases(
        rejects=[
            policy("{not json"),
            policy("[]"),
            policy("3"),
            policy("{}"),
            policy(json.dumps({"Statement": "Allow"})),
            policy(json.dumps({"Statement": ["x"]})),
            statement(Effect="allow"),
            statement(Effect=None),
            statement(Action={"s3": "GetObject"}),
            statement(Resource=[1]),
            statement(Principal="everybody"),
            statement(Principal={"Everybody": "*"}),
            statement(Principal={"AWS": {"a": "b"}}),
            statement(NotPrincipal=["*"]),
            statement(Condition=[]),
            statement(Condition={"StringEquals": "a"}),
            made(ROLE, assumeRolePolicy="{"),
            made(ROLE_POLICY, policy="{"),
            made(q.QUEUE_POLICY, policy="{"),
            made(r.REPOSITORY_POLICY, policy="{"),
            made(s.BUCKET_POLICY, policy="{"),
            made(s.KEY, policy="{"),
        ],
        accepts=[
            statement(),
            statement(Condition={"Bool": {"aws:SecureTransport": "false"}}, Principal="*"),
            policy({"Statement": ALLOW}),
            made(
                ROLE,
                assumeRolePolicy=document({"Principal": {"Service": ["a.amazonaws.com"]}, "Action": "a"}),
            ),
            made(s.KEY),
        ],
    ),
}
