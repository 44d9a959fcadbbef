"""The properties that the official plugin replaces an object for without asking the API server. Data only.

They are its `forceNewProperties` (github.com/pulumi/pulumi-kubernetes, provider/pkg/provider/diff.go, as of 4.32). A
path includes everything below it; `[*]` is any position in a list.
"""

from __future__ import annotations

from typing import Final

from local.plugins.sdk import split_names

ALWAYS: Final = ("apiVersion", "kind", "metadata.name", "metadata.namespace")
_OF_CONTAINERS = split_names("""
    args command env image imagePullPolicy lifecycle livenessProbe ports readinessProbe resources
    securityContext stdin stdinOnce terminationMessagePath terminationMessagePolicy tty volumeDevices
    volumeMounts workingDir
""")
_OF_PODS = split_names("""
    affinity automountServiceAccountToken dnsConfig dnsPolicy enableServiceLinks hostAliases hostIPC
    hostNetwork hostPID hostname imagePullSecrets nodeName nodeSelector overhead preemptionPolicy priority
    priorityClassName readinessGates restartPolicy runtimeClassName schedulerName securityContext
    serviceAccount serviceAccountName shareProcessNamespace subdomain terminationGracePeriodSeconds
    volumes
""")
_OF_VOLUMES = split_names("""
    awsElasticBlockStore azureDisk azureFile cephfs cinder csi fc flexVolume flocker gcePersistentDisk
    glusterfs hostPath iscsi local nfs photonPersistentDisk portworxVolume quobyte rbd scaleIO storageos
    vsphereVolume
""")
TABLE: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("v1", "ConfigMap"): ("data", "binaryData"),
    ("v1", "Secret"): ("data", "stringData", "type"),
    ("v1", "Service"): ("spec.clusterIP",),
    ("v1", "PersistentVolume"): tuple(f"spec.{each}" for each in _OF_VOLUMES),
    ("v1", "PersistentVolumeClaim"): (
        "spec.accessModes",
        "spec.selector",
        "spec.storageClassName",
        "spec.volumeName",
    ),
    ("v1", "ResourceQuota"): ("spec.scopes",),
    ("v1", "Pod"): (
        *(f"spec.{each}" for each in _OF_PODS),
        *(f"spec.{kind}[*].{each}" for kind in ("containers", "initContainers") for each in _OF_CONTAINERS),
    ),
    ("apps/v1", "Deployment"): ("spec.selector",),
    ("apps/v1", "DaemonSet"): ("spec.selector",),
    ("apps/v1", "StatefulSet"): (
        "spec.podManagementPolicy",
        "spec.revisionHistoryLimit",
        "spec.selector",
        "spec.serviceName",
        "spec.volumeClaimTemplates",
    ),
    ("batch/v1", "Job"): ("spec.completions", "spec.parallelism", "spec.selector", "spec.template"),
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): ("roleRef",),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): ("roleRef",),
    ("storage.k8s.io/v1", "StorageClass"): ("parameters", "provisioner"),
}
