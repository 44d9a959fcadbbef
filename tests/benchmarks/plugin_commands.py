"""Commands of `kubectl torchrun` from start to end of their process: `list`, `submit` and `sync` with 10,000 files.

Entry point: `measure()`.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from tests.benchmarks.figures import Figure, Note
from tests.benchmarks.torchrun_stack import Bench
from tests.faults.place import SPACE
from trainyard.operator import names as n

FILES, MEGABYTES = 10_000, 50
FIRST_SECONDS = 5.0
SUBMIT_SECONDS, SYNC_SECONDS = 0.6, 1.0  # of unchanged files
LIST_SECONDS = 0.3
# Files that were written less than this ago are read again by the next submit.
SETTLE_SECONDS = 3.0
REPEATS, LISTS = 5, 11
BUCKET = "trainyard-benchmark-workspaces"
PLUGIN = (sys.executable, "-m", "trainyard.kubectl")


def measure(bench: Bench) -> Iterator[Figure | Note]:
    """Measure each command as a whole, with the start of its process."""
    bench.world.client("s3").create_bucket(
        Bucket=BUCKET,
        CreateBucketConfiguration={"LocationConstraint": bench.world.settings["aws:region"]},
    )
    bench.queue("bucket", {"workspace": {"bucket": f"s3://{BUCKET}"}}, nowhere=True)
    bench.queue("sync", {}, nowhere=True)
    with tempfile.TemporaryDirectory(prefix="trainyard-workspace-") as directory:
        root = Path(directory)
        write_workspace(root)
        (root / "train.py").touch()
        time.sleep(SETTLE_SECONDS)
        yield from _submit(bench, root)
        yield from _sync(bench, root)
    yield from _list(bench)


def _submit(bench: Bench, root: Path) -> Iterator[Figure | Note]:
    def submit(queue: str, name: str) -> tuple[float, str]:
        words = ("--queue", queue, "--name", name, "--gpus", "0", "--nodes", "1", "python train.py")
        return _run(bench, root, *PLUGIN, "submit", "-n", SPACE, *words)

    name = "submit of 10,000 files"
    first, _ = submit("bucket", "first")
    yield Figure(name=f"{name}, bucket: first", value=first, limit=FIRST_SECONDS, unit="s")
    again = median(submit("bucket", f"again-{number}")[0] for number in range(REPEATS))
    yield Figure(name=f"{name}, bucket: unchanged", value=again, limit=SUBMIT_SECONDS, unit="s", digits=2)
    first, _ = submit("sync", "pod")
    yield Figure(name=f"{name}, sync pod: first", value=first, limit=FIRST_SECONDS, unit="s")
    second, printed = submit("sync", "other-pod")
    yield Note(name=f"{name} as a second job, sync pod", text=f"{second:.1f} s")
    sent = int("unchanged" not in printed)
    yield Figure(name="the same: 1 if files were sent again", value=sent, limit=0, unit="", digits=0)


def _sync(bench: Bench, root: Path) -> Iterator[Figure | Note]:
    words = (*PLUGIN, "sync", "-n", SPACE, "pod")
    again = median(_run(bench, root, *words)[0] for _ in range(REPEATS))
    name = "sync of 10,000 files, sync pod: unchanged"
    yield Figure(name=name, value=again, limit=SYNC_SECONDS, unit="s", digits=2)
    pod = f"{n.sync_pod('pod')}:{n.SYNC_DIRECTORY}/copied"
    copied, _ = _run(bench, root, "kubectl", "cp", "-n", SPACE, str(root), pod)
    yield Note(name="kubectl cp of the same into the same pod", text=f"{copied:.1f} s")


def _list(bench: Bench) -> Iterator[Figure | Note]:
    def seconds(*words: str) -> Callable[[], float]:
        return lambda: _run(bench, None, *words, "list", "-n", SPACE)[0]

    plugin = seconds(*PLUGIN)
    plugin()  # what is read from the disk once
    value = median(plugin() for _ in range(LISTS))
    yield Figure(name="kubectl torchrun list: process", value=value, limit=LIST_SECONDS, unit="s", digits=2)
    whole = seconds("kubectl", "torchrun")
    text = f"{median(whole() for _ in range(LISTS)):.2f} s"
    yield Note(name="the same, with the process of kubectl", text=text)


def _run(bench: Bench, root: Path | None, *words: str) -> tuple[float, str]:
    """Return the seconds that a command takes, and what it prints."""
    began = time.monotonic()
    printed = bench.run(*words) if root is None else bench.run(*words, cwd=root)
    return time.monotonic() - began, printed


def write_workspace(root: Path) -> None:
    """Write files of words, like code; they compress to about a third."""
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
