"""What the checks need, out of a stack's settings."""

from __future__ import annotations

from datetime import datetime

from components.documents import eks
from components.documents.device_plugins import where
from components.documents.pool import GPU, NEURON, Pool
from components.documents.tags import stack_tags
from components.documents.vpc import private_endpoints
from infra import accelerators, versions
from infra.model import Settings
from infra.rules import needed_addresses
from infra.settings import PROJECT
from trainyard.k8s import names
from trainyard.preflight import inside
from trainyard.preflight.wanted import (
    Wanted,
    WantedBucket,
    WantedCluster,
    WantedImage,
    WantedLustre,
    WantedPool,
    WantedSystem,
    WantedVpc,
)

# As `components.registry` and `components.encryption` name what they make.
IMAGES = ("launcher", "trainer")
KEYS = ("secrets", "data", "logs")


def wanted_of(settings: Settings) -> Wanted:
    """Everything that a stack asks of the account."""
    cluster, network = settings.cluster, settings.network
    makes_vpc = network.existing is None and not network.private
    gateways = (len(network.zones) if network.nat_per_zone else 1) if makes_vpc else 0
    lustre = settings.storage.lustre
    own_cluster = cluster.existing is None
    return Wanted(
        stack=settings.stack,
        region=settings.region,
        account=cluster.account_id,
        account_key=_account_key(settings),
        tags=stack_tags(PROJECT, settings.stack),
        cluster=cluster.name,
        queue=cluster.prefix,
        administrators=cluster.administrators,
        zones=network.zones,
        pools=tuple(_pool(index, pool, own_cluster) for index, pool in enumerate(settings.pools)),
        system=_system(settings) if own_cluster else None,
        vpc=_vpc(settings),
        elastic_ips=gateways,
        endpoints=_endpoints(settings),
        existing_cluster=_cluster(settings),
        lustre=_lustre(settings),
        new_lustre=(lustre.deployment_type, lustre.capacity_gib) if lustre and not lustre.existing else None,
        buckets=_buckets(settings),
        repositories=tuple(
            f"{cluster.prefix}/{name}"
            for name, given in zip(IMAGES, (settings.images.launcher, settings.images.trainer), strict=True)
            if given is None
        ),
        key_aliases=tuple(f"alias/{cluster.prefix}-{name}" for name in KEYS),
        kubernetes=cluster.version if own_cluster else None,
        kubernetes_supported=versions.KUBERNETES_SUPPORTED,
        # A given cluster's add-ons are its owner's.
        addons=cluster.addon_versions if own_cluster else {},
        ami=cluster.ami,
        images=_images(settings),
        public_ranges=cluster.public_access_cidrs,
        volume_key=cluster.volume_key,
    )


def _account_key(settings: Settings) -> str:
    """The key that says which account it is: see `infra.cluster_settings`."""
    if settings.cluster.existing is not None:
        return f"{PROJECT}:cluster.existing.oidcProviderArn"
    accounts = {arn.split(":")[4] for arn in settings.cluster.administrators}
    return f"{PROJECT}:cluster.{'accountId' if len(accounts) > 1 else 'administrators'}"


def _system(settings: Settings) -> WantedSystem:
    facts = accelerators.TYPES[settings.cluster.system_instance_type]
    return WantedSystem(
        instance_type=facts.name,
        count=settings.cluster.system_count,
        vcpus=facts.vcpus,
        spare=eks.SPARE_IN_A_ZONE,
        disk_gib=eks.VOLUME_GIB,
        interfaces=eks.Machine(
            interfaces=facts.interfaces, addresses=facts.addresses, pods=eks.SYSTEM_PODS
        ).network_interfaces,
    )


def _pool(index: int, pool: Pool, own_cluster: bool) -> WantedPool:
    return WantedPool(
        key=f"{PROJECT}:pools[{index}]",
        name=pool.name,
        instance_type=pool.instance_type,
        zone=pool.zone,
        max_nodes=pool.max_nodes,
        vcpus=pool.vcpus,
        resource=pool.resource,
        purchase=pool.purchase,
        reservation_ids=pool.capacity_reservation_ids,
        reservation_type=pool.reservation_type,
        reservation_begins=_time(pool.reservation_begins),
        reservation_ends=_time(pool.reservation_ends),
        on_demand_fallback=pool.on_demand_fallback,
        placement_group=None if pool.makes_placement_group else pool.placement_group,
        placement_group_of_reservation=pool.placement_group_of_reservation,
        snapshot_id=pool.data_snapshot_id,
        data_volume_gib=pool.data_volume_gib,
        disks_gib=pool.root_volume_gib + (pool.data_volume_gib or 0),
        interfaces=pool.network_interfaces(own_cni=own_cluster),
    )


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _images(settings: Settings) -> tuple[WantedImage, ...]:
    """The images that are pulled for this stack, and those that its own are built on."""
    images, devices = settings.images, where(settings.pools)
    used = {
        "launcher": images.launcher,
        "trainer": images.trainer,
        "placeholder": images.placeholder,
        "trainingOperator": images.training_operator,
        "devicePlugin": images.device_plugin if GPU in devices else None,
        "efaDevicePlugin": images.efa_device_plugin if names.EFA_RESOURCE in devices else None,
        "neuronDevicePlugin": images.neuron_device_plugin if NEURON in devices else None,
        "kubectlDelivery": images.kubectl_delivery if settings.mpi else None,
        "debug": images.debug if settings.debug_pod else None,
        **{f"baseImages.{name}": reference for name, reference in images.base_images.items()},
    }
    mirror = f"{images.mirror}/"
    of_queues = (
        WantedImage(key=f"{PROJECT}:queues[{index}].image", name=queue.name, reference=queue.image)
        for index, queue in enumerate(settings.queues)
        if queue.image is not None
    )
    pulled = tuple(
        WantedImage(
            key=f"{PROJECT}:images.{'mirror' if reference.startswith(mirror) else name}",
            name=name,
            reference=reference,
        )
        for name, reference in used.items()
        if reference is not None
    )
    return (*pulled, *of_queues)


def _endpoints(settings: Settings) -> tuple[str, ...]:
    """As `infra.foundation` makes them: those of the settings, in a new private VPC all that it needs."""
    network = settings.network
    if network.private and network.existing is None:
        return private_endpoints(
            file_system=settings.storage.lustre is not None,
            load_balancers=False,
            more=network.interface_endpoints,
        )
    return network.interface_endpoints


def _vpc(settings: Settings) -> WantedVpc | None:
    network = settings.network
    if network.existing is None:
        return None
    made = network.interface_endpoints
    needed: tuple[str, ...] = ()
    if network.private:
        every = private_endpoints(
            file_system=settings.storage.lustre is not None, load_balancers=False, more=made
        )
        needed = ("s3", *(name for name in every if name not in made))
    return WantedVpc(
        vpc_id=network.existing.vpc_id,
        private=dict(network.existing.private_subnet_ids),
        cidr=network.cidr,
        public=dict(network.existing.public_subnet_ids),
        worker_group=network.existing.worker_group_id,
        isolated=network.private,
        endpoints=needed,
        made_endpoints=made,
        addresses=needed_addresses(settings),
    )


def _cluster(settings: Settings) -> WantedCluster | None:
    given, network = settings.cluster.existing, settings.network
    if given is None:
        return None
    devices = tuple(where(settings.pools))
    return WantedCluster(
        name=settings.cluster.name,
        versions=versions.KUBERNETES_SUPPORTED,
        vpc_id=network.existing.vpc_id if network.existing else None,
        endpoint=given.endpoint,
        certificate_authority=given.certificate_authority,
        oidc_provider_arn=given.oidc_provider_arn,
        oidc_issuer=given.oidc_issuer,
        security_group=given.security_group_id,
        definitions=tuple(name for name in inside.DEFINITIONS if _brings(settings, name)),
        namespaces=(
            names.TRAINING_NAMESPACE,
            names.OPERATOR_NAMESPACE,
            *((names.DEVICE_PLUGIN_NAMESPACE,) if devices else ()),
            *((names.TORCHRUN_NAMESPACE,) if settings.queues else ()),
        ),
        devices=devices,
        drivers=tuple(inside.ADDONS) if settings.storage.lustre else (),
        node_repair=settings.cluster.node_repair,
        efa=any(pool.efa for pool in settings.pools),
    )


def _brings(settings: Settings, definition: str) -> bool:
    """Whether a stack makes a definition of `inside.DEFINITIONS`: some of them only where it is asked for."""
    if definition.startswith("mpijobs."):
        return settings.mpi
    return bool(settings.queues) or not definition.endswith(f".{names.TORCHRUN_GROUP}")


def _lustre(settings: Settings) -> WantedLustre | None:
    lustre, network = settings.storage.lustre, settings.network
    if lustre is None or lustre.existing is None:
        return None
    return WantedLustre(
        file_system_id=lustre.existing.file_system_id,
        dns_name=lustre.existing.dns_name,
        mount_name=lustre.existing.mount_name,
        zones=tuple(dict.fromkeys(pool.zone for pool in settings.pools)) or (lustre.zone,),
        vpc_id=network.existing.vpc_id if network.existing else None,
        worker_group=network.existing.worker_group_id if network.existing else None,
    )


def _buckets(settings: Settings) -> tuple[WantedBucket, ...]:
    found = []
    lustre = settings.storage.lustre
    if lustre and lustre.link and lustre.link.bucket:
        found.append(WantedBucket(key=f"{PROJECT}:storage.lustre.s3.bucket", name=lustre.link.bucket))
    for index, account in enumerate(settings.service_accounts):
        if account.bucket:
            found.append(WantedBucket(key=f"{PROJECT}:serviceAccounts[{index}].bucket", name=account.bucket))
    for index, queue in enumerate(settings.queues):
        if queue.bucket:
            key = f"{PROJECT}:queues[{index}].storage.workspace.bucket"
            found.append(WantedBucket(key=key, name=queue.bucket))
    return tuple(found)
