"""MFU, peaks of GPUs, and goodput over restarts."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.metrics.throughput import PEAKS, Carried, Goodput, Lap, StepClock, mfu, peak

SECONDS = st.floats(0, 1e7)


def test_lap_has_steps_and_waits_without_pauses() -> None:
    now, waits = [100.0], [0.5, 0.25]
    clock = StepClock(lambda: waits.pop(0), clock=lambda: now[0])
    clock.add(64)
    clock.stall(1.5)
    now[0] += 4
    with clock.paused():
        now[0] += 10
    clock.add(32)
    assert clock.lap() == Lap(samples=96, seconds=4, data_wait_seconds=0.5, stall_seconds=1.5)
    now[0] += 2
    assert clock.lap() == Lap(samples=0, seconds=2, data_wait_seconds=0.25, stall_seconds=0)


def test_mfu_is_of_each_gpu() -> None:
    assert mfu(64, 1e12, 4, 100e12) == pytest.approx(64e12 / 400e12)


@pytest.mark.parametrize(
    ("device", "precision", "found"),
    [
        ("NVIDIA A10G", "bf16", 70e12),
        ("NVIDIA H100 80GB HBM3", "bf16", 989e12),
        ("NVIDIA H200", "tf32", 494.5e12),
        ("Tesla T4", "fp16", 65e12),
        ("Tesla T4", "bf16", None),
        ("Tesla V100-SXM2-32GB", "tf32", None),
        ("NVIDIA A10", "bf16", None),
        ("NVIDIA H100 PCIe", "bf16", None),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "bf16", None),
        ("NVIDIA H200", "fp32", None),
        ("cpu", "bf16", None),
        ("", "", None),
    ],
)
def test_peaks_are_of_exactly_the_gpus_with_a_figure(
    device: str, precision: str, found: float | None
) -> None:
    assert peak(device, precision) == found


def test_formats_of_one_gpu_agree() -> None:
    """Tensor cores have bf16 as fast as fp16, and tf32 half as fast; a typing error breaks one of these."""
    for name, each in PEAKS.items():
        assert each.bf16 in (None, each.fp16), name
        assert (each.bf16 is None) == (each.tf32 is None), name
        assert each.tf32 is None or each.tf32 / each.fp16 == pytest.approx(0.5, rel=0.03), name


class Clocks:
    """The host's clock that only goes on, and the one that shows the time of day."""

    def __init__(self, wall: float = 1000.0) -> None:
        self.steady, self.wall = 50.0, wall

    def passes(self, seconds: float) -> None:
        self.steady += seconds
        self.wall += seconds

    def goodput(self, carried: Carried | None = None) -> Goodput:
        goodput = Goodput(clock=lambda: self.steady, wall=lambda: self.wall)
        if carried is not None:
            goodput.resume_from(carried)
        return goodput


def test_goodput_is_useful_time_over_all_time() -> None:
    clocks = Clocks()
    goodput = clocks.goodput()
    assert goodput.share() == 0
    clocks.passes(100)
    goodput.add(75)
    assert goodput.share() == 0.75


def test_goodput_excludes_lost_work_and_pauses() -> None:
    clocks = Clocks()
    first = clocks.goodput()
    clocks.passes(100)
    first.add(80)
    saved = first.carried()
    clocks.passes(50)
    first.add(50)  # lost: killed here
    clocks.passes(30)  # until the next training begins
    second = clocks.goodput()
    clocks.passes(20)  # start and load
    second.resume_from(Carried(**json.loads(json.dumps(asdict(saved)))))
    clocks.passes(40)
    second.add(40)
    assert second.share() == pytest.approx((80 + 40) / (100 + 50 + 30 + 20 + 40))


def steps(clocks: Clocks, goodput: Goodput, count: int, seconds: float = 1.0) -> None:
    for _ in range(count):
        clocks.passes(seconds)
        goodput.step()


def test_checkpoint_between_log_lines_carries_all_steps() -> None:
    clocks = Clocks()
    goodput = clocks.goodput()
    steps(clocks, goodput, 1, 30.0)  # compiles
    assert goodput.carried().useful_seconds == 0
    steps(clocks, goodput, 19)
    assert goodput.carried().useful_seconds == 19  # nothing was measured yet
    goodput.add(9.5)  # half of it were waits
    assert goodput.carried().useful_seconds == 9.5
    steps(clocks, goodput, 8)
    assert goodput.carried().useful_seconds == 9.5 + 8 * 0.5
    clocks.passes(100)  # an evaluation teaches nothing
    assert goodput.carried().useful_seconds == 13.5
    steps(clocks, goodput, 12)
    goodput.add(12.0)
    assert goodput.carried().useful_seconds == 21.5  # what was measured, and not what was thought before
    steps(clocks, goodput, 20, 0.1)
    assert goodput.carried().useful_seconds == pytest.approx(21.5 + 2.0)  # no more than has passed


def test_resumed_goodput_begins_with_the_saved_time() -> None:
    clocks = Clocks()
    first = clocks.goodput()
    steps(clocks, first, 6)
    second = clocks.goodput(first.carried())
    assert second.carried().useful_seconds == 5
    steps(clocks, second, 1, 9.0)
    assert second.carried().useful_seconds == 5
    second.resume_from(Carried(useful_seconds=2, total_seconds=3, began_at=1000.0))
    assert second.carried().useful_seconds == 2


def test_goodput_with_clock_set_back_keeps_counted_time() -> None:
    clocks = Clocks(wall=500.0)
    goodput = clocks.goodput(Carried(useful_seconds=90, total_seconds=100, began_at=1000.0))
    clocks.passes(100)
    goodput.add(70)
    assert goodput.carried().total_seconds == 200
    assert goodput.share() == 0.8


@pytest.mark.parametrize("skew", [-1e7, 0.0, 1e7])
def test_wrong_clock_during_a_save_does_not_spoil_goodput(skew: float) -> None:
    clocks = Clocks()
    first = clocks.goodput()
    clocks.passes(100)
    first.add(80)
    clocks.wall += skew
    saved = first.carried()
    assert saved.total_seconds == 100
    clocks.passes(10)
    clocks.wall -= skew
    assert first.share() == pytest.approx(80 / 110)
    second = clocks.goodput(saved)
    clocks.passes(100)
    second.add(100)
    # If the clock was behind during the save, the gap seems to be longer.
    saved = second.carried()
    assert saved.total_seconds == pytest.approx({0.0: 210, 1e7: 200, -1e7: 1e7 + 210}[skew])
    third = clocks.goodput(saved)
    clocks.passes(1000)
    third.add(1000)
    assert third.carried().total_seconds == pytest.approx(saved.total_seconds + 1000)


@given(SECONDS, SECONDS, SECONDS, SECONDS, SECONDS, SECONDS)
def test_goodput_is_a_share_whatever_clocks_say(
    useful: float, total: float, began: float, wall: float, passed: float, added: float
) -> None:
    clocks = Clocks(wall)
    goodput = clocks.goodput(Carried(useful_seconds=useful, total_seconds=total, began_at=began))
    clocks.passes(passed)
    goodput.add(added)
    assert 0 <= goodput.share() <= 1
    assert goodput.carried().total_seconds >= total
