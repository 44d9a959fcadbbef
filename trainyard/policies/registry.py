"""Rules for image repositories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trainyard.policies.documents import anybody, grants
from trainyard.policies.model import Resource, Rules, Stack, at, rows

RULES: Final = Rules()

REPOSITORY: Final = "aws:ecr/repository:Repository"
REPOSITORY_POLICY: Final = "aws:ecr/repositoryPolicy:RepositoryPolicy"
REPOSITORY_LIFECYCLE: Final = "aws:ecr/lifecyclePolicy:LifecyclePolicy"


@RULES.rule("repository-immutable", "CKV_AWS_51", "AVD-AWS-0031", "CIS EKS 5.1.4", types=[REPOSITORY])
def repository_immutable(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A tag never moves to another image."""
    kind = resource.at("imageTagMutability", default="MUTABLE")
    if kind != "IMMUTABLE":
        yield f"imageTagMutability is {kind}; it must be IMMUTABLE"


@RULES.rule("repository-scanned", "CKV_AWS_163", "AVD-AWS-0030", "CIS EKS 5.1.1", types=[REPOSITORY])
def repository_scanned(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Images are scanned when they are pushed."""
    if not resource.at("imageScanningConfiguration", "scanOnPush", default=False):
        yield "imageScanningConfiguration.scanOnPush is not true; it must be"


@RULES.rule("repository-encrypted", "CKV_AWS_136", "AVD-AWS-0033", types=[REPOSITORY])
def repository_encrypted(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Images are encrypted with a key of ours."""
    chosen = rows(resource.at("encryptionConfigurations"))
    if not any(at(each, "encryptionType") == "KMS" and each.get("kmsKey") is not None for each in chosen):
        yield "encryptionConfigurations has no KMS key; it must have encryptionType KMS and kmsKey"


@RULES.rule("repository-cleaned", types=[REPOSITORY], whole_stack=True)
def repository_cleaned(resource: Resource, stack: Stack) -> Iterator[str]:
    """Old images are removed."""
    if not stack.pointing(resource, REPOSITORY_LIFECYCLE, "repository"):
        yield "no LifecyclePolicy is for it; there must be one"


@RULES.rule("repository-not-public", "CKV_AWS_32", "AVD-AWS-0032", "CIS EKS 5.1.2", types=[REPOSITORY_POLICY])
def repository_not_public(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Nobody outside the account pulls images."""
    for statement in grants(resource):
        for who in anybody(statement):
            yield f"policy lets {who} in; it must name accounts or roles"
