"""What texts in a stack file must look like: patterns, and the words that tell them to a person."""

from __future__ import annotations

from typing import Final

REGION: Final = r"[a-z]{2}(-[a-z]+)+-[0-9]"
# EKS takes more, but the names of the bucket and of the repositories begin with it, which have lower case only, and
# those of EventBridge rules have 64 characters, of which ours and an automatic suffix take 33
# (https://docs.aws.amazon.com/eventbridge/latest/APIReference/API_PutRule.html).
CLUSTER_NAME: Final = r"[a-z]([a-z0-9-]{0,29}[a-z0-9])?"
CLUSTER_NAME_WANTED: Final = "lower case letters, digits and hyphens, a letter first, at most 31 characters"
# https://docs.aws.amazon.com/eks/latest/APIReference/API_CreateCluster.html
EKS_NAME: Final = r"[0-9A-Za-z][A-Za-z0-9_-]{0,99}"
EKS_NAME_WANTED: Final = (
    "letters, digits, hyphens and underscores, a letter or digit first, at most 100 characters"
)
DNS_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?"
DNS_LABEL_WANTED: Final = "lower case letters, digits and hyphens, at most 40"
ACCOUNT: Final = r"[0-9]{12}"
ACCOUNT_WANTED: Final = "the twelve digits of an AWS account, in quotes"
# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html: a path of any printable characters
# without a space, then the name.
PARTITION: Final = r"aws(-[a-z]+)*"
_NAME: Final = r"[A-Za-z0-9_+=,.@-]{1,64}"
PRINCIPAL: Final = rf"arn:{PARTITION}:iam::[0-9]{{12}}:(user|role)/([!-~]{{1,510}}/)?{_NAME}"
PRINCIPAL_WANTED: Final = "the ARN of an IAM user or role, such as arn:aws:iam::123456789012:role/platform"
# What STS shows of a role that somebody has taken on
# (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html).
ROLE_SESSION: Final = rf"arn:{PARTITION}:sts::[0-9]{{12}}:assumed-role/(?P<role>{_NAME})/{_NAME}"
KMS_KEY: Final = rf"arn:{PARTITION}:kms:[a-z0-9-]+:[0-9]{{12}}:key/(mrk-)?[0-9a-f-]{{32,36}}"
KMS_KEY_WANTED: Final = "the ARN of a KMS key, such as arn:aws:kms:us-west-2:123456789012:key/<id>"
OIDC_ISSUER: Final = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(/[A-Za-z0-9._~-]+)+"
OIDC_PROVIDER: Final = rf"arn:{PARTITION}:iam::[0-9]{{12}}:oidc-provider/{OIDC_ISSUER}"
API_ENDPOINT: Final = r"https://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?"
CIDR: Final = r"[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}"
# Registry, path, tag and digest (github.com/distribution/reference, regexp.go).
_PART: Final = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_REGISTRY: Final = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?"
IMAGE: Final = (
    rf"({_REGISTRY}/)?{_PART}(/{_PART})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})"
)
IMAGE_WANTED: Final = "an image with its digest, such as registry/name@sha256:<64 hexadecimal digits>"
# No tag: Helm takes the version for it, and refuses another one.
CHART: Final = r"oci://[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9._-]+)+(@sha256:[0-9a-f]{64})?"
CHART_WANTED: Final = "oci://registry/name without a tag, with or without @sha256:<64 hexadecimal digits>"
MIRROR: Final = r"[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9._-]+)*"
MIRROR_WANTED: Final = (
    "a registry with an optional prefix, such as 123456789012.dkr.ecr.us-west-2.amazonaws.com/mirror"
)
# What stands before an @ or behind a question mark may be secret.
HTTPS_ADDRESS: Final = r"(?=[!-~]+\Z)https://[^/@?#]+(/[^@?#]*)?"
PACKAGE_INDEX_WANTED: Final = "an https address without credentials, such as https://pypi.example/simple"
# What apt takes from it is signed by Debian.
DEBIAN_MIRROR: Final = r"(?=[!-~]+\Z)https?://[^/@?#|]+(/[^@?#|]*)?"
DEBIAN_MIRROR_WANTED: Final = "an http or https address without credentials, such as http://debian.example"
EFA_INSTALLER_WANTED: Final = "an https address without credentials, such as https://files.example/efa"
# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#dns-subdomain-names
OBJECT_NAME: Final = r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
OBJECT_NAME_WANTED: Final = "the name of an object: lower case letters, digits, hyphens and dots"
QUANTITY: Final = r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?"
# Bottlerocket has another layout of disks and a device plugin of its own.
AMI_ALIAS: Final = r"al2023@v[0-9]{8}"
ZONE: Final = r"[a-z]{2}(-[a-z]+)+-[0-9][a-z]"
# No address, no empty label and none that ends with a hyphen, and what S3 keeps for itself
# (https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html).
BUCKET: Final = (
    r"(?![0-9]+(\.[0-9]+){3}$)(?!.*(\.\.|-\.|\.-))(?!xn--|sthree-|amzn-s3-demo-)"
    r"(?!.*(-s3alias|--ol-s3|\.mrap|--x-s3|--table-s3)$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
)
# No segment is empty, `.` or `..`.
_SEGMENT: Final = r"(?!\.{1,2}(/|$))[A-Za-z0-9_.-]+"
KEY_PREFIX: Final = rf"(?=[A-Za-z0-9]){_SEGMENT}(/{_SEGMENT})*(?<=[A-Za-z0-9])"
ABSOLUTE_PATH: Final = r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._-]+)+"
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreatePlacementGroup.html
PLACEMENT_GROUP: Final = r"(?! )[ -~]{1,255}(?<! )"
ADDON_VERSION: Final = r"v[0-9]+\.[0-9]+\.[0-9]+-eksbuild\.[0-9]+"
# Days that CloudWatch Logs keeps entries
# (https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutRetentionPolicy.html).
LOG_DAYS: Final = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731),
    *(1096, 1827, 2192, 2557, 2922, 3288, 3653),
)
# Short names, or full ones as they are in China (com.amazonaws.cn-north-1.sts).
ENDPOINT_SERVICE: Final = r"[a-z0-9][a-z0-9.-]*"


def id_pattern(prefix: str) -> str:
    """The pattern of EC2's ids with a prefix, such as vpc: 17 digits, of old things 8.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/resource-ids.html
    """
    return rf"{prefix}-[0-9a-f]{{8}}([0-9a-f]{{9}})?"


def id_wanted(prefix: str) -> str:
    """How an id with a prefix is told to a person."""
    return f"an id of 8 or 17 digits (0-9, a-f), such as {prefix}-0123456789abcdef0"
