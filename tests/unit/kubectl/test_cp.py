"""`cp` over real WebSockets with real tars; a tar is only unpacked below the requested directory."""

from __future__ import annotations

import io
import os
import resource
import shutil
import signal
import stat
import tarfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.k8s.exec_api import Pods, rest
from tests.unit.workspace.archives import memory_directory, until
from trainyard.k8s.exec import Execution
from trainyard.kubectl import cp as cp_verb
from trainyard.kubectl.cli import parser
from trainyard.kubectl.cluster import Cluster
from trainyard.kubectl.cp import Tree
from trainyard.kubectl.output import PluginError
from trainyard.operator import names as n
from trainyard.workspace.archive import Member


@pytest.fixture
def cluster(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    pod = {"metadata": {"name": "pod"}}
    monkeypatch.setattr(cp_verb, "newest_pods", lambda _pods: {0: pod})
    meta = {"name": "job", "uid": "1"}
    monkeypatch.setattr(Cluster, "job", lambda *_: {"metadata": meta, "status": {"phase": "Pending"}})
    monkeypatch.setattr(Cluster, "workers", lambda _self, _job: [])
    return Cluster(rest(pods), "team")


def cp(cluster: Cluster, source: object, target: object, *more: str) -> int:
    return cp_verb.run(parser().parse_args(["cp", str(source), str(target), *more]), cluster)


def fails(cluster: Cluster, source: object, target: object, code: int, said: str, *more: str) -> None:
    """Assert that this copy ends with an error."""
    with pytest.raises(PluginError, match=said) as reported:
        cp(cluster, source, target, *more)
    assert reported.value.code == code


def test_files_and_directories_both_ways(cluster: Cluster, pods: Pods, tmp_path: Path) -> None:
    here = tmp_path / "here"
    (here / "in").mkdir(parents=True)
    (here / "in" / "a").write_bytes(os.urandom(200_000))
    (pods.root / "to").mkdir()
    assert cp(cluster, here / "in", "job:to/copy") == 0
    assert (pods.root / "to" / "copy" / "a").read_bytes() == (here / "in" / "a").read_bytes()
    assert cp(cluster, here / "in" / "a", "job:to/") == 0
    assert (pods.root / "to" / "a").exists()
    assert cp(cluster, "job:to/copy", here / "back") == 0
    assert (here / "back" / "a").read_bytes() == (here / "in" / "a").read_bytes()
    assert cp(cluster, f"job:{pods.root}/to/a", here) == 0
    assert (here / "a").read_bytes() == (here / "in" / "a").read_bytes()
    assert sorted(path.name for path in here.iterdir()) == ["a", "back", "in"]
    (pods.root / "to" / "empty").mkdir()
    fails(cluster, here / "a", "job:to/empty", 65, "^cp: to/empty of pod is a directory; it must be to")
    assert list((pods.root / "to" / "empty").iterdir()) == []
    assert cp(cluster, here / "a", "job:to/empty/") == 0
    assert (pods.root / "to" / "empty" / "a").read_bytes() == (here / "a").read_bytes()


def test_incomplete_upload_leaves_the_old_files(
    cluster: Cluster, pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tar that ends between two of its files looks complete."""
    tree, old, whole = tmp_path / "tree", pods.root / "old", Execution.write
    for each in (tree, old):
        each.mkdir()
    for index in range(40):
        (tree / str(index)).write_text("x" * 400)
    for name in ("0", "mine"):
        (old / name).write_text("old")
    monkeypatch.setattr(cp_verb, "_CHUNK", 1024)  # a file and its header
    for target, count in (("new", 10), ("new", 39), ("old", 39), ("old/0", 0)):
        left = [count]

        def interrupted(running: Execution, data: bytes, left: list[int] = left) -> None:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            whole(running, data)

        monkeypatch.setattr(Execution, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cp(cluster, tree / "0" if count == 0 else tree, f"job:{target}")
        until(lambda: [path.name for path in pods.root.iterdir()] == ["old"])
        until(lambda: sorted(path.name for path in old.iterdir()) == ["0", "mine"])
        assert (old / "0").read_text() == "old"
    monkeypatch.setattr(Execution, "write", whole)
    pods.cut = 20
    fails(cluster, tree, "job:old", 69, "the connection broke")
    assert (old / "0").read_text() == "old"
    pods.cut = -1
    for name in ("new", "old"):
        assert cp(cluster, tree, f"job:{name}") == 0
    names = sorted(each.name for each in tree.iterdir())
    assert sorted(each.name for each in (pods.root / "new").iterdir()) == names
    assert sorted(each.name for each in old.iterdir()) == [*names, "mine"]
    assert ((old / "0").read_text(), (old / "mine").read_text()) == ("x" * 400, "old")
    until(lambda: sorted(each.name for each in pods.root.iterdir()) == ["new", "old"])


def test_cp_of_read_only_directories_without_root(cluster: Cluster, pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "tree" / "in").mkdir(parents=True)
    (tmp_path / "tree" / "in" / "a").write_text("1")
    for each in ("tree/in", "tree"):
        (tmp_path / each).chmod(0o555)
    if os.geteuid() == 0:
        os.chown(pods.root, 65534, 65534)
        pods.before = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    assert cp(cluster, tmp_path / "tree", "job:new") == 0
    assert (pods.root / "new" / "in" / "a").read_text() == "1"
    assert [(pods.root / name).stat().st_mode & 0o777 for name in ("new", "new/in")] == [0o755, 0o755]


@pytest.mark.parametrize("is_upload", [True, False])
def test_cp_does_not_replace_a_pipe(cluster: Cluster, pods: Pods, tmp_path: Path, *, is_upload: bool) -> None:
    here = tmp_path / "here"
    here.mkdir()
    source, target = (here, pods.root) if is_upload else (pods.root, here)
    (source / "new").write_text("new")
    os.mkfifo(target / "pipe")
    (target / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        words = (here / "new", f"job:{name}") if is_upload else ("job:new", here / name)
        fails(cluster, *words, 65, rf"^cp: \S*{name}( of pod)? is no file; it must be")
    assert (target / "pipe").is_fifo()
    assert (target / "link").is_symlink()


def test_a_link_is_copied_as_what_it_names(cluster: Cluster, pods: Pods, tmp_path: Path) -> None:
    (pods.root / "runs").mkdir()
    (pods.root / "runs" / "7").write_text("seven")
    (pods.root / "runs" / "best").symlink_to("../latest")
    (pods.root / "latest").symlink_to(pods.root / "runs" / "7")
    assert cp(cluster, "job:runs/best", tmp_path) == 0
    assert (tmp_path / "best").read_text() == "seven"
    assert not (tmp_path / "best").is_symlink()
    (tmp_path / "link").symlink_to("best")
    assert cp(cluster, tmp_path / "link", "job:./") == 0
    assert cp(cluster, tmp_path / "link", "job:runs/..") == 0
    assert (pods.root / "link").read_text() == "seven"
    assert not (pods.root / "link").is_symlink()
    (pods.root / "ring").symlink_to("ring")
    fails(cluster, "job:ring", tmp_path / "x", 65, "cp: ring of pod: tar: ring: .*Too many levels of sym")


def test_download_names_the_members_it_skips(
    cluster: Cluster, pods: Pods, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (pods.root / "in" / "deep").mkdir(parents=True)
    (pods.root / "in" / "a").write_text("1")
    (pods.root / "in" / "b").symlink_to("a")
    (pods.root / "in" / "deep" / "out").symlink_to("/etc/passwd")
    os.mkfifo(pods.root / "in" / "deep" / "pipe")
    assert cp(cluster, "job:in", tmp_path / "got") == 65
    assert sorted(path.name for path in (tmp_path / "got").rglob("*")) == ["a", "b", "deep"]
    said = capfd.readouterr().err
    assert "cp: skipped: in/deep/out is a link that may lead out of it, to /etc/passwd\n" in said
    assert "cp: skipped: in/deep/pipe is neither a file, a directory nor a link\n" in said
    assert said.endswith("got, except 2 of its members\n")
    fails(cluster, "job:in/deep/pipe", tmp_path / "x", 65, "in/deep/pipe of pod: is neither a file nor a dir")


def test_download_checks_the_local_target_first(
    cluster: Cluster, pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pods.root / "in").mkdir()
    (pods.root / "a").write_text("theirs")
    for name in ("file", "file2"):
        (tmp_path / name).write_text("mine")
    (tmp_path / "to" / "in").mkdir(parents=True)
    asked: list[object] = []
    real = cp_verb._execute
    monkeypatch.setattr(cp_verb, "_execute", lambda *words: asked.append(words) or real(*words))
    for source, target, code, said in (
        ("job:in", tmp_path / "to", 65, "to/in exists; use another path"),
        ("job:..", tmp_path / "x", 64, r"cp: \.\. of pod: must end with the name"),
        ("job:in/..", tmp_path / "x", 64, r"cp: in/\.\. of pod: must end with the name"),
        ("job:/", tmp_path / "x", 64, "cp: / of pod: must end with the name"),
        ("job:in", "/proc/x", 65, "cp: can't write /proc/x: "),
        ("job:in", tmp_path / "file", 65, "file is a file here, and in of pod a directory"),
        ("job:a", f"{tmp_path}/new/", 65, "cp: .*/new is not a directory here; create it first"),
        ("job:a", f"{tmp_path}/file/", 65, "cp: .*/file is not a directory here; create it first"),
    ):
        fails(cluster, source, target, code, said)
    assert len(asked) == 3
    assert (tmp_path / "file").read_text() == "mine"
    assert cp(cluster, "job:in", f"{tmp_path}/new/") == 0
    assert cp(cluster, "job:a", f"{tmp_path}/new/") == 0
    assert (tmp_path / "new" / "a").is_file()


def test_a_full_disk_and_a_broken_tar_are_reported(
    cluster: Cluster, pods: Pods, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pods.root / "data").write_bytes(bytes(10_000_000))
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limit[1]))
        fails(cluster, "job:data", tmp_path / "x", 65, "cp: can't write .*/x: File too large")
        fails(cluster, pods.root / "data", "job:x", 65, "cp: can't pack .*/data: File too large")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, ignored)
    assert [path.name for path in tmp_path.iterdir()] == ["pod"]
    bad = "#!/bin/sh\nexec head -c 700 /dev/urandom\n"
    (tmp_path / "bin").mkdir()
    stopped = "#!/bin/sh\nexit 137\n"  # with its pod
    gone = "echo 'tar: data/x: No such file or directory' >&2; exit 1"  # as busybox says it of a part
    gone = f'#!/bin/sh\n{shutil.which("tar")} "$@"; {gone}\n'
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for tar, said, code in (
        (bad, "pod pod: the tar of data is broken: ", 69),
        (stopped, "pod pod: tar was killed, exit code 137", 69),
        (gone, "cp: data of pod: tar: data/x: No such file or directory$", 65),
    ):
        (tmp_path / "bin" / "tar").write_text(tar)
        (tmp_path / "bin" / "tar").chmod(0o755)
        fails(cluster, "job:data", tmp_path / "x", code, said)


def test_cp_from_an_ended_worker_is_refused(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = {"name": n.WORKER_CONTAINER, "state": {"terminated": {"exitCode": 0}}}
    for status in ({"phase": "Succeeded"}, {"phase": "Running", "containerStatuses": [over]}):
        pod = {"metadata": {"name": "pod"}, "status": status}
        monkeypatch.setattr(cp_verb, "newest_pods", lambda _pods, pod=pod: {0: pod})
        fails(cluster, "one:/a/last.pt", tmp_path / "x", 66, "^job one: its worker 0 has ended; cp needs")


def test_cp_reports_what_cannot_be_copied(cluster: Cluster, pods: Pods, tmp_path: Path) -> None:
    (pods.root / "file").touch()
    (tmp_path / "ring").symlink_to("ring")
    for source, target, more, code, said in (
        ("job:absent", tmp_path / "x", (), 65, "^cp: absent is not in worker pod$"),
        (tmp_path / "none", "job:x", (), 65, "none does not exist here"),
        (tmp_path / "ring", "job:x", (), 65, r"^cp: can't read \S+/ring: Too many levels of symbolic links$"),
        (tmp_path / "pod", "job:absent/x", (), 65, "^cp: absent is not in worker pod$"),
        (tmp_path / "pod", "job:file/x", (), 65, "^cp: file of pod: mktemp: .*: Not a directory"),
        ("x" * 300, "job:x", (), 65, f"cp: can't read {'x' * 300}: File name too long"),
        ("job:a", "x" * 300, (), 65, f"cp: can't write {'x' * 300}: File name too long"),
        ("job:a", tmp_path / "absent" / "x", (), 65, "absent is not a directory here"),
        ("job:a", tmp_path / "x", ("--node-rank", "7"), 66, "job job: has no worker 7 now; its phase is P"),
    ):
        fails(cluster, source, target, code, said, *more)
    assert not (tmp_path / "x").exists()
    (pods.root / "bytes").symlink_to("\udcff")
    fails(cluster, "job:bytes", tmp_path / "x", 65, "cp: bytes is not in worker pod")
    for source, target in (("job:\udcff", tmp_path / "x"), (tmp_path / "pod", "job:\udcff")):
        fails(cluster, source, target, 64, r"cp: job: path '\\udcff' must be UTF-8")
    (pods.root / "data").write_bytes(bytes(10_000))
    pods.cut = 0
    fails(cluster, "job:data", tmp_path / "x", 69, "connection broke")
    assert not (tmp_path / "x").exists()


FILE, LINK, HARD = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
DIRECTORY, PIPE, DEVICE = tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE
Sent = tuple[str, bytes, str]


def _in_tar(name: str) -> str:
    """As tar names what it finds in the directory `d`."""
    return "." if name == "d" else f"./{name[2:]}" if name.startswith("d/") else name


def tar(*sent: Sent, **more: object) -> bytes:
    """What a pod sends: name, kind, and content or target of each."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, what in sent:
            member = tarfile.TarInfo(_in_tar(name))
            member.type = kind
            member.linkname = {LINK: what, HARD: _in_tar(what)}.get(kind, "")
            content = what.encode() if kind == FILE else b""
            member.size = len(content)
            for key, value in more.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def taken(data: bytes, into: Path, base: str = "d") -> list[str]:
    """What is left out of it."""
    tree = Tree(base, into / base)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r|", tarinfo=Member) as members:
        for member in members:
            tree.add(members, member)
    tree.end()
    return tree.skipped


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (("/d/x", FILE, "x"), "an absolute path"),
        (("d/../x", FILE, "x"), r'"\.\."'),
        (("..", DIRECTORY, ""), r'"\.\."'),
        (("other", FILE, "x"), "not requested"),
        (("do/x", FILE, "x"), "not requested"),
        (("d/a", LINK, "b"), "File exists"),
        (("d/a/x", FILE, "x"), "Not a directory"),
        (("d/l/x", FILE, "y"), "File exists"),
        (("d/l/x", LINK, "y"), "File exists"),
        (("d/l/e/x", DIRECTORY, ""), "File exists"),
        (("d/" + "d/" * 500 + "x", FILE, "x"), "500 nested directories or more"),
    ],
)
def test_tree_refuses_an_unrequested_member(tmp_path: Path, sent: Sent, said: str) -> None:
    (tmp_path / "into").mkdir()
    data = tar(("d", DIRECTORY, ""), ("d/a", FILE, "1"), ("d/l", LINK, "e"), sent)
    with pytest.raises((tarfile.ReadError, OSError), match=said):
        taken(data, tmp_path / "into")
    assert [path.name for path in tmp_path.iterdir()] == ["into"]


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        *(
            (("d/x", LINK, target), f"a link that may lead out of it, to {target}")
            for target in ("/etc", "..", "../secret", "../d/a", "l/..")
        ),
        *(
            (("d/x", HARD, target), f"a hard link to {target}, which was not copied")
            for target in ("none", "../mine", "/etc/passwd")
        ),
        (("d/x", PIPE, ""), "neither a file, a directory nor a link"),
        (("d/x", DEVICE, ""), "neither a file, a directory nor a link"),
    ],
)
def test_tree_skips_devices_and_links_out(tmp_path: Path, sent: Sent, said: str) -> None:
    into = tmp_path / "into"
    into.mkdir()
    (tmp_path / "mine").write_text("mine")
    data = tar(("d", DIRECTORY, ""), ("d/a", FILE, "1"), ("d/l", LINK, "a"), sent, ("d/z", FILE, "2"))
    assert taken(data, into) == [f"d/x is {said}"]
    assert sorted(path.name for path in (into / "d").iterdir()) == ["a", "l", "z"]
    assert (into / "d" / "l").read_text() == "1"


def test_tree_keeps_links_modes_and_times(tmp_path: Path) -> None:
    data = tar(
        ("d/deep/a", FILE, "1"),
        ("d/deep/hard", HARD, "d/deep/a"),
        ("d/down", LINK, "deep/a"),
        ("d/same", HARD, "d/down"),
        ("d/deep/up", LINK, "../.hidden/b"),
        ("d/.hidden/b", FILE, "2"),
        mode=0o7777,
        mtime=1_000_000_000,
    )
    assert taken(data, tmp_path) == []
    known = (tmp_path / "d" / "deep" / "a").stat()
    assert (known.st_nlink, stat.S_IMODE(known.st_mode), known.st_mtime) == (2, 0o755, 1_000_000_000)
    assert (tmp_path / "d" / "deep" / "up").read_text() == "2"
    assert (tmp_path / "d" / "same").readlink() == Path("deep/a")
    (tmp_path / "two").mkdir()
    taken(tar(("d", FILE, "1"), mode=0o420, mtime=1e300), tmp_path / "two")
    assert stat.S_IMODE((tmp_path / "two" / "d").stat().st_mode) == 0o600


def test_cp_of_a_workspace_leaves_out_the_control_directory(tmp_path: Path) -> None:
    (tmp_path / "of").mkdir()
    record, log = "d/.torchrun-workspace", "d/.torchrun-workspace/log"
    data = tar(("d", DIRECTORY, ""), (record, DIRECTORY, ""), (log, FILE, "x"), (f"{record}s", FILE, "x"))
    assert taken(data, tmp_path) == []
    assert os.listdir(tmp_path / "d") == [".torchrun-workspaces"]
    data = tar((".", DIRECTORY, ""), ("./log", FILE, "x"))
    assert taken(data, tmp_path / "of", ".torchrun-workspace") == []
    assert (tmp_path / "of" / ".torchrun-workspace" / "log").exists()


def test_tree_stops_links_that_deceive_tarfile(tmp_path: Path) -> None:
    """CVE-2025-4517: beyond the longest path that can be resolved, a link's end is not known."""
    into, long, steps = tmp_path / "into", "d" * 247, "abcdefghijklmnop"
    into.mkdir()
    (tmp_path / "victim").write_text("mine")
    sent: list[Sent] = [("d", DIRECTORY, "")]
    for at, step in enumerate(steps):
        path = "d/" + f"{long}/" * at
        sent += [(path + long, DIRECTORY, ""), (path + step, LINK, long)]
    chain = "/".join(steps) + "/" + "l" * 254
    sent += [(f"d/{chain}", LINK, "../" * len(steps)), ("d/escape", LINK, f"{chain}/../../victim")]
    sent += [("d/flag", HARD, "d/escape"), ("d/flag", FILE, "not mine")]
    with suppress(tarfile.ReadError, OSError):
        taken(tar(*sent), into)
    assert (tmp_path / "victim").read_text() == "mine"


def test_tree_skips_sparse_files(tmp_path: Path) -> None:
    member = tarfile.TarInfo("d")
    member.pax_headers = {"GNU.sparse.map": f"0,0,{2**50},0", "GNU.sparse.size": str(2**50)}
    assert taken(member.tobuf(tarfile.PAX_FORMAT) + bytes(1024), tmp_path) == ["d is a file with holes"]
    assert not list(tmp_path.iterdir())


PATHS = st.lists(st.sampled_from(["a", "b", "c", "..", ".", "", "/"]), min_size=1, max_size=4).map("/".join)
KINDS = (FILE, LINK, HARD, DIRECTORY, PIPE)


@settings(max_examples=120)
@given(st.lists(st.tuples(PATHS | PATHS.map("d/".__add__), st.sampled_from(KINDS), PATHS), max_size=6))
@pytest.mark.long
def test_tree_writes_nothing_outside(sent: list[Sent]) -> None:
    with memory_directory() as base:
        into = base / "deep" / "into"
        into.mkdir(parents=True)
        with suppress(tarfile.ReadError, OSError):
            taken(tar(*sent), into)
        assert [path.name for path in base.iterdir()] == ["deep"]
        assert [path.name for path in (base / "deep").iterdir()] == ["into"]
        assert [path.name for path in into.iterdir()] in ([], ["d"])
        for path in into.rglob("*"):
            if path.is_symlink():
                leads = os.path.normpath(path.parent / os.readlink(path))
                assert leads == str(into / "d") or leads.startswith(f"{into}/d/")
