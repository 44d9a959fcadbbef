"""The objects of a kustomization, rendered by `kubectl kustomize` while the program runs.

`kustomize.v2.Directory` of pulumi-kubernetes would be asked for its objects only once the cluster is there: the first
preview would not show them.
"""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from typing import Any

import pulumi
import yaml

# The operator's manifests are 4 MB: the parser in C reads them in a second, the other one took half of a preview.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@cache
def render(source: str) -> list[dict[str, Any]]:
    """The objects of a directory or an address (https://github.com/kubernetes-sigs/kustomize, remote targets).

    Raises:
        pulumi.RunError: kubectl is missing, or the kustomization can't be read.
    """
    if shutil.which("kubectl") is None:
        raise pulumi.RunError(f"kubectl is needed on PATH to render the manifests of {source}")
    answer = subprocess.run(["kubectl", "kustomize", source], capture_output=True, text=True)
    if answer.returncode != 0:
        reason = " ".join(answer.stderr.split())
        raise pulumi.RunError(f"the manifests of {source} can't be rendered: {reason}")
    return [each for each in yaml.load_all(answer.stdout, Loader=_Loader) if each]
