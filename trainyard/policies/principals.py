"""Rules for who is let in, whatever it is into: nobody of another account."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trainyard.policies.accounts import foreign
from trainyard.policies.document_form import PRINCIPALS
from trainyard.policies.documents import grants, principals
from trainyard.policies.model import Resource, Rules, Stack
from trainyard.policies.readable import DOCUMENTS

RULES: Final = Rules()

ACCESS_ENTRY: Final = "aws:eks/accessEntry:AccessEntry"
ACCESS_POLICY: Final = "aws:eks/accessPolicyAssociation:AccessPolicyAssociation"
GRANT: Final = "aws:kms/grant:Grant"
# The property of each type that names one principal.
NAMED: Final = {ACCESS_ENTRY: "principalArn", ACCESS_POLICY: "principalArn", GRANT: "granteePrincipal"}


@RULES.rule(
    "principals-of-own-account", "CKV_AWS_60", "CIS EKS 4.1.1", types=[*DOCUMENTS, *NAMED], whole_stack=True
)
def principals_of_own_account(resource: Resource, stack: Stack) -> Iterator[str]:
    """Nobody of another account takes a role, uses a key, reads a bucket or gets into the cluster."""
    if resource.type in NAMED:
        name = NAMED[resource.type]
        found = [str(resource.at(name, default=""))]
    else:
        name = DOCUMENTS[resource.type]
        found = [
            each
            for statement in (grants(resource, name) if resource.has(name) else ())
            for kind in PRINCIPALS
            for each in principals(statement, kind)
        ]
    for principal in foreign(found, stack):
        yield f"{name} names {principal}; it must be of the account that the stack's provider has (allowedAccountIds)"
