"""Tools of the tests alone, which `make up` does not need: built once, and kept beside those of the local cloud.

`python -m tests.tools` has them all, and KAI Scheduler's kinds: the tests of an ordinary user run in a network of their
own, from which Go's module proxy is not reached.
"""

from __future__ import annotations

import sys
from pathlib import Path

from local.tools import ToolError, ensure_other
from local.tools.tool import Tool
from tests.integration.local import kai

# The local cloud's etcd is of release 3.6, which has no v2 API any more; torch knows no other one.
ETCD_WITH_V2 = Tool(
    name="etcd-with-v2",
    module="go.etcd.io/etcd/server/v3",
    packages=("",),
    binaries={"server": "etcd"},
    lock=Path(__file__).with_name("modules") / "etcd-with-v2",
)

# Kubeflow Trainer (TrainJob) and JobSet, which it makes pods with. Both share the versions of their dependencies.
# `python -m tests.tools` does not build them: they take minutes, and only some benchmarks and tests use them.
_KUBEFLOW_TRAINER_LOCK = Path(__file__).with_name("modules") / "kubeflow-trainer"
KUBEFLOW_TRAINER = Tool(
    name="kubeflow-trainer",
    module="github.com/kubeflow/trainer/v2",
    packages=("cmd/trainer-controller-manager",),
    binaries={"trainer-controller-manager": "trainer-controller-manager"},
    lock=_KUBEFLOW_TRAINER_LOCK,
)
JOBSET = Tool(
    name="jobset",
    module="sigs.k8s.io/jobset",
    packages=("",),
    binaries={"jobset": "jobset-manager"},
    lock=_KUBEFLOW_TRAINER_LOCK,
)


def etcd_with_v2() -> Path:
    """Build etcd with the v2 API (which needs `--enable-v2`) and return the program.

    Raises:
        ToolError: it can't be built.
    """
    return ensure_other(ETCD_WITH_V2)["etcd"]


def main() -> int:
    """Have them; what a person can mend is one line."""
    try:
        etcd_with_v2()
        kai.files()
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
