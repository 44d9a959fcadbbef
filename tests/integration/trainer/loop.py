"""A training loop without a model: the worker program of the shutdown tests.

Its argument is JSON: the directory for its notes, and the faults of each process.
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
from trainer.hang import Watch, set_dump_directory, set_timeouts, timed_out
from trainer.shutdown import Stop


def write_note(plan: dict[str, Any], name: str, **fields: object) -> None:
    """Write a note atomically."""
    path = Path(plan["notes"]) / f"{name}-{os.environ['RANK']}"
    path.with_suffix(".new").write_text(json.dumps({"pid": os.getpid(), **fields}))
    path.with_suffix(".new").rename(path)


def hang_in_c_call(phase: str) -> None:
    """Block the main thread in one C call that releases the GIL, as collectives and compilers do."""
    write_note(PLAN, "waits", phase=phase)
    time.sleep(10_000)


def main(plan: dict[str, Any]) -> Exit:
    """Alternate steps and evaluations until all processes agree to stop."""
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
    set_dump_directory(directory)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    stop.create_group(timedelta(seconds=60))
    gradient = torch.ones(1000)
    watch.enter("first step", long=True)
    write_note(plan, "joined")
    calls, step, start = 0, 0, time.perf_counter()
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
            write_note(plan, "first-step")
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
                write_note(
                    plan, "agreed", calls=calls, phase=watch.phase, reason=stop.request.reason, step=step
                )
                watch.enter("save", long=True)
                if own.get("waits") == "save":
                    hang_in_c_call("save")
                stop.settle()
                dist.destroy_process_group()
                stop.close()
                watch.close()
                write_note(plan, "ended", spent=spent / calls, seconds=time.perf_counter() - start)
                return Exit.STOPPED
        watch.enter("step")


if __name__ == "__main__":
    PLAN = json.loads(sys.argv[1])
    try:
        code = main(PLAN)
    except RuntimeError as error:
        write_note(PLAN, "failed", error=str(error), timed_out=timed_out(error))
        code = Exit.HUNG if timed_out(error) else Exit.FAILED
    os._exit(int(code))
