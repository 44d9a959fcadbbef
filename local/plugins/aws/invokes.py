"""Functions of the AWS package (`aws.get_partition()` and the like).

The first argument is the session, or None if no local cloud runs. A preview needs answers in that case, too. Answers
that depend only on the region are right. The account is that of the local cloud. Versions and tokens are texts that say
that they are requested at `up`. Without a local cloud nothing can be created, so no such answer gets into a resource.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

from local.plugins.aws.cloud import Cloud, dns_suffix_of, partition_of
from local.plugins.aws.resource import Props, tag_map

LOCAL_ACCOUNT = "123456789012"
ASKED_LATER = "asked-at-up"


def _partition(_cloud: Cloud | None, region: str, _args: Props) -> Props:
    suffix = dns_suffix_of(region)
    name = partition_of(region)
    return {
        "id": name,
        "partition": name,
        "dnsSuffix": suffix,
        "reverseDnsPrefix": ".".join(reversed(suffix.split("."))),
    }


def _region(_cloud: Cloud | None, region: str, args: Props) -> Props:
    name = str(args.get("region") or args.get("name") or region)
    endpoint = f"ec2.{name}.{dns_suffix_of(name)}"
    return {"id": name, "region": name, "name": name, "description": name, "endpoint": endpoint}


def _caller(cloud: Cloud | None, _region: str, _args: Props) -> Props:
    if cloud is None:
        arn = f"arn:aws:iam::{LOCAL_ACCOUNT}:user/deployer"
        return {"id": LOCAL_ACCOUNT, "accountId": LOCAL_ACCOUNT, "arn": arn, "userId": "deployer"}
    found = cloud.client("sts").get_caller_identity()
    return {
        "id": found["Account"],
        "accountId": found["Account"],
        "arn": found["Arn"],
        "userId": found["UserId"],
    }


def _addon_version(cloud: Cloud | None, _region: str, args: Props) -> Props:
    name, kubernetes = str(args["addonName"]), str(args["kubernetesVersion"])
    result = {"id": name, "addonName": name, "kubernetesVersion": kubernetes}
    if cloud is None:
        return {**result, "version": ASKED_LATER}
    answer = cloud.client("eks").describe_addon_versions(addonName=name, kubernetesVersion=kubernetes)
    versions = [version for addon in answer["addons"] for version in addon["addonVersions"]]
    if not versions:
        raise LookupError(f"EKS has no version of add-on {name} for Kubernetes {kubernetes}")
    if args.get("mostRecent"):
        return {**result, "mostRecent": True, "version": versions[0]["addonVersion"]}
    default = [v for v in versions if any(c.get("defaultVersion") for c in v.get("compatibilities", []))]
    return {**result, "version": (default or versions)[0]["addonVersion"]}


def _cluster(cloud: Cloud | None, _region: str, args: Props) -> Props:
    found = _needed(cloud, "eks.getCluster").client("eks").describe_cluster(name=args["name"])["cluster"]
    authority = {"data": found.get("certificateAuthority", {}).get("data", "")}
    issuer = found.get("identity", {}).get("oidc", {}).get("issuer", "")
    return {
        "id": found["name"],
        "name": found["name"],
        "arn": found["arn"],
        "endpoint": found.get("endpoint", ""),
        "version": found.get("version", ""),
        "status": found["status"],
        "roleArn": found["roleArn"],
        "platformVersion": found.get("platformVersion", ""),
        "createdAt": str(found.get("createdAt", "")),
        "certificateAuthorities": [authority],
        "identities": [{"oidcs": [{"issuer": issuer}]}],
        "vpcConfig": {
            "clusterSecurityGroupId": "",
            "endpointPrivateAccess": False,
            "endpointPublicAccess": True,
            "publicAccessCidrs": [],
            "securityGroupIds": [],
            "subnetIds": [],
            "vpcId": "",
            **found.get("resourcesVpcConfig", {}),
        },
        "tags": found.get("tags", {}),
    }


def _cluster_auth(cloud: Cloud | None, region: str, args: Props) -> Props:
    from local.plugins.aws.eks_token import bearer_token

    name = str(args["name"])
    token = ASKED_LATER if cloud is None else bearer_token(name, region)
    return {"id": name, "name": name, "token": token}


def _registry_login(cloud: Cloud | None, region: str, args: Props) -> Props:
    if cloud is None:
        registry = str(args.get("registryId") or LOCAL_ACCOUNT)
        encoded = base64.b64encode(f"AWS:{ASKED_LATER}".encode()).decode()
        endpoint, expires = f"https://{registry}.dkr.ecr.{region}.{dns_suffix_of(region)}", ""
    else:
        found = cloud.client("ecr").get_authorization_token()["authorizationData"][0]
        encoded, endpoint = found["authorizationToken"], found["proxyEndpoint"]
        expires = str(found["expiresAt"])
    user, _, password = base64.b64decode(encoded).decode().partition(":")
    return {
        "id": region,
        "authorizationToken": encoded,
        "expiresAt": expires,
        "password": password,
        "proxyEndpoint": endpoint,
        "userName": user,
    }


def _vpc(cloud: Cloud | None, _region: str, args: Props) -> Props:
    found = _needed(cloud, "ec2.getVpc").client("ec2").describe_vpcs(VpcIds=[args["id"]])["Vpcs"][0]
    return {
        "id": found["VpcId"],
        "cidrBlock": found["CidrBlock"],
        "ownerId": found.get("OwnerId", ""),
        "tags": tag_map(found.get("Tags")),
    }


def _subnet(cloud: Cloud | None, _region: str, args: Props) -> Props:
    ec2 = _needed(cloud, "ec2.getSubnet").client("ec2")
    found = ec2.describe_subnets(SubnetIds=[args["id"]])["Subnets"][0]
    return {
        "id": found["SubnetId"],
        "vpcId": found["VpcId"],
        "cidrBlock": found["CidrBlock"],
        "availabilityZone": found["AvailabilityZone"],
        "tags": tag_map(found.get("Tags")),
    }


def _needed(cloud: Cloud | None, function: str) -> Cloud:
    if cloud is None:
        raise LookupError(f"{function} asks AWS and no local cloud is running: start it with `make up`")
    return cloud


Function = Callable[[Cloud | None, str, Props], Any]

FUNCTIONS: Mapping[str, Function] = {
    "aws:index/getPartition:getPartition": _partition,
    "aws:index/getRegion:getRegion": _region,
    "aws:index/getCallerIdentity:getCallerIdentity": _caller,
    "aws:eks/getAddonVersion:getAddonVersion": _addon_version,
    "aws:eks/getCluster:getCluster": _cluster,
    "aws:eks/getClusterAuth:getClusterAuth": _cluster_auth,
    "aws:ecr/getAuthorizationToken:getAuthorizationToken": _registry_login,
    "aws:ec2/getVpc:getVpc": _vpc,
    "aws:ec2/getSubnet:getSubnet": _subnet,
}
