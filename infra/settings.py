"""The settings of a stack: the values of its stack file, checked, with defaults.

Everything that is wrong is told at once. Reading is pure: `read` takes the raw configuration, `load` gets it from
the running program.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from infra import config_keys, regions, rules
from infra.account_settings import read_service_accounts
from infra.cluster_settings import gives_cluster, read_cluster
from infra.image_settings import read_images, read_sources
from infra.model import Settings
from infra.network_settings import read_network
from infra.pool_settings import read_pools
from infra.provider_settings import read_provider
from infra.queue_settings import read_queues
from infra.reading import Asked, Problems, hint
from infra.storage_settings import read_storage
from infra.training_settings import read_training
from trainyard import stack_files

PROJECT: Final = "trainyard"
KEYS: Final = (
    "cluster",
    "debugPod",
    "images",
    "mpi",
    "network",
    "nodeCheck",
    "pools",
    "protectData",
    "queues",
    "serviceAccounts",
    "sources",
    "storage",
    "training",
)


class SettingsError(Exception):
    """The stack file is wrong; `lines` holds one line per mistake."""

    def __init__(self, stack: str, lines: list[str]) -> None:
        self.lines = lines
        count = f"{len(lines)} mistake{'s' if len(lines) > 1 else ''}"
        name = stack_files.display_name(stack_files.path_of(stack))
        super().__init__(f"{name} has {count}:\n" + "\n".join(f"  {line}" for line in lines))


class SettingsNotPassedError(Exception):
    """Pulumi did not read the stack's file, which is in `examples/stacks`."""

    def __init__(self, stack: str, file: str) -> None:
        super().__init__(
            f"stack {stack}: Pulumi read no settings, because the stack's file is {file}. Add --config-file {file}"
        )


def load(stack: str) -> Settings:
    """The settings of the program that is running.

    Raises:
        SettingsError: the stack file is wrong.
        SettingsNotPassedError: the stack file is an example, and the option `--config-file` is missing.
    """
    from pulumi.runtime.config import CONFIG, get_config_env, is_config_secret

    config = {**get_config_env(), **CONFIG.get()}
    file = stack_files.path_of(stack)
    # Pulumi.yaml gives `trainyard:pools` an empty list for a default, and `aws:region` none.
    is_empty = "aws:region" not in config and not _decoded(config.get("trainyard:pools"))
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
    """The settings in `config`: full keys (`trainyard:pools`) to what the engine passes, texts or JSON.

    `now` is an aware time, by default the clock's: what has ended by then is refused, unless `takes_ended`, for whoever
    deploys nothing. `secrets` are the keys whose values the engine decrypted, which is refused: a setting stands in
    plain text in what it makes.

    Raises:
        SettingsError: with every mistake.
    """
    problems = Problems(takes_ended=takes_ended)
    settings = _read(problems, stack, config, now or datetime.now(UTC), secrets)
    if problems.lines:
        raise SettingsError(stack, problems.lines)
    return settings


def asked(stack: str, config: Mapping[str, Any]) -> dict[str, Asked]:
    """Every key that the readers asked for on their way through `config`, right or wrong, by its path."""
    problems = Problems()
    _read(problems, stack, config, datetime.now(UTC), frozenset())
    return problems.asked


def _read(
    problems: Problems, stack: str, config: Mapping[Any, Any], now: datetime, secrets: frozenset[str]
) -> Settings:
    config_keys.check(problems, config, PROJECT, KEYS)
    raw = {
        key.removeprefix(f"{PROJECT}:"): _decoded(value)
        for key, value in config.items()
        if isinstance(key, str) and key.startswith(f"{PROJECT}:")
    }
    for key in raw:
        if config_keys.secret(problems, f"{PROJECT}:{key}", raw[key], secrets):
            # What is encrypted says nothing more, and what was is not to be shown.
            raw[key] = None
            problems.hidden.add(f"{PROJECT}:{key}")
    region = _region(problems, config.get("aws:region"))
    provider = read_provider(
        problems, {key: _decoded(value) for key, value in config.items() if isinstance(key, str)}
    )
    given_cluster = gives_cluster(raw.get("cluster"))
    network = read_network(problems, raw.get("network"), region, given_cluster=given_cluster)
    cluster = read_cluster(problems, raw.get("cluster"), PROJECT, stack)
    pools = read_pools(problems, raw.get("pools"), region, network.zones, cluster.name, now)
    accounts = read_service_accounts(problems, raw.get("serviceAccounts"), cluster.prefix)
    queues = read_queues(problems, raw.get("queues"), pools, accounts)
    settings = Settings(
        stack=stack,
        region=region,
        provider=provider,
        network=network,
        cluster=cluster,
        pools=tuple(each.pool for each in pools if not each.wrong),
        images=read_images(problems, raw.get("images"), region),
        storage=read_storage(problems, raw.get("storage"), network, region, pools),
        training=read_training(problems, raw.get("training"), pools),
        queues=tuple(queue for queue in queues if queue),
        service_accounts=accounts,
        debug_pod=_switch(problems, "debugPod", raw.get("debugPod"), default=False),
        node_check=_switch(problems, "nodeCheck", raw.get("nodeCheck"), default=False),
        mpi=_switch(problems, "mpi", raw.get("mpi"), default=False),
        sources=read_sources(problems, raw.get("sources")),
        protect_data=_switch(problems, "protectData", raw.get("protectData"), default=True),
    )
    for key in raw:
        if key not in KEYS:
            problems.add(
                f"{PROJECT}:{key}", f"is not a known key{hint(key, KEYS)} (known: {', '.join(KEYS)})"
            )
    rules.check(problems, settings, queues)
    return settings


def _decoded(value: Any) -> Any:
    """The engine passes mappings, lists and scalars all as text; a text that is no JSON is meant as it stands."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _region(problems: Problems, value: object) -> str:
    if isinstance(value, str) and value in regions.known():
        return value
    said = "is missing" if value is None else f"'{value}' is not a known region"
    near = hint(str(value), regions.known())
    problems.add("aws:region", said + (near or "; it must be the name of an AWS region, such as us-west-2"))
    return ""


def _switch(problems: Problems, key: str, value: object, *, default: bool) -> bool:
    path = f"{PROJECT}:{key}"
    problems.asked[path] = Asked(kind="true or false", default=str(default).lower())
    if value is None:
        return default
    if not isinstance(value, bool):
        problems.add(path, f"{value!r} is invalid; it must be true or false")
        return default
    return value
