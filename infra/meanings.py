"""What each key of a stack file means; `infra.reference` makes docs/settings.md of it.

The readers themselves tell the rest: what a key may hold, its default and its unit. A test holds that these keys are
exactly those that the readers know.
"""

from __future__ import annotations

from typing import Final

# Section -> what it is about.
SECTIONS: Final = {
    "network": "The VPC that everything is in: made by the stack, or (with `vpcId`) given to it.",
    "cluster": "The EKS cluster and who may use it: made by the stack, or (with `existing`) given to it.",
    "pools": "Pools of machines for training, each exactly one instance type in one zone.",
    "images": "Container images, of the stack's own and of others.",
    "storage": "The bucket that models go to, and a shared file system.",
    "training": "The run that `up` starts. Without this section there are pools and no run.",
    "queues": (
        "Torchrun queues, and with them the controller of their jobs: docs/queues.md. Keys have the names of a "
        "TorchrunQueue's fields (docs/torchrun-fields.md)."
    ),
    "serviceAccounts": "Service accounts for pods of your own, each with a role (IRSA) for one bucket.",
    "sources": "Where charts and manifests come from: published ones, or directories of this machine.",
    "debugPod": "Network tools inside of the cluster.",
    "nodeCheck": "Checks of the pools' machines before a training.",
    "mpi": "MPIJobs.",
    "protectData": "What `destroy` must keep.",
}

MEANINGS: Final = {
    "network.cidr": (
        "The VPC's range, /16 to /20. It must hold every machine at once with the addresses of its pods, about "
        "15 each. "
        "A new one must be private. For a given VPC it is only needed with `interfaceEndpoints` and with "
        "`deployFrom: vpc`."
    ),
    "network.zones": "Zones to have subnets in, 2 to 4.",
    "network.natPerZone": (
        "One NAT gateway in each zone, so that no zone depends on another; else one in all."
    ),
    "network.vpcId": "A VPC that is there already. It excludes `zones` and `natPerZone`.",
    "network.privateSubnetIds": "Subnets of the given VPC for machines and pods: zone to id.",
    "network.publicSubnetIds": "Subnets of the given VPC for load balancers: zone to id.",
    "network.workerSecurityGroupId": (
        "A security group for the machines of the pools, open to itself in both directions. Without it "
        "one is made."
    ),
    "network.private": (
        "No NAT and no internet gateway: AWS is reached by interface endpoints, other images come from "
        "`images.mirror`."
    ),
    "network.interfaceEndpoints": (
        "AWS services to reach by an endpoint in the VPC. In a VPC that the stack makes S3 always has one, and a "
        "private one has those that it needs."
    ),
    "network.flowLogs": "A record of the VPC's traffic in CloudWatch Logs.",
    "network.flowLogRetentionDays": "How long that record is kept.",
    "cluster.existing": (
        "A cluster that is there already, with everything above it made by this stack. It excludes what "
        "only a new one has, and needs `network.vpcId`."
    ),
    "cluster.existing.name": (
        "The cluster's name, any that EKS takes. Other names begin with it, or with `trainyard-<stack>` where it has "
        "upper case, underscores or more than 31 characters."
    ),
    "cluster.existing.endpoint": "The address of its API.",
    "cluster.existing.certificateAuthority": "`certificateAuthority.data` of DescribeCluster.",
    "cluster.existing.oidcProviderArn": "Its OIDC provider in IAM.",
    "cluster.existing.oidcIssuer": "Its OIDC issuer.",
    "cluster.existing.securityGroupId": "The security group that EKS made for it.",
    "cluster.name": "The cluster's name, with which the names of much else begin; at most 31 characters.",
    "cluster.accountId": (
        "The account to deploy to, in quotes: credentials of any other are refused before anything is made. Required "
        "where the administrators are of several accounts."
    ),
    "cluster.version": (
        "The Kubernetes version. A running cluster can be updated to the next minor version only. Add-ons and "
        "system nodes follow it. `up` warns 90 days before EKS ends its support."
    ),
    "cluster.administrators": (
        "ARNs of IAM users and roles with all rights in the cluster, among them the one that deploys."
    ),
    "cluster.publicAccessCidrs": (
        "Ranges that may reach the API over the internet: public ones, at most 40, each /8 or smaller. "
        "Without any it is reached from the VPC alone, "
        "and `deployFrom` must be vpc."
    ),
    "cluster.deployFrom": "Where `pulumi up` runs.",
    "cluster.systemNodes": "Machines for Karpenter, CoreDNS, the operators and the launcher.",
    "cluster.systemNodes.instanceType": "Their instance type.",
    "cluster.systemNodes.count": "How many of them.",
    "cluster.karpenterReplicas": "Copies of Karpenter, each on a system node of its own.",
    "cluster.nodeRepair": (
        "Machines that stay unhealthy are replaced: after 10 minutes for accelerators, else 30."
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
    "cluster.ami": ("The machines' image, an alias with a version. New nodes use a newer one."),
    "cluster.logRetentionDays": "How long the control plane's logs are kept.",
    "cluster.lateLogSeconds": (
        "How long `destroy` waits, once the cluster is gone, for late entries of its logs: they make the log group "
        "anew, which would be in the way of the next `up`."
    ),
    "pools[].name": "The pool's name, also of its NodePool and EC2NodeClass.",
    "pools[].instanceType": "The one instance type.",
    "pools[].zone": "The one zone. Reservations and the file system must be in it, too.",
    "pools[].maxNodes": "The hard ceiling of what the pool may cost; it is kept in GPUs, or in cores.",
    "pools[].warmNodes": (
        "Machines that stay without a job, so that the next one starts at once. They cost the same. A newer "
        "image reaches them when their NodeClaims are deleted."
    ),
    "pools[].efa": (
        "EFA interfaces: `ip` has all of them with the fewest IP addresses, `bandwidth` has more "
        "addresses for more IP traffic beside them."
    ),
    "pools[].purchase": (
        "How machines are bought. EC2 may take back spot ones, which ends the run on all of its machines: `up` warns "
        "where several train together."
    ),
    "pools[].capacityReservationIds": "Reservations to take machines from, for `purchase: reserved`.",
    "pools[].rootVolumeGiB": (
        "The disk of a machine. Local NVMe disks hold images and pods where the type has some."
    ),
    "pools[].dataSnapshotId": (
        "A snapshot of `/var/lib/containerd` with images in it, so that machines need not pull them: docs/images.md."
    ),
    "pools[].dataVolumeGiB": "The disk that is made of the snapshot; at least as large as the snapshot.",
    "pools[].idleSeconds": (
        "Karpenter deletes an empty node after this time. Nodes have a taint (the accelerator's name, or "
        "`trainyard.dev/pool`), so only pods that tolerate it keep them."
    ),
    "pools[].reservationType": "An on-demand capacity reservation (`odcr`) or a capacity block.",
    "pools[].reservationBegins": (
        "When the reservation begins (of several: the first begin), RFC 3339 in quotes; at most 8 weeks from now for a "
        "capacity block, whose begin `make preflight` tells while it lies ahead. Until then a run on a capacity block "
        "without `onDemandFallback` says when it begins, or is refused at once where its wait is over before."
    ),
    "pools[].reservationEnds": (
        "When the reservation ends (of several: the first end), RFC 3339 in quotes; at most 182 days and 8 weeks from "
        "now for a capacity block, whose end `make preflight` tells. EC2 takes the machines of a block back 30 minutes "
        "before (UltraServers: 60), Karpenter drains them 10 minutes before that, and the launcher refuses a run that "
        "may take longer; a run that `up` starts on a block needs it."
    ),
    "pools[].onDemandFallback": "Buy on demand what the reservations do not hold.",
    "pools[].placementGroup": (
        "Machines close together: `true` makes a group, a name is that of an existing one. A group is in one zone."
    ),
    "pools[].placementGroupOfReservation": (
        "The group that the reservations were made in, if any; `placementGroup` must then name it."
    ),
    "images.build": "Build the launcher's and the trainer's image with Docker and push them to ECR.",
    "images.launcher": "A ready launcher image, with its digest.",
    "images.trainer": (
        "A ready trainer image, with its digest. Training on V100 needs one of the target v100: docs/images.md."
    ),
    "images.placeholder": "What pods run that only hold a machine.",
    "images.trainingOperator": "The training operator's image, instead of the one that its manifests name.",
    "images.devicePlugin": "NVIDIA's device plugin.",
    "images.efaDevicePlugin": "The EFA device plugin.",
    "images.neuronDevicePlugin": "The Neuron device plugin.",
    "images.kubectlDelivery": "Brings kubectl to the launchers of MPIJobs.",
    "images.debug": "The pod with network tools.",
    "images.baseImages": "What the two images are built on, instead of what their Dockerfiles name.",
    "images.baseImages.launcher": "The launcher's base image, with its digest.",
    "images.baseImages.trainer": "The trainer's base image, with its digest.",
    "images.packageIndex": (
        "Where pip takes the packages of the two images from, instead of PyPI; each is checked by its hash all the "
        "same. Build arguments stay in an image's history: no user and no password."
    ),
    "images.debianMirror": (
        "Where the trainer's image takes Debian's packages from, instead of deb.debian.org; each is signed by Debian."
    ),
    "images.efaInstaller": (
        "Where the trainer's image takes AWS's installer of EFA from, instead of efa-installer.amazonaws.com; its "
        "signature is checked (docs/images.md)."
    ),
    "images.mirror": "A registry and prefix that holds the images of others, for networks without a way out.",
    "storage.prefix": "Models go to `s3://<bucket>/<prefix>/<runId>/`; not `checkpoints`, where these go.",
    "storage.keepOldVersionsDays": (
        "A model that was written again can be taken back for so long; of checkpoints it is one day."
    ),
    "storage.keepJobLogsDays": (
        "Days after its last line until the log of a torchrun job in the bucket is deleted (docs/queues.md)."
    ),
    "storage.lustre": (
        "A file system of FSx for Lustre that all training pods share. Without this key there is none."
    ),
    "storage.lustre.existing": (
        "A file system that is there already, in the VPC of `network.vpcId` and in the zone of every pool. It excludes "
        "what only a new one has. Pods see all of it; the stack makes `trainyard/<stack>` there for what it writes, "
        "and leaves the rest as it is."
    ),
    "storage.lustre.existing.fileSystemId": "Its id.",
    "storage.lustre.existing.dnsName": "Its DNS name, which begins with its id and has the region.",
    "storage.lustre.existing.mountName": "Its mount name.",
    "storage.lustre.deploymentType": "SCRATCH_2 has no copies of its data; the other two keep two.",
    "storage.lustre.storageType": "SSD, or for PERSISTENT_1 alone HDD, slower and cheaper.",
    "storage.lustre.driveCache": (
        "Of HDD: READ holds what is read often on SSDs of a fifth of the capacity."
    ),
    "storage.lustre.capacityGiB": (
        "SSD: 1200, or a multiple of 2400. HDD: a multiple of 6000 at 12 MB/s per TiB, of 1800 at 40."
    ),
    "storage.lustre.throughput": (
        "SCRATCH_2 has 200; PERSISTENT_1 50, 100, 200, on HDD 12, 40; PERSISTENT_2 125, 250, 500, 1000."
    ),
    "storage.lustre.metadataIops": (
        "PERSISTENT_2 alone: operations on names and sizes per second, 1500, 3000, 6000, 12000, or a multiple of "
        "12000 up to 192000. 0: what FSx gives for the capacity."
    ),
    "storage.lustre.s3": "A bucket behind the file system: objects show as files, and files become objects.",
    "storage.lustre.s3.bucket": "A bucket's name, or `models` for the stack's own.",
    "storage.lustre.s3.prefix": "The part of the bucket that is shown.",
    "storage.lustre.s3.path": "The directory of the file system that shows it; PERSISTENT_1 knows `/` alone.",
    "storage.lustre.zone": "The zone, which must be that of every pool.",
    "storage.lustre.compression": "Compression of the data on disk.",
    "storage.lustre.mountPath": "The directory in pods, none of the system's.",
    "storage.lustre.efa": (
        "Experimental: EFA on the file system, for machines of g6, g6e, p5, p5e, p5en, p6-b200, trn1 and trn1n that "
        "have it themselves; others, and one whose client could not be set up, reach it over TCP. PERSISTENT_2 of a "
        "multiple of 38400 GiB at 125 MB/s per TiB, of 19200 at 250, of 9600 at 500, of 4800 at 1000."
    ),
    "storage.lustre.backupDays": "How long automatic backups are kept; 0: there are none. Not with `s3`.",
    "training.pool": "The pool to train on.",
    "training.runId": (
        "The run's name. Another one starts the next run and leaves this one's Job and model. Without it "
        "`up` starts none."
    ),
    "training.minNodes": (
        "The run starts with at least so many machines. With fewer at the deadline it goes to the next of "
        "`fallbackPools`, then to the next of `attempts`, then it ends."
    ),
    "training.maxNodes": "The run starts with at most so many machines.",
    "training.device": "What workers train on. One that is told cuda and finds none ends with an error.",
    "training.processesPerNode": "Worker processes per machine.",
    "training.capacityDeadlineSeconds": "How long to wait for the minimum on machines of `pool`.",
    "training.fallbackPools": (
        "Pools to try in this order where `pool` does not give the minimum by its deadline: another zone, type or "
        "purchase of the same run. Each must serve `device` and the trainer's image and may have `minNodes` machines. "
        "Machines of two pools never train together."
    ),
    "training.fallbackPools[].pool": "The pool's name; a name alone may stand for the whole entry.",
    "training.fallbackPools[].capacityDeadlineSeconds": "How long to wait for the minimum there.",
    "training.fallbackPools[].processesPerNode": "Worker processes per machine there.",
    "training.fallbackPools[].cpu": "Cores that a worker asks for there.",
    "training.fallbackPools[].memory": "Memory that a worker asks for there.",
    "training.fallbackPools[].sharedMemory": "Size of a worker's /dev/shm there.",
    "training.holdSeconds": "How long to wait for more machines once the minimum is there, as long as more may come.",
    "training.nodeStartSeconds": (
        "A machine that was ordered for the run and is not usable after this time (not registered, not initialized, "
        "without all of its devices) is given back, and another one is bought. Where a deadline is shorter, it comes "
        "first."
    ),
    "training.attempts": (
        "How often to try `pool` and all of `fallbackPools` before the run ends without machines. The longest wait is "
        "their `capacityDeadlineSeconds` together for each attempt, and `retrySeconds` with up to a fifth more between "
        "two of them."
    ),
    "training.retrySeconds": (
        "The pause between two attempts, in which no machine is held; up to a fifth more by chance. Karpenter asks EC2 "
        "for nothing in the three minutes after a refusal."
    ),
    "training.maxRestarts": (
        "How often a training that failed is begun anew, on `minNodes` to `maxNodes` machines, as there are then. "
        "Wrong settings are never tried again. 0: the first failure ends the run. See docs/restarts.md."
    ),
    "training.shape": (
        "`static`: the world has the size that the launcher counted, and whatever it loses is a restart. `elastic`: "
        "torchrun's agents may also go on by themselves, with at least `minNodes` machines."
    ),
    "training.activeDeadlineSeconds": "The training proper may take no longer, all of its restarts together.",
    "training.data": "`digits`, or the path of MNIST's IDX files in the trainer's image.",
    "training.checkpoints": (
        "Where a run keeps its checkpoints, in a folder of its own: `s3` (`checkpoints/<runId>/` in the stack's "
        "bucket), `lustre` (the same on the file system; on a given one below `trainyard/<stack>/`) or `none`. The "
        "next training of the run goes on from the newest: docs/checkpoints.md."
    ),
    "training.args": (
        "Options of the trainer (`trainer/config.py`), each followed by its value. Of a given image (`images.trainer`) "
        "they are not judged. Before them stands where metrics go, if there is a file system: docs/training-metrics.md."
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
        "Cores that a worker asks for: a number for this type, so that a fallback of another type has its own default. "
        "Machines without accelerators are counted by the default, which then is the only one that is right."
    ),
    "training.memory": (
        "Memory that a worker asks for: a number for this type, so that a fallback of another type has its own default."
    ),
    "training.sharedMemory": "Size of a worker's /dev/shm: a part of its memory. By default no more than that.",
    "queues[].name": "The queue's name, which jobs give as `jobQueue`; no two in one namespace have the same.",
    "queues[].namespace": "The namespace of the queue and of its jobs.",
    "queues[].pool": "The pool whose machines its jobs run on. Any pool will do, those with Neuron devices among them.",
    "queues[].image": (
        "The workers' image, with its digest. With the stack's trainer they are told where models go, and their "
        "progress is read."
    ),
    "queues[].nodeResources": "What a worker may take of a machine.",
    "queues[].nodeResources.gpus": (
        "NVIDIA GPUs. A job that requests more gets more nodes. A worker with a part of them has the same part of "
        "cores and memory, and no EFA interfaces. 0 on Neuron nodes, where a worker gets all devices."
    ),
    "queues[].nodeResources.cpus": "Cores; a job with a part of the GPUs has the same part of them.",
    "queues[].nodeResources.memory": "Memory; a job with a part of the GPUs has the same part of it.",
    "queues[].storage": "Where workspaces, data sets and checkpoints are.",
    "queues[].storage.workspace": "The files that `kubectl torchrun` sends.",
    "queues[].storage.workspace.bucket": (
        "They go through a bucket: its name, or `models` for the stack's own; below `torchrun/`. Without it they go "
        "through a pod of the job."
    ),
    "queues[].storage.workspace.size": "A volume of each job for them, instead of the machine's disk.",
    "queues[].storage.workspace.sizePerGPU": "The same by the job's GPUs.",
    "queues[].storage.workspace.storageClass": "The volume's class.",
    "queues[].storage.datasets": "Data that all jobs read, at `/datasets`.",
    "queues[].storage.datasets.existingClaim": "A claim in the queue's namespace.",
    "queues[].storage.checkpoints": "What jobs keep, at `/checkpoints`.",
    "queues[].storage.checkpoints.size": (
        "A volume of each job. For jobs of several machines it needs a class that many machines can mount, as FSx has."
    ),
    "queues[].storage.checkpoints.sizePerGPU": "The same by the job's GPUs.",
    "queues[].storage.checkpoints.existingClaim": "A claim in the queue's namespace, which all jobs share.",
    "queues[].storage.checkpoints.storageClass": "The volume's class.",
    "queues[].storage.checkpoints.retain": "The volume stays when its job is removed.",
    "queues[].storage.shmSizePerGPU": "Size of a worker's /dev/shm for each GPU: a part of its memory.",
    "queues[].scheduling": "How the workers are placed, beside the pool.",
    "queues[].scheduling.priorityClassName": "A PriorityClass that is there.",
    "queues[].serviceAccount": (
        "The workers' service account: `trainer`, or one of `serviceAccounts` in the queue's namespace. With a bucket "
        "of workspaces its role may read them."
    ),
    "queues[].jobDefaults": "What holds for jobs that do not say it themselves.",
    "queues[].jobDefaults.ttlSecondsAfterFinished": "A job that ended is removed after this time.",
    "queues[].jobDefaults.activeDeadlineSeconds": "A job may take no longer, all of its restarts together.",
    "queues[].jobDefaults.restartPolicy": "Whether all workers are begun anew when one of them fails.",
    "queues[].jobDefaults.maxRestarts": "How often.",
    "serviceAccounts[].name": "The service account's name; no two have the same, in whatever namespaces.",
    "serviceAccounts[].namespace": "Its namespace.",
    "serviceAccounts[].bucket": "A bucket's name, or `models` for the stack's own.",
    "serviceAccounts[].access": "`write` can read, too; neither can delete.",
    "debugPod": "A pod with network tools: `kubectl exec -it network-debug-0 -n training -- sh`.",
    "nodeCheck": (
        "A check per pool, started by `make check-nodes STACK=<stack> POOL=<pool>`: devices, driver, EFA interfaces, "
        "file system. It costs nothing while none runs, and buys no machine."
    ),
    "mpi": "The training operator serves MPIJobs, too.",
    "sources.karpenterChart": (
        "Karpenter's chart. With `@sha256:<digest>` behind a registry's address Helm refuses any other content."
    ),
    "sources.karpenterCrdChart": "The chart of its definitions; published if the other one is.",
    "sources.trainingOperator": "The training operator's kustomization.",
    "protectData": "true: `destroy` refuses, or leaves models, file system, images and keys (docs/destroying.md).",
}

# Defaults that depend on other values.
DEFAULTS: Final = {
    "network.zones": "a, b and c of the region",
    "network.flowLogs": "true; false for a given VPC",
    "network.cidr": "10.64.0.0/16",
    "images.efaDevicePlugin": "EKS's, in its registry of the region",
    "cluster.name": "`trainyard-<stack>`",
    "cluster.accountId": "the administrators' account",
    "cluster.administrators": "required, but for a given cluster",
    "pools[].dataVolumeGiB": "the snapshot's size",
    "pools[].efa": "ip where the type has EFA, else none",
    "queues[].image": "the stack's trainer",
    "queues[].nodeResources.gpus": "all NVIDIA GPUs of a machine",
    "queues[].nodeResources.cpus": "85 % of the machine's, or the GPUs' part of that",
    "queues[].nodeResources.memory": "75 % of the machine's, or the GPUs' part of that",
    "queues[].serviceAccount": "trainer in the training namespace, else none",
    "storage.lustre.throughput": "the type's lowest",
    "storage.lustre.capacityGiB": "the smallest: 1200 on SSD",
    "storage.lustre.zone": "the pools' zone",
    "training.processesPerNode": "the machine's GPUs, else 1",
    "training.cpu": "85 % of the machine's",
    "training.memory": "75 % of the machine's",
    "training.fallbackPools[].capacityDeadlineSeconds": "the training's",
    "training.fallbackPools[].processesPerNode": (
        "the training's for the same type, or with `device: cpu` where it says one; else the machine's GPUs or 1"
    ),
    "training.fallbackPools[].cpu": "the training's for the same type, else 85 % of the machine's",
    "training.fallbackPools[].memory": "the training's for the same type, else 75 % of the machine's",
    "training.fallbackPools[].sharedMemory": "the training's",
}
