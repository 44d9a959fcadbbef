"""A workspace of 10,000 small files: sent to a bucket and to the sync pod, again unchanged, and by `kubectl cp`."""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks.figures import Figure, Note
from tests.benchmarks.torchrun_stack import Bench
from tests.faults.place import SPACE
from trainyard.operator import names as n

FILES, MEGABYTES = 10_000, 50
FIRST_SECONDS, UNCHANGED_SECONDS = 5.0, 1.0
# What was written a moment ago is read again by the next submit.
SETTLED_SECONDS = 3.0
AGAIN = 5
BUCKET = "trainyard-benchmark-workspaces"
PLUGIN = (sys.executable, "-m", "trainyard.kubectl")


def measure(bench: Bench) -> Iterator[Figure | Note]:
    """Each command as a whole, with the start of its process."""
    bench.world.client("s3").create_bucket(
        Bucket=BUCKET,
        CreateBucketConfiguration={"LocationConstraint": bench.world.settings["aws:region"]},
    )
    bench.queue("bucket", {"workspace": {"bucket": f"s3://{BUCKET}"}}, nowhere=True)
    bench.queue("sync", {}, nowhere=True)
    with tempfile.TemporaryDirectory(prefix="trainyard-workspace-") as directory:
        root = Path(directory)
        fill(root)
        time.sleep(SETTLED_SECONDS)
        first = _seconds(bench, root, "submit", "--queue", "bucket", "--name", "first")
        again = statistics.median(
            _seconds(bench, root, "submit", "--queue", "bucket", "--name", f"again-{number}")
            for number in range(AGAIN)
        )
        yield Figure(name="submit of 10,000 files, bucket: first", value=first, limit=FIRST_SECONDS, unit="s")
        yield Figure(
            name="submit of 10,000 files, bucket: unchanged",
            value=again,
            limit=UNCHANGED_SECONDS,
            unit="s",
            digits=2,
        )
        first = _seconds(bench, root, "submit", "--queue", "sync", "--name", "pod")
        yield Figure(
            name="submit of 10,000 files, sync pod: first", value=first, limit=FIRST_SECONDS, unit="s"
        )
        seconds, told = _run(bench, root, "submit", "--queue", "sync", "--name", "other-pod")
        yield Note(name="submit of the same as a second job, sync pod", told=f"{seconds:.1f} s")
        yield Figure(
            name="the same: not unchanged, 1 for sent again", value="unchanged" not in told, limit=0, unit=""
        )
        again = statistics.median(_seconds(bench, root, "sync", "pod") for _ in range(AGAIN))
        yield Figure(
            name="sync of 10,000 files, sync pod: unchanged",
            value=again,
            limit=UNCHANGED_SECONDS,
            unit="s",
            digits=2,
        )
        began = time.monotonic()
        bench.run("kubectl", "cp", "-n", SPACE, str(root), f"{n.sync_pod('pod')}:{n.SYNC_DIRECTORY}/copied")
        yield Note(name="kubectl cp of the same into the same pod", told=f"{time.monotonic() - began:.1f} s")


def _seconds(bench: Bench, root: Path, verb: str, *words: str) -> float:
    return _run(bench, root, verb, *words)[0]


def _run(bench: Bench, root: Path, verb: str, *words: str) -> tuple[float, str]:
    """How many seconds it took, and what it said."""
    submitted = ("--gpus", "0", "--nodes", "1", "python train.py") if verb == "submit" else ()
    began = time.monotonic()
    said = bench.run(*PLUGIN, verb, "-n", SPACE, *words, *submitted, cwd=root)
    seconds = time.monotonic() - began
    print(said, end="", flush=True)
    return seconds, said


def fill(root: Path) -> None:
    """Files of words, as code is; compressed they are about a third."""
    chance = random.Random(0)  # noqa: S311
    words = [
        "".join(chance.choices("abcdefghijklmnopqrstuvwxyz_", k=chance.randint(2, 10))) for _ in range(5000)
    ]
    size = MEGABYTES * 1_000_000 // FILES
    for number in range(FILES):
        folder = root / f"package_{number // 100:03}"
        folder.mkdir(exist_ok=True)
        text = " ".join(chance.choices(words, k=size // 4)) + "\n"
        (folder / f"module_{number:05}.py").write_text(text[:size])
