"""Write crd/, config/ and docs/torchrun-fields.md: `python -m trainyard.operator.manifests` (`make manifests`).

The definitions, the admission policies and the page come from the declarations of the fields. The Deployment, the roles
and the NetworkPolicies are plain YAML in config/. docs/torchrun.md lists the commands that apply them.

The committed Deployment has an image that does not exist. A stack sets its own image, as does
`--image NAME@sha256:DIGEST` (`make manifests IMAGE=NAME@sha256:DIGEST`).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from trainyard.operator import admission
from trainyard.operator.api.crd import definitions, reference_page

CHECKOUT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = "docs/torchrun-fields.md"
DEPLOYMENT: Final = "config/deployment.yaml"
# The files that are not generated.
PLAIN: Final = (DEPLOYMENT, "config/rbac/role.yaml", "config/network.yaml", "config/network-jobs.yaml")
_WRITTEN: Final = "# Written by `make manifests` from trainyard/operator; edits here are lost.\n"
_IMAGE: Final = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")


def files(image: str | None = None) -> dict[str, str]:
    """Return the text of each file by its path in the checkout. Raises ValueError if the image has no digest.

    `image` is the controller's image; None for that of the checkout's Deployment.
    """
    if image is not None and _IMAGE.fullmatch(image) is None:
        raise ValueError(f"image is {image!r}; it must be <name>@sha256:<64 hex digits>")
    plain = {name: (CHECKOUT / name).read_text() for name in PLAIN}
    if image is not None:
        plain[DEPLOYMENT] = _IMAGE.sub(lambda _: image, plain[DEPLOYMENT])
    return {
        **{f"crd/{name}": _WRITTEN + _yaml(definition) for name, definition in definitions().items()},
        **plain,
        "config/admission.yaml": _WRITTEN + "---\n".join(map(_yaml, admission.objects())),
        PAGE: reference_page(),
    }


def _yaml(document: Any) -> str:
    return yaml.dump(document, Dumper=_Plain, sort_keys=False, width=118, allow_unicode=True)


class _Plain(yaml.SafeDumper):
    """A YAML dumper without anchors. A value that occurs twice is written twice."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  (the base class's)
        return True


def main(arguments: Sequence[str]) -> int:
    """Write the files. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainyard.operator.manifests", description=__doc__)
    parser.add_argument("--into", type=Path, metavar="DIRECTORY", help="write there, not into the checkout")
    parser.add_argument("--image", metavar="NAME@sha256:DIGEST", help="the controller's image")
    parsed = parser.parse_args(arguments)
    try:
        for name, content in files(parsed.image).items():
            place = (parsed.into or CHECKOUT) / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)
            sys.stdout.write(f"wrote {place}\n")
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
