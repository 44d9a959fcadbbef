"""The checks of checkov that stand in for rules of ours, each with resources that it must reject.

The first resource of each is named after the check; its name has a space after the id.
"""

from __future__ import annotations

from typing import Any, Final

from tests.unit.policies.building import document, made
from trainyard.policies.model import Resource

CLUSTER, TEMPLATE = "aws:eks/cluster:Cluster", "aws:ec2/launchTemplate:LaunchTemplate"
BUCKET, KEY = "aws:s3/bucket:Bucket", "aws:kms/key:Key"
PUBLIC_BLOCK = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
SECURE: dict[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
SIZE = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
GOOD = {
    "name": "c",
    "image": "a@sha256:" + "0" * 64,
    "securityContext": SECURE,
    "resources": SIZE,
    "livenessProbe": {"exec": {}},
    "readinessProbe": {"exec": {}},
}
SECRET = {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


def aws(check: str, type_: str, **properties: Any) -> tuple[str, list[Resource]]:
    return check, [made(type_, f"{check} it", **properties)]


def deployment(
    check: str,
    container: dict[str, Any] | None = None,
    /,
    *,
    without: str = "",
    namespace: str = "a",
    **pod: Any,
) -> tuple[str, list[Resource]]:
    """A Deployment that no check rejects, with changes to its container and pod."""
    given = {key: value for key, value in {**GOOD, **(container or {})}.items() if key != without}
    name = check.lower().replace("_", "-")
    spec = {"template": {"metadata": {"labels": {"a": name}}, "spec": {"containers": [given], **pod}}}
    metadata = {"name": name, "namespace": namespace}
    return check, [made("kubernetes:apps/v1:Deployment", f"{check} it", metadata=metadata, spec=spec)]


def secure(**change: Any) -> dict[str, Any]:
    return {"securityContext": {**SECURE, **change}}


def in_bucket(check: str, type_: str, **properties: Any) -> tuple[str, list[Resource]]:
    bucket = made(BUCKET, f"{check} bucket")
    return check, [made(type_, f"{check} it", of={"bucket": bucket}, **properties), bucket]


LEFT_TO_CHECKOV: Final[dict[str, list[Resource]]] = dict(
    [
        aws("CKV_AWS_130", "aws:ec2/subnet:Subnet", mapPublicIpOnLaunch=True),
        aws("CKV2_AWS_11", "aws:ec2/vpc:Vpc"),
        aws("CKV2_AWS_12", "aws:ec2/vpc:Vpc"),
        aws("CKV_AWS_158", "aws:cloudwatch/logGroup:LogGroup"),
        aws("CKV_AWS_338", "aws:cloudwatch/logGroup:LogGroup", retentionInDays=30),
        aws("CKV_AWS_23", "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule", ipProtocol="tcp"),
        aws("CKV_AWS_37", CLUSTER, enabledClusterLogTypes=["audit"]),
        aws("CKV_AWS_58", CLUSTER),
        aws("CKV_AWS_339", CLUSTER, version="1.27"),
        aws("CKV_AWS_79", TEMPLATE),
        aws(
            "CKV_AWS_341", TEMPLATE, metadataOptions={"httpTokens": "required", "httpPutResponseHopLimit": 2}
        ),
        aws("CKV_AWS_27", "aws:sqs/queue:Queue"),
        aws("CKV_AWS_7", KEY),
        aws("CKV2_AWS_64", KEY),
        aws("CKV_AWS_21", BUCKET),
        aws("CKV_AWS_145", BUCKET),
        aws("CKV2_AWS_6", BUCKET),
        aws("CKV2_AWS_61", BUCKET),
        in_bucket(
            "CKV2_AWS_65",
            "aws:s3/bucketOwnershipControls:BucketOwnershipControls",
            rule={"objectOwnership": "ObjectWriter"},
        ),
        in_bucket(
            "CKV_AWS_300",
            "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration",
            rules=[{"status": "Enabled", "noncurrentVersionExpiration": {"noncurrentDays": 30}}],
        ),
        *(
            in_bucket(f"CKV_AWS_{number}", PUBLIC_BLOCK, **{name: False})
            for number, name in (
                (53, "blockPublicAcls"),
                (54, "blockPublicPolicy"),
                (55, "ignorePublicAcls"),
                (56, "restrictPublicBuckets"),
            )
        ),
        aws("CKV_AWS_190", "aws:fsx/lustreFileSystem:LustreFileSystem", deploymentType="PERSISTENT_2"),
        aws("CKV_AWS_51", "aws:ecr/repository:Repository"),
        aws("CKV_AWS_163", "aws:ecr/repository:Repository"),
        aws("CKV_AWS_136", "aws:ecr/repository:Repository"),
        aws(
            "CKV_AWS_274",
            "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
            policyArn="arn:aws:iam::aws:policy/AdministratorAccess",
        ),
        aws("CKV_AWS_63", "aws:iam/policy:Policy", policy=document({"Action": "*", "Resource": "*"})),
        deployment("CKV_K8S_8", without="livenessProbe"),
        deployment("CKV_K8S_9", without="readinessProbe"),
        deployment("CKV_K8S_10", {"resources": {**SIZE, "requests": {"memory": "1Gi"}}}),
        deployment("CKV_K8S_12", {"resources": {"requests": {"cpu": "1"}}}),
        deployment("CKV_K8S_13", {"resources": {"requests": SIZE["requests"]}}),
        deployment("CKV_K8S_16", secure(privileged=True)),
        deployment("CKV_K8S_17", hostPID=True),
        deployment("CKV_K8S_18", hostIPC=True),
        deployment("CKV_K8S_19", hostNetwork=True),
        deployment("CKV_K8S_20", secure(allowPrivilegeEscalation=True)),
        deployment("CKV_K8S_21", namespace="default"),
        deployment("CKV_K8S_22", secure(readOnlyRootFilesystem=False)),
        deployment("CKV_K8S_23", secure(runAsNonRoot=False, runAsUser=0)),
        deployment("CKV_K8S_25", secure(capabilities={"drop": ["ALL"], "add": ["IPC_LOCK"]})),
        deployment("CKV_K8S_31", secure(seccompProfile=None)),
        deployment("CKV_K8S_35", {"env": [SECRET]}),
        deployment("CKV_K8S_37", secure(capabilities={"drop": ["NET_RAW"]})),
        deployment("CKV_K8S_40", secure(runAsUser=1000)),
        deployment("CKV_K8S_43", {"image": "a:v1"}),
    ]
)
