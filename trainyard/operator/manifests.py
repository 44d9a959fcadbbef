"""Write crd/, config/ and docs/torchrun-fields.md: `python -m trainyard.operator.manifests` (`make manifests`).

The files are committed. To install the controller, apply them in this order:

    kubectl apply -f crd/
    kubectl apply -f config/deployment.yaml
    kubectl apply -f config/rbac/role.yaml
    kubectl apply -f config/admission.yaml
    kubectl apply -f config/network.yaml

The committed Deployment has an image that does not exist. A stack sets its own image, as does
`--image NAME@sha256:DIGEST` (`make manifests IMAGE=NAME@sha256:DIGEST`).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from trainyard.operator import admission, deployment, rbac
from trainyard.operator.api import reference
from trainyard.operator.api.crd import definitions

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = "docs/torchrun-fields.md"
_WRITTEN: Final = "# Written by `make manifests` from trainyard/operator; edits here are lost.\n"
_PLACEHOLDER: Final = (
    "# The digest is known when the image is built: a stack sets its own image, as does\n"
    "# `make manifests IMAGE=NAME@sha256:DIGEST`.\n"
)
_EACH_NAMESPACE: Final = (
    "# For each namespace with jobs: kubectl apply -n NAMESPACE -f config/network-jobs.yaml\n"
)
_WIDTH: Final = 118


def files(image: str = deployment.IMAGE) -> dict[str, str]:
    """Return the text of each file by its path in the checkout."""
    note = _PLACEHOLDER if image == deployment.IMAGE else ""
    return {
        **{f"crd/{name}": _WRITTEN + _yaml(each) for name, each in definitions().items()},
        "config/deployment.yaml": _WRITTEN + note + "---\n".join(map(_yaml, deployment.objects(image))),
        "config/rbac/role.yaml": _WRITTEN + _role(),
        "config/admission.yaml": _WRITTEN + "---\n".join(map(_yaml, admission.objects())),
        "config/network.yaml": _WRITTEN + "---\n".join(map(_yaml, deployment.controller_policies())),
        "config/network-jobs.yaml": _WRITTEN
        + _EACH_NAMESPACE
        + "---\n".join(map(_yaml, deployment.job_namespace_policies())),
        PAGE: reference.render(),
    }


def _role() -> str:
    """Return the roles with each rule on one line, below its reason, and the bindings."""

    def written(role: Mapping[str, Any], rules: Sequence[rbac.Rule]) -> str:
        lines = "".join(f"  # {each.reason}\n  - {_line(each.manifest())}\n" for each in rules)
        return f"{_yaml(role)}rules:\n{lines}"

    cluster, own, *users = (written(role, rules) for role, rules in rbac.roles())
    return "---\n".join([cluster, own, *map(_yaml, rbac.bindings()), *users])


def _yaml(document: Any) -> str:
    return yaml.dump(document, Dumper=_Plain, sort_keys=False, width=_WIDTH, allow_unicode=True)


def _line(value: Mapping[str, Any]) -> str:
    return yaml.dump(value, Dumper=_Plain, default_flow_style=True, sort_keys=False, width=10**6).strip()


class _Plain(yaml.SafeDumper):
    """Write no anchors: a value that occurs twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  (the base class's)
        return True


def main(arguments: Sequence[str]) -> int:
    """Write the files. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainyard.operator.manifests", description=__doc__)
    parser.add_argument("--into", type=Path, metavar="DIRECTORY", help="write there, not into the checkout")
    parser.add_argument("--image", metavar="NAME@sha256:DIGEST", help="the controller's image")
    given = parser.parse_args(arguments)
    try:
        image = deployment.IMAGE if given.image is None else deployment.check_image(given.image)
        for name, content in files(image).items():
            place = (given.into or CHECKOUT) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)
            sys.stdout.write(f"wrote {place}\n")
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
