"""A training's loop without a training: what torchrun's processes do in the tests of stopping.

Its arguments are JSON: where it notes how it went, and what goes wrong in which process.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainer.contract import Exit
from trainer.hang import Watch, prepare, set_timeouts, timed_out
from trainer.shutdown import Stop


def note(plan: dict[str, Any], name: str, **told: object) -> None:
    """Leave a file that is there as a whole or not at all."""
    path = Path(plan["notes"]) / f"{name}-{os.environ['RANK']}"
    path.with_suffix(".new").write_text(json.dumps({"pid": os.getpid(), **told}))
    path.with_suffix(".new").rename(path)


def wait_without_end(phase: str) -> None:
    """The main thread inside one C call, which lets go of the interpreter's lock, as collectives and compilers do."""
    note(PLAN, "waits", phase=phase)
    time.sleep(10_000)


def main(plan: dict[str, Any]) -> Exit:
    """Steps and an evaluation, again and again, until all processes agree to stop."""
    rank = int(os.environ["RANK"])
    own = plan.get(str(rank), {})
    directory = Path(plan["notes"]) / "hang"
    watch = Watch(limit=60, long_limit=60, rank=rank, directory=directory)
    watch.start()
    stop = Stop(
        patience=plan.get("patience", 60),
        phase=lambda: watch.phase,
        notice=Path(plan["notice"]) if "notice" in plan else None,
    )
    stop.listen()
    watch.enter("joining", long=True)
    prepare(directory)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    stop.join(timedelta(seconds=60))
    gradient = torch.ones(1000)
    watch.enter("first step", long=True)
    note(plan, "joined")
    calls, step, began = 0, 0, time.perf_counter()
    spent = 0.0
    while True:
        if step == 0:
            time.sleep(own.get("first_step_seconds", 0))
        dist.all_reduce(gradient)
        step += 1
        if step == 1:
            watch.enter("step")
            stop.set_unsaved_work(True)
            set_timeouts(60, stop.groups)
            note(plan, "first-step")
        for batch in range(plan.get("batches", 3)):
            if batch == 1:
                watch.enter("evaluation")
            time.sleep(0.002)
            watch.beat()
            before = time.perf_counter()
            calls += 1
            agreed = stop.agreed()
            spent += time.perf_counter() - before
            if agreed:
                note(plan, "agreed", calls=calls, phase=watch.phase, reason=stop.request.reason, step=step)
                watch.enter("save", long=True)
                if own.get("waits") == "save":
                    wait_without_end("save")
                stop.settle()
                dist.destroy_process_group()
                stop.close()
                watch.close()
                note(plan, "ended", spent=spent / calls, seconds=time.perf_counter() - began)
                return Exit.STOPPED
        watch.enter("step")


if __name__ == "__main__":
    PLAN = json.loads(sys.argv[1])
    try:
        code = main(PLAN)
    except RuntimeError as error:
        note(PLAN, "failed", error=str(error), timed_out=timed_out(error))
        code = Exit.HUNG if timed_out(error) else Exit.FAILED
    os._exit(int(code))
