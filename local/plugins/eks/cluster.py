"""`eks:index:Cluster`: role, security groups and rules, control plane, access entries, OIDC provider, kubeconfig."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version as installed
from typing import Any

import pulumi

from local.plugins.eks.endpoint import thumbprint, wait_healthy
from local.plugins.eks.kubeconfig import kubeconfig
from local.plugins.eks.resources import Resource

ALL = {"cidrBlocks": ["0.0.0.0/0"], "fromPort": 0, "toPort": 0, "protocol": "-1"}
CNI_SETTINGS = {
    "env": {
        "AWS_VPC_ENI_MTU": "9001",
        "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG": "false",
        "AWS_VPC_K8S_CNI_EXTERNALSNAT": "false",
        "AWS_VPC_K8S_CNI_LOGLEVEL": "DEBUG",
        "AWS_VPC_K8S_CNI_LOG_FILE": "/host/var/log/aws-routed-eni/ipamd.log",
        "AWS_VPC_K8S_CNI_VETHPREFIX": "eni",
        "AWS_VPC_K8S_PLUGIN_LOG_FILE": "/var/log/aws-routed-eni/plugin.log",
        "AWS_VPC_K8S_PLUGIN_LOG_LEVEL": "DEBUG",
        "ENABLE_POD_ENI": "false",
        "WARM_ENI_TARGET": "1",
    },
    "init": {"env": {"DISABLE_TCP_EARLY_DEMUX": "false"}},
}


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
    """The component `eks.Cluster`, with the resources and names of the recorded graph of pulumi-eks 4.4."""

    def __init__(self, name: str, inputs: Mapping[str, Any], opts: pulumi.ResourceOptions | None) -> None:
        super().__init__("eks:index:Cluster", name, {}, opts)
        self._base = name
        self._in = inputs
        self._child = pulumi.ResourceOptions(parent=self)
        self.role = ServiceRole(f"{name}-eksRole", inputs.get("tags"), self)
        # Without groups of the component, the cluster has the group that EKS creates. Nodes are in it, too.
        own_groups = not inputs.get("skipDefaultSecurityGroups")
        self.group = self._cluster_group() if own_groups else None
        self.control_plane = self._control_plane()
        self.cluster_name = self.control_plane.output("name")
        self.groups = self._groups(self.group) if self.group is not None else self._made_by_eks()
        self.entries = self._access_entries()
        self.issuer = self.control_plane.output("identities").apply(
            lambda found: str(found[0]["oidcs"][0]["issuer"])
        )
        self.oidc = self._oidc_provider() if inputs.get("createOidcProvider") else None
        self._profile: str | None = (inputs.get("providerCredentialOpts") or {}).get("profileName")
        self.kubeconfig = self._kubeconfig()
        self.kubeconfig_json = self.kubeconfig.apply(lambda found: json.dumps(found, separators=(",", ":")))
        self.provider = self._kubernetes()
        self._addons()
        self.state = self._state()
        self.register_outputs(self.state)

    def _cluster_group(self) -> Resource:
        group = self._group("eksClusterSecurityGroup", self._in.get("clusterSecurityGroupTags"))
        self._rule("eksClusterInternetEgressRule", group, "egress", "Allow internet access.", **ALL)
        return group

    def _groups(self, plane: Resource) -> dict[str, Any]:
        """Create the nodes' group and its rules with the control plane's. Return the component's outputs for both."""
        owned = self.cluster_name.apply(lambda found: {f"kubernetes.io/cluster/{found}": "owned"})
        nodes = self._group("nodeSecurityGroup", self._in.get("nodeSecurityGroupTags"), owned)
        return {
            "clusterSecurityGroup": plane,
            "clusterSecurityGroupId": plane.id,
            "eksClusterIngressRule": self._node_rules(nodes, plane),
            "nodeSecurityGroup": nodes,
            "nodeSecurityGroupId": nodes.id,
        }

    def _made_by_eks(self) -> dict[str, Any]:
        group = self.control_plane.output("vpcConfig").apply(lambda found: found["clusterSecurityGroupId"])
        return {"clusterSecurityGroupId": group, "nodeSecurityGroupId": group}

    def _tags(self, name: str, *more: Any) -> pulumi.Output[dict[str, str]]:
        def merged(parts: list[Any]) -> dict[str, str]:
            result: dict[str, str] = {"Name": name}
            for part in parts:
                result |= part or {}
            return result

        return pulumi.Output.all(self._in.get("tags"), *more).apply(merged)

    def _group(self, suffix: str, *tags: Any) -> Resource:
        name = f"{self._base}-{suffix}"
        props = {
            "description": "Managed by Pulumi",
            "revokeRulesOnDelete": True,
            "tags": self._tags(name, *tags),
            "vpcId": self._in.get("vpcId"),
        }
        return Resource("aws:ec2/securityGroup:SecurityGroup", name, props, self._child)

    def _rule(self, suffix: str, group: Resource, kind: str, text: str, /, **more: Any) -> Resource:
        props = {"description": text, "securityGroupId": group.id, "type": kind, **more}
        name = f"{self._base}-{suffix}"
        return Resource("aws:ec2/securityGroupRule:SecurityGroupRule", name, props, self._child)

    def _node_rules(self, nodes: Resource, plane: Resource) -> Resource:
        """Create the rules between control plane and nodes. The one into the control plane is an output."""
        https = {"fromPort": 443, "toPort": 443, "protocol": "tcp"}
        every = {"fromPort": 0, "toPort": 0, "protocol": "-1"}
        kubelet = {"fromPort": 1025, "toPort": 65535, "protocol": "tcp"}
        extension = (
            "Allow pods running extension API servers on port 443 to receive communication from "
            "cluster control plane"
        )
        within = "Allow nodes to communicate with each other"
        worker = "Allow worker Kubelets and pods to receive communication from the cluster control plane"
        self._rule("eksNodeIngressRule", nodes, "ingress", within, self=True, **every)
        from_plane = {"sourceSecurityGroupId": plane.id}
        self._rule("eksNodeClusterIngressRule", nodes, "ingress", worker, **from_plane, **kubelet)
        self._rule("eksExtApiServerClusterIngressRule", nodes, "ingress", extension, **from_plane, **https)
        self._rule("eksNodeInternetEgressRule", nodes, "egress", "Allow internet access.", **ALL)
        return self._rule(
            "eksClusterIngressRule",
            plane,
            "ingress",
            "Allow pods to communicate with the cluster API Server",
            sourceSecurityGroupId=nodes.id,
            **https,
        )

    def _control_plane(self) -> Resource:
        given = self._in
        subnets = pulumi.Output.all(
            given.get("publicSubnetIds"), given.get("privateSubnetIds"), given.get("subnetIds")
        ).apply(lambda lists: list(dict.fromkeys(item for part in lists for item in part or [])))
        network = {
            "endpointPrivateAccess": given.get("endpointPrivateAccess"),
            "endpointPublicAccess": given.get("endpointPublicAccess"),
            "publicAccessCidrs": given.get("publicAccessCidrs"),
            "securityGroupIds": [self.group.id] if self.group is not None else None,
            "subnetIds": subnets,
        }
        key = given.get("encryptionConfigKeyArn")
        services = given.get("kubernetesServiceIpAddressRange")
        bootstrap = given.get("bootstrapSelfManagedAddons")
        props = {
            "accessConfig": {
                "authenticationMode": given["authenticationMode"],
                "bootstrapClusterCreatorAdminPermissions": True,
            },
            "bootstrapSelfManagedAddons": True if bootstrap is None else bootstrap,
            "deletionProtection": given.get("deletionProtection"),
            "enabledClusterLogTypes": given.get("enabledClusterLogTypes"),
            "encryptionConfig": {"provider": {"keyArn": key}, "resources": ["secrets"]}
            if key is not None
            else None,
            "kubernetesNetworkConfig": {"serviceIpv4Cidr": services} if services is not None else None,
            "name": given.get("name"),
            "roleArn": self.role.arn,
            "tags": self._tags(f"{self._base}-eksCluster", given.get("clusterTags")),
            "upgradePolicy": given.get("upgradePolicy"),
            "version": given.get("version"),
            "vpcConfig": {k: v for k, v in network.items() if v is not None},
        }
        return Resource("aws:eks/cluster:Cluster", f"{self._base}-eksCluster", props, self._child)

    def _access_entries(self) -> list[pulumi.Resource]:
        made: list[pulumi.Resource] = []
        for key, entry in dict(self._in.get("accessEntries") or {}).items():
            props = {
                "clusterName": self.cluster_name,
                "principalArn": entry["principalArn"],
                "kubernetesGroups": entry.get("kubernetesGroups"),
                "type": entry.get("type"),
                "userName": entry.get("username"),
                "tags": entry.get("tags"),
            }
            made.append(
                Resource("aws:eks/accessEntry:AccessEntry", f"{self._base}-{key}", props, self._child)
            )
            for label, policy in dict(entry.get("accessPolicies") or {}).items():
                association = {
                    "clusterName": self.cluster_name,
                    "principalArn": entry["principalArn"],
                    "policyArn": policy["policyArn"],
                    "accessScope": policy["accessScope"],
                }
                made.append(
                    Resource(
                        "aws:eks/accessPolicyAssociation:AccessPolicyAssociation",
                        f"{self._base}-{key}-{label}",
                        association,
                        pulumi.ResourceOptions(parent=self, depends_on=[made[-1]]),
                    )
                )
        return made

    def _oidc_provider(self) -> Resource:
        async def served(endpoint: Any) -> Any:
            return [await asyncio.to_thread(thumbprint, endpoint)]

        props = {
            "clientIdLists": ["sts.amazonaws.com"],
            "thumbprintLists": self.control_plane.output("endpoint").apply(served),
            "url": self.issuer,
        }
        token = "aws:iam/openIdConnectProvider:OpenIdConnectProvider"
        return Resource(token, f"{self._base}-oidcProvider", props, self._child)

    def _kubeconfig(self) -> pulumi.Output[dict[str, Any]]:
        async def made(parts: list[Any]) -> dict[str, Any]:
            name, endpoint, authority, region = parts
            if not pulumi.runtime.is_dry_run():
                await asyncio.to_thread(wait_healthy, endpoint, authority["data"])
            return kubeconfig(name, endpoint, authority["data"], region, self._profile)

        plane = self.control_plane
        region = invoke("aws:index/getRegion:getRegion", {}, self)["region"]
        return pulumi.Output.all(
            plane.output("name"), plane.output("endpoint"), plane.output("certificateAuthority"), region
        ).apply(made)

    def _kubernetes(self) -> pulumi.ProviderResource:
        opts = pulumi.ResourceOptions(parent=self, version=installed("pulumi-kubernetes"))
        return pulumi.ProviderResource(
            "kubernetes", f"{self._base}-eks-k8s", {"kubeconfig": self.kubeconfig_json}, opts
        )

    def _addons(self) -> None:
        if (self._in.get("kubeProxyAddonOptions") or {}).get("enabled", True):
            self._addon("kube-proxy", self._child, None, self._in.get("kubeProxyAddonOptions") or {})
        if not self._in.get("useDefaultVpcCni"):
            name = f"{self._base}-vpc-cni"
            opts = pulumi.ResourceOptions(parent=self, depends_on=self.entries)
            holder = pulumi.ComponentResource("eks:index:VpcCniAddon", name, {}, opts)
            settings = json.dumps(CNI_SETTINGS, separators=(",", ":"))
            addon = self._addon("vpc-cni", pulumi.ResourceOptions(parent=holder), settings, {})
            holder.register_outputs({"addon": addon})

    def _addon(
        self, addon: str, opts: pulumi.ResourceOptions, settings: str | None, given: Mapping[str, Any]
    ) -> Resource:
        latest = invoke(
            "aws:eks/getAddonVersion:getAddonVersion",
            {
                "addonName": addon,
                "kubernetesVersion": self.control_plane.output("version"),
                "mostRecent": True,
            },
            self,
        )["version"]
        props = {
            "addonName": addon,
            "addonVersion": given.get("version") or latest,
            "clusterName": self.cluster_name,
            "configurationValues": settings,
            "preserve": True,
            "resolveConflictsOnCreate": "OVERWRITE",
            "resolveConflictsOnUpdate": "OVERWRITE",
            "tags": self._in.get("tags"),
        }
        return Resource("aws:eks/addon:Addon", f"{self._base}-{addon}", props, opts)

    def _state(self) -> dict[str, Any]:
        given = self._in
        core: dict[str, Any] = {
            "cluster": self.control_plane,
            "clusterSecurityGroup": self.groups.get("clusterSecurityGroup"),
            "nodeSecurityGroup": self.groups.get("nodeSecurityGroup"),
            "endpoint": self.control_plane.output("endpoint"),
            "kubeconfig": self.kubeconfig,
            "provider": self.provider,
            "vpcId": given.get("vpcId"),
            "subnetIds": self.control_plane.output("vpcConfig").apply(lambda found: found["subnetIds"]),
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
            **self.groups,
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
