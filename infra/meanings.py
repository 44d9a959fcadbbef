"""Describe each key of a stack file, for docs/settings.md (`infra.reference`).

The readers define the types, defaults and units. A test compares these keys with those of the readers.
"""

from __future__ import annotations

from typing import Final

# The descriptions of the sections.
SECTIONS: Final = {
    "network": "The VPC: created by the stack, or an existing one (`vpcId`).",
    "cluster": (
        "The EKS cluster and its administrators: created by the stack, or an existing one (`existing`)."
    ),
    "pools": "Karpenter node pools, each with one instance type in one zone.",
    "images": "Container images of the stack and of third parties.",
    "storage": "The bucket for models, and a shared file system.",
    "training": "The run that `up` starts. Without this section, the stack has pools and no run.",
    "queues": (
        "Torchrun queues, and with them the controller of their jobs: docs/queues.md. Keys have the names of a "
        "TorchrunQueue's fields (docs/torchrun-fields.md)."
    ),
    "serviceAccounts": "Service accounts for pods of your own, each with a role (IRSA) for one bucket.",
    "sources": "The sources of charts and manifests: published ones, or local directories.",
    "debugPod": "Network tools inside the cluster.",
    "nodeCheck": "Checks of the pools' nodes before a run.",
    "mpi": "MPIJobs.",
    "protectData": "The data that `destroy` must keep.",
}

MEANINGS: Final = {
    "network.cidr": (
        "The VPC's range, /16 to /20. It must have addresses for all nodes and their pods, about 15 per node. The "
        "range of a new VPC must be private. An existing VPC needs it only with `interfaceEndpoints` and "
        "`deployFrom: vpc`."
    ),
    "network.zones": "Availability zones of the subnets, 2 to 4.",
    "network.natPerZone": (
        "One NAT gateway in each zone, so that no zone depends on another. Otherwise there is one for all."
    ),
    "network.vpcId": "An existing VPC. It excludes `zones` and `natPerZone`.",
    "network.privateSubnetIds": "Subnets of the existing VPC for nodes and pods: zone to id.",
    "network.publicSubnetIds": "Subnets of the existing VPC for load balancers: zone to id.",
    "network.workerSecurityGroupId": (
        "A security group for the nodes of the pools, which must allow all traffic within itself. Without it, the "
        "stack creates one."
    ),
    "network.private": (
        "No NAT and no internet gateway. Pods reach AWS through interface endpoints, and images come from "
        "`images.mirror`."
    ),
    "network.interfaceEndpoints": (
        "AWS services to reach through an endpoint in the VPC. A VPC of the stack always has an endpoint for S3, "
        "and a private one has all that it needs."
    ),
    "network.flowLogs": "Flow logs of the VPC in CloudWatch Logs.",
    "network.flowLogRetentionDays": "The retention of the flow logs.",
    "cluster.existing": (
        "An existing cluster. The stack creates all other resources in it. It excludes settings of a new cluster, "
        "and needs `network.vpcId`."
    ),
    "cluster.existing.name": (
        "The cluster's name. The names of other resources begin with it, or with `trainyard-<stack>` if it has "
        "upper case letters, underscores or more than 31 characters."
    ),
    "cluster.existing.endpoint": "The endpoint of its API server.",
    "cluster.existing.certificateAuthority": "`certificateAuthority.data` of DescribeCluster.",
    "cluster.existing.oidcProviderArn": "Its OIDC provider in IAM.",
    "cluster.existing.oidcIssuer": "Its OIDC issuer.",
    "cluster.existing.securityGroupId": "The cluster security group that EKS created.",
    "cluster.name": "The cluster's name, which is also the prefix of other names; at most 31 characters.",
    "cluster.accountId": (
        "The AWS account of the stack, in quotes. Credentials of other accounts are refused. Required if the "
        "administrators belong to several accounts."
    ),
    "cluster.version": (
        "The Kubernetes version. A running cluster can be updated to the next minor version only. Add-ons and "
        "system nodes follow it. `up` warns 90 days before EKS ends its support."
    ),
    "cluster.administrators": (
        "ARNs of IAM users and roles with all permissions in the cluster. They must include the deployer."
    ),
    "cluster.publicAccessCidrs": (
        "Public ranges with access to the API server over the internet, at most 40, each /8 or smaller. Without "
        "them, the API server is reached from the VPC only, and `deployFrom` must be vpc."
    ),
    "cluster.deployFrom": "Where `pulumi up` runs.",
    "cluster.systemNodes": "Nodes for Karpenter, CoreDNS, the operators and the launcher.",
    "cluster.systemNodes.instanceType": "Their instance type.",
    "cluster.systemNodes.count": "The number of system nodes.",
    "cluster.karpenterReplicas": "Replicas of Karpenter, each on another system node.",
    "cluster.nodeRepair": (
        "Replace nodes that stay unhealthy: after 10 minutes for accelerators, otherwise 30."
    ),
    "cluster.addonVersions": (
        "Versions of EKS add-ons by their names. Each `up` sets others to EKS's default for the Kubernetes version. "
        "Pools with EFA need a vpc-cni of 1.18.5 or newer."
    ),
    "cluster.volumeKey": (
        "The ARN of a KMS key for the disks of all nodes. The stack grants its use to Karpenter and EC2 Auto Scaling. "
        "Without it, disks have the account's default key for EBS. Set it if that is a customer managed key whose "
        "policy does not allow all principals of the account to use it through EC2; otherwise nodes fail at launch. A "
        "change replaces the system nodes one by one, and applies to new nodes of pools."
    ),
    "cluster.ami": "The nodes' AMI, an alias with a version. New nodes use a newer one.",
    "cluster.logRetentionDays": "The retention of the control plane's logs.",
    "cluster.lateLogSeconds": (
        "The time that `destroy` waits for late log entries of the deleted cluster. They create the log group "
        "again, which would block the next `up`."
    ),
    "pools[].name": "The name of the pool, its NodePool and its EC2NodeClass.",
    "pools[].instanceType": "The instance type of all its nodes.",
    "pools[].zone": "The zone of all its nodes, its reservations and the file system.",
    "pools[].maxNodes": "The maximum number of nodes, as a limit of GPUs or cores in the NodePool.",
    "pools[].warmNodes": (
        "Nodes that stay without a job, so that the next job starts immediately. They cost the same. They get a "
        "newer AMI after their NodeClaims were deleted."
    ),
    "pools[].efa": (
        "EFA interfaces: `ip` uses all of them with the fewest IP addresses, `bandwidth` has more addresses for "
        "more IP traffic."
    ),
    "pools[].purchase": (
        "How nodes are purchased. A Spot interruption ends the run on all of its nodes; `up` warns about runs on "
        "several Spot nodes."
    ),
    "pools[].capacityReservationIds": "Capacity reservations of the pool, for `purchase: reserved`.",
    "pools[].rootVolumeGiB": (
        "The root volume of a node. Instance types with local NVMe disks store images and pods there."
    ),
    "pools[].dataSnapshotId": (
        "A snapshot of `/var/lib/containerd` with images, so that nodes don't pull them (docs/images.md)."
    ),
    "pools[].dataVolumeGiB": (
        "The volume that is created from the snapshot; at least as large as the snapshot."
    ),
    "pools[].idleSeconds": (
        "Karpenter deletes an empty node after this time. Nodes have a taint (the accelerator's name, or "
        "`trainyard.dev/pool`), so only pods that tolerate it keep them."
    ),
    "pools[].reservationType": "An on-demand capacity reservation (`odcr`) or a capacity block.",
    "pools[].reservationBegins": (
        "The start of the reservation (of several: the first start), RFC 3339 in quotes; for a capacity block at "
        "most 8 weeks from now. `make preflight` prints a future start. Until then, a run on a capacity block "
        "without `onDemandFallback` reports the start. It is refused if its wait ends earlier."
    ),
    "pools[].reservationEnds": (
        "The end of the reservation (of several: the first end), RFC 3339 in quotes; for a capacity block at most "
        "182 days and 8 weeks from now. `make preflight` prints it. EC2 terminates the instances of a block 30 "
        "minutes earlier (UltraServers: 60), and Karpenter drains them 10 minutes before that. The launcher "
        "refuses a run that may take longer. A run on a block needs this setting."
    ),
    "pools[].onDemandFallback": "Launch On-Demand Instances if the reservations are used up.",
    "pools[].placementGroup": (
        "A cluster placement group in one zone: `true` creates a group, a name is that of an existing group."
    ),
    "pools[].placementGroupOfReservation": (
        "The placement group of the reservations, if any; `placementGroup` must then be its name."
    ),
    "images.build": "Build the launcher's and the trainer's image with Docker and push them to ECR.",
    "images.launcher": "A ready launcher image, with its digest.",
    "images.trainer": (
        "A ready trainer image, with its digest. Training on V100 needs one of the target v100: docs/images.md."
    ),
    "images.placeholder": "The image of placeholder pods.",
    "images.trainingOperator": "The training operator's image, instead of that in its manifests.",
    "images.devicePlugin": "NVIDIA's device plugin.",
    "images.efaDevicePlugin": "The EFA device plugin.",
    "images.neuronDevicePlugin": "The Neuron device plugin.",
    "images.kubectlDelivery": "The image that provides kubectl to the launchers of MPIJobs.",
    "images.debug": "The image of the debug pod.",
    "images.baseImages": "The base images of the two images, instead of those in their Dockerfiles.",
    "images.baseImages.launcher": "The launcher's base image, with its digest.",
    "images.baseImages.trainer": "The trainer's base image, with its digest.",
    "images.packageIndex": (
        "The package index for pip in both images, instead of PyPI. Packages are verified by their hashes. It "
        "must not contain credentials, because build arguments stay in the history of an image."
    ),
    "images.debianMirror": (
        "The mirror of Debian's packages for the trainer's image, instead of deb.debian.org. Packages are signed "
        "by Debian."
    ),
    "images.efaInstaller": (
        "The source of AWS's EFA installer for the trainer's image, instead of efa-installer.amazonaws.com. Its "
        "signature is verified (docs/images.md)."
    ),
    "images.mirror": (
        "A registry and prefix with copies of third-party images, for networks without internet access."
    ),
    "storage.prefix": (
        "Models are stored in `s3://<bucket>/<prefix>/<runId>/`. It must not be `checkpoints`."
    ),
    "storage.keepOldVersionsDays": (
        "Days until an overwritten model is deleted. For checkpoints it is one day."
    ),
    "storage.keepJobLogsDays": (
        "Days after its last line until the log of a torchrun job in the bucket is deleted (docs/queues.md)."
    ),
    "storage.lustre": "A file system of FSx for Lustre that all training pods share.",
    "storage.lustre.existing": (
        "An existing file system, in the VPC of `network.vpcId` and the zone of all pools. It excludes settings "
        "of a new file system. Pods can read all of it. The stack writes to `trainyard/<stack>` only."
    ),
    "storage.lustre.existing.fileSystemId": "Its id.",
    "storage.lustre.existing.dnsName": "Its DNS name, which contains its id and the region.",
    "storage.lustre.existing.mountName": "Its mount name.",
    "storage.lustre.deploymentType": "SCRATCH_2 does not replicate data; the other types do.",
    "storage.lustre.storageType": "SSD, or HDD with PERSISTENT_1, which is slower and cheaper.",
    "storage.lustre.driveCache": (
        "For HDD: READ caches frequently read data on SSDs with a fifth of the capacity."
    ),
    "storage.lustre.capacityGiB": (
        "SSD: 1200, or a multiple of 2400. HDD: a multiple of 6000 at 12 MB/s per TiB, of 1800 at 40."
    ),
    "storage.lustre.throughput": (
        "SCRATCH_2 has 200; PERSISTENT_1 50, 100, 200, on HDD 12, 40; PERSISTENT_2 125, 250, 500, 1000."
    ),
    "storage.lustre.metadataIops": (
        "With PERSISTENT_2: metadata operations per second, 1500, 3000, 6000, 12000, or a multiple of 12000 up to "
        "192000. 0: FSx's default for the capacity."
    ),
    "storage.lustre.s3": (
        "A bucket that is linked to the file system: objects appear as files, and files become objects."
    ),
    "storage.lustre.s3.bucket": "A bucket's name, or `models` for the stack's own.",
    "storage.lustre.s3.prefix": "The linked prefix of the bucket.",
    "storage.lustre.s3.path": "The linked directory of the file system; with PERSISTENT_1 it must be `/`.",
    "storage.lustre.zone": "The zone, which must be that of all pools.",
    "storage.lustre.compression": "Compression of the data on disk.",
    "storage.lustre.mountPath": "The mount path in pods. System directories are refused.",
    "storage.lustre.efa": (
        "Experimental: EFA for the file system, on nodes of g6, g6e, p5, p5e, p5en, p6-b200, trn1 and trn1n with "
        "EFA. Other nodes, and nodes whose client can't be configured, use TCP. It needs PERSISTENT_2 with a "
        "multiple of 38400 GiB at 125 MB/s per TiB, of 19200 at 250, of 9600 at 500, of 4800 at 1000."
    ),
    "storage.lustre.backupDays": "The retention of automatic backups; 0 disables them. Not with `s3`.",
    "training.pool": "The pool to train on.",
    "training.runId": (
        "The name of the run. Another name starts another run; the Job and model of the earlier run stay. Without "
        "a name, `up` starts no run."
    ),
    "training.minNodes": (
        "The minimum number of nodes. With fewer nodes at the deadline, the run tries the next of "
        "`fallbackPools`, then the next of `attempts`, and then fails."
    ),
    "training.maxNodes": "The maximum number of nodes.",
    "training.device": "The workers' device. Workers with `cuda` fail on nodes without GPUs.",
    "training.processesPerNode": "Worker processes per node.",
    "training.capacityDeadlineSeconds": "The time to wait for the minimum of nodes in `pool`.",
    "training.fallbackPools": (
        "Pools to try in this order if `pool` does not have the minimum by its deadline, for instance with "
        "another zone, type or purchase. Each must support `device` and the trainer's image, and allow `minNodes` "
        "nodes. A run never uses nodes of two pools."
    ),
    "training.fallbackPools[].pool": "The pool's name. An entry may be the name alone.",
    "training.fallbackPools[].capacityDeadlineSeconds": (
        "The time to wait for the minimum of nodes in this pool."
    ),
    "training.fallbackPools[].processesPerNode": "Worker processes per node in this pool.",
    "training.fallbackPools[].cpu": "Cores that a worker requests in this pool.",
    "training.fallbackPools[].memory": "Memory that a worker requests in this pool.",
    "training.fallbackPools[].sharedMemory": "Size of a worker's /dev/shm in this pool.",
    "training.holdSeconds": "The time to wait for more nodes after the minimum, as long as more may start.",
    "training.nodeStartSeconds": (
        "The time limit for a new node to become usable: registered, initialized, and with all of its devices. "
        "After this time, the launcher deletes it, and Karpenter launches another one. A shorter deadline takes "
        "precedence."
    ),
    "training.attempts": (
        "How often to try `pool` and all of `fallbackPools` before the run fails. The longest wait is the sum of "
        "their `capacityDeadlineSeconds` for each attempt, plus `retrySeconds` and up to a fifth more between "
        "attempts."
    ),
    "training.retrySeconds": (
        "The pause between two attempts, plus up to a fifth at random. The run holds no node in the pause. "
        "Karpenter does not retry within three minutes after EC2 refused a launch."
    ),
    "training.maxRestarts": (
        "How often a failed run restarts, each time on the available nodes from `minNodes` to `maxNodes`. "
        "Configuration errors never cause a restart. 0: the first failure ends the run. See docs/restarts.md."
    ),
    "training.shape": (
        "`static`: the world has a fixed size, and each lost worker causes a restart. `elastic`: torchrun's "
        "agents may continue with at least `minNodes` nodes."
    ),
    "training.activeDeadlineSeconds": (
        "The time limit of the run with all of its restarts, without the wait for nodes."
    ),
    "training.data": "`digits`, or the path of MNIST's IDX files in the trainer's image.",
    "training.checkpoints": (
        "The place of the checkpoints, with a directory per run: `s3` (`checkpoints/<runId>/` in the stack's "
        "bucket), `lustre` (the same on the file system; on an existing one below `trainyard/<stack>/`) or "
        "`none`. A restarted run continues from the newest one: docs/checkpoints.md."
    ),
    "training.args": (
        "Options of the trainer (`trainer/config.py`), each followed by its value. They are not checked for a "
        "custom image (`images.trainer`). With a file system, the options for metrics precede them: "
        "docs/training-metrics.md."
    ),
    "training.env": (
        "Further environment variables of the workers, in plain text. AWS credentials and variables of the rendezvous "
        "are refused. `up` and `preview` warn of names that look like other credentials; put those into `secrets`."
    ),
    "training.secrets": (
        "Environment variables of the workers from Kubernetes Secrets of the namespace `training`: `NAME`, or "
        "`NAME=SECRET/KEY`. `HF_TOKEN` alone is the key `HF_TOKEN` of the Secret `hf-token`. If a Secret is "
        "missing, the workers wait, and the launcher names it."
    ),
    "training.cpu": (
        "Cores that a worker requests on this instance type. A fallback of another type has its own default. "
        "Without accelerators, the default is the only valid value."
    ),
    "training.memory": (
        "Memory that a worker requests on this instance type. A fallback of another type has its own default."
    ),
    "training.sharedMemory": "Size of a worker's /dev/shm, which is a part of its memory.",
    "queues[].name": "The name for `jobQueue` of jobs. It must be unique in the namespace.",
    "queues[].namespace": "The namespace of the queue and of its jobs.",
    "queues[].pool": "The pool for its jobs. Pools with Neuron devices are supported.",
    "queues[].image": (
        "The workers' image, with its digest. With the stack's trainer, workers know where to store models, and "
        "the controller reads their progress."
    ),
    "queues[].nodeResources": "The resources of a node for a worker.",
    "queues[].nodeResources.gpus": (
        "NVIDIA GPUs. A job that requests more gets more nodes. A worker with a part of them has the same part of "
        "cores and memory, and no EFA interfaces. 0 on Neuron nodes, where a worker gets all devices."
    ),
    "queues[].nodeResources.cpus": "Cores; a job with a part of the GPUs has the same part of them.",
    "queues[].nodeResources.memory": "Memory; a job with a part of the GPUs has the same part of it.",
    "queues[].storage": "The storage of workspaces, data sets and checkpoints.",
    "queues[].storage.workspace": "The files that `kubectl torchrun` sends.",
    "queues[].storage.workspace.bucket": (
        "The bucket for workspaces, below `torchrun/`: its name, or `models` for the stack's own. Without it, "
        "each job has a pod that receives the workspace."
    ),
    "queues[].storage.workspace.size": (
        "The size of a volume per job for the workspace. Without it, the node's disk is used."
    ),
    "queues[].storage.workspace.sizePerGPU": "The same for each GPU of the job.",
    "queues[].storage.workspace.storageClass": "The volume's class.",
    "queues[].storage.datasets": "Data for all jobs, at `/datasets`.",
    "queues[].storage.datasets.existingClaim": "An existing claim in the queue's namespace.",
    "queues[].storage.checkpoints": "The jobs' checkpoints, at `/checkpoints`.",
    "queues[].storage.checkpoints.size": (
        "The size of a volume per job. For jobs with several nodes, its class must support ReadWriteMany, as FSx "
        "does."
    ),
    "queues[].storage.checkpoints.sizePerGPU": "The same for each GPU of the job.",
    "queues[].storage.checkpoints.existingClaim": (
        "An existing claim in the queue's namespace, which all jobs share."
    ),
    "queues[].storage.checkpoints.storageClass": "The volume's class.",
    "queues[].storage.checkpoints.retain": "Keep the volume when its job is deleted.",
    "queues[].storage.shmSizePerGPU": (
        "Size of a worker's /dev/shm for each GPU, which is a part of its memory."
    ),
    "queues[].scheduling": "Further settings for the scheduling of workers.",
    "queues[].scheduling.priorityClassName": "An existing PriorityClass.",
    "queues[].serviceAccount": (
        "The workers' service account: `trainer`, or one of `serviceAccounts` in the queue's namespace. With a "
        "workspace bucket, its role may read the workspaces."
    ),
    "queues[].jobDefaults": "Defaults of the jobs.",
    "queues[].jobDefaults.ttlSecondsAfterFinished": "The time until a finished job is deleted.",
    "queues[].jobDefaults.activeDeadlineSeconds": "The time limit of a job with all of its restarts.",
    "queues[].jobDefaults.restartPolicy": "Whether all workers restart after one of them failed.",
    "queues[].jobDefaults.maxRestarts": "The maximum number of restarts.",
    "serviceAccounts[].name": "The name of the service account, which must be unique in all namespaces.",
    "serviceAccounts[].namespace": "Its namespace.",
    "serviceAccounts[].bucket": "A bucket's name, or `models` for the stack's own.",
    "serviceAccounts[].access": "`write` includes read access. Neither allows deletions.",
    "debugPod": "A pod with network tools: `kubectl exec -it network-debug-0 -n training -- sh`.",
    "nodeCheck": (
        "A check per pool that `make check-nodes STACK=<stack> POOL=<pool>` starts: devices, driver, EFA "
        "interfaces, file system. It costs nothing while it does not run, and launches no node."
    ),
    "mpi": "Support for MPIJobs in the training operator.",
    "sources.karpenterChart": (
        "Karpenter's chart. With `@sha256:<digest>` after a registry's address, Helm refuses other content."
    ),
    "sources.karpenterCrdChart": (
        "The chart of Karpenter's definitions. It must be published if the other chart is."
    ),
    "sources.trainingOperator": "The training operator's kustomization.",
    "protectData": (
        "true: `destroy` fails, or keeps models, file system, images and keys (docs/destroying.md)."
    ),
}

# Defaults that depend on other values.
DEFAULTS: Final = {
    "network.zones": "a, b and c of the region",
    "network.flowLogs": "true; false for an existing VPC",
    "network.cidr": "10.64.0.0/16",
    "images.efaDevicePlugin": "EKS's, in its registry of the region",
    "cluster.name": "`trainyard-<stack>`",
    "cluster.accountId": "the administrators' account",
    "cluster.administrators": "required, except for an existing cluster",
    "pools[].dataVolumeGiB": "the snapshot's size",
    "pools[].efa": "ip if the type has EFA, else none",
    "queues[].image": "the stack's trainer",
    "queues[].nodeResources.gpus": "all NVIDIA GPUs of a node",
    "queues[].nodeResources.cpus": "85 % of the node's, or the GPUs' part of that",
    "queues[].nodeResources.memory": "75 % of the node's, or the GPUs' part of that",
    "queues[].serviceAccount": "trainer in the training namespace, else none",
    "storage.lustre.throughput": "the type's lowest",
    "storage.lustre.capacityGiB": "the smallest: 1200 on SSD",
    "storage.lustre.zone": "the pools' zone",
    "training.processesPerNode": "the node's GPUs, else 1",
    "training.cpu": "85 % of the node's",
    "training.memory": "75 % of the node's",
    "training.fallbackPools[].capacityDeadlineSeconds": "the training's",
    "training.fallbackPools[].processesPerNode": (
        "the training's for the same type, or with `device: cpu` and a value there; else the node's GPUs or 1"
    ),
    "training.fallbackPools[].cpu": "the training's for the same type, else 85 % of the node's",
    "training.fallbackPools[].memory": "the training's for the same type, else 75 % of the node's",
    "training.fallbackPools[].sharedMemory": "the training's",
}
