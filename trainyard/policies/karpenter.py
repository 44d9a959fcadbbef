"""Rules for Karpenter's objects: what it may buy, and how these machines are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trainyard.policies.model import Resource, Rules, Stack, at, rows
from trainyard.policies.network import NODE_CLASS
from trainyard.policies.nodes import metadata_faults

RULES: Final = Rules()

NODE_POOL: Final = "kubernetes:karpenter.sh/v1:NodePool"


@RULES.rule("worker-metadata-closed", "CKV_AWS_79", "CKV_AWS_341", "CIS EKS 5.2.1", types=[NODE_CLASS])
def worker_metadata_closed(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Pods on workers get no credentials of the machine."""
    yield from metadata_faults(resource.at("spec", "metadataOptions"), "spec.metadataOptions")


@RULES.rule("worker-disks-encrypted", types=[NODE_CLASS])
def worker_disks_encrypted(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Disks of workers are encrypted."""
    mappings = rows(resource.at("spec", "blockDeviceMappings"))
    if not mappings:
        yield "spec.blockDeviceMappings is missing; it must set ebs.encrypted"
    for index, mapping in enumerate(mappings):
        if at(mapping, "ebs", "encrypted") is not True:
            yield f"spec.blockDeviceMappings[{index}].ebs.encrypted is not true; it must be"


@RULES.rule("worker-disks-key", types=[NODE_CLASS])
def worker_disks_key(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Disks of workers are encrypted with a key of ours."""
    for index, mapping in enumerate(rows(resource.at("spec", "blockDeviceMappings"))):
        if at(mapping, "ebs", default={}).get("kmsKeyID") is None:
            yield f"spec.blockDeviceMappings[{index}].ebs.kmsKeyID is missing; it must name a KMS key"


@RULES.rule("worker-image-pinned", "CIS EKS 5.1.4", types=[NODE_CLASS])
def worker_image_pinned(resource: Resource, _stack: Stack) -> Iterator[str]:
    """The image of workers is one version; another would make every machine at work drift."""
    terms = rows(resource.at("spec", "amiSelectorTerms"))
    if not terms:
        yield "spec.amiSelectorTerms is missing; it must name an alias with a version, or an id"
    for index, term in enumerate(terms):
        alias, image = at(term, "alias"), at(term, "id")
        if image is None and (alias is None or "@v" not in str(alias)):
            yield (
                f"spec.amiSelectorTerms[{index}] is {alias or 'no alias'}; it must be an alias with a version,"
                " such as al2023@v20260724, or an id"
            )


@RULES.rule("worker-without-public-address", "CIS EKS 5.4.3", types=[NODE_CLASS])
def worker_without_public_address(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Workers get no public address."""
    if resource.at("spec", "associatePublicIPAddress", default=False):
        yield "spec.associatePublicIPAddress is true; it must be false"


@RULES.rule("pool-has-ceiling", types=[NODE_POOL])
def pool_has_ceiling(resource: Resource, _stack: Stack) -> Iterator[str]:
    """A pool has a ceiling of what it may buy, counted in devices or cores: `nodes` was seen to be passed."""
    names = sorted(resource.known("spec", "limits", default={}))
    if not [name for name in names if name != "nodes"]:
        yield "spec.limits names no devices and no cpu; it must name one of them"


@RULES.rule("pool-leaves-work-alone", types=[NODE_POOL])
def pool_leaves_work_alone(resource: Resource, _stack: Stack) -> Iterator[str]:
    """Karpenter gives back empty machines alone, and none because of its age."""
    policy = resource.at("spec", "disruption", "consolidationPolicy")
    if policy != "WhenEmpty":
        yield f"spec.disruption.consolidationPolicy is {policy or 'missing'}; it must be WhenEmpty"
    expires = resource.at("spec", "template", "spec", "expireAfter")
    if expires != "Never":
        yield f"spec.template.spec.expireAfter is {expires or 'missing'}; it must be Never"
