"""The settings of a stack: its stack file, checked, with defaults.

All errors are reported together. `read` is pure: it takes the raw configuration. `load` gets it from the running
program. The models (`model.StackConfig` and one module per section) validate single values; each section's `check_...`
function checks its rules, and `rules` those of several sections.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from infra.settings import provider, rules
from infra.settings.cluster import Cluster, check_cluster, prefix_of
from infra.settings.images import Images, check_images, check_sources
from infra.settings.model import KEYS, PROJECT, Settings, StackConfig, default_name
from infra.settings.network import Network, check_network
from infra.settings.pools import check_pools
from infra.settings.problems import Problems, Section, sections, validate
from infra.settings.provider import Provider
from infra.settings.queues import check_queues
from infra.settings.storage import (
    Lustre,
    LustreLink,
    ServiceAccount,
    check_service_accounts,
    check_storage,
)
from infra.settings.tags import merge
from infra.settings.training import Training, check_training
from trainyard import stack_files

__all__ = [
    "KEYS",
    "PROJECT",
    "Cluster",
    "Images",
    "Lustre",
    "LustreLink",
    "Network",
    "Provider",
    "ServiceAccount",
    "Settings",
    "SettingsError",
    "SettingsNotPassedError",
    "Training",
    "load",
    "read",
]


class SettingsError(Exception):
    """The stack file is invalid. `lines` has one line per error."""

    def __init__(self, stack: str, lines: list[str]) -> None:
        self.lines = lines
        count = f"{len(lines)} mistake{'s' if len(lines) > 1 else ''}"
        name = stack_files.display_name(stack_files.path_of(stack))
        super().__init__(f"{name} has {count}:\n" + "\n".join(f"  {line}" for line in lines))


class SettingsNotPassedError(Exception):
    """Pulumi did not read the stack file, because it is in `examples/stacks`."""

    def __init__(self, stack: str, file: str) -> None:
        super().__init__(
            f"stack {stack}: Pulumi read no settings, because the stack's file is {file}. Add --config-file {file}"
        )


def load(stack: str) -> Settings:
    """Return the settings of the running program.

    Raises:
        SettingsError: The stack file is invalid.
        SettingsNotPassedError: The stack file is an example, and the option `--config-file` is missing.
    """
    from pulumi.runtime.config import CONFIG, get_config_env, is_config_secret

    config = {**get_config_env(), **CONFIG.get()}
    file = stack_files.path_of(stack)
    # Pulumi.yaml gives `trainyard:pools` an empty list for a default, and `aws:region` none.
    is_empty = "aws:region" not in config and not _decoded("trainyard:pools", config.get("trainyard:pools"))
    if is_empty and stack_files.is_example(file):
        raise SettingsNotPassedError(stack, stack_files.display_name(file))
    return read(stack, config, secrets=frozenset(key for key in config if is_config_secret(key)))


def read(
    stack: str,
    config: Mapping[Any, Any],
    now: datetime | None = None,
    *,
    secrets: frozenset[str] = frozenset(),
    takes_ended: bool = False,
) -> Settings:
    """Return the settings in `config`: full keys (`trainyard:pools`) with what the engine passes, texts or JSON.

    Args:
        stack: The stack's name.
        config: The configuration.
        now: A time with its zone; None for the present time. Reservations that ended before are refused.
        secrets: The keys whose values the engine decrypted. They are refused, because the resources contain the
            settings in plain text.
        takes_ended: Accept reservations that have ended, for callers that deploy nothing.

    Raises:
        SettingsError: With all errors.
    """
    problems = Problems()
    provider.check_namespaces(problems, config, PROJECT, KEYS)
    decoded = {key: _decoded(key, value) for key, value in config.items() if isinstance(key, str)}
    for key in list(decoded):
        is_read = key.startswith(f"{PROJECT}:") or key in provider.FULL_KEYS
        if is_read and provider.has_secret(problems, key, decoded[key], secrets):
            # Report nothing else of the section: an encrypted value can't be checked, and a decrypted one is secret.
            del decoded[key]
            problems.invalidate(key)
    raw = {
        key.removeprefix(f"{PROJECT}:"): value
        for key, value in decoded.items()
        if key.startswith(f"{PROJECT}:")
    }
    region, provider_settings = provider.read_provider(problems, decoded)
    values = validate(problems, StackConfig, raw)
    settings = _check(
        problems, stack, values, region, provider_settings, now or datetime.now(UTC), takes_ended
    )
    lines = problems.lines(f"{PROJECT}:{each.alias}" for each in StackConfig.model_fields.values())
    if lines:
        raise SettingsError(stack, lines)
    return settings


def _check(
    problems: Problems,
    stack: str,
    values: StackConfig,
    region: str,
    provider_settings: Provider,
    now: datetime,
    takes_ended: bool,
) -> Settings:
    """Check the rules of each section, then the rules of several sections."""

    def part(key: str, section: Any) -> Any:
        return Section(problems, f"{PROJECT}:{key}", section)

    network = check_network(
        part("network", values.network), region, has_existing_cluster=values.cluster.existing is not None
    )
    cluster = check_cluster(part("cluster", values.cluster), default_name(stack), region)
    if not values.pools:
        problems.add(
            f"{PROJECT}:pools",
            "is missing; it must list at least one pool with name, instanceType, zone, maxNodes",
        )
    pools = check_pools(
        sections(problems, f"{PROJECT}:pools", values.pools),
        region,
        network.zones,
        cluster.name,
        now,
        accepts_ended=takes_ended,
    )
    accounts = check_service_accounts(
        sections(problems, f"{PROJECT}:serviceAccounts", values.service_accounts),
        prefix_of(cluster.name, default_name(stack)),
    )
    queues = check_queues(sections(problems, f"{PROJECT}:queues", values.queues), pools, accounts)
    settings = Settings(
        stack=stack,
        region=region,
        provider=provider_settings,
        tags=merge(problems, values.tags, provider_settings.tags),
        network=network,
        cluster=cluster,
        pools=tuple(each.pool for each in pools if not each.wrong),
        images=check_images(part("images", values.images), region),
        storage=check_storage(part("storage", values.storage), network, region, pools),
        training=check_training(part("training", values.training), pools) if values.training else None,
        queues=tuple(queue for queue in queues if queue),
        service_accounts=accounts,
        debug_pod=values.debug_pod,
        node_check=values.node_check,
        mpi=values.mpi,
        sources=check_sources(part("sources", values.sources)),
        protect_data=values.protect_data,
    )
    rules.check(problems, settings, pools, queues, accepts_ended=takes_ended)
    return settings


def _decoded(key: str, value: Any) -> Any:
    """Decode JSON, because the engine passes all values as texts. A text that is not JSON is not changed.

    The engine passes "" for a key without a value.
    """
    if value == "":
        return None
    if not isinstance(value, str) or key in provider.TEXTS:
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
