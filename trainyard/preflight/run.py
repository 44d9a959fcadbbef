"""All checks on an account: each by itself, so that a missing permission or thing never hides another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from botocore.exceptions import BotoCoreError, ClientError

from trainyard.preflight import (
    administrators,
    capacity,
    container_images,
    eks_versions,
    endpoint_services,
    filters,
    gang_scheduler,
    groups,
    identity,
    inside,
    interfaces,
    machine_images,
    network,
    quotas,
    read_capacity,
    read_inside,
    read_network,
    services,
    snapshots,
    volume_keys,
    ways_out,
)
from trainyard.preflight import read_services as services_of
from trainyard.preflight.account import Account, Denied, has, said, without_credentials
from trainyard.preflight.wanted import Caution, Problem, Unasked, Wanted, WantedVpc


@dataclass(kw_only=True)
class Report:
    """What is wrong, what could not be asked for lack of which permission, and how many checks were made.

    `failed` are checks that AWS refused, or answered not at all, for another reason: the name and what it said.
    `cautions` may be in the way, and are no mistake; `unasked` is what no permission would let this account tell.
    """

    problems: list[Problem] = field(default_factory=list)
    cautions: list[Caution] = field(default_factory=list)
    not_checked: list[tuple[str, str]] = field(default_factory=list)
    failed: list[tuple[str, str]] = field(default_factory=list)
    unasked: list[Unasked] = field(default_factory=list)
    checked: int = 0


Check = Callable[[Account, Wanted, datetime], Sequence[Problem | Caution | Unasked]]


def examine(
    account: Account, wanted: Wanted, now: datetime, checks: Mapping[str, Check] | None = None
) -> Report:
    """Make every check that applies, or those of `checks`; `now` is aware.

    Raises:
        botocore.exceptions.BotoCoreError: there are no credentials.
        botocore.exceptions.ClientError: they are not good, or have ended.
    """
    report = Report()
    for name, check in (CHECKS if checks is None else checks).items():
        try:
            found = check(account, wanted, now)
        except Denied as denied:
            report.not_checked.append((name, denied.permission))
            continue
        except (BotoCoreError, ClientError) as error:
            if without_credentials(error):
                raise
            report.failed.append((name, said(error)))
            continue
        report.checked += 1
        report.problems += [each for each in found if isinstance(each, Problem)]
        report.cautions += [each for each in found if isinstance(each, Caution)]
        report.unasked += [each for each in found if isinstance(each, Unasked)]
    report.problems = list(dict.fromkeys(report.problems))
    return report


def _caller(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    return identity.check_caller(wanted, services_of.caller(account))


def _ranges(_account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    return identity.check_ranges(wanted)


def _people(kind: str) -> Check:
    """The check of the administrators of one kind: each needs a permission of its own."""

    def check(account: Account, wanted: Wanted, _now: datetime) -> list[Problem | Unasked]:
        own = services_of.caller(account).split(":")[4]
        mine = [each for each in administrators.people(wanted) if each.kind == kind]
        return administrators.check(mine, own, administrators.read(account, mine, own))

    return check


def _zones(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    return identity.check_zones(wanted, read_network.zones(account))


def _vpc(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    if wanted.vpc is None:
        return []
    return network.check_vpc(wanted.vpc, read_network.vpc(account, wanted.vpc.vpc_id), wanted.region)


def _subnets(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    if wanted.vpc is None:
        return []
    return network.check_subnets(wanted.vpc, read_network.subnets(account, wanted.vpc), wanted.region)


def _addresses(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    if wanted.vpc is None:
        return []
    subnets = read_network.subnets(account, wanted.vpc)
    return network.check_addresses(wanted.vpc, subnets, read_network.own_addresses(account, wanted))


def _tags(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    if wanted.vpc is None:
        return []
    vpc = read_network.vpc(account, wanted.vpc.vpc_id)
    return network.check_tags(wanted, vpc, read_network.subnets(account, wanted.vpc))


def _ways_out(account: Account, wanted: Wanted, _now: datetime) -> list[Problem | Caution]:
    if wanted.vpc is None:
        return []
    subnets, routing = (
        read_network.subnets(account, wanted.vpc),
        read_network.routing(account, wanted.vpc),
    )
    return [
        *ways_out.check_ways_out(wanted.vpc, subnets, routing, wanted.region),
        *ways_out.check_s3(wanted.vpc, subnets, routing, wanted.region),
        *network.check_made_endpoints(wanted, routing.endpoints),
    ]


def _endpoint_groups(account: Account, wanted: Wanted, _now: datetime) -> list[Problem | Unasked]:
    if wanted.vpc is None:
        return []
    there = ways_out.needed_endpoints(wanted.vpc, read_network.routing(account, wanted.vpc), wanted.region)
    if not there:
        return []
    found = read_network.groups(account, sorted({group for each in there for group in each.groups}))
    return ways_out.check_endpoint_groups(
        there, found, _workers(account, wanted), _private(account, wanted.vpc)
    )


def _acls(account: Account, wanted: Wanted, _now: datetime) -> list[Problem | Caution]:
    return filters.check_acls(wanted.vpc, read_network.acls(account, wanted.vpc)) if wanted.vpc else []


def _dns(account: Account, wanted: Wanted, _now: datetime) -> list[Caution]:
    vpc = read_network.vpc(account, wanted.vpc.vpc_id) if wanted.vpc else None
    if wanted.vpc is None or vpc is None:
        return []
    return filters.check_dns(wanted.vpc, vpc, read_network.dns_servers(account, vpc))


def _endpoint_services(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    if not wanted.endpoints:
        return []
    return endpoint_services.check(wanted, endpoint_services.read(account, wanted))


def _workers(account: Account, wanted: Wanted) -> list[str]:
    """The workers' group as far as there is one: the given one, or what this stack has made already."""
    if wanted.vpc is None:
        return []
    if wanted.vpc.worker_group:
        return [wanted.vpc.worker_group]
    return [each.group_id for each in read_network.discovered(account, wanted) if has(each.tags, wanted.tags)]


def _private(account: Account, vpc: WantedVpc, zones: Sequence[str] | None = None) -> list[str]:
    """The address ranges of the private subnets, of all zones or of some."""
    found = read_network.subnets(account, vpc)
    ids = [name for zone, name in vpc.private.items() if zones is None or zone in zones]
    return [found[name].cidr for name in ids if name in found]


def _groups(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    if wanted.vpc is None:
        return []
    given = wanted.vpc.worker_group
    found = read_network.group(account, given) if given else None
    return [
        *groups.check_group(wanted, found, _private(account, wanted.vpc)),
        *groups.check_discovery(wanted, read_network.discovered(account, wanted)),
        *groups.check_cluster_tag(wanted, found),
    ]


def _offerings(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    return capacity.check_offerings(wanted, read_capacity.offerings(account, wanted))


def _reservations(account: Account, wanted: Wanted, now: datetime) -> list[Problem | Caution]:
    return capacity.check_reservations(wanted, read_capacity.reservations(account, wanted), now)


def _placement_groups(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    return capacity.check_placement_groups(wanted, read_capacity.placement_groups(account, wanted))


def _snapshots(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    return snapshots.check(wanted, snapshots.read(account, wanted))


def _volume_key(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    if wanted.volume_key is None:
        return volume_keys.check_default_key(wanted, volume_keys.read_default(account))
    return [
        *volume_keys.check_volume_key(wanted, volume_keys.read(account, wanted.volume_key)),
        *volume_keys.check_auto_scaling_role(wanted, volume_keys.has_auto_scaling_role(account)),
    ]


def _snapshot_keys(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    keys = {
        identity: volume_keys.read(account, found.key)
        for identity, found in snapshots.read(account, wanted).items()
        if found.key
    }
    return volume_keys.check_snapshot_keys(wanted, keys)


def _spot(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    if all(pool.purchase != "spot" for pool in wanted.pools):
        return []
    return capacity.check_spot_role(wanted, read_capacity.spot_role(account))


def _quotas(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    sized = snapshots.with_sizes(wanted, snapshots.read(account, wanted))
    return quotas.check_quotas(
        sized, read_capacity.limits(account, sized), read_capacity.used(account, sized)
    )


def _interfaces(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    limit = read_capacity.limit(account, quotas.INTERFACES)
    return interfaces.check(wanted, limit, interfaces.used(account, wanted))


def _version(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    if wanted.kubernetes is None:
        return []
    return eks_versions.check_version(wanted, eks_versions.read_versions(account))


def _update(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    if wanted.kubernetes is None:
        return []
    found = services_of.cluster(account, wanted.cluster)
    if found is None or not has(found.tags, wanted.tags):
        return []
    return eks_versions.check_update(wanted, found.version)


def _addons(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    return eks_versions.check_addons(wanted, eks_versions.read_addons(account, wanted))


def _machine_images(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    given = wanted.existing_cluster
    found = services_of.cluster(account, given.name) if given else None
    kubernetes = found.version if found else wanted.kubernetes
    if kubernetes is None:  # of a given cluster that is not there
        return []
    return machine_images.check(wanted, kubernetes, machine_images.read(account, wanted, kubernetes))


def _container_images(account: Account, wanted: Wanted, _now: datetime) -> list[Problem | Unasked]:
    own = services_of.caller(account).split(":")[4]
    return container_images.check(wanted, container_images.read(account, wanted, own))


def _cluster(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    given = wanted.existing_cluster
    if given is None:
        return []
    return services.check_cluster(given, services_of.cluster(account, given.name), wanted.region)


def _access(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    given = wanted.existing_cluster
    found = services_of.cluster(account, given.name) if given else None
    if given is None or found is None:
        return []
    entries = services_of.access_entries(account, given.name)
    return services.check_access(given, found, services_of.caller(account), entries)


def _inside(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    given = wanted.existing_cluster
    found = services_of.cluster(account, given.name) if given else None
    if given is None or found is None or found.status != "ACTIVE":
        return []
    # The queue is the stack's where Karpenter is.
    queue = services.Name(key=inside.NAME_KEY, kind="SQS queue", name=wanted.queue or wanted.cluster)
    tags = services_of.taken(account, queue) or {}
    there = read_inside.inside(account, given, read_inside.reader(account, found))
    return inside.check(given, there, deployed=has(tags, wanted.tags))


def _network_plugin(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    given = wanted.existing_cluster
    found = services_of.cluster(account, given.name) if given and given.efa else None
    if given is None or found is None or found.status != "ACTIVE":
        return []
    version = read_inside.network_plugin(account, found, lambda: read_inside.reader(account, found))
    return inside.check_network_plugin(given, version)


def _gang_scheduler(account: Account, wanted: Wanted, _now: datetime) -> list[Caution]:
    given = wanted.existing_cluster
    found = services_of.cluster(account, given.name) if given else None
    if given is None or found is None or found.status != "ACTIVE":
        return []
    return gang_scheduler.check(given, gang_scheduler.read(read_inside.reader(account, found)))


def _provider(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    given = wanted.existing_cluster
    if given is None or given.oidc_provider_arn is None:
        return []
    found = services_of.provider(account, given.oidc_provider_arn)
    cluster = services_of.cluster(account, given.name)
    return services.check_provider(given, cluster.issuer if cluster else None, found)


def _lustre(account: Account, wanted: Wanted, _now: datetime) -> list[Problem | Unasked]:
    given = wanted.lustre
    if given is None:
        return []
    blocks = _private(account, wanted.vpc, given.zones) if wanted.vpc else []
    found = services_of.lustre(account, given, _workers(account, wanted), blocks)
    return services.check_lustre(given, found, wanted.region)


def _buckets(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
    found = {bucket.name: services_of.bucket(account, bucket.name) for bucket in wanted.buckets}
    return services.check_buckets(wanted.buckets, found, wanted.region)


def _names(kind: str) -> Check:
    """The check of one kind's names: each needs permissions of its own."""

    def check(account: Account, wanted: Wanted, _now: datetime) -> list[Problem]:
        mine = [name for name in services.names(wanted) if name.kind == kind]
        found = ((name, services_of.taken(account, name)) for name in mine)
        return services.check_names(wanted, {name: tags for name, tags in found if tags is not None})

    return check


CHECKS: Final[dict[str, Check]] = {
    "who deploys": _caller,
    "where from": _ranges,
    **{f"administrators: {kind}s": _people(kind) for kind in administrators.KINDS},
    "zones": _zones,
    "VPC": _vpc,
    "subnets": _subnets,
    "free addresses": _addresses,
    "tags of the network": _tags,
    "ways out and endpoints": _ways_out,
    "groups of endpoints": _endpoint_groups,
    "network ACLs": _acls,
    "DNS servers": _dns,
    "endpoint services": _endpoint_services,
    "security groups": _groups,
    "instance types": _offerings,
    "capacity reservations": _reservations,
    "placement groups": _placement_groups,
    "snapshots": _snapshots,
    "key of nodes' disks": _volume_key,
    "keys of snapshots": _snapshot_keys,
    "role for spot machines": _spot,
    "service quotas": _quotas,
    "network interfaces": _interfaces,
    "Kubernetes version": _version,
    "Kubernetes update": _update,
    "versions of add-ons": _addons,
    "machine images": _machine_images,
    "container images": _container_images,
    "given cluster": _cluster,
    "rights in the given cluster": _access,
    "what is in the given cluster": _inside,
    "VPC CNI of the given cluster": _network_plugin,
    "KAI Scheduler of the given cluster": _gang_scheduler,
    "OIDC provider": _provider,
    "given file system": _lustre,
    "given buckets": _buckets,
    **{f"free names: {kind}": _names(kind) for kind in services.NAME_KINDS},
}
