"""What the rules of the cluster, its machines and Karpenter's objects must reject and accept."""

from __future__ import annotations

from typing import Any

from tests.unit.policies.building import Cases, document, made
from trainyard.policies import cluster as c
from trainyard.policies import interruptions as q
from trainyard.policies import karpenter as k
from trainyard.policies import network as n
from trainyard.policies import nodes as m
from trainyard.policies.documents import ATTACHMENT, ROLE, ROLE_POLICY
from trainyard.policies.model import Resource

ANYBODY = {"Principal": "*", "Action": "sqs:SendMessage"}


def network(**settings: Any) -> Resource:
    return made(c.CLUSTER, vpcConfig=settings)


def access(**settings: Any) -> Resource:
    return made(c.CLUSTER, accessConfig=settings)


def template(**mapping: Any) -> Resource:
    return made(m.TEMPLATE, blockDeviceMappings=[{"deviceName": "/dev/xvda", "ebs": mapping}])


def node_class(**spec: Any) -> Resource:
    return made(n.NODE_CLASS, spec=spec)


def pool(policy: str = "WhenEmpty", expires: str = "Never", **limits: Any) -> Resource:
    template = {"spec": {"expireAfter": expires}}
    disruption = {"consolidationPolicy": policy}
    return made(k.NODE_POOL, spec={"template": template, "disruption": disruption, "limits": limits})


CLOSED = {"httpTokens": "required", "httpPutResponseHopLimit": 1}
OF_MACHINES = document({"Principal": {"Service": "ec2.amazonaws.com"}, "Action": "a"})


def machine(**more: Any) -> Resource:
    return made(ROLE, "machine", assumeRolePolicy=OF_MACHINES, **more)


MACHINE = machine()
SERVICE = made(
    ROLE, "service", assumeRolePolicy=document({"Principal": {"Service": "eks.amazonaws.com"}, "Action": "a"})
)


def attached(role: Resource, policy: str) -> Resource:
    return made(ATTACHMENT, policy, of={"role": role}, policyArn=f"arn:aws:iam::aws:policy/{policy}")


QUEUE = made(q.QUEUE, "queue")
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
    return made(q.QUEUE_POLICY, "policy", of={"queueUrl": QUEUE}, policy=document(*statements))


CASES: dict[str, Cases] = {
    "cluster-endpoint-private": Cases(
        rejects=[network(), network(endpointPrivateAccess=False)],
        accepts=[network(endpointPrivateAccess=True)],
    ),
    "cluster-endpoint-public": Cases(
        rejects=[
            network(),
            network(endpointPublicAccess=True, publicAccessCidrs=[]),
            network(endpointPublicAccess=True, publicAccessCidrs=["203.0.113.0/24", "0.0.0.0/0"]),
            network(publicAccessCidrs=["::/0"]),
            network(publicAccessCidrs=["0.0.0.0/1", "128.0.0.0/1"]),
            network(publicAccessCidrs=["3.0.0.0/8"]),
        ],
        accepts=[
            network(endpointPublicAccess=False),
            network(endpointPublicAccess=True, publicAccessCidrs=["203.0.113.0/24"]),
        ],
    ),
    "cluster-logs": Cases(
        rejects=[made(c.CLUSTER), made(c.CLUSTER, enabledClusterLogTypes=list(c.LOG_TYPES[1:]))],
        accepts=[made(c.CLUSTER, enabledClusterLogTypes=list(c.LOG_TYPES))],
    ),
    "cluster-log-group-ours": Cases(
        rejects=[(made(c.CLUSTER, name="a"), made(n.LOG_GROUP, name="/aws/eks/b/cluster"))],
        accepts=[(made(c.CLUSTER, name="a"), made(n.LOG_GROUP, name="/aws/eks/a/cluster"))],
    ),
    "cluster-secrets-encrypted": Cases(
        rejects=[
            made(c.CLUSTER),
            made(c.CLUSTER, encryptionConfig={"resources": ["secrets"]}),
            made(c.CLUSTER, encryptionConfig={"provider": {"keyArn": "arn"}, "resources": []}),
        ],
        accepts=[made(c.CLUSTER, encryptionConfig={"provider": {"keyArn": "arn"}, "resources": ["secrets"]})],
    ),
    "cluster-version-supported": Cases(
        rejects=[made(c.CLUSTER), made(c.CLUSTER, version="1.27")], accepts=[made(c.CLUSTER, version="1.35")]
    ),
    "cluster-access-by-entries": Cases(
        rejects=[
            access(),
            access(authenticationMode="API_AND_CONFIG_MAP"),
            made(c.CONFIG_MAP, metadata={"name": "aws-auth", "namespace": "kube-system"}),
        ],
        accepts=[access(authenticationMode="API"), made(c.CONFIG_MAP, metadata={"name": "other"})],
    ),
    "cluster-creator-no-admin": Cases(
        rejects=[access(), access(bootstrapClusterCreatorAdminPermissions=True)],
        accepts=[access(bootstrapClusterCreatorAdminPermissions=False)],
    ),
    "cluster-deletion-protected": Cases(
        rejects=[
            (made(c.CLUSTER), made(c.BUCKET)),
            (made(c.CLUSTER, deletionProtection=False), made(c.BUCKET)),
        ],
        accepts=[
            (made(c.CLUSTER, deletionProtection=True), made(c.BUCKET)),
            (made(c.CLUSTER), made(c.BUCKET, forceDestroy=True)),
        ],
    ),
    "node-metadata-closed": Cases(
        rejects=[
            made(m.TEMPLATE),
            made(m.TEMPLATE, metadataOptions={**CLOSED, "httpTokens": "optional"}),
            made(m.TEMPLATE, metadataOptions={**CLOSED, "httpPutResponseHopLimit": 2}),
        ],
        accepts=[made(m.TEMPLATE, metadataOptions=CLOSED)],
    ),
    "node-group-has-template": Cases(
        rejects=[made(n.NODE_GROUP)], accepts=[made(n.NODE_GROUP, launchTemplate={"id": "lt-1"})]
    ),
    "node-no-remote-access": Cases(
        rejects=[made(n.NODE_GROUP, remoteAccess={"ec2SshKey": "k"}), made(m.TEMPLATE, keyName="k")],
        accepts=[made(n.NODE_GROUP), made(m.TEMPLATE)],
    ),
    "node-disks-encrypted": Cases(
        rejects=[made(m.TEMPLATE), template(volumeSize=50), template(encrypted="false")],
        accepts=[template(encrypted="true"), template(encrypted=True)],
    ),
    "node-disks-key": Cases(
        rejects=[template(encrypted="true")], accepts=[template(encrypted="true", kmsKeyId="arn")]
    ),
    "node-role-least": Cases(
        rejects=[
            (MACHINE, attached(MACHINE, "AmazonS3FullAccess")),
            (MACHINE, attached(MACHINE, "AmazonSSMManagedInstanceCore")),
            (MACHINE, made(ROLE_POLICY, "own", of={"role": MACHINE})),
            machine(inlinePolicies=[{"name": "own", "policy": "{}"}]),
            machine(managedPolicyArns=["arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"]),
        ],
        accepts=[
            (MACHINE, *(attached(MACHINE, policy) for policy in m.NODE_POLICIES)),
            (SERVICE, attached(SERVICE, "AmazonEKSClusterPolicy")),
        ],
    ),
    "worker-metadata-closed": Cases(
        rejects=[node_class(), node_class(metadataOptions={**CLOSED, "httpPutResponseHopLimit": 2})],
        accepts=[node_class(metadataOptions=CLOSED)],
    ),
    "worker-disks-encrypted": Cases(
        rejects=[node_class(), node_class(blockDeviceMappings=[{"ebs": {"encrypted": False}}])],
        accepts=[node_class(blockDeviceMappings=[{"ebs": {"encrypted": True}}])],
    ),
    "worker-disks-key": Cases(
        rejects=[node_class(blockDeviceMappings=[{"ebs": {"encrypted": True}}])],
        accepts=[node_class(blockDeviceMappings=[{"ebs": {"kmsKeyID": "arn"}}])],
    ),
    "worker-image-pinned": Cases(
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
    "worker-without-public-address": Cases(
        rejects=[node_class(associatePublicIPAddress=True)],
        accepts=[node_class(), node_class(associatePublicIPAddress=False)],
    ),
    "pool-has-ceiling": Cases(
        rejects=[pool(), pool(nodes="4")], accepts=[pool(cpu="16"), pool(**{"nvidia.com/gpu": "8"})]
    ),
    "pool-leaves-work-alone": Cases(
        rejects=[pool("WhenEmptyOrUnderutilized", cpu="1"), pool(expires="720h", cpu="1")],
        accepts=[pool(cpu="1")],
    ),
    "queue-encrypted": Cases(
        rejects=[made(q.QUEUE), made(q.QUEUE, sqsManagedSseEnabled=False)],
        accepts=[made(q.QUEUE, sqsManagedSseEnabled=True), made(q.QUEUE, kmsMasterKeyId="key")],
    ),
    "queue-forgets": Cases(
        rejects=[made(q.QUEUE), made(q.QUEUE, messageRetentionSeconds=1209600)],
        accepts=[made(q.QUEUE, messageRetentionSeconds=300)],
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
