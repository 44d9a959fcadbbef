"""The world against its promise, torchrun's options, and the pod's exit code."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from trainer.contract import Exit, TrainerError
from trainer.entrypoint import launch_options, main, pod_exit_code
from trainer.world import World, check_batch, check_expected


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """`main` takes the signals of its process, which here is everybody's."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def world(nodes: int, per_node: int) -> World:
    return World(rank=0, size=nodes * per_node, local_rank=0, local_size=per_node, nodes=nodes)


@pytest.mark.parametrize(("nodes", "per_node"), [(2, 4), (None, 4), (2, None), (None, None)])
def test_expected_world_passes(nodes: int | None, per_node: int | None) -> None:
    check_expected(world(2, 4), nodes, per_node)


@pytest.mark.parametrize(("nodes", "per_node"), [(4, 4), (2, 8), (1, 8), (4, None), (None, 2)])
def test_unexpected_world_names_both_numbers(nodes: int | None, per_node: int | None) -> None:
    with pytest.raises(TrainerError, match="found 2 nodes x 4 processes, 8 in all") as caught:
        check_expected(world(2, 4), nodes, per_node)
    assert caught.value.code == Exit.WORLD_SIZE


def test_uneven_nodes_fail_the_expected_world() -> None:
    with pytest.raises(TrainerError, match="7 in all"):
        check_expected(World(rank=0, size=7, local_rank=0, local_size=4, nodes=2), 2, 4)


@pytest.mark.parametrize("batch_size", [8, 9, 64])
def test_batch_of_at_least_world_size_passes(batch_size: int) -> None:
    check_batch(world(2, 4), batch_size)


def test_batch_below_world_size_names_both_numbers() -> None:
    line = "batch_size: 7 is less than the 8 processes; it must be at least one sample per process"
    with pytest.raises(TrainerError, match=f"^{line}. Use a larger batch or fewer processes$") as caught:
        check_batch(world(2, 4), 7)
    assert caught.value.code == Exit.CONFIGURATION


TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_WORLD_SIZE": "2",
}


def test_the_world_is_read_from_torchrun() -> None:
    assert World.read(TORCHRUN) == World(rank=5, size=8, local_rank=1, local_size=4, nodes=2)


def test_without_torchrun_the_message_says_how_to_start() -> None:
    with pytest.raises(
        TrainerError,
        match=r"; RANK is not set; it must be .* torchrun sets these variables: start the trainer with",
    ):
        World.read({})


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        ("RANK", "a", "RANK is 'a'; it must be a whole number of at least 0 and less than WORLD_SIZE, 8."),
        ("RANK", "8", "RANK is '8'; it must be a whole number of at least 0 and less than WORLD_SIZE, 8."),
        ("RANK", "-1", "RANK is '-1'; it must be a whole number of at least 0"),
        (
            "LOCAL_RANK",
            "4",
            "LOCAL_RANK is '4'; it must be a whole number of at least 0 and less than LOCAL_",
        ),
        ("WORLD_SIZE", "0", "WORLD_SIZE is '0'; it must be a whole number of at least 1."),
        ("GROUP_WORLD_SIZE", "", "GROUP_WORLD_SIZE is ''; it must be a whole number of at least 1."),
    ],
)
def test_variable_out_of_range_is_named(variable: str, value: str, problem: str) -> None:
    with pytest.raises(TrainerError, match=f"^{problem}") as caught:
        World.read({**TORCHRUN, variable: value})
    assert caught.value.code == Exit.CONFIGURATION


@pytest.mark.parametrize(
    ("processes", "environ", "options"),
    [
        (None, {}, ["--standalone", "--nproc-per-node=1"]),
        (2, {}, ["--standalone", "--nproc-per-node=2"]),
        (4, {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "4"}, []),
        (4, {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "auto"}, ["--nproc-per-node=4"]),
    ],
)
def test_launch_options_are_those_that_the_operator_does_not_set(
    processes: int | None, environ: dict[str, str], options: list[str]
) -> None:
    assert launch_options(processes, environ) == options


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([20, 20], 20),
        ([1, 22], 22),  # the lost connection was noticed before the cause
        ([-15, 23], 23),
        ([1, 1], 1),
        ([3], 3),
        ([24, 24], 24),
        ([1, 24], 1),  # what torchrun stopped after a failure
        ([-9, 24], 137),
        ([24, 1], 24),
        ([24, 25], 25),
        ([-9], 137),
        ([0, -11], 139),
        ([], 1),
    ],
)
def test_the_pod_ends_with_the_code_that_says_most(codes: list[int], expected: int) -> None:
    assert pod_exit_code(codes) == expected


def test_entrypoint_with_wrong_setting_starts_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--epochs", "none"]) == Exit.CONFIGURATION
    assert capsys.readouterr().err == "error: --epochs: 'none' is not a whole number\n"
