"""What the rules of pods, and of what is around them in the cluster, must reject and accept."""

from __future__ import annotations

from typing import Any

from components.documents import pods as policies
from tests.unit.policies.building import Cases, made
from trainyard.policies import kubernetes as k
from trainyard.policies import pod_network as n
from trainyard.policies import pods as p
from trainyard.policies.model import UNKNOWN, Resource

DIGEST = "registry.example/a@sha256:" + "0" * 64
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": 10001,
    "runAsGroup": 10001,
    "seccompProfile": {"type": "RuntimeDefault"},
}
# In a pod that runs: `kubectl debug` puts one in.
PUT_IN_LATER = {"name": "debug", "image": "a", "securityContext": {"privileged": True}}
SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
RESOURCES = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
PROBES = {"livenessProbe": {"httpGet": {"port": 1}}, "readinessProbe": {"httpGet": {"port": 1}}}
GOOD = {"name": "c", "image": DIGEST, "securityContext": SECURITY, "resources": RESOURCES, **PROBES}


def job(container: dict[str, Any] | None = None, /, **pod: Any) -> Resource:
    """A Job whose one container is a good one with changes, in a good pod with changes."""
    spec = {"securityContext": POD_SECURITY, "containers": [{**GOOD, **(container or {})}], **pod}
    return made(
        "kubernetes:batch/v1:Job", metadata={"namespace": "training"}, spec={"template": {"spec": spec}}
    )


def guarded(**change: Any) -> Resource:
    return job({"securityContext": {**SECURITY, **change}})


def training(container: dict[str, Any]) -> Resource:
    """A PyTorchJob, whose pods lie deeper."""
    spec = {"template": {"spec": {"securityContext": POD_SECURITY, "containers": [container]}}}
    return made("kubernetes:kubeflow.org/v1:PyTorchJob", spec={"pytorchReplicaSpecs": {"Master": spec}})


def deployment(**container: Any) -> Resource:
    return made(p.DEPLOYMENT, spec={"template": {"spec": {"containers": [{"name": "c", **container}]}}})


def role(verbs: list[str], resources: list[str], **more: Any) -> Resource:
    return made(k.ROLE, rules=[{"apiGroups": [""], "verbs": verbs, "resources": resources, **more}])


def namespace(level: str | None = None) -> Resource:
    return made(k.NAMESPACE, metadata={"name": "training", "labels": {k.ENFORCE: level} if level else {}})


def network_policy(where: str = "training", **spec: Any) -> Resource:
    return made(n.NETWORK_POLICY, metadata={"namespace": where, "name": "n"}, spec=spec)


def let_in(*sources: dict[str, Any], **rule: Any) -> tuple[Resource, Resource]:
    """A network policy beside one that closes the namespace."""
    opened = network_policy(
        podSelector={}, ingress=[{**({"from": list(sources)} if sources else {}), **rule}]
    )
    return opened, made(n.NETWORK_POLICY, "closed", **network_policy(podSelector={}).properties)


def service(kind: str | None = None, annotations: dict[str, str] | None = None, **spec: Any) -> Resource:
    metadata = {"namespace": "training", "annotations": annotations or {}}
    return made(n.SERVICE, metadata=metadata, spec={**({"type": kind} if kind else {}), **spec})


def account(automount: bool | None = None) -> Resource:
    metadata = {"name": "trainer", "namespace": "training"}
    more = {} if automount is None else {"automountServiceAccountToken": automount}
    return made(k.SERVICE_ACCOUNT, metadata=metadata, **more)


def default_account(automount: bool, where: str = "training", name: str = "default") -> Resource:
    metadata = {"name": name, "namespace": where}
    return made(k.SERVICE_ACCOUNT_PATCH, metadata=metadata, automountServiceAccountToken=automount)


def binding(name: str, role: str = "reader", kind: str = "ServiceAccount", scope: int = 0) -> Resource:
    """A binding of a namespace; `scope` 1: of the whole cluster."""
    subject = {"kind": kind, "name": name, "namespace": "training"}
    return made(p.BINDINGS[scope], subjects=[subject], roleRef={"kind": "ClusterRole", "name": role})


def in_memory(**more: Any) -> Resource:
    return job(volumes=[{"name": "shared-memory", "emptyDir": {"medium": "Memory", **more}}])


def bare(level: str, name: str) -> dict[str, Any]:
    """A container that lacks one resource."""
    return {"resources": {**RESOURCES, level: {k_: v for k_, v in RESOURCES[level].items() if k_ != name}}}


GPU = {"nvidia.com/gpu": 4}
IN_PLAIN_TEXT = ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "HF_TOKEN", "db_password", "WANDB_API_KEY")
NO_SECRETS = ("TOKENIZERS_PARALLELISM", "MAX_TOKENS", "AWS_WEB_IDENTITY_TOKEN_FILE", "KEYBOARD")
CASES: dict[str, Cases] = {
    "pod-not-root": Cases(
        rejects=[
            job(securityContext={**POD_SECURITY, "runAsNonRoot": False}),
            job(securityContext={**POD_SECURITY, "runAsUser": 1000}),
            job(securityContext={}),
            job(initContainers=[{"name": "first", "securityContext": {"runAsUser": 0}}]),
            training({"name": "c", "securityContext": {"runAsNonRoot": False}}),
            job(securityContext={**POD_SECURITY, "runAsGroup": 0}),
            job(securityContext={k_: v for k_, v in POD_SECURITY.items() if k_ != "runAsGroup"}),
            guarded(runAsGroup=0),
            job(securityContext={**POD_SECURITY, "supplementalGroups": [1, 0]}),
            job(securityContext={**POD_SECURITY, "fsGroup": 0}),
            job(ephemeralContainers=[{**PUT_IN_LATER, "securityContext": {"runAsUser": 0}}]),
        ],
        accepts=[job(), training(GOOD), job({"securityContext": POD_SECURITY}, securityContext={})],
    ),
    "pod-no-escalation": Cases(
        rejects=[
            guarded(allowPrivilegeEscalation=True),
            guarded(privileged=True),
            job(ephemeralContainers=[PUT_IN_LATER]),
            job({"securityContext": {}}),
        ],
        accepts=[job()],
    ),
    "pod-no-capabilities": Cases(
        rejects=[
            guarded(capabilities={}),
            guarded(capabilities={"drop": ["NET_RAW"]}),
            guarded(capabilities={"drop": ["ALL"], "add": ["IPC_LOCK"]}),
        ],
        accepts=[job()],
    ),
    "pod-seccomp": Cases(
        rejects=[job(securityContext={}), guarded(seccompProfile={"type": "Unconfined"})], accepts=[job()]
    ),
    "pod-read-only-root": Cases(rejects=[guarded(readOnlyRootFilesystem=False)], accepts=[job()]),
    "pod-off-the-host": Cases(
        rejects=[
            job(hostPID=True),
            job(hostIPC=True),
            job(hostNetwork=True),
            job(volumes=[{"name": "v", "hostPath": {"path": "/"}}]),
            job(volumes=[{"name": "v", "nfs": {"server": "a", "path": "/"}}]),
            job({"ports": [{"containerPort": 80, "hostPort": 80}]}),
        ],
        accepts=[
            job(),
            job(volumes=[{"name": "v", "emptyDir": {}}]),
            job({"ports": [{"containerPort": 80, "hostPort": 0}]}),
        ],
    ),
    "pod-confined": Cases(
        rejects=[
            guarded(procMount="Unmasked"),
            guarded(appArmorProfile={"type": "Unconfined"}),
            job(securityContext={**POD_SECURITY, "appArmorProfile": {"type": "Unconfined"}}),
            made(
                "kubernetes:core/v1:Pod",
                metadata={"annotations": {"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}},
                spec={},
            ),
            guarded(seLinuxOptions={"type": "spc_t"}),
            job(securityContext={**POD_SECURITY, "seLinuxOptions": {"role": "sysadm_r"}}),
            job(securityContext={**POD_SECURITY, "sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
            made(
                "kubernetes:core/v1:Pod", spec={"securityContext": {"sysctls": [{"name": "kernel.msgmax"}]}}
            ),
        ],
        accepts=[
            job(),
            guarded(procMount="Default", appArmorProfile={"type": "RuntimeDefault"}),
            guarded(seLinuxOptions={"type": "container_t", "level": "s0"}),
            job(securityContext={**POD_SECURITY, "sysctls": [{"name": "net.ipv4.tcp_syncookies"}]}),
        ],
    ),
    "pod-memory-volumes-bounded": Cases(
        rejects=[in_memory()],
        accepts=[job(), in_memory(sizeLimit="8Gi"), job(volumes=[{"name": "v", "emptyDir": {}}])],
    ),
    "pod-resources": Cases(
        rejects=[
            job(bare("requests", "cpu")),
            job({"resources": {"limits": {}}}),
            job({"resources": {"requests": RESOURCES["requests"]}}),
            job({"resources": {**RESOURCES, "requests": {**RESOURCES["requests"], **GPU}}}),
        ],
        accepts=[job(), job({"resources": {"limits": {"cpu": "1", "memory": "1Gi", **GPU}}})],
    ),
    "deployment-probed": Cases(
        rejects=[
            deployment(),
            deployment(livenessProbe={"exec": {}}),
            deployment(readinessProbe={"exec": {}}),
        ],
        accepts=[deployment(**PROBES)],
    ),
    "pod-image-by-digest": Cases(
        rejects=[
            job({"image": "a:latest"}),
            job({"image": "registry.example/a:v1.2.3"}),
            job({"image": None}),
        ],
        accepts=[job()],
    ),
    "pod-no-secrets-in-environment": Cases(
        rejects=[
            job({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
            job({"envFrom": [{"secretRef": {"name": "s"}}]}),
            *(job({"env": [{"name": name, "value": "x"}]}) for name in IN_PLAIN_TEXT),
            job({"env": [{"name": "A", "value": "id=AKIAIOSFODNN7EXAMPLE"}]}),
        ],
        accepts=[
            *(job({"env": [{"name": name, "value": "x"}]}) for name in NO_SECRETS),
            job({"env": [{"name": "HF_TOKEN", "value": ""}, {"name": "A", "value": UNKNOWN}]}),
            job({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]}),
        ],
    ),
    "pod-token-where-needed": Cases(
        rejects=[
            job(),
            (job(serviceAccountName="trainer"), account()),
            (job(serviceAccountName="trainer", automountServiceAccountToken=True), account(False)),
            (job(serviceAccountName="trainer"), account(), binding("launcher")),
        ],
        accepts=[
            job(automountServiceAccountToken=False),
            (job(serviceAccountName="trainer"), account(False)),
            (job(serviceAccountName="trainer"), account(), binding("trainer")),
        ],
    ),
    "namespace-of-its-own": Cases(
        rejects=[
            made("kubernetes:core/v1:ConfigMap", metadata={"name": "a"}),
            made(k.SERVICE_ACCOUNT, metadata={"name": "a", "namespace": "default"}),
            made("kubernetes:batch/v1:Job", metadata={"namespace": "default"}),
        ],
        accepts=[account()],
    ),
    "namespace-restricted": Cases(
        rejects=[namespace(), namespace("baseline"), namespace("privileged")],
        accepts=[namespace("restricted")],
    ),
    "namespace-not-privileged": Cases(
        rejects=[namespace(), namespace("privileged")],
        accepts=[namespace("baseline"), namespace("restricted")],
    ),
    "namespace-closed": Cases(
        rejects=[
            (namespace(),),
            (namespace(), network_policy("elsewhere", podSelector={}, policyTypes=["Ingress"])),
            (namespace(), network_policy(podSelector={"matchLabels": {"a": "b"}}, policyTypes=["Ingress"])),
            (namespace(), network_policy(podSelector={}, policyTypes=["Egress"])),
            (namespace(), network_policy(podSelector={}, ingress=[{}])),
        ],
        accepts=[(namespace(), network_policy(podSelector={}, policyTypes=["Ingress"]))],
    ),
    "network-policy-names-who": Cases(
        rejects=[
            let_in(),
            let_in({}),
            let_in(ports=[]),
            network_policy(podSelector={}, policyTypes=[], ingress=[{}]),
            let_in(**{"from": []}),
            let_in({"ipBlock": {"cidr": "0.0.0.0/0"}}),
            let_in({"podSelector": {"matchLabels": {"a": "b"}}}, {"ipBlock": {"cidr": "::/0"}}),
            let_in({"ipBlock": {"cidr": "128.0.0.0/1"}}),
            let_in({"namespaceSelector": {}}),
            let_in({"namespaceSelector": {}, "podSelector": {}}),
            let_in(ports=[{"protocol": "TCP"}]),
            # A label of its pods binds nobody of another namespace.
            let_in({"namespaceSelector": {}, "podSelector": {"matchLabels": {"a": "b"}}}),
            let_in({"namespaceSelector": {}, "podSelector": policies.JOB_PODS}),
            let_in({"namespaceSelector": {"matchLabels": {}, "matchExpressions": []}}),
            let_in(
                {"namespaceSelector": {"matchExpressions": [{"key": n.NAME_LABEL, "operator": "Exists"}]}}
            ),
            let_in({"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}}),
            let_in(
                {
                    "namespaceSelector": {
                        "matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]
                    }
                }
            ),
            let_in(ports=[{"port": 1, "endPort": 9}]),
            let_in(ports=[{"port": 1, "endPort": 65535}]),
            let_in(ports=[{"port": 1, "endPort": 32768}, {"port": 32769, "endPort": 65535}]),
        ],
        accepts=[
            network_policy(**policies.closed()),
            network_policy(**policies.jobs_from(policies.JOB_PODS)),
            network_policy(**policies.port_open({"a": "b"}, 9443)),
            network_policy(**policies.scraped({"a": "b"}, 9464, {"c": "d"})),
            let_in({"podSelector": {}}),
            let_in({"ipBlock": {"cidr": "10.0.0.0/16"}}),
            let_in({"namespaceSelector": {"matchLabels": {"team": "a"}}}),
            let_in({"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}}),
            let_in({"namespaceSelector": {}}, ports=[{"port": "metrics"}]),
            let_in(ports=[{"port": 1, "endPort": 8}]),
            network_policy(podSelector={}, policyTypes=["Egress"], ingress=[{}]),
        ],
    ),
    "service-not-public": Cases(
        rejects=[
            service("LoadBalancer"),
            service("LoadBalancer", {n.INTERNAL: "false"}),
            # EKS's own controller knows no scheme, and makes a public one.
            service("LoadBalancer", {n.SCHEME: "internal"}),
            service("LoadBalancer", {n.SCHEME: "internal", n.TYPE: "nlb"}),
            service("LoadBalancer", {n.SCHEME: "internet-facing", n.INTERNAL: "true"}),
            service("LoadBalancer", {n.SCHEME: "internet-facing"}, loadBalancerClass="service.k8s.aws/nlb"),
            service("LoadBalancer", {n.INTERNAL: "false", n.SCHEME: "internal", n.TYPE: "external"}),
            service("LoadBalancer", loadBalancerClass="service.k8s.aws/nlb"),
            service("ClusterIP", externalIPs=["203.0.113.1"]),
        ],
        accepts=[
            service(),
            service("ClusterIP"),
            service("NodePort"),
            service("LoadBalancer", {n.INTERNAL: "true"}),
            service("LoadBalancer", {n.INTERNAL: "true", n.SCHEME: "internal"}),
            service("LoadBalancer", {n.SCHEME: "internal", n.TYPE: "external"}),
            service("LoadBalancer", {n.SCHEME: "internal"}, loadBalancerClass="eks.amazonaws.com/nlb"),
            service("LoadBalancer", {n.INTERNAL: "true"}, loadBalancerClass="service.k8s.aws/nlb"),
        ],
    ),
    "namespace-default-account": Cases(
        rejects=[
            (namespace(),),
            (namespace(), account(False)),
            (namespace(), default_account(True)),
            (namespace(), default_account(False, where="elsewhere")),
            (namespace(), default_account(False, name="trainer")),
        ],
        accepts=[(namespace(), default_account(False))],
    ),
    "network-policies-enforced": Cases(
        rejects=[
            made(n.ADDON, addonName="vpc-cni"),
            made(n.ADDON, addonName="vpc-cni", configurationValues='{"enableNetworkPolicy": "false"}'),
            made(n.ADDON, addonName="vpc-cni", configurationValues="enableNetworkPolicy: true"),
            made(n.ADDON, addonName="vpc-cni", configurationValues="[]"),
        ],
        accepts=[
            made(n.ADDON, addonName="vpc-cni", configurationValues='{"enableNetworkPolicy": "true"}'),
            made(n.ADDON, addonName="coredns"),
        ],
    ),
    "rights-listed": Cases(
        rejects=[
            role(["*"], ["pods"]),
            role(["get"], ["*"]),
            role(["get"], ["pods"], apiGroups=["*"]),
            role(["get"], [], nonResourceURLs=["*"]),
            role(["bind"], ["roles"]),
            role(["escalate"], ["roles"]),
            role(["impersonate"], ["users"]),
            role(["get"], ["*/status"]),
            role(["get"], [], nonResourceURLs=["/metrics/*"]),
            made(k.CLUSTER_ROLE, aggregationRule={"clusterRoleSelectors": [{"matchLabels": {}}]}),
        ],
        accepts=[role(["get", "list"], ["pods"])],
    ),
    "rights-no-secrets": Cases(
        rejects=[
            role(["get"], ["secrets"]),
            role(["list"], ["pods", "secrets"]),
            role(["create"], ["serviceaccounts/token"]),
            role(["create"], ["*/token"]),
        ],
        accepts=[role(["get"], ["secrets"], resourceNames=["one"]), role(["create"], ["secrets"])],
    ),
    "rights-no-exec": Cases(
        rejects=[
            role(["create"], ["pods/exec"]),
            role(["get"], ["nodes/proxy"]),
            role(["create"], ["*/exec"]),
            role(["get"], ["*/proxy"]),
            role(["get"], ["services/proxy"]),
            role(["create"], ["pods/portforward"]),
            role(["patch"], ["pods/ephemeralcontainers"]),
        ],
        accepts=[role(["get"], ["pods", "pods/log"])],
    ),
    "binding-narrow": Cases(
        rejects=[
            binding("launcher", "cluster-admin", scope=1),
            *(binding("launcher", role) for role in k.WIDE_ROLES),
            binding("system:masters", kind="Group", scope=1),
            binding("system:anonymous", kind="User", scope=1),
            binding("system:serviceaccounts", kind="Group"),
            binding("system:serviceaccounts:default", kind="Group", scope=1),
            binding("system:authenticated", kind="Group", scope=1),
            binding("system:unauthenticated", kind="Group"),
            binding("default"),
            binding("default", scope=1),
            binding("system:serviceaccount:training:default", kind="User"),
        ],
        accepts=[
            binding("system:serviceaccount:training:launcher", kind="User"),
            binding("default", kind="Group"),
            binding("launcher"),
            binding("launcher", scope=1),
            binding("platform-team", kind="Group"),
        ],
    ),
    "volumes-encrypted": Cases(
        rejects=[
            made(k.STORAGE_CLASS, provisioner="ebs.csi.aws.com"),
            made(k.STORAGE_CLASS, provisioner="ebs.csi.aws.com", parameters={"encrypted": "false"}),
            made(k.STORAGE_CLASS, provisioner="ebs.csi.eks.amazonaws.com", parameters={"type": "gp3"}),
            made(k.STORAGE_CLASS, provisioner="kubernetes.io/aws-ebs", parameters={"encrypted": "true"}),
            made(k.STORAGE_CLASS, provisioner="kubernetes.io/aws-ebs"),
            made(k.STORAGE_CLASS, provisioner="rancher.io/local-path", parameters={"encrypted": "true"}),
            made(k.STORAGE_CLASS, parameters={"encrypted": "true"}),
        ],
        accepts=[
            made(k.STORAGE_CLASS, provisioner="ebs.csi.aws.com", parameters={"encrypted": "true"}),
            made(k.STORAGE_CLASS, provisioner="ebs.csi.eks.amazonaws.com", parameters={"encrypted": "true"}),
            made(k.STORAGE_CLASS, provisioner="fsx.csi.aws.com"),
        ],
    ),
    "volume-off-the-host": Cases(
        rejects=[
            made(k.PERSISTENT_VOLUME, spec={"hostPath": {"path": "/"}}),
            made(k.PERSISTENT_VOLUME, spec={"local": {"path": "/"}}),
            made(k.PERSISTENT_VOLUME, spec={"nfs": {"server": "a", "path": "/"}}),
            made(k.PERSISTENT_VOLUME, spec={"csi": {"driver": "fsx.csi.aws.com"}, "hostPath": {"path": "/"}}),
            made(k.PERSISTENT_VOLUME),
        ],
        accepts=[made(k.PERSISTENT_VOLUME, spec={"csi": {"driver": "fsx.csi.aws.com"}})],
    ),
}
