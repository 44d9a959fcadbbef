"""Fixtures of the rules for the cluster, its nodes, and Karpenter's objects and queue."""

from __future__ import annotations

from typing import Any

from tests.unit.policies.building import Cases, document, made
from trainyard.policies import cluster as c
from trainyard.policies.model import Resource
from trainyard.policies.network import NODE_CLASS, NODE_GROUP
from trainyard.policies.storage import BUCKET

ANYBODY = {"Principal": "*", "Action": "sqs:SendMessage"}


def network(**settings: Any) -> Resource:
    return made(c.CLUSTER, vpcConfig=settings)


def access(**settings: Any) -> Resource:
    return made(c.CLUSTER, accessConfig=settings)


def template(**mapping: Any) -> Resource:
    return made(c.TEMPLATE, blockDeviceMappings=[{"deviceName": "/dev/xvda", "ebs": mapping}])


def node_class(**spec: Any) -> Resource:
    return made(NODE_CLASS, spec=spec)


def pool(policy: str = "WhenEmpty", expires: str = "Never", **limits: Any) -> Resource:
    template = {"spec": {"expireAfter": expires}}
    disruption = {"consolidationPolicy": policy}
    return made(c.NODE_POOL, spec={"template": template, "disruption": disruption, "limits": limits})


CLOSED = {"httpTokens": "required", "httpPutResponseHopLimit": 1}
QUEUE = made(c.QUEUE, "queue")
EVENTS = {
    "Principal": {"Service": "events.amazonaws.com"},
    "Action": "sqs:SendMessage",
    "Condition": {"ArnEquals": {"aws:SourceArn": ["arn:aws:events:us-west-2:123456789012:rule/spot"]}},
}
TLS = {
    "Effect": "Deny",
    "Principal": "*",
    "Action": "sqs:*",
    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
}


def queue_policy(*statements: dict[str, Any]) -> Resource:
    return made(c.QUEUE_POLICY, "policy", of={"queueUrl": QUEUE}, policy=document(*statements))


CASES: dict[str, Cases] = {
    "cluster-endpoint": Cases(
        rejects=[
            network(endpointPublicAccess=False),
            network(endpointPrivateAccess=True),
            network(endpointPrivateAccess=True, endpointPublicAccess=True, publicAccessCidrs=[]),
            *(
                network(endpointPrivateAccess=True, publicAccessCidrs=blocks)
                for blocks in (
                    ["203.0.113.0/24", "0.0.0.0/0"],
                    ["::/0"],
                    ["0.0.0.0/1", "128.0.0.0/1"],
                    ["3.0.0.0/8"],
                )
            ),
        ],
        accepts=[
            network(endpointPrivateAccess=True, endpointPublicAccess=False),
            network(endpointPrivateAccess=True, publicAccessCidrs=["203.0.113.0/24"]),
        ],
    ),
    "cluster-access": Cases(
        rejects=[
            access(bootstrapClusterCreatorAdminPermissions=False),
            access(authenticationMode="API"),
            access(authenticationMode="API", bootstrapClusterCreatorAdminPermissions=True),
            access(authenticationMode="API_AND_CONFIG_MAP", bootstrapClusterCreatorAdminPermissions=False),
            made(c.CONFIG_MAP, metadata={"name": "aws-auth", "namespace": "kube-system"}),
        ],
        accepts=[
            access(authenticationMode="API", bootstrapClusterCreatorAdminPermissions=False),
            made(c.CONFIG_MAP, metadata={"name": "other"}),
        ],
    ),
    "cluster-log-group": Cases(
        rejects=[(made(c.CLUSTER, name="a"), made(c.LOG_GROUP, name="/aws/eks/b/cluster"))],
        accepts=[(made(c.CLUSTER, name="a"), made(c.LOG_GROUP, name="/aws/eks/a/cluster"))],
    ),
    "cluster-deletion-protected": Cases(
        rejects=[
            (made(c.CLUSTER), made(BUCKET)),
            (made(c.CLUSTER, deletionProtection=False), made(BUCKET)),
        ],
        accepts=[
            (made(c.CLUSTER, deletionProtection=True), made(BUCKET)),
            (made(c.CLUSTER), made(BUCKET, forceDestroy=True)),
        ],
    ),
    "network-policies-enforced": Cases(
        rejects=[
            made(c.ADDON, addonName="vpc-cni"),
            made(c.ADDON, addonName="vpc-cni", configurationValues='{"enableNetworkPolicy": "false"}'),
            made(c.ADDON, addonName="vpc-cni", configurationValues="enableNetworkPolicy: true"),
            made(c.ADDON, addonName="vpc-cni", configurationValues="[]"),
        ],
        accepts=[
            made(c.ADDON, addonName="vpc-cni", configurationValues='{"enableNetworkPolicy": "true"}'),
            made(c.ADDON, addonName="coredns"),
        ],
    ),
    "node-access-closed": Cases(
        rejects=[
            made(NODE_GROUP),
            made(NODE_GROUP, launchTemplate={"id": "lt-1"}, remoteAccess={"ec2SshKey": "k"}),
            made(c.TEMPLATE, keyName="k"),
            node_class(),
            node_class(metadataOptions={**CLOSED, "httpPutResponseHopLimit": 2}),
            node_class(metadataOptions={**CLOSED, "httpTokens": "optional"}),
            node_class(metadataOptions=CLOSED, associatePublicIPAddress=True),
        ],
        accepts=[
            made(NODE_GROUP, launchTemplate={"id": "lt-1"}),
            made(c.TEMPLATE),
            node_class(metadataOptions=CLOSED, associatePublicIPAddress=False),
        ],
    ),
    "node-disks-encrypted": Cases(
        rejects=[
            made(c.TEMPLATE),
            template(volumeSize=50),
            template(encrypted="false"),
            node_class(),
            node_class(blockDeviceMappings=[{"ebs": {"encrypted": False}}]),
        ],
        accepts=[
            template(encrypted="true"),
            template(encrypted=True),
            node_class(blockDeviceMappings=[{"ebs": {"encrypted": True}}]),
        ],
    ),
    "node-image-pinned": Cases(
        rejects=[
            node_class(),
            node_class(amiSelectorTerms=[{"alias": "al2023@latest"}]),
            node_class(amiSelectorTerms=[{"tags": {"a": "b"}}]),
        ],
        accepts=[
            node_class(amiSelectorTerms=[{"alias": "al2023@v20260724"}]),
            node_class(amiSelectorTerms=[{"id": "ami-1"}]),
        ],
    ),
    "pool-limited": Cases(
        rejects=[pool(), pool(nodes="4")], accepts=[pool(cpu="16"), pool(**{"nvidia.com/gpu": "8"})]
    ),
    "pool-keeps-busy-nodes": Cases(
        rejects=[pool("WhenEmptyOrUnderutilized", cpu="1"), pool(expires="720h", cpu="1")],
        accepts=[pool(cpu="1")],
    ),
    "queue-closed": Cases(
        rejects=[
            (QUEUE,),
            (QUEUE, queue_policy(EVENTS)),
            (QUEUE, queue_policy({**EVENTS, "Condition": {}}, TLS)),
            (QUEUE, queue_policy(ANYBODY, TLS)),
            (QUEUE, queue_policy({"NotPrincipal": {"AWS": "a"}, "Action": "sqs:SendMessage"}, TLS)),
            (QUEUE, queue_policy({**EVENTS, "Principal": {"Service": "sns.amazonaws.com"}}, TLS)),
        ],
        accepts=[(QUEUE, queue_policy(EVENTS, TLS))],
    ),
}
