"""Reading images, charts and manifests of a stack file; part of `infra.settings`."""

from __future__ import annotations

import re
from pathlib import Path

from components.documents.device_plugins import known_wrong
from components.documents.images import mirrored
from components.documents.pool import GPU, NEURON
from infra import eks_registry, formats, versions
from infra.model import Images, Sources
from infra.reading import Problems, Section
from trainyard.k8s import names

OURS = ("launcher", "trainer")


def read_images(problems: Problems, value: object, region: str) -> Images:
    """The images: built by the stack, or given with their digests."""
    section = Section(problems, "trainyard:images", value)
    build = section.boolean("build", True)
    launcher = _image(section, "launcher")
    trainer = _image(section, "trainer")
    if not build and "build" not in section.wrong:
        for key, image in (("launcher", launcher), ("trainer", trainer)):
            if image is None and key not in section.wrong:
                section.reject(key, f"is missing; build: false needs {formats.IMAGE_WANTED}")
    mirror = section.optional_text("mirror", pattern=formats.MIRROR, wanted=formats.MIRROR_WANTED)
    result = Images(
        build=build,
        launcher=launcher,
        trainer=trainer,
        placeholder=_others(section, "placeholder", versions.PLACEHOLDER_IMAGE, mirror),
        training_operator=_image(section, "trainingOperator")
        or (mirrored(versions.TRAINING_OPERATOR_IMAGE, mirror) if mirror else None),
        device_plugin=_plugin(section, "devicePlugin", GPU, versions.DEVICE_PLUGIN_IMAGE, mirror),
        efa_device_plugin=_plugin(
            section,
            "efaDevicePlugin",
            names.EFA_RESOURCE,
            eks_registry.efa_plugin(region or "us-west-2"),
            None,
        ),
        neuron_device_plugin=_plugin(
            section, "neuronDevicePlugin", NEURON, versions.NEURON_PLUGIN_IMAGE, mirror
        ),
        kubectl_delivery=_others(section, "kubectlDelivery", versions.KUBECTL_DELIVERY_IMAGE, mirror),
        debug=_others(section, "debug", versions.DEBUG_IMAGE, mirror),
        base_images=_base_images(section, given={"launcher": launcher, "trainer": trainer}),
        package_index=_address(
            section,
            "packageIndex",
            formats.HTTPS_ADDRESS,
            formats.PACKAGE_INDEX_WANTED,
            needed=launcher is None or trainer is None,
            given="images.launcher and images.trainer are",
        ),
        debian_mirror=_address(
            section,
            "debianMirror",
            formats.DEBIAN_MIRROR,
            formats.DEBIAN_MIRROR_WANTED,
            needed=trainer is None,
            given="images.trainer is",
        ),
        efa_installer=_address(
            section,
            "efaInstaller",
            formats.HTTPS_ADDRESS,
            formats.EFA_INSTALLER_WANTED,
            needed=trainer is None,
            given="images.trainer is",
        ),
        mirror=mirror,
    )
    section.done()
    return result


def _others(section: Section, key: str, default: str, mirror: str | None) -> str:
    """An image of somebody else: as it is given, or the pinned one, from the mirror where there is one."""
    given = section.text(key, default, pattern=formats.IMAGE, wanted=formats.IMAGE_WANTED)
    return given if section.has(key) else mirrored(default, mirror)


def _plugin(section: Section, key: str, resource: str, default: str, mirror: str | None) -> str:
    """A device plugin's image; releases that are known to do harm are refused."""
    image = _others(section, key, default, mirror)
    if key not in section.wrong and (wrong := known_wrong(resource, image)):
        section.reject(key, wrong)
    return image


def _image(section: Section, key: str) -> str | None:
    return section.optional_text(key, pattern=formats.IMAGE, wanted=formats.IMAGE_WANTED)


def _base_images(section: Section, given: dict[str, str | None]) -> dict[str, str]:
    bases = section.section("baseImages")
    found: dict[str, str] = {}
    for name in OURS:
        image = _image(bases, name)
        if image is None or name in bases.wrong:
            continue
        if given[name] is not None:
            bases.reject(
                name, f"is given, but images.{name} is, too, so that nothing is built; leave one out"
            )
        found[name] = image
    bases.done()
    return found


def _address(
    section: Section, key: str, pattern: str, wanted: str, *, needed: bool, given: str
) -> str | None:
    """An address that builds take something from; `given` are the keys without which it is of no use.

    What may be secret is not repeated.
    """
    # Accept any text here, because messages must not repeat a credential in the address.
    address = section.optional_text(key, pattern=r"[\s\S]*", wanted=wanted)
    if address is None or key in section.wrong:
        return None
    if "@" in address or "?" in address:
        section.reject(
            key,
            f"holds credentials, which would stay in the images' history for all to read; it must be {wanted}",
        )
    elif not re.fullmatch(pattern, address):
        section.reject(key, f"'{address}' is invalid; it must be {wanted}")
    elif not needed:
        section.reject(key, f"is given, but {given}, too, so that nothing is built; leave it out")
    return address


def read_sources(problems: Problems, value: object) -> Sources:
    """Where charts and manifests come from: published ones, or directories, which must be there."""
    section = Section(problems, "trainyard:sources", value)
    chart = section.text("karpenterChart", versions.KARPENTER_CHART)
    crds = section.text("karpenterCrdChart", versions.KARPENTER_CRD_CHART)
    if chart.startswith("oci://") != crds.startswith("oci://"):
        section.reject(
            "karpenterCrdChart",
            f"'{crds}' does not go with karpenterChart '{chart}'; both must be published charts or both directories",
        )
    operator = section.text("trainingOperator", versions.TRAINING_OPERATOR_MANIFESTS)
    _chart_digest(section, "karpenterChart", chart)
    _chart_digest(section, "karpenterCrdChart", crds)
    _directory(section, "karpenterChart", chart, "Chart.yaml")
    _directory(section, "karpenterCrdChart", crds, "Chart.yaml")
    _directory(section, "trainingOperator", operator, "kustomization.yaml")
    section.done()
    return Sources(
        karpenter_chart=chart,
        karpenter_crd_chart=crds,
        # A chart in a directory has the version that stands in its Chart.yaml.
        karpenter_version=versions.KARPENTER if chart.startswith("oci://") else None,
        training_operator=operator,
    )


def _chart_digest(section: Section, key: str, chart: str) -> None:
    """A published chart's version is pinned already; its address may end in the digest of what that version holds."""
    if chart.startswith("oci://") and not re.fullmatch(formats.CHART, chart) and key not in section.wrong:
        section.reject(key, f"'{chart}' is invalid; it must be {formats.CHART_WANTED}")


def _directory(section: Section, key: str, source: str, holds: str) -> None:
    """A source without a scheme is a directory of this machine."""
    if key in section.wrong or "://" in source or source.startswith(("github.com/", "git@")):
        return
    try:
        there = (Path(source) / holds).is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        section.reject(key, f"'{source}' is no directory with a {holds} here; it must be one, or an address")
