"""A stack with the objects of its charts, which the `helm` binary renders; no cluster is asked.

https://helm.sh/docs/helm/helm_template/
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from components.documents.versions import KUBERNETES
from tests.integration.policy.charts import ChartError, arguments, objects, releases, values
from trainyard.policies.model import Resource, Stack


def with_charts(stack: Stack, helm: Path) -> Stack:
    """The stack's resources and the objects of its charts; `helm` is the program.

    Raises:
        ChartError: a chart can't be rendered.
    """
    return Stack(
        [*stack.resources, *(each for release in releases(stack) for each in _objects(release, helm))]
    )


def _objects(release: Resource, helm: Path) -> list[Resource]:
    with tempfile.TemporaryDirectory(prefix="trainyard-chart-") as directory:
        file = Path(directory) / "values.json"
        file.write_text(values(release))
        command = [
            str(helm),
            "template",
            *arguments(release),
            "--values",
            str(file),
            "--kube-version",
            KUBERNETES,
        ]
        # Nothing of the user's Helm counts: no repositories, no plugins.
        own = {f"HELM_{name}_HOME": directory for name in ("CACHE", "CONFIG", "DATA")}
        try:
            answer = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **own})
        except OSError as error:
            raise ChartError(f"release {release.name} can't be rendered: {helm}: {error.strerror}") from error
    if answer.returncode != 0:
        reason = " ".join(answer.stderr.split())
        raise ChartError(f"release {release.name} can't be rendered: {reason}")
    return objects(release, answer.stdout)
