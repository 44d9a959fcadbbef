"""A policy document that can't be read is judged by no other rule, so that it is a violation itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trainyard.policies.document_form import faults
from trainyard.policies.documents import POLICY, ROLE, ROLE_POLICY
from trainyard.policies.interruptions import QUEUE_POLICY
from trainyard.policies.model import Resource, Rules, Stack
from trainyard.policies.registry import REPOSITORY_POLICY
from trainyard.policies.storage import BUCKET_POLICY, KEY

RULES: Final = Rules()

# The property of each type that holds a document.
DOCUMENTS: Final = {
    BUCKET_POLICY: "policy",
    KEY: "policy",
    POLICY: "policy",
    QUEUE_POLICY: "policy",
    REPOSITORY_POLICY: "policy",
    ROLE: "assumeRolePolicy",
    ROLE_POLICY: "policy",
}


@RULES.rule("policy-document-readable", types=DOCUMENTS)
def policy_document_readable(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A policy document is one; what can't be read as such, the other rules take for one without statements."""
    name = DOCUMENTS[resource.type]
    if resource.has(name):
        for fault in faults(resource.known(name)):
            yield f"{name} {fault}"
