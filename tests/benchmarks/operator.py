"""`make bench-operator`: the figures of the operator of TorchrunJobs and of `kubectl torchrun`.

    python -m tests.benchmarks.operator [ROW...]

Rows are printed with their limits. A figure over its limit is named at the end, and the exit code is 1. Nothing is
written: docs/benchmarks/operator.md is made by hand from what this prints.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator

from local.tools import ensure_other
from local.tools.pins import JOBSET, KUBEFLOW_TRAINER
from tests.benchmarks import idle_jobs, plugin_commands, pod_creation, sweep_results
from tests.benchmarks.figures import Figure, Note, run
from tests.benchmarks.torchrun_stack import torchrun_stack

ROWS = {
    "sweep": "results of the last `make sweep`",
    "idle": "100, 1,000 and 5,000 jobs on an API server without nodes",
    "plugin": "commands of `kubectl torchrun` on a stack of the local cloud",
    "pods": "submit to all pods created, beside PyTorchJobs and TrainJobs, on the same stack",
}


def measure(rows: Collection[str]) -> Iterator[Figure | Note]:
    """Measure rows of ROWS, in their order."""
    if "pods" in rows:
        ensure_other(JOBSET, KUBEFLOW_TRAINER)
    if "sweep" in rows:
        yield from sweep_results.measure()
    if "idle" in rows:
        yield from idle_jobs.measure()
    if not {"plugin", "pods"} & set(rows):
        return
    with torchrun_stack() as bench:
        if "plugin" in rows:
            yield from plugin_commands.measure(bench)
        if "pods" in rows:
            yield from pod_creation.measure(bench)


if __name__ == "__main__":
    sys.exit(run(__doc__, ROWS, measure))
