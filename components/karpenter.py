"""Karpenter: its IAM role, its interruption queue and its two Helm charts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pulumi_aws as aws
import pulumi_kubernetes as k8s

from trainyard.k8s.names import KARPENTER_NAMESPACE

from . import encryption
from .documents import karpenter_iam, versions
from .documents.account import Account
from .identity import Identity, IdentityArgs

SERVICE_ACCOUNT = "karpenter"


@dataclass(frozen=True, kw_only=True)
class KarpenterArgs:
    """Karpenter's controller and its charts."""

    cluster: str
    prefix: str
    """The name of the queue, and the prefix of the names of the role and the rules."""
    account: Account
    node_role_arn: pulumi.Input[str]
    """The role of nodes, which Karpenter may pass to EC2."""
    oidc_provider_arn: pulumi.Input[str]
    tags: dict[str, str]

    # Charts
    chart: str = versions.KARPENTER_CHART
    """The controller's chart: an OCI address, or a directory."""
    crd_chart: str = versions.KARPENTER_CRD_CHART
    """The chart of the custom resource definitions: an OCI address, or a directory."""
    version: str | None = versions.KARPENTER
    """The version of both charts; None for directories."""

    # Controller
    replicas: int = 2
    """The number of replicas of the controller; one of them is active."""
    image_repository: str | None = None
    """A copy of the controller's image repository. The digest is that of the chart."""
    isolated_vpc: bool = False
    """Whether the network has no internet access. Karpenter then calls no service without an endpoint."""
    node_repair: bool = True
    """Whether Karpenter replaces nodes that the node monitoring agent reports as unhealthy."""

    # Nodes
    volume_key: str | None = None
    """The ARN of the key of the nodes' disks; None for the account's default key for EBS."""
    spot: bool = False
    """Whether some nodes are Spot Instances, which need a grant of `volume_key`."""
    after: list[pulumi.Resource] = field(default_factory=list)
    """Resources that Karpenter needs until its last node is deleted."""


class Karpenter(pulumi.ComponentResource):
    """Karpenter's controller, its IAM role and its interruption queue.

    Creates:

    - the interruption queue (encrypted, five minutes of retention) and the five EventBridge rules that send events
      to it. Only these rules can write to the queue;
    - the controller's IAM role with its five policies, for its service account only;
    - with `volume_key`, grants for that key;
    - the Helm releases of the custom resource definitions and of the controller.

    Pools depend on `definitions`; `controller` launches nodes for them.
    """

    queue_name: pulumi.Output[str]
    """The interruption queue."""

    def __init__(self, name: str, args: KarpenterArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("trainyard:karpenter:Karpenter", name, None, opts)
        self._name = name
        self._args = args
        self._child = pulumi.ResourceOptions(parent=self)
        queue = aws.sqs.Queue(
            f"{name}-interruptions",
            name=args.prefix,
            message_retention_seconds=300,
            sqs_managed_sse_enabled=True,
            tags=args.tags,
            opts=self._child,
        )
        self.queue_name = queue.name
        rules = self._rules(queue)
        self.identity = Identity(
            f"{args.prefix}-karpenter",
            IdentityArgs(
                namespace=KARPENTER_NAMESPACE,
                service_account=SERVICE_ACCOUNT,
                oidc_provider_arn=args.oidc_provider_arn,
                policies=self._policies(queue),
                tags=args.tags,
            ),
            self._child,
        )
        """The role of the controller."""
        grants = self._grants()
        # The definitions need no node, only the API server. The dependencies of the provider give access to it.
        self.definitions = k8s.helm.v3.Release(
            f"{name}-crd",
            name="karpenter-crd",
            namespace=KARPENTER_NAMESPACE,
            chart=args.crd_chart,
            version=args.version,
            # See the other release.
            atomic=True,
            opts=self._child,
        )
        """The release of the custom resource definitions. Pools depend on it."""
        self.controller = k8s.helm.v3.Release(
            name,
            name="karpenter",
            namespace=KARPENTER_NAMESPACE,
            chart=args.chart,
            version=args.version,
            skip_crds=True,
            # A partly failed release blocks the next `up` unless it is rolled back (pulumi-kubernetes#2054).
            atomic=True,
            timeout=600,
            values=self._values(),
            opts=pulumi.ResourceOptions(
                parent=self,
                depends_on=[self.definitions, queue, *rules, *grants, *self.identity.granted, *args.after],
            ),
        )
        """The release of the controller."""
        self.register_outputs({"queueName": self.queue_name, "roleArn": self.identity.role_arn})

    def _grants(self) -> list[pulumi.Resource]:
        key, prefix = self._args.volume_key, self._args.prefix
        if key is None:
            return []
        own = encryption.grant(f"{prefix}-karpenter-disks", key, self.identity.role_arn, self._child)
        if not self._args.spot:
            return [own]
        role = encryption.service_role(key, encryption.SPOT)
        return [own, encryption.grant(f"{prefix}-spot-disks", key, role, self._child)]

    def _rules(self, queue: aws.sqs.Queue) -> list[pulumi.Resource]:
        rules: list[aws.cloudwatch.EventRule] = []
        targets: list[pulumi.Resource] = []
        for short, source, detail_type in karpenter_iam.INTERRUPTION_EVENTS:
            rule = aws.cloudwatch.EventRule(
                f"{self._args.prefix}-{short}",
                description=f"{detail_type}, for Karpenter of {self._args.cluster}",
                event_pattern=json.dumps({"source": [source], "detail-type": [detail_type]}),
                tags=self._args.tags,
                opts=self._child,
            )
            rules.append(rule)
            targets.append(
                aws.cloudwatch.EventTarget(
                    f"{self._args.prefix}-{short}",
                    rule=rule.name,
                    target_id="karpenter-interruption-queue",
                    arn=queue.arn,
                    opts=self._child,
                )
            )
        policy = pulumi.Output.all(queue.arn, *(rule.arn for rule in rules)).apply(
            lambda arns: json.dumps(karpenter_iam.queue_policy(arns[0], arns[1:]))
        )
        aws.sqs.QueuePolicy(
            f"{self._name}-interruptions", queue_url=queue.url, policy=policy, opts=self._child
        )
        return targets

    def _policies(self, queue: aws.sqs.Queue) -> dict[str, pulumi.Output[str]]:
        args = self._args
        scope = pulumi.Output.all(role=args.node_role_arn, queue=queue.arn).apply(
            lambda arns: karpenter_iam.Scope(
                account=args.account,
                cluster=args.cluster,
                node_role_arn=arns["role"],
                queue_arn=arns["queue"],
            )
        )
        return {
            short: pulumi.Output.json_dumps(scope.apply(build))
            for short, build in karpenter_iam.CONTROLLER_POLICIES.items()
        }

    def _values(self) -> dict[str, Any]:
        """Return the values of the chart (its values.yaml, 1.14)."""
        resources = (
            {"cpu": "1", "memory": "1Gi"} if self._args.replicas > 1 else {"cpu": "250m", "memory": "512Mi"}
        )
        controller: dict[str, Any] = {"resources": {"requests": resources, "limits": {"memory": "1Gi"}}}
        if self._args.image_repository is not None:
            controller["image"] = {"repository": self._args.image_repository}
        return {
            "replicas": self._args.replicas,
            "serviceAccount": {
                "name": SERVICE_ACCOUNT,
                "annotations": {"eks.amazonaws.com/role-arn": self.identity.role_arn},
            },
            "controller": controller,
            "settings": {
                "clusterName": self._args.cluster,
                "interruptionQueue": self.queue_name,
                # A launcher creates its placeholders at about the same time; they should be in one batch.
                "batchIdleDuration": "2s",
                "isolatedVPC": self._args.isolated_vpc,
                "featureGates": {"nodeRepair": self._args.node_repair},
            },
        }
