"""The settings of a stack: the values of its stack file, checked, with defaults.

Everything that is wrong is told at once. Reading is pure: `read` takes the raw configuration, `load` gets it from
the running program.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from components.shared import cidr
from components.shared.contract import ENV_REGION, RUN_ID_MAX_LENGTH
from components.shared.pool import GPU, NEURON, Pool
from infra import versions
from infra.model import Cluster, Images, Network, Settings, Sources, Storage, Training
from infra.pool_settings import known_type, read_pools, zone_of
from infra.reading import Problems, Section, hint

PROJECT: Final = "trainyard"
KEYS: Final = (
    "cluster",
    "images",
    "network",
    "pools",
    "protectData",
    "sources",
    "storage",
    "training",
)

REGION: Final = r"[a-z]{2}(-[a-z]+)+-[0-9]"
# EKS takes more, but the names of the bucket and of the repositories begin with it, which have lower case only, and
# those of EventBridge rules have 64 characters, of which ours and an automatic suffix take 33
# (https://docs.aws.amazon.com/eventbridge/latest/APIReference/API_PutRule.html).
CLUSTER_NAME: Final = r"[a-z]([a-z0-9-]{0,29}[a-z0-9])?"
CLUSTER_NAME_WANTED: Final = "lower case letters, digits and hyphens, a letter first, at most 31 characters"
RUN_ID: Final = rf"[a-z0-9]([-a-z0-9]{{0,{RUN_ID_MAX_LENGTH - 2}}}[a-z0-9])?"
PRINCIPAL: Final = r"arn:aws[a-z-]*:iam::[0-9]{12}:(user|role)/.+"
CIDR: Final = r"[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}"
IMAGE: Final = r"[a-z0-9][a-z0-9._:/-]*(@sha256:[0-9a-f]{64})"
QUANTITY: Final = r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?"
# Bottlerocket has another layout of disks and a device plugin of its own.
AMI_ALIAS: Final = r"al2023@v[0-9]{8}"

IMAGE_WANTED: Final = "an image with its digest, such as registry/name@sha256:<64 hexadecimal digits>"


class SettingsError(Exception):
    """The stack file is wrong; `lines` holds one line per mistake."""

    def __init__(self, stack: str, lines: list[str]) -> None:
        self.lines = lines
        count = f"{len(lines)} mistake{'s' if len(lines) > 1 else ''}"
        super().__init__(f"Pulumi.{stack}.yaml has {count}:\n" + "\n".join(f"  {line}" for line in lines))


def load(stack: str) -> Settings:
    """The settings of the program that is running.

    Raises:
        SettingsError: the stack file is wrong.
    """
    from pulumi.runtime.config import CONFIG, get_config_env

    return read(stack, {**get_config_env(), **CONFIG.get()})


def read(stack: str, config: Mapping[str, Any]) -> Settings:
    """The settings in `config`: full keys (`trainyard:pools`) to what the engine passes, texts or JSON.

    Raises:
        SettingsError: with every mistake.
    """
    problems = Problems()
    raw = {
        key.removeprefix(f"{PROJECT}:"): _decoded(value)
        for key, value in config.items()
        if key.startswith(f"{PROJECT}:")
    }
    region = _region(problems, config.get("aws:region"))
    network = _network(problems, raw.get("network"), region)
    pools = read_pools(problems, raw.get("pools"), region, network.zones)
    for index, pool in enumerate(pools):
        if pool and pool.resource == NEURON:
            # Nothing here tells Kubernetes of these devices: machines would be bought and never be used.
            problems.add(
                f"{PROJECT}:pools[{index}].instanceType",
                f"'{pool.instance_type}' has Neuron devices, which no worker can get here;"
                " it must be a type with NVIDIA GPUs or without accelerators",
            )
    result = Settings(
        stack=stack,
        region=region,
        network=network,
        cluster=_cluster(problems, raw.get("cluster"), stack),
        pools=tuple(pool for pool in pools if pool),
        images=_images(problems, raw.get("images")),
        storage=_storage(problems, raw.get("storage")),
        training=_training(problems, raw.get("training"), pools),
        sources=_sources(problems, raw.get("sources")),
        protect_data=_protect(problems, raw.get("protectData")),
    )
    for key in raw:
        if key not in KEYS:
            problems.add(
                f"{PROJECT}:{key}", f"is not a known key{hint(key, KEYS)} (known: {', '.join(KEYS)})"
            )
    if problems.lines:
        raise SettingsError(stack, problems.lines)
    return result


def _decoded(value: Any) -> Any:
    """The engine passes mappings, lists and scalars all as text; a text that is no JSON is meant as it stands."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _region(problems: Problems, value: object) -> str:
    if isinstance(value, str) and re.fullmatch(REGION, value):
        return value
    said = "is missing" if value is None else f"'{value}' is not a region"
    problems.add("aws:region", f"{said}; it must be the name of an AWS region, such as us-west-2")
    return ""


def _network(problems: Problems, value: object, region: str) -> Network:
    section = Section(problems, f"{PROJECT}:network", value)
    block = section.text("cidr", "10.64.0.0/16", pattern=CIDR, wanted="an IPv4 range such as 10.64.0.0/16")
    zones = section.texts("zones", tuple(f"{region}{letter}" for letter in "abc"), wanted="a zone's name")
    if "zones" not in section.wrong:
        if len(zones) not in cidr.ZONES:
            section.reject("zones", f"has {len(zones)} entries; it must have 2 to 4")
        if len(set(zones)) != len(zones):
            section.reject("zones", "names a zone twice; each must be another one")
        for index, zone in enumerate(zones):
            if region and not zone_of(region, zone):
                section.reject(
                    f"zones[{index}]", f"'{zone}' is not in {region}; it must be a zone such as {region}a"
                )
    if "cidr" not in section.wrong:
        try:
            cidr.subnets(block, 3)
        except ValueError as error:
            section.reject("cidr", f"{error}; it must be a private range of /16 to /20, such as 10.64.0.0/16")
    nat = section.boolean("natPerZone", False)
    section.done()
    return Network(cidr=block, zones=zones, nat_per_zone=nat)


def _cluster(problems: Problems, value: object, stack: str) -> Cluster:
    section = Section(problems, f"{PROJECT}:cluster", value)
    name = section.text("name", f"{PROJECT}-{stack}", pattern=CLUSTER_NAME, wanted=CLUSTER_NAME_WANTED)
    if "name" not in section.wrong and not re.fullmatch(CLUSTER_NAME, name):
        section.reject("name", f"is '{name}' by the stack's name; it must be given as {CLUSTER_NAME_WANTED}")
    version = section.choice("version", versions.KUBERNETES_SUPPORTED, versions.KUBERNETES)
    administrators = section.texts(
        "administrators",
        None,
        pattern=PRINCIPAL,
        wanted="the ARN of an IAM user or role, such as arn:aws:iam::123456789012:role/platform",
    )
    if section.has("administrators") and not administrators and "administrators" not in section.wrong:
        section.reject("administrators", "is empty; it must name at least the user or role that deploys")
    for arn in sorted({arn for arn in administrators if administrators.count(arn) > 1}):
        section.reject("administrators", f"names '{arn}' twice; each must be another one")
    public = section.texts(
        "publicAccessCidrs", (), pattern=CIDR, wanted="an IPv4 range such as 203.0.113.0/24"
    )
    for index, block in enumerate(public):
        if block.endswith("/0"):
            section.reject(
                f"publicAccessCidrs[{index}]",
                f"'{block}' is the whole internet; it must be the range that you deploy from",
            )
        elif f"publicAccessCidrs[{index}]" not in section.wrong:
            try:
                ipaddress.IPv4Network(block)
            except ValueError as error:
                section.reject(
                    f"publicAccessCidrs[{index}]", f"{error}; it must be a range such as 203.0.113.0/24"
                )
    nodes = section.section("systemNodes")
    instance_type = nodes.text("instanceType", "m6i.large")
    known_type(nodes, "instanceType", instance_type)
    count = nodes.integer("count", 2, least=1, most=20)
    nodes.done()
    replicas = section.integer("karpenterReplicas", 2, least=1, most=2)
    if replicas > count and not nodes.wrong:
        section.reject(
            "karpenterReplicas",
            f"{replicas} need a system node each; it must be at most systemNodes.count ({count})",
        )
    addons = section.text_map("addonVersions")
    ami = section.text(
        "ami", versions.AMI, pattern=AMI_ALIAS, wanted=f"an alias with a version, such as {versions.AMI}"
    )
    days = section.integer("logRetentionDays", 365, least=1, most=3653, unit="days")
    section.done()
    return Cluster(
        name=name,
        version=version,
        administrators=administrators,
        public_access_cidrs=public,
        system_instance_type=instance_type,
        system_count=count,
        karpenter_replicas=replicas,
        addon_versions=addons,
        ami=ami,
        log_retention_days=days,
    )


def _images(problems: Problems, value: object) -> Images:
    section = Section(problems, f"{PROJECT}:images", value)
    build = section.boolean("build", True)
    launcher = section.optional_text("launcher", pattern=IMAGE, wanted=IMAGE_WANTED)
    trainer = section.optional_text("trainer", pattern=IMAGE, wanted=IMAGE_WANTED)
    if not build and "build" not in section.wrong:
        for key, image in (("launcher", launcher), ("trainer", trainer)):
            if image is None:
                section.reject(key, f"is missing; build: false needs {IMAGE_WANTED}")
    placeholder = section.text("placeholder", versions.PLACEHOLDER_IMAGE, pattern=IMAGE, wanted=IMAGE_WANTED)
    operator = section.optional_text("trainingOperator", pattern=IMAGE, wanted=IMAGE_WANTED)
    plugin = section.optional_text("devicePlugin", pattern=IMAGE, wanted=IMAGE_WANTED)
    section.done()
    return Images(
        build=build,
        launcher=launcher,
        trainer=trainer,
        placeholder=placeholder,
        training_operator=operator,
        device_plugin=plugin or versions.DEVICE_PLUGIN_IMAGE,
    )


def _storage(problems: Problems, value: object) -> Storage:
    section = Section(problems, f"{PROJECT}:storage", value)
    prefix = section.text(
        "prefix",
        "models",
        pattern=r"[a-zA-Z0-9][a-zA-Z0-9/_.-]*[a-zA-Z0-9]",
        wanted="a key prefix such as models",
    )
    days = section.integer("keepOldVersionsDays", 30, least=1, unit="days")
    section.done()
    return Storage(prefix=prefix, keep_old_versions_days=days)


def _training(problems: Problems, value: object, pools: list[Pool | None]) -> Training:
    if value is None:
        problems.add(
            f"{PROJECT}:training", "is missing; it must be a mapping with pool, minNodes and maxNodes"
        )
        value = {}
        problems = Problems()
    section = Section(problems, f"{PROJECT}:training", value)
    pool = _training_pool(section, pools)
    run_id = section.optional_text(
        "runId",
        pattern=RUN_ID,
        wanted=f"lower case letters, digits and hyphens, at most {RUN_ID_MAX_LENGTH}",
    )
    least = section.integer("minNodes", least=1, unit="machines")
    most = section.integer("maxNodes", least=1, unit="machines")
    if not {"minNodes", "maxNodes"} & section.wrong and least > most:
        section.reject("minNodes", f"{least} is more than maxNodes; it must be at most {most}")
    device = section.choice("device", ("cuda", "cpu"), "cuda")
    if pool and device == "cuda" and "device" not in section.wrong and pool.resource != GPU:
        section.reject("device", f"cuda needs GPUs and {pool.instance_type} has none; it must be cpu")
    processes = section.integer("processesPerNode", (pool.accelerators if pool else 0) or 1, least=1)
    if pool and device == "cuda" and pool.accelerators and processes > pool.accelerators:
        section.reject(
            "processesPerNode",
            f"{processes} is more than the GPUs of {pool.instance_type}; it must be at most {pool.accelerators}",
        )
    result = Training(
        pool=pool or _STAND_IN,
        run_id=run_id,
        min_nodes=least,
        max_nodes=most,
        device=device,
        processes_per_node=processes,
        capacity_deadline_seconds=section.integer("capacityDeadlineSeconds", 1200, least=10, unit="seconds"),
        hold_seconds=section.integer("holdSeconds", 60, least=0, unit="seconds"),
        active_deadline_seconds=section.optional_integer("activeDeadlineSeconds", least=60, unit="seconds"),
        data=section.text("data", "digits", wanted="digits, or the path of IDX files in the trainer's image"),
        args=_arguments(section),
        env=_environment(section),
        cpu=_quantity(section, "cpu", pool.worker_cpu if pool else "1"),
        memory=_quantity(section, "memory", pool.worker_memory if pool else "1Gi"),
        shared_memory=_quantity(section, "sharedMemory", "8Gi"),
    )
    section.done()
    return result


def _quantity(section: Section, key: str, default: str) -> str:
    return section.text(key, default, pattern=QUANTITY, wanted="a quantity such as 500m or 8Gi, in quotes")


def _environment(section: Section) -> dict[str, str]:
    env = section.text_map("env")
    for name in env:
        if name == ENV_REGION or name.startswith("TRAINYARD_"):
            section.reject(f"env.{name}", "is set by the stack itself; it must be another name")
    return env


def _arguments(section: Section) -> tuple[str, ...]:
    return section.texts("args", (), wanted="a text (numbers in quotes)")


def _training_pool(section: Section, pools: list[Pool | None]) -> Pool | None:
    name = section.text("pool", wanted="the name of a pool")
    if "pool" in section.wrong or not pools:
        return None
    for pool in pools:
        if pool and pool.name == name:
            return pool
    if None in pools:
        # The one that is meant may be among those with mistakes of their own.
        return None
    names = [pool.name for pool in pools if pool]
    section.reject("pool", f"'{name}' is no pool here{hint(name, names)} (pools: {', '.join(names)})")
    return None


_STAND_IN: Final = Pool(
    name="",
    instance_type="",
    zone="",
    max_nodes=1,
    purchase="on-demand",
    capacity_reservation_ids=(),
    root_volume_gib=20,
    idle_seconds=30,
    resource="",
    accelerators=0,
    vcpus=1,
    memory_gib=1,
    nvme_gb=0,
)


def _sources(problems: Problems, value: object) -> Sources:
    section = Section(problems, f"{PROJECT}:sources", value)
    chart = section.text("karpenterChart", versions.KARPENTER_CHART)
    crds = section.text("karpenterCrdChart", versions.KARPENTER_CRD_CHART)
    if chart.startswith("oci://") != crds.startswith("oci://"):
        section.reject(
            "karpenterCrdChart",
            f"'{crds}' does not go with karpenterChart '{chart}'; both must be published charts or both directories",
        )
    operator = section.text("trainingOperator", versions.TRAINING_OPERATOR_MANIFESTS)
    section.done()
    return Sources(
        karpenter_chart=chart,
        karpenter_crd_chart=crds,
        # A chart in a directory has the version that stands in its Chart.yaml.
        karpenter_version=versions.KARPENTER if chart.startswith("oci://") else None,
        training_operator=operator,
    )


def _protect(problems: Problems, value: object) -> bool:
    if value is None:
        return True
    if not isinstance(value, bool):
        problems.add(f"{PROJECT}:protectData", f"{value!r} is not right; it must be true or false")
        return True
    return value
