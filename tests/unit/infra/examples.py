"""Two stack files that together set every key; docs/settings.md takes its examples from here.

The first creates every resource; the second uses existing resources where it can.
"""

from __future__ import annotations

from typing import Any, Final

from trainyard.k8s import names

_DIGEST: Final = "@sha256:" + "0" * 64

MAKES_EVERYTHING: Final[dict[str, Any]] = {
    "aws:region": "us-west-2",
    "trainyard:network": {
        "cidr": "10.64.0.0/16",
        "zones": ["us-west-2a", "us-west-2b", "us-west-2c"],
        "natPerZone": True,
        "interfaceEndpoints": ["ecr.api", "ecr.dkr"],
        "flowLogs": True,
        "flowLogRetentionDays": 90,
    },
    "trainyard:cluster": {
        "name": "research",
        "accountId": "123456789012",
        "version": "1.35",
        "administrators": ["arn:aws:iam::123456789012:role/platform"],
        "publicAccessCidrs": ["203.0.113.0/24"],
        "deployFrom": "internet",
        "systemNodes": {"instanceType": "c5.2xlarge", "count": 2},
        "karpenterReplicas": 2,
        "nodeRepair": True,
        "addonVersions": {"coredns": "v1.12.4-eksbuild.1"},
        "ami": "al2023@v20260724",
        "volumeKey": "arn:aws:kms:us-west-2:123456789012:key/0123abcd-0123-0123-0123-0123456789ab",
        "logRetentionDays": 90,
        "lateLogSeconds": 300,
    },
    "trainyard:pools": [
        {
            "name": "large",
            "instanceType": "p4d.24xlarge",
            "zone": "us-west-2b",
            "maxNodes": 16,
            "warmNodes": 2,
            "efa": "bandwidth",
            "purchase": "on-demand",
            "placementGroup": True,
            "rootVolumeGiB": 500,
            "dataSnapshotId": "snap-0123456789abcdef0",
            "dataVolumeGiB": 300,
            "idleSeconds": 600,
        },
        {
            "name": "reserved",
            "instanceType": "p4de.24xlarge",
            "zone": "us-west-2b",
            "maxNodes": 4,
            "purchase": "reserved",
            "reservationType": "odcr",
            "capacityReservationIds": ["cr-0123456789abcdef0"],
            "reservationBegins": "2026-01-31T11:30:00Z",
            "reservationEnds": "2030-01-31T11:30:00Z",
            "onDemandFallback": False,
            "placementGroup": "theirs",
            "placementGroupOfReservation": "theirs",
        },
    ],
    "trainyard:images": {
        "build": True,
        "baseImages": {
            "launcher": f"registry.example/python{_DIGEST}",
            "trainer": f"registry.example/python{_DIGEST}",
        },
        "packageIndex": "https://pypi.example/simple",
        "debianMirror": "http://debian.example",
        "efaInstaller": "https://files.example/efa",
        "placeholder": f"registry.example/pause{_DIGEST}",
        "trainingOperator": f"registry.example/training-operator{_DIGEST}",
        "kubeflowTrainer": f"registry.example/trainer-controller-manager{_DIGEST}",
        "jobset": f"registry.example/jobset{_DIGEST}",
        "devicePlugin": f"registry.example/k8s-device-plugin{_DIGEST}",
        "efaDevicePlugin": f"registry.example/aws-efa-k8s-device-plugin{_DIGEST}",
        "neuronDevicePlugin": f"registry.example/neuron-device-plugin{_DIGEST}",
        "kubectlDelivery": f"registry.example/kubectl-delivery{_DIGEST}",
        "debug": f"registry.example/agnhost{_DIGEST}",
        "mirror": "123456789012.dkr.ecr.us-west-2.amazonaws.com/mirror",
    },
    "trainyard:storage": {
        "prefix": "models",
        "keepOldVersionsDays": 30,
        "keepJobLogsDays": 30,
        "lustre": {
            "deploymentType": "PERSISTENT_2",
            "storageType": "SSD",
            "driveCache": "NONE",
            "capacityGiB": 4800,
            "throughput": 1000,
            "metadataIops": 6000,
            "zone": "us-west-2b",
            "compression": "LZ4",
            "mountPath": "/fsx",
            "s3": {"bucket": "models", "prefix": "data", "path": "/data"},
            "efa": True,
            "backupDays": 0,
        },
    },
    "trainyard:training": {
        "pool": "large",
        "runId": "r1",
        "minNodes": 2,
        "maxNodes": 16,
        "capacityDeadlineSeconds": 1200,
        "fallbackPools": [
            {
                "pool": "reserved",
                "capacityDeadlineSeconds": 600,
                "processesPerNode": 8,
                "cpu": "80",
                "memory": "800Gi",
                "sharedMemory": "64Gi",
            }
        ],
        "holdSeconds": 60,
        "nodeStartSeconds": 900,
        "attempts": 3,
        "retrySeconds": 240,
        "maxRestarts": 3,
        "shape": "static",
        "backend": "pytorchjob",
        "activeDeadlineSeconds": 14400,
        "device": "cuda",
        "processesPerNode": 8,
        "data": "digits",
        "checkpoints": "s3",
        "args": ["--epochs", "10"],
        "env": {"NCCL_DEBUG": "WARN"},
        "secrets": ["HF_TOKEN", "WANDB_API_KEY=wandb/key"],
        "cpu": "80",
        "memory": "800Gi",
        "sharedMemory": "64Gi",
    },
    "trainyard:queues": [
        {
            "name": "research",
            "namespace": "training",
            "pool": "large",
            "image": f"registry.example/pytorch{_DIGEST}",
            "nodeResources": {"gpus": 8, "cpus": "80", "memory": "800Gi"},
            "storage": {
                "workspace": {"bucket": "models", "size": "50Gi", "storageClass": "gp3"},
                "datasets": {"existingClaim": "imagenet"},
                "checkpoints": {"sizePerGPU": "50Gi", "storageClass": "fsx", "retain": True},
                "shmSizePerGPU": "8Gi",
            },
            "scheduling": {"priorityClassName": names.WORKER_PRIORITY_CLASS},
            "serviceAccount": "trainer",
            "jobDefaults": {
                "ttlSecondsAfterFinished": 86400,
                "activeDeadlineSeconds": 259200,
                "restartPolicy": "OnFailure",
                "maxRestarts": 3,
            },
        },
        {
            "name": "several",
            "pool": "reserved",
            "nodeResources": {"gpus": 4},
            "storage": {"workspace": {"sizePerGPU": "10Gi"}, "checkpoints": {"existingClaim": "checkpoints"}},
        },
        {"name": "small", "pool": "reserved", "storage": {"checkpoints": {"size": "100Gi"}}},
    ],
    "trainyard:serviceAccounts": [
        {"name": "pytorch-training-sa", "namespace": "default", "bucket": "models", "access": "write"}
    ],
    "trainyard:debugPod": True,
    "trainyard:nodeCheck": True,
    "trainyard:mpi": True,
    "trainyard:sources": {
        "karpenterChart": f"oci://registry.example/charts/karpenter{_DIGEST}",
        "karpenterCrdChart": "oci://registry.example/charts/karpenter-crd",
        "trainingOperator": "https://git.example/training-operator//manifests/overlays/standalone?ref=v1.9.4",
        "kubeflowTrainer": "https://git.example/trainer//manifests/base?ref=v2.3.0",
        "jobset": "https://git.example/jobset//config/default?ref=v0.12.0",
    },
    "trainyard:protectData": True,
}

IS_GIVEN_EVERYTHING: Final[dict[str, Any]] = {
    "aws:region": "us-west-2",
    "trainyard:network": {
        "vpcId": "vpc-0123456789abcdef0",
        "privateSubnetIds": {"us-west-2b": "subnet-0a23456789abcdef0"},
        "publicSubnetIds": {"us-west-2b": "subnet-0b23456789abcdef0"},
        "workerSecurityGroupId": "sg-0123456789abcdef0",
        "private": False,
    },
    "trainyard:cluster": {
        "existing": {
            "name": "research",
            "endpoint": "https://AB.gr7.us-west-2.eks.amazonaws.com",
            "certificateAuthority": "LS0tLS1CRUdJTg==",
            "oidcProviderArn": "arn:aws:iam::123456789012:oidc-provider/oidc.eks.us-west-2.amazonaws.com/id/AB",
            "oidcIssuer": "https://oidc.eks.us-west-2.amazonaws.com/id/AB",
            "securityGroupId": "sg-0223456789abcdef0",
        },
    },
    "trainyard:pools": [
        {"name": "small", "instanceType": "g5.12xlarge", "zone": "us-west-2b", "maxNodes": 4}
    ],
    "trainyard:images": {
        "build": False,
        "launcher": f"registry.example/launcher{_DIGEST}",
        "trainer": f"registry.example/trainer{_DIGEST}",
    },
    "trainyard:storage": {
        "lustre": {
            "existing": {
                "fileSystemId": "fs-0123456789abcdef0",
                "dnsName": "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com",
                "mountName": "abcdefgh",
            }
        }
    },
}

BOTH: Final = (MAKES_EVERYTHING, IS_GIVEN_EVERYTHING)
