"""Find the id of a resource that a killed engine created but did not record.

The forms of the ids are from the AWS provider's documentation ("Import" of each type). A type is in exactly one
table: its id is an input, is built from inputs, or is found in the account. A second creation of another type is
harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import boto3
from botocore.exceptions import ClientError

Inputs = Mapping[str, Any]

# Types whose id is one of their inputs.
BY_INPUT = {
    "aws:cloudwatch/eventRule:EventRule": "name",
    "aws:cloudwatch/logGroup:LogGroup": "name",
    "aws:ec2/placementGroup:PlacementGroup": "name",
    "aws:ecr/lifecyclePolicy:LifecyclePolicy": "repository",
    "aws:ecr/repository:Repository": "name",
    "aws:eks/cluster:Cluster": "name",
    "aws:iam/instanceProfile:InstanceProfile": "name",
    "aws:iam/role:Role": "name",
    "aws:kms/alias:Alias": "name",
    "aws:s3/bucket:Bucket": "bucket",
    "aws:sqs/queuePolicy:QueuePolicy": "queueUrl",
}


def _role(inputs: Inputs) -> str:
    return str(inputs["role"]).rsplit("/", 1)[-1]


# Types whose id is made of their inputs.
COMPOSED: dict[str, Callable[[Inputs], str]] = {
    "aws:cloudwatch/eventTarget:EventTarget": lambda i: f"{i['rule']}-{i['targetId']}",
    "aws:ec2/route:Route": lambda i: (
        f"{i['routeTableId']}_{i.get('destinationCidrBlock') or i.get('destinationIpv6CidrBlock')}"
    ),
    "aws:eks/accessEntry:AccessEntry": lambda i: f"{i['clusterName']}:{i['principalArn']}",
    "aws:eks/accessPolicyAssociation:AccessPolicyAssociation": lambda i: (
        f"{i['clusterName']}#{i['principalArn']}#{i['policyArn']}"
    ),
    "aws:eks/addon:Addon": lambda i: f"{i['clusterName']}:{i['addonName']}",
    "aws:eks/nodeGroup:NodeGroup": lambda i: f"{i['clusterName']}:{i['nodeGroupName']}",
    "aws:iam/rolePolicy:RolePolicy": lambda i: f"{_role(i)}:{i['name']}",
    "aws:iam/rolePolicyAttachment:RolePolicyAttachment": lambda i: f"{_role(i)}/{i['policyArn']}",
}
# Types that EC2 gives ids to, found by their tags: the call that lists them, the list in its answer and the id's key.
# DescribeTags would be one call for all, but it may name what is gone, and says of nothing whether it is.
EC2_LISTED = {
    "aws:ec2/eip:Eip": ("describe_addresses", "Addresses", "AllocationId"),
    "aws:ec2/flowLog:FlowLog": ("describe_flow_logs", "FlowLogs", "FlowLogId"),
    "aws:ec2/internetGateway:InternetGateway": (
        "describe_internet_gateways",
        "InternetGateways",
        "InternetGatewayId",
    ),
    "aws:ec2/launchTemplate:LaunchTemplate": (
        "describe_launch_templates",
        "LaunchTemplates",
        "LaunchTemplateId",
    ),
    "aws:ec2/natGateway:NatGateway": ("describe_nat_gateways", "NatGateways", "NatGatewayId"),
    "aws:ec2/routeTable:RouteTable": ("describe_route_tables", "RouteTables", "RouteTableId"),
    "aws:ec2/securityGroup:SecurityGroup": ("describe_security_groups", "SecurityGroups", "GroupId"),
    "aws:ec2/subnet:Subnet": ("describe_subnets", "Subnets", "SubnetId"),
    "aws:ec2/vpc:Vpc": ("describe_vpcs", "Vpcs", "VpcId"),
    "aws:ec2/vpcEndpoint:VpcEndpoint": ("describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId"),
}
# A gateway that was deleted is shown for about an hour
# (https://docs.aws.amazon.com/vpc/latest/userguide/nat-gateway-basics.html).
GONE = ("deleting", "deleted", "failed")
RELEASE = "kubernetes:helm.sh/v3:Release"


class Finder:
    """Finds ids in the account of the AWS variables in the environment.

    `released` returns whether Helm finished the release of a namespace and a name. The plugin removes and installs
    again one that was not finished.
    """

    def __init__(self, account: str, region: str, released: Callable[[str, str], bool]) -> None:
        self._account = account
        self._region = region
        self._released = released
        self._asked: dict[str, Callable[[Inputs], Iterable[str]]] = {
            "aws:ec2/routeTableAssociation:RouteTableAssociation": self._association,
            "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation": self._data_association,
            "aws:fsx/lustreFileSystem:LustreFileSystem": self._file_systems,
            "aws:iam/openIdConnectProvider:OpenIdConnectProvider": self._oidc_provider,
            "aws:iam/policy:Policy": self._policy,
            "aws:kms/grant:Grant": self._grants,
            "aws:kms/key:Key": self._keys,
            "aws:sqs/queue:Queue": self._queue,
            RELEASE: self._release,
            "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": partial(self._rules, egress=True),
            "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": partial(self._rules, egress=False),
        }

    @property
    def types(self) -> frozenset[str]:
        """Return the types whose ids can be found."""
        return frozenset({*BY_INPUT, *COMPOSED, *EC2_LISTED, *self._asked})

    def candidates(self, kind: str, inputs: Inputs) -> list[str]:
        """Return possible ids of a resource with these inputs, sorted. A refresh finds out which of them exist."""
        try:
            if kind in BY_INPUT:
                return [str(inputs[BY_INPUT[kind]])]
            if kind in COMPOSED:
                return [COMPOSED[kind](inputs)]
            if kind in EC2_LISTED:
                return sorted(self._by_tags(*EC2_LISTED[kind], inputs["tags"]))
            if kind in self._asked:
                return sorted(self._asked[kind](inputs))
            return _object_id(inputs) if kind.startswith("kubernetes:") else []
        except KeyError:  # an input that names it is missing: then it was never made
            return []

    def _client(self, service: str) -> Any:
        return boto3.client(service, region_name=self._region)  # type: ignore[call-overload,unused-ignore]

    def _by_tags(self, call: str, listed: str, key: str, tags: Mapping[str, str]) -> Iterable[str]:
        """Return the ids of existing resources that have all of the tags."""
        ec2 = self._client("ec2")
        pages = ec2.get_paginator(call).paginate() if ec2.can_paginate(call) else [getattr(ec2, call)()]
        for each in (each for page in pages for each in page[listed]):
            has = {tag["Key"]: tag["Value"] for tag in each.get("Tags", [])}
            if tags.items() <= has.items() and str(each.get("State", "")).lower() not in GONE:
                yield str(each[key])

    def _association(self, inputs: Inputs) -> Iterable[str]:
        tables = self._client("ec2").describe_route_tables(
            Filters=[{"Name": "route-table-id", "Values": [inputs["routeTableId"]]}]
        )["RouteTables"]
        for association in (each for table in tables for each in table.get("Associations", [])):
            if association.get("SubnetId") == inputs["subnetId"]:
                yield association["RouteTableAssociationId"]

    def _rules(self, inputs: Inputs, *, egress: bool) -> Iterable[str]:
        """Return the rules of the security group with the same ports and peers, because rules share their tags."""
        pages = self._client("ec2").get_paginator("describe_security_group_rules")
        group = {"Name": "group-id", "Values": [inputs["securityGroupId"]]}
        wanted = (
            inputs["ipProtocol"],
            inputs.get("cidrIpv4"),
            inputs.get("cidrIpv6"),
            inputs.get("prefixListId"),
            inputs.get("referencedSecurityGroupId"),
            inputs.get("fromPort"),
        )
        for page in pages.paginate(Filters=[group]):
            for rule in page["SecurityGroupRules"]:
                live = (
                    rule["IpProtocol"],
                    rule.get("CidrIpv4"),
                    rule.get("CidrIpv6"),
                    rule.get("PrefixListId"),
                    rule.get("ReferencedGroupInfo", {}).get("GroupId"),
                    rule.get("FromPort") if rule["IpProtocol"] != "-1" else inputs.get("fromPort"),
                )
                if bool(rule["IsEgress"]) == egress and live == wanted:
                    yield rule["SecurityGroupRuleId"]

    def _keys(self, inputs: Inputs) -> Iterable[str]:
        """Return the KMS keys with all of the tags that are not scheduled for deletion, since keys cost money."""
        kms, wanted = self._client("kms"), inputs["tags"].items()
        for page in kms.get_paginator("list_keys").paginate():
            for key in page["Keys"]:
                described = kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]
                if described.get("KeyManager") == "AWS" or described["KeyState"] == "PendingDeletion":
                    continue
                tags = kms.list_resource_tags(KeyId=key["KeyId"])["Tags"]
                if wanted <= {tag["TagKey"]: tag["TagValue"] for tag in tags}.items():
                    yield key["KeyId"]

    def _grants(self, inputs: Inputs) -> Iterable[str]:
        kms = self._client("kms")
        key = kms.describe_key(KeyId=inputs["keyId"])["KeyMetadata"]["KeyId"]
        for grant in kms.list_grants(KeyId=key)["Grants"]:
            same = grant["GranteePrincipal"] == inputs["granteePrincipal"]
            if same and set(grant["Operations"]) == set(inputs["operations"]):
                yield f"{key}:{grant['GrantId']}"

    def _queue(self, inputs: Inputs) -> Iterable[str]:
        sqs = self._client("sqs")
        try:
            yield sqs.get_queue_url(QueueName=inputs["name"])["QueueUrl"]
        except sqs.exceptions.QueueDoesNotExist:
            return

    def _policy(self, inputs: Inputs) -> Iterable[str]:
        yield f"arn:{self._partition}:iam::{self._account}:policy{inputs.get('path') or '/'}{inputs['name']}"

    def _oidc_provider(self, inputs: Inputs) -> Iterable[str]:
        host = str(inputs["url"]).removeprefix("https://")
        yield f"arn:{self._partition}:iam::{self._account}:oidc-provider/{host}"

    def _file_systems(self, inputs: Inputs) -> Iterable[str]:
        for page in self._client("fsx").get_paginator("describe_file_systems").paginate():
            for found in page["FileSystems"]:
                tags = {tag["Key"]: tag["Value"] for tag in found.get("Tags", [])}
                if found["Lifecycle"] != "DELETING" and inputs["tags"].items() <= tags.items():
                    yield found["FileSystemId"]

    def _data_association(self, inputs: Inputs) -> Iterable[str]:
        filters = [{"Name": "file-system-id", "Values": [inputs["fileSystemId"]]}]
        try:
            found = self._client("fsx").describe_data_repository_associations(Filters=filters)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("FileSystemNotFound", "DataRepositoryAssociationNotFound"):
                return
            raise
        for each in found["Associations"]:
            if each["FileSystemPath"] == inputs["fileSystemPath"] and each["Lifecycle"] != "DELETING":
                yield each["AssociationId"]

    def _release(self, inputs: Inputs) -> Iterable[str]:
        if self._released(inputs["namespace"], inputs["name"]):
            yield f"{inputs['namespace']}/{inputs['name']}"

    @property
    def _partition(self) -> str:
        if self._region.startswith("cn-"):
            return "aws-cn"
        return "aws-us-gov" if self._region.startswith("us-gov-") else "aws"


def _object_id(inputs: Inputs) -> list[str]:
    """Return the id of a Kubernetes object: its name, after its namespace if it has one."""
    metadata = inputs["metadata"]
    namespace = metadata.get("namespace")
    return [f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])]
