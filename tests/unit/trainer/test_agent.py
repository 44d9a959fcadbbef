"""When torchrun's agent would start its processes again."""

from __future__ import annotations

import pytest

from trainer.contract import Exit, TrainerError
from trainer.world import check_restarts, will_restart_processes


@pytest.mark.parametrize(
    ("environ", "again"),
    [
        ({"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0"}, False),
        ({"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "3"}, True),
        ({"TORCHELASTIC_RESTART_COUNT": "3", "TORCHELASTIC_MAX_RESTARTS": "3"}, False),
        ({}, False),
    ],
)
def test_agent_restarts_processes_while_restarts_are_left(environ: dict[str, str], again: bool) -> None:
    assert will_restart_processes(environ) == again


SHARED = {"TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "True"}


def test_restarts_with_one_store_on_several_nodes_are_refused() -> None:
    with pytest.raises(TrainerError) as refused:
        check_restarts(2, SHARED)
    assert refused.value.code == Exit.CONFIGURATION
    assert str(refused.value) == (
        "max-restarts: 3 on 2 nodes, whose processes could not meet after a restart. Use "
        "--rdzv-backend c10d and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, which python -m trainer.entrypoint sets, "
        "or --max-restarts 0"
    )


@pytest.mark.parametrize(
    ("nodes", "environ"),
    [
        (1, SHARED),
        (2, {**SHARED, "TORCHELASTIC_MAX_RESTARTS": "0"}),
        (2, {**SHARED, "TORCHELASTIC_USE_AGENT_STORE": "False"}),
        (2, {}),
    ],
)
def test_restarts_with_one_store_per_attempt_are_allowed(nodes: int, environ: dict[str, str]) -> None:
    check_restarts(nodes, environ)
