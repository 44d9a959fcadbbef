"""The objects of a kustomization, rendered by `kubectl kustomize` while the program runs.

`kustomize.v2.Directory` of pulumi-kubernetes would be asked for its objects only once the cluster is there: the first
preview would not show them.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from typing import Any

import pulumi
import yaml

# The parser in Python took half of a preview for the operator's manifests.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def render(source: str, definitions: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the objects of a kustomization, without the CustomResourceDefinitions that are not in `definitions`.

    The training operator has six definitions of 600 kB each: the C parser reads them in a second.

    Args:
        source: A directory or an address (https://github.com/kubernetes-sigs/kustomize, remote targets).
        definitions: Names such as `pytorchjobs.kubeflow.org`.

    Raises:
        pulumi.RunError: kubectl is missing, or the kustomization can't be read.
    """
    if shutil.which("kubectl") is None:
        raise pulumi.RunError(f"kubectl is needed on PATH to render the manifests of {source}")
    answer = subprocess.run(["kubectl", "kustomize", source], capture_output=True, text=True)
    if answer.returncode != 0:
        reason = " ".join(answer.stderr.split())
        raise pulumi.RunError(f"the manifests of {source} can't be rendered: {reason}")
    wanted = "\n---\n".join(_without_definitions(answer.stdout, definitions))
    return [each for each in yaml.load_all(wanted, Loader=_Loader) if each]


def _without_definitions(manifests: str, names: tuple[str, ...]) -> Iterator[str]:
    """Yield the YAML documents, as kustomize writes them, but for definitions of other names."""
    for document in manifests.split("\n---\n"):
        if re.search(r"^kind: CustomResourceDefinition$", document, re.MULTILINE):
            name = re.search(r"^metadata:\n(?:  .*\n)*?  name: (\S+)$", document, re.MULTILINE)
            if name and name[1] not in names:
                continue
        yield document
