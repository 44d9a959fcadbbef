"""Reading images, charts and manifests of a stack file; part of `infra.settings`."""

from __future__ import annotations

from pathlib import Path

from infra import formats, versions
from infra.model import Images, Sources
from infra.reading import Problems, Section

OURS = ("launcher", "trainer")


def read_images(problems: Problems, value: object) -> Images:
    """The images: built by the stack, or given with their digests."""
    section = Section(problems, "trainyard:images", value)
    build = section.boolean("build", True)
    launcher = _image(section, "launcher")
    trainer = _image(section, "trainer")
    if not build and "build" not in section.wrong:
        for key, image in (("launcher", launcher), ("trainer", trainer)):
            if image is None and key not in section.wrong:
                section.reject(key, f"is missing; build: false needs {formats.IMAGE_WANTED}")
    result = Images(
        build=build,
        launcher=launcher,
        trainer=trainer,
        placeholder=section.text(
            "placeholder", versions.PLACEHOLDER_IMAGE, pattern=formats.IMAGE, wanted=formats.IMAGE_WANTED
        ),
        training_operator=_image(section, "trainingOperator"),
        device_plugin=section.text(
            "devicePlugin", versions.DEVICE_PLUGIN_IMAGE, pattern=formats.IMAGE, wanted=formats.IMAGE_WANTED
        ),
        base_images=_base_images(section, given={"launcher": launcher, "trainer": trainer}),
        mirror=section.optional_text("mirror", pattern=formats.MIRROR, wanted=formats.MIRROR_WANTED),
    )
    section.done()
    return result


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
