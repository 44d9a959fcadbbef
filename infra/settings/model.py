"""The stack file's sections as one model, and the settings that the program gets from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import field_validator

from components.documents.account import Account
from components.documents.pool import Pool
from components.documents.tags import stack_tags
from components.documents.torchrun_queue import Queue
from infra.settings.cluster import Cluster, prefix_of
from infra.settings.fields import IN_PLACE, AsTuple, Model, setting
from infra.settings.images import Images, Sources
from infra.settings.network import Network
from infra.settings.pools import PoolSection
from infra.settings.provider import Provider
from infra.settings.queues import QueueSection
from infra.settings.storage import ServiceAccount, Storage
from infra.settings.tags import Tags
from infra.settings.training import Training, TrainingSection
from trainyard.k8s import names

PROJECT: Final = "trainyard"


def default_name(stack: str) -> str:
    """Return the default of the cluster's name."""
    return f"{PROJECT}-{stack}"


class StackConfig(Model):
    """The keys `trainyard:...` of a stack file."""

    network: Network = setting(Network(), "")
    """The VPC: created by the stack, or an existing one (`vpcId`)."""
    cluster: Cluster = setting(Cluster(), "")
    """The EKS cluster and its administrators: created by the stack, or an existing one (`existing`)."""
    pools: Annotated[tuple[PoolSection, ...], AsTuple] = setting((), "")
    """Karpenter node pools, each with one instance type in one zone."""
    images: Images = setting(Images(), "")
    """Container images of the stack and of third parties."""
    storage: Storage = setting(Storage(), "")
    """The bucket for models, and a shared file system."""
    training: TrainingSection | None = setting(None, "")
    """The run that `up` starts. Without this section, the stack has pools and no run."""
    queues: Annotated[tuple[QueueSection, ...], AsTuple] = setting((), "")
    """Torchrun queues, and with them the controller of their jobs: docs/queues.md. Keys have the names of a
    TorchrunQueue's fields (docs/torchrun-fields.md).
    """
    service_accounts: Annotated[tuple[ServiceAccount, ...], AsTuple] = setting((), "")
    """Service accounts for pods of your own, each with a role (IRSA) for one bucket."""
    sources: Sources = setting(Sources(), "")
    """The sources of charts and manifests: published ones, or local directories."""
    tags: Tags = setting({}, "in place, for new nodes; replaces system nodes", example={"team": "ml"})
    """Tags for all AWS resources, for the instances, disks and network interfaces of nodes, and for the volumes of
    claims. At most 30, with `aws:defaultTags`. Keys: 1 to 128 letters, digits, spaces and `_.:/+@-`, no space at the
    ends; values: at most 256 of these and `=`. Reserved: `Name`, and prefixes of AWS and of the stack, such as `aws:`
    and `trainyard:`.
    """
    debug_pod: bool = setting(False, IN_PLACE, example=True)
    """A pod with network tools: `kubectl exec -it network-debug-0 -n training -- sh`."""
    node_check: bool = setting(False, IN_PLACE, example=True)
    """Two checks per pool: `make check-nodes STACK=<stack> POOL=<pool>` (devices, driver, EFA interfaces, file system)
    and `make check-fabric STACK=<stack> POOL=<pool> NODES=<nodes>` (bandwidth of the network). They cost nothing while
    they do not run, and launch no node.
    """
    mpi: bool = setting(False, IN_PLACE, example=True)
    """Support for MPIJobs in the training operator."""
    protect_data: bool = setting(True, IN_PLACE, example=True)
    """true: `destroy` fails, or keeps models, file system, images and keys (docs/destroying.md)."""

    @field_validator("training", mode="before")
    @classmethod
    def _no_run(cls, value: Any) -> Any:
        """Read an empty mapping, the default in Pulumi.yaml, as no run."""
        return None if value == {} else value


KEYS: Final = tuple(sorted(str(each.alias) for each in StackConfig.model_fields.values()))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings of one stack. Without `training` it has pools but starts no run.

    Without `queues` it has no torchrun controller. `tags` are the tags of all resources.
    """

    stack: str
    region: str
    provider: Provider
    tags: dict[str, str]
    network: Network
    cluster: Cluster
    pools: tuple[Pool, ...]
    images: Images
    storage: Storage
    training: Training | None
    queues: tuple[Queue, ...]
    service_accounts: tuple[ServiceAccount, ...]
    debug_pod: bool
    node_check: bool
    mpi: bool
    sources: Sources
    protect_data: bool

    @property
    def prefix(self) -> str:
        """The prefix of the names of all resources: the cluster's name, if all services accept it."""
        return prefix_of(self.cluster.name, default_name(self.stack))

    @property
    def resource_tags(self) -> dict[str, str]:
        """The tags of each AWS resource, set on the resource and not by the provider.

        So nodes and volumes, which controllers create, have them, too.
        """
        return {**self.tags, **stack_tags(PROJECT, self.stack)}

    @property
    def account(self) -> Account:
        """The account and the region of the stack."""
        return Account(id=self.cluster.account_id or "", region=self.region)

    @property
    def backend(self) -> str:
        """The kind of the launcher's training jobs. Without a run in the stack file, users create PyTorchJobs."""
        return self.training.backend if self.training else names.BACKEND_PYTORCHJOB

    @property
    def training_operator(self) -> bool:
        """Whether the stack installs Kubeflow's training operator."""
        return self.backend == names.BACKEND_PYTORCHJOB or self.mpi

    @property
    def kubeflow_trainer(self) -> bool:
        """Whether the stack installs Kubeflow Trainer and JobSet."""
        return self.backend == names.BACKEND_TRAINJOB
