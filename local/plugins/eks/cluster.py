"""`eks:index:Cluster`: role, security groups and rules, control plane, access entries, OIDC provider, kubeconfig."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version as installed
from typing import Any

import pulumi

from local.plugins.eks.resources import Resource

# The official component takes it from the issuer's host. AWS no longer uses it
# (https://docs.aws.amazon.com/IAM/latest/UserGuide/id_roles_providers_create_oidc_verify-thumbprint.html).
THUMBPRINT = "42578a497a9ecdba6d73fec5dcbddbeb623ae71d"


class ServiceRole(pulumi.ComponentResource):
    """The role that EKS assumes. `resolved` is known after its policies are attached."""

    def __init__(self, name: str, tags: Any, parent: pulumi.Resource) -> None:
        super().__init__("eks:index:ServiceRole", name, {}, pulumi.ResourceOptions(parent=parent))
        child = pulumi.ResourceOptions(parent=self)
        trust = {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Action": ["sts:AssumeRole", "sts:TagSession"],
                    "Effect": "Allow",
                    "Principal": {"Service": ["eks.amazonaws.com"]},
                }
            ],
        }
        self.role = Resource(
            "aws:iam/role:Role",
            f"{name}-role",
            {
                "assumeRolePolicy": json.dumps(trust, separators=(",", ":")),
                "description": "Allows EKS to manage clusters on your behalf.",
                "tags": tags,
            },
            child,
        )
        partition = invoke("aws:index/getPartition:getPartition", {}, self)["partition"]
        policy = partition.apply(lambda found: f"arn:{found}:iam::aws:policy/AmazonEKSClusterPolicy")
        # The official component uses the SHA-1 of the policy in the standard partition in the names of attachments.
        known = "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"
        digest = hashlib.sha1(known.encode(), usedforsecurity=False).hexdigest()[:8]
        attachment = Resource(
            "aws:iam/rolePolicyAttachment:RolePolicyAttachment",
            f"{name}-{digest}",
            {"policyArn": policy, "role": self.role},
            child,
        )
        self.arn: pulumi.Output[str] = pulumi.Output.all(self.role.output("arn"), attachment.id).apply(
            lambda both: str(both[0])
        )
        self.register_outputs({"directRole": self.role, "resolvedRole": self.role})


class Cluster(pulumi.ComponentResource):
    """The component `eks.Cluster`, with the resources and names of the recorded graph of pulumi-eks 4.4.

    It has no groups, access entries and add-ons of its own: see `arguments.REQUIRED`. Nodes and control plane are in
    the group that EKS creates.
    """

    def __init__(self, name: str, inputs: Mapping[str, Any], opts: pulumi.ResourceOptions | None) -> None:
        super().__init__("eks:index:Cluster", name, {}, opts)
        self._base = name
        self._in = inputs
        self._child = pulumi.ResourceOptions(parent=self)
        self.role = ServiceRole(f"{name}-eksRole", inputs.get("tags"), self)
        self.control_plane = self._control_plane()
        self.cluster_name = self.control_plane.output("name")
        self.issuer = self.control_plane.output("identities").apply(
            lambda found: str(found[0]["oidcs"][0]["issuer"])
        )
        self.oidc = self._oidc_provider() if inputs.get("createOidcProvider") else None
        self._profile: str | None = (inputs.get("providerCredentialOpts") or {}).get("profileName")
        self.kubeconfig = self._kubeconfig()
        self.kubeconfig_json = self.kubeconfig.apply(lambda found: json.dumps(found, separators=(",", ":")))
        self.provider = self._kubernetes()
        self.state = self._state()
        self.register_outputs(self.state)

    def _control_plane(self) -> Resource:
        given = self._in
        subnets = pulumi.Output.all(
            given.get("publicSubnetIds"), given.get("privateSubnetIds"), given.get("subnetIds")
        ).apply(lambda lists: list(dict.fromkeys(item for part in lists for item in part or [])))
        network = {
            "endpointPrivateAccess": given.get("endpointPrivateAccess"),
            "endpointPublicAccess": given.get("endpointPublicAccess"),
            "publicAccessCidrs": given.get("publicAccessCidrs"),
            "subnetIds": subnets,
        }
        key = given.get("encryptionConfigKeyArn")
        props = {
            "accessConfig": {
                "authenticationMode": given["authenticationMode"],
                "bootstrapClusterCreatorAdminPermissions": True,
            },
            "bootstrapSelfManagedAddons": True,
            "deletionProtection": given.get("deletionProtection"),
            "enabledClusterLogTypes": given.get("enabledClusterLogTypes"),
            "encryptionConfig": {"provider": {"keyArn": key}, "resources": ["secrets"]}
            if key is not None
            else None,
            "name": given.get("name"),
            "roleArn": self.role.arn,
            "tags": pulumi.Output.from_input(given.get("tags")).apply(
                lambda tags: {"Name": f"{self._base}-eksCluster", **(tags or {})}
            ),
            "upgradePolicy": given.get("upgradePolicy"),
            "version": given.get("version"),
            "vpcConfig": {k: v for k, v in network.items() if v is not None},
        }
        return Resource("aws:eks/cluster:Cluster", f"{self._base}-eksCluster", props, self._child)

    def _oidc_provider(self) -> Resource:
        props = {
            "clientIdLists": ["sts.amazonaws.com"],
            "thumbprintLists": [THUMBPRINT],
            "url": self.issuer,
        }
        token = "aws:iam/openIdConnectProvider:OpenIdConnectProvider"
        return Resource(token, f"{self._base}-oidcProvider", props, self._child)

    def _kubeconfig(self) -> pulumi.Output[dict[str, Any]]:
        plane = self.control_plane
        region = invoke("aws:index/getRegion:getRegion", {}, self)["region"]
        return pulumi.Output.all(
            plane.output("name"), plane.output("endpoint"), plane.output("certificateAuthority"), region
        ).apply(
            # The official component first waits for the API server. Here, an ACTIVE cluster has one that is ready.
            lambda parts: kubeconfig(parts[0], parts[1], parts[2]["data"], parts[3], self._profile)
        )

    def _kubernetes(self) -> pulumi.ProviderResource:
        opts = pulumi.ResourceOptions(parent=self, version=installed("pulumi-kubernetes"))
        return pulumi.ProviderResource(
            "kubernetes", f"{self._base}-eks-k8s", {"kubeconfig": self.kubeconfig_json}, opts
        )

    def _state(self) -> dict[str, Any]:
        given = self._in
        network = self.control_plane.output("vpcConfig")
        group = network.apply(lambda found: found["clusterSecurityGroupId"])
        core: dict[str, Any] = {
            "cluster": self.control_plane,
            "endpoint": self.control_plane.output("endpoint"),
            "kubeconfig": self.kubeconfig,
            "provider": self.provider,
            "vpcId": given.get("vpcId"),
            "subnetIds": network.apply(lambda found: found["subnetIds"]),
            "privateSubnetIds": given.get("privateSubnetIds"),
            "publicSubnetIds": given.get("publicSubnetIds"),
            "instanceRoles": [],
            "nodeGroupOptions": {},
            "tags": given.get("tags"),
            "clusterIamRole": self.role.role,
        }
        if self.oidc is not None:
            core["oidcProvider"] = self.oidc
        url = self.issuer if self.oidc is not None else ""
        return {
            "autoModeNodeRoleName": "",
            "clusterSecurityGroupId": group,
            "nodeSecurityGroupId": group,
            "core": {key: value for key, value in core.items() if value is not None},
            "defaultNodeGroupAsgName": "",
            "eksCluster": self.control_plane,
            "fargateProfileId": "",
            "fargateProfileStatus": "",
            "instanceRoles": [],
            "kubeconfig": self.kubeconfig,
            "kubeconfigJson": self.kubeconfig_json,
            "oidcIssuer": pulumi.Output.from_input(url).apply(lambda found: found.removeprefix("https://")),
            "oidcProviderArn": self.oidc.output("arn") if self.oidc is not None else "",
            "oidcProviderUrl": url,
        }


def invoke(token: str, args: Mapping[str, Any], parent: pulumi.Resource) -> pulumi.Output[Any]:
    """Call a function of the AWS plugin, with the provider of the children of `parent`."""

    async def ask(known: Mapping[str, Any]) -> Any:
        answer = await pulumi.runtime.invoke_async(token, dict(known), pulumi.InvokeOptions(parent=parent))
        return answer

    return pulumi.Output.from_input(dict(args)).apply(ask)


def kubeconfig(
    cluster: str, endpoint: str, authority: str, region: str, profile: str | None = None
) -> dict[str, Any]:
    """Return the official component's kubeconfig: every call authenticates with `aws eks get-token`.

    `authority` is the certificate authority in base64, `profile` one of ~/.aws/config.
    """
    version = "client.authentication.k8s.io/v1beta1"
    return {
        "apiVersion": "v1",
        "clusters": [
            {"cluster": {"server": endpoint, "certificate-authority-data": authority}, "name": "kubernetes"}
        ],
        "contexts": [{"context": {"cluster": "kubernetes", "user": "aws"}, "name": "aws"}],
        "current-context": "aws",
        "kind": "Config",
        "users": [
            {
                "name": "aws",
                "user": {
                    "exec": {
                        "apiVersion": version,
                        "command": "aws",
                        "args": [
                            "--region",
                            region,
                            "eks",
                            "get-token",
                            "--cluster-name",
                            cluster,
                            "--output",
                            "json",
                        ],
                        "env": [
                            {"name": "KUBERNETES_EXEC_INFO", "value": f'{{"apiVersion": "{version}"}}'},
                            *([{"name": "AWS_PROFILE", "value": profile}] if profile else []),
                        ],
                    }
                },
            }
        ],
    }
