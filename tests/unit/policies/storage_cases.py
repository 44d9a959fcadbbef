"""Fixtures of the rules for buckets, file systems and volumes."""

from __future__ import annotations

from typing import Any

from components.documents import iam
from tests.unit.policies.building import Cases, document, made
from trainyard.policies import storage as s
from trainyard.policies.model import Resource
from trainyard.policies.network import GROUP, INGRESS, LUSTRE

IT = made(s.BUCKET, "bucket")


def policed(*statements: dict[str, Any]) -> Resource:
    return made(s.BUCKET_POLICY, of={"bucket": IT}, policy=document(*statements))


SHUT = made(GROUP, "files")
NODES = made(GROUP, "nodes")
FILES = made(LUSTRE, "files", of={"securityGroupIds": SHUT}, securityGroupIds=["sg-1"])


def let_in(first: int, last: int, of: Resource = NODES, **more: Any) -> Resource:
    groups = {"securityGroupId": SHUT, "referencedSecurityGroupId": of}
    name = f"{first}-{len(more)}"
    properties = {
        "ipProtocol": "tcp",
        "fromPort": first,
        "toPort": last,
        "referencedSecurityGroupId": "n",
        **more,
    }
    return made(INGRESS, name, of=groups, **properties)


LUSTRE_IN = (let_in(988, 988), let_in(1018, 1023))
EFA = made(INGRESS, "efa", of={"securityGroupId": SHUT, "referencedSecurityGroupId": SHUT}, ipProtocol="-1")
TLS = iam.bucket_tls_only("arn:aws:s3:::b")["Statement"]

CASES: dict[str, Cases] = {
    "bucket-tls-only": Cases(
        rejects=[
            (IT,),
            (IT, policed({**TLS[0], "Action": "s3:GetObject"})),
            (IT, policed({**TLS[0], "Principal": {"AWS": "arn:aws:iam::1:role/a"}})),
            (IT, policed({**TLS[0], "Condition": {"Bool": {"aws:SecureTransport": "true"}}})),
            (IT, policed({**TLS[0], "Resource": "arn:aws:s3:::b"})),
        ],
        accepts=[(IT, policed(*TLS))],
    ),
    "lustre-ports": Cases(
        rejects=[
            made(LUSTRE),
            (FILES, SHUT),
            (FILES, SHUT, LUSTRE_IN[0]),
            (FILES, SHUT, *LUSTRE_IN, let_in(443, 443)),
            (FILES, SHUT, *LUSTRE_IN, let_in(443, 443, of=SHUT)),
            (FILES, SHUT, *LUSTRE_IN, let_in(988, 988, cidrIpv4="10.0.0.0/8")),
            (FILES, SHUT, *LUSTRE_IN, let_in(988, 988, ipProtocol="udp")),
            (FILES, SHUT, let_in(0, 65535, ipProtocol="-1")),
        ],
        accepts=[(FILES, SHUT, *LUSTRE_IN), (FILES, SHUT, *LUSTRE_IN, EFA), FILES],
    ),
    "lustre-data-kept": Cases(
        rejects=[FILES, (FILES, made(s.DATA_LINK, of={"fileSystemId": made(LUSTRE, "another")}))],
        accepts=[
            made(LUSTRE, automaticBackupRetentionDays=7),
            made(LUSTRE, importPath="s3://b/p"),
            (FILES, made(s.DATA_LINK, of={"fileSystemId": FILES})),
        ],
    ),
    "storage-class-encrypted": Cases(
        rejects=[
            made(s.STORAGE_CLASS, provisioner="ebs.csi.aws.com"),
            made(s.STORAGE_CLASS, provisioner="ebs.csi.aws.com", parameters={"encrypted": "false"}),
            made(s.STORAGE_CLASS, provisioner="kubernetes.io/aws-ebs", parameters={"encrypted": "true"}),
            made(s.STORAGE_CLASS, provisioner="rancher.io/local-path", parameters={"encrypted": "true"}),
            made(s.STORAGE_CLASS, parameters={"encrypted": "true"}),
        ],
        accepts=[
            made(s.STORAGE_CLASS, provisioner="ebs.csi.aws.com", parameters={"encrypted": "true"}),
            made(s.STORAGE_CLASS, provisioner="fsx.csi.aws.com"),
        ],
    ),
}
