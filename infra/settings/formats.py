"""The formats of texts in a stack file: patterns, and types of fields with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from infra.settings.fields import AsTuple, Choice, MapKey, Scalar, Text, shown
from trainyard.k8s import quantity

REGION: Final = r"[a-z]{2}(-[a-z]+)+-[0-9]"
ZONE: Final = r"[a-z]{2}(-[a-z]+)+-[0-9][a-z]"
ZoneName = Annotated[str, Text("the name of a zone")]
Line = Annotated[str, Text()]
Lines = Annotated[tuple[Line, ...], AsTuple]

# EKS accepts more. But names of buckets and repositories begin with it, and have lower case only. Names of
# EventBridge rules have 64 characters, of which our own part and an automatic suffix need 33
# (https://docs.aws.amazon.com/eventbridge/latest/APIReference/API_PutRule.html).
CLUSTER_NAME: Final = r"[a-z]([a-z0-9-]{0,29}[a-z0-9])?"
CLUSTER_NAME_MUST_BE: Final = "lower case letters, digits and hyphens, a letter first, at most 31 characters"
ClusterName = Annotated[str, Text(CLUSTER_NAME_MUST_BE, CLUSTER_NAME)]
# https://docs.aws.amazon.com/eks/latest/APIReference/API_CreateCluster.html
EksName = Annotated[
    str,
    Text(
        "letters, digits, hyphens and underscores, a letter or digit first, at most 100 characters",
        r"[0-9A-Za-z][A-Za-z0-9_-]{0,99}",
    ),
]
DnsLabel = Annotated[
    str, Text("lower case letters, digits and hyphens, at most 40", r"[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?")
]
# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#dns-subdomain-names
ObjectName = Annotated[
    str,
    Text(
        "the name of an object: lower case letters, digits, hyphens and dots",
        r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*",
    ),
]
AccountId = Annotated[str, Text("the twelve digits of an AWS account, in quotes", r"[0-9]{12}")]

# https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html: a path of any printable characters
# without a space, then the name.
PARTITION: Final = r"aws(-[a-z]+)*"
_NAME: Final = r"[A-Za-z0-9_+=,.@-]{1,64}"
PRINCIPAL: Final = rf"arn:{PARTITION}:iam::[0-9]{{12}}:(user|role)/([!-~]{{1,510}}/)?{_NAME}"
PRINCIPAL_MUST_BE: Final = "the ARN of an IAM user or role, such as arn:aws:iam::123456789012:role/platform"
# The ARN of an assumed role, as STS returns it
# (https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html).
ROLE_SESSION: Final = rf"arn:{PARTITION}:sts::[0-9]{{12}}:assumed-role/(?P<role>{_NAME})/{_NAME}"
KmsKeyArn = Annotated[
    str,
    Text(
        "the ARN of a KMS key, such as arn:aws:kms:us-west-2:123456789012:key/<id>",
        rf"arn:{PARTITION}:kms:[a-z0-9-]+:[0-9]{{12}}:key/(mrk-)?[0-9a-f-]{{32,36}}",
    ),
]
OIDC_ISSUER: Final = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(/[A-Za-z0-9._~-]+)+"
CIDR: Final = r"[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}"
Cidr = Annotated[str, Text("an IPv4 range such as 10.64.0.0/16", CIDR)]

# Registry, path, tag and digest (github.com/distribution/reference, regexp.go).
_PART: Final = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
_REGISTRY: Final = r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?"
IMAGE_MUST_BE: Final = "an image with its digest, such as registry/name@sha256:<64 hexadecimal digits>"
Image = Annotated[
    str,
    Text(
        IMAGE_MUST_BE,
        rf"({_REGISTRY}/)?{_PART}(/{_PART})*(:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(@sha256:[0-9a-f]{{64}})",
    ),
]
# No tag: Helm uses the version as the tag, and refuses another one.
CHART: Final = r"oci://[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9._-]+)+(@sha256:[0-9a-f]{64})?"
CHART_MUST_BE: Final = "oci://registry/name without a tag, with or without @sha256:<64 hexadecimal digits>"
Mirror = Annotated[
    str,
    Text(
        "a registry with an optional prefix, such as 123456789012.dkr.ecr.us-west-2.amazonaws.com/mirror",
        r"[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9._-]+)*",
    ),
]


class _Address(Text):
    """An address without credentials. The message does not repeat credentials."""

    def check(self, value: Any) -> Any:
        if isinstance(value, str) and ("@" in value or "?" in value):
            raise ValueError(
                "holds credentials, which would stay in the images' history for all to read; it must be"
                f" {self.must_be}"
            )
        return super().check(value)


# The text before an @ or after a question mark may be secret.
_HTTPS: Final = r"(?=[!-~]+\Z)https://[^/@?#]+(/[^@?#]*)?"
PackageIndex = Annotated[
    str, _Address("an https address without credentials, such as https://pypi.example/simple", _HTTPS)
]
EfaInstaller = Annotated[
    str, _Address("an https address without credentials, such as https://files.example/efa", _HTTPS)
]
# Debian signs the packages, so http is safe.
DebianMirror = Annotated[
    str,
    _Address(
        "an http or https address without credentials, such as http://debian.example",
        r"(?=[!-~]+\Z)https?://[^/@?#|]+(/[^@?#|]*)?",
    ),
]


@dataclass(frozen=True)
class _Quantity(Text):
    """A quantity of Kubernetes with a minimum, which refuses a forgotten or wrong suffix."""

    minimum: str = "1"
    unit: str = ""

    def check(self, value: Any) -> Any:
        checked = super().check(value)
        if (amount := quantity.parse(checked)) < quantity.parse(self.minimum):
            raise ValueError(f"{shown(value)} is {float(amount):.10g} {self.unit}; it must be {self.must_be}")
        return checked


Cores = Annotated[
    str,
    _Quantity(
        "at least 100m cores such as 500m or 8, in quotes",
        r"[0-9]+(\.[0-9]+)?m?",
        minimum="100m",
        unit="cores",
    ),
]
Bytes = Annotated[
    str,
    _Quantity(
        "a quantity of at least 1Mi such as 8Gi, in quotes",
        r"[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?",
        minimum="1Mi",
        unit="bytes",
    ),
]

# No IP address, no empty label, no label that ends with a hyphen, and no name that S3 reserves
# (https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html).
_BUCKET: Final = (
    r"(?![0-9]+(\.[0-9]+){3}$)(?!.*(\.\.|-\.|\.-))(?!xn--|sthree-|amzn-s3-demo-)"
    r"(?!.*(-s3alias|--ol-s3|\.mrap|--x-s3|--table-s3)$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
)
OWN_BUCKET: Final = "models"
_BUCKET_MUST_BE: Final = f"{OWN_BUCKET} (the stack's own) or a bucket's name"
BucketName = Annotated[str, Text(_BUCKET_MUST_BE, _BUCKET)]


class _Bucket(Text):
    """A bucket. The value for the stack's own bucket is None."""

    def check(self, value: Any) -> Any:
        checked = super().check(value)
        return None if checked == OWN_BUCKET else checked


Bucket = Annotated[str | None, _Bucket(_BUCKET_MUST_BE, _BUCKET)]
# No segment is empty, `.` or `..`.
_SEGMENT: Final = r"(?!\.{1,2}(/|$))[A-Za-z0-9_.-]+"
KEY_PREFIX: Final = rf"(?=[A-Za-z0-9]){_SEGMENT}(/{_SEGMENT})*(?<=[A-Za-z0-9])"
ABSOLUTE_PATH: Final = r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._-]+)+"
# https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreatePlacementGroup.html
PLACEMENT_GROUP: Final = r"(?! )[ -~]{1,255}(?<! )"
# Retention periods of CloudWatch Logs, in days
# (https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutRetentionPolicy.html).
_LOG_DAYS: Final = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731),
    *(1096, 1827, 2192, 2557, 2922, 3288, 3653),
)
LogDays = Annotated[int, Choice(_LOG_DAYS)]
VariableName = Annotated[
    str, MapKey("letters, digits and underscores, no digit first", r"[A-Za-z_][A-Za-z0-9_]*")
]
VariableValue = Annotated[str, Scalar("a text without a null character", r"[^\0]*")]


def ec2_id(prefix: str) -> Text:
    """Return the format of EC2 ids with a prefix such as vpc: 17 digits, or 8 for old resources.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/resource-ids.html
    """
    return Text(
        f"an id of 8 or 17 digits (0-9, a-f), such as {prefix}-0123456789abcdef0",
        rf"{prefix}-[0-9a-f]{{8}}([0-9a-f]{{9}})?",
    )


SecurityGroupId = Annotated[str, ec2_id("sg")]
