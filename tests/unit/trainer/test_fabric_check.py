"""The fabric check: what it computes and what it reads from NCCL's log. tests/integration/trainer runs it."""

from __future__ import annotations

from itertools import combinations

import pytest

from trainer.contract import CheckExit
from trainer.fabric_check import (
    Requirements,
    Transport,
    bandwidths,
    check_transport,
    describe_pairs,
    main,
    message_sizes,
    rounds,
    used_transports,
)
from trainer.world import World

P4D = Requirements(instance_type="p4d.24xlarge", gpus=8, efa=4, gigabits=400)
# Lines of NCCL 2.30 and aws-ofi-nccl 1.14, shortened.
EFA_LOG = """\
ip-10-0-0-1:81:81 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)
ip-10-0-0-1:81:95 [0] NCCL INFO Using network Libfabric
ip-10-0-0-1:81:95 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA
ip-10-0-0-1:81:95 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
"""
OLDER_EFA_LOG = EFA_LOG.replace("Selected provider is efa, fabric is efa", "Selected Provider is efa")
SOCKET_LOG = """\
ip-10-0-0-1:81:95 [0] NCCL INFO Using network Socket
ip-10-0-0-1:81:95 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Socket/0
ip-10-0-0-1:81:95 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct
"""
# The plugin is there, but libfabric has no EFA provider.
TCP_LOG = EFA_LOG.replace("provider is efa, fabric is efa", "provider is tcp, fabric is 10.0.0.0/16")


def world(nodes: int, per_node: int = 8) -> World:
    return World(rank=0, size=nodes * per_node, local_rank=0, local_size=per_node, nodes=nodes)


@pytest.mark.parametrize(
    ("log", "between", "within"),
    [
        (EFA_LOG, "EFA", "NVLink or PCIe"),
        (OLDER_EFA_LOG, "EFA", "NVLink or PCIe"),
        (SOCKET_LOG, "sockets", "shared memory"),
        (TCP_LOG, "libfabric without EFA", "NVLink or PCIe"),
        (SOCKET_LOG.replace("Socket", "IB"), "InfiniBand", "shared memory"),
        ("", "unknown", "unknown"),
    ],
)  # fmt: skip
def test_nccl_log_names_the_transports(log: str, between: str, within: str) -> None:
    assert Transport.parse(log)[:2] == (between, within)


def test_nccl_log_counts_interfaces() -> None:
    assert Transport.parse(EFA_LOG).interfaces == 4
    assert Transport.parse(SOCKET_LOG).interfaces == 0


def test_transports_of_all_processes_are_reported() -> None:
    logs = [Transport.parse(EFA_LOG), Transport.parse(SOCKET_LOG)]
    assert used_transports(logs, world(2), "nccl") == (
        ["EFA", "sockets"],
        ["NVLink or PCIe", "shared memory"],
    )
    assert used_transports(logs, world(1), "nccl")[0] == []
    assert used_transports(logs, world(2, 1), "gloo") == (["gloo"], [])


@pytest.mark.parametrize(
    ("required", "between", "nodes", "code", "phrase"),
    [
        (P4D, ["EFA"], 2, CheckExit.FIT, "EFA is used"),
        (
            P4D,
            ["sockets"],
            2,
            CheckExit.UNFIT,
            "p4d.24xlarge has 4 interfaces, but the processes use sockets.",
        ),
        (P4D, ["EFA", "sockets"], 2, CheckExit.UNFIT, "use EFA and sockets."),
        (P4D, [], 1, CheckExit.FIT, "was not checked"),
        (Requirements(), ["sockets"], 2, CheckExit.FIT, "not required"),
    ],
)
def test_exit_code_says_whether_efa_was_used(
    required: Requirements, between: list[str], nodes: int, code: CheckExit, phrase: str
) -> None:
    found, line = check_transport(required, between, nodes, "cuda")
    assert found == code
    assert phrase in line


def test_gpus_that_torch_does_not_find_are_unfit() -> None:
    code, line = check_transport(P4D, ["gloo"], 2, "cpu")
    assert code == CheckExit.UNFIT
    assert line.startswith("GPUs: p4d.24xlarge has 8, but torch finds none")


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    """Row of nccl-tests, doc/PERFORMANCE.md: the factor for n ranks is 2 (n - 1) / n."""
    assert bandwidths(1 << 30, 0.05, 16) == pytest.approx((21.47, 21.47 * 30 / 16), abs=0.02)


@pytest.mark.parametrize("count", range(2, 10))
def test_rounds_pair_each_two_members_once(count: int) -> None:
    every = [pair for each in rounds(count) for pair in each]
    assert sorted(every) == list(combinations(range(count), 2))
    for each in rounds(count):
        members = [member for pair in each for member in pair]
        assert len(members) == len(set(members))


def test_message_sizes_double_up_to_the_largest() -> None:
    assert message_sizes(8, 1 << 30) == [1 << power for power in range(3, 31)]
    assert message_sizes(8, 100) == [8, 16, 32, 64]
    assert message_sizes(8, 8) == [8]


def test_slowest_rank_is_slow_with_most_others() -> None:
    rates = {pair: 2.0 if 2 in pair else 10.0 for pair in combinations(range(4), 2)}
    (line,) = describe_pairs({(0, 1): 4.0, (2, 3): 10.0}, ["a", "b", "c", "d"], 1 << 20)
    assert "slowest: rank 0 (a) and rank 1 (b)" in line
    lines = describe_pairs(rates, ["a", "b", "c", "d"], 1 << 20)
    assert "rank 0 (a) and rank 2 (c) with 2.00 GB/s" in lines[0]
    assert lines[1].startswith("slowest rank: 2 (c)")


@pytest.mark.parametrize("text", ["{", "[]", '{"instanceType": "p5", "efa": 32}'])
def test_wrong_requirements_are_one_line(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINYARD_FABRIC_CHECK", text)
    assert main([]) == CheckExit.CONFIGURATION
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line
    assert "must be a JSON object" in line


@pytest.mark.parametrize(
    "options", [["--min-bytes", "2"], ["--min-bytes", "64", "--max-bytes", "32"], ["--max-bytes=x"]]
)
def test_wrong_options_exit_with_2(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(options)
    assert ended.value.code == 2
    assert "--m" in capsys.readouterr().err
