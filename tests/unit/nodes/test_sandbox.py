"""Containers as they run: each test starts one in a real sandbox, with the plan that a pod's volumes make for it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from local.home import CHECKOUT, Home
from local.nodes import dockerfile, environment, sandbox
from local.nodes.images import Program, image_environment, manager, write_helpers
from local.nodes.process import Ended, Process
from local.nodes.volumes import PodVolumes, find_unreadable

pytestmark = [
    pytest.mark.skipif(
        os.geteuid() != 0, reason="an ordinary user's sandboxes need the cloud's user namespace"
    ),
]
ROOT, POD_USER = 0, 10001
SITE = (
    Path(os.path.realpath(sys.prefix))
    / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
)


class World:
    """A home of a local cloud, and containers that run in it."""

    def __init__(self, directory: Path) -> None:
        self.home = Home(directory / "cloud")
        self.home.make()
        self.number = 0
        self.users: dict[str, int] = {}  # that the image makes
        self.mounts: dict[str, dict[str, str]] = {}  # further fields of volume mounts, by name
        self.working_directory = "/"
        self.program: Program | None = None  # in place of the interpreter

    def plan(
        self, user: int, argv: list[str], mounts: dict[str, Path], context: str
    ) -> tuple[Path, dict[str, Any]]:
        """What a container's process is started with, and its directory."""
        self.number += 1
        directory = self.home.pods / f"pod-{self.number}"
        directory.mkdir()
        (directory / "hosts").touch()
        settings = SimpleNamespace(home=self.home)
        shared = SimpleNamespace(settings=settings, preload=self.home.bin, helpers=self.home.bin)
        item = {"spec": {"volumes": [{"name": name, "emptyDir": {}} for name in mounts]}}
        pod = SimpleNamespace(
            item=item, role="", hosts_file=directory / "hosts", directory=directory, context=shared
        )
        volumes = PodVolumes(pod)  # type: ignore[arg-type]
        volumes.directories |= mounts
        mounted = [{"name": name, "mountPath": f"/{name}", **self.mounts.get(name, {})} for name in mounts]
        program = self.program or Program("process", (sys.executable,), context=context)
        variables = environment.complete({}, image_environment(), {}, "pod", "127.64.0.1", user, self.users)
        return directory, {
            **volumes.plan({"name": "main", "volumeMounts": mounted}, program),
            "hostname": "pod",
            "user": user,
            "group": user,
            "users": self.users,
            "argv": argv,
            "env": variables,
            "cwd": self.working_directory,
        }

    def start(self, user: int, argv: list[str], context: str = "", **mounts: Path) -> tuple[Process, Path]:
        """Start a container; its process and its log."""
        directory, plan = self.plan(user, argv, mounts, context)
        log = directory / "log"
        return Process.start(directory / "containers/main", plan, log), log

    def run(self, user: int, argv: list[str], context: str = "", **mounts: Path) -> tuple[Ended, str]:
        """Run a container to its end; how it ended and what it printed."""
        process, log = self.start(user, argv, context, **mounts)
        return asyncio.run(process.wait()), log.read_text()

    def python(self, user: int, text: str, context: str = "", **mounts: Path) -> str:
        """What a Python program prints there; it must succeed."""
        ended, output = self.run(user, ["python", "-c", textwrap.dedent(text)], context, **mounts)
        assert ended.code == 0, f"{output} {ended.message}"
        return output


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


WRITES = """
    import os
    for place in {places!r}:
        try:
            with open(place, "w") as file:
                file.write("changed by a pod")
            print(place, "written")
        except OSError as error:
            print(place, os.strerror(error.errno))
"""


@pytest.mark.parametrize("user", [ROOT, POD_USER])
def test_container_writes_leave_the_machine_unchanged(world: World, user: int) -> None:
    name = f"from-a-pod-{os.getpid()}"
    directories = [
        *(
            SITE,
            CHECKOUT,
            CHECKOUT / "trainer",
            Path.home(),
            world.home.root,
            world.home.run,
            world.home.logs,
        ),
        *(
            Path(each)
            for each in ("/tmp", "/var/tmp", "/var/lib", "/dev/shm", "/dev", "/etc", "/usr/bin", "/opt")
        ),
        *(Path(each) for each in ("/", "/home", "/run", "/srv", "/mnt", "/proc/sys/kernel", "/sys/kernel")),
    ]
    places = [str(directory / name) for directory in directories]
    output = world.python(user, WRITES.format(places=places), context=str(CHECKOUT))
    assert f"{SITE / name} written" in output
    assert f"/tmp/{name} written" in output
    left = [place for place in places if os.path.exists(place)]
    for place in left:
        os.unlink(place)
    assert left == []


@pytest.mark.parametrize("user", [ROOT, POD_USER])
def test_container_cannot_change_the_running_kernel(world: World, user: int) -> None:
    output = world.python(
        user, WRITES.format(places=["/proc/sys/kernel/core_pattern", "/proc/sys/vm/swappiness"])
    )
    assert output.count("Read-only file system") == 2
    ended, _ = world.run(user, ["mount", "-o", "remount,rw,bind", "/proc/sys"])
    assert ended.code != 0
    ended, _ = world.run(user, ["mknod", "/tmp/disk", "b", "254", "0"])
    assert ended.code != 0


@pytest.mark.parametrize("user", [ROOT, POD_USER])
def test_container_reads_no_packets_of_others(world: World, user: int) -> None:
    """The credentials of all pods pass the shared loopback interface."""
    script = (
        "import socket\n"
        "for kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW)):\n"
        "    try:\n"
        "        socket.socket(*kind, socket.IPPROTO_TCP)\n"
        "    except PermissionError:\n"
        "        print('refused')\n"
    )
    _, out = world.run(user, [sys.executable, "-c", script])
    assert out.split() == ["refused", "refused"]


def test_container_sees_no_state_of_the_cloud_and_no_home(world: World) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(world.home.control_socket))
        server.listen()
        world.home.cloud_file.write_text("the deployer's key")
        program = f"""
            import os, socket
            try:
                socket.socket(socket.AF_UNIX).connect({str(world.home.control_socket)!r})
                print("connected")
            except OSError as error:
                print(os.strerror(error.errno))
            print(os.path.exists({str(world.home.cloud_file)!r}))
            print([each for each in os.listdir("/root") if each not in (".pyenv", ".local")], os.listdir("/home"))
            print(len(open("/etc/shadow").read()))
        """
        # The home lies in the build context, as `.local` of the checkout does.
        output = world.python(ROOT, program, context=str(world.home.root.parent))
    assert output.splitlines() == ["No such file or directory", "False", "[] []", "0"]


def test_container_reads_no_file_of_root_alone(world: World) -> None:
    """User 10001 is the owner of the host's files in its user namespace."""
    found = find_unreadable().files
    assert "/etc/shadow" in found
    program = f"print([each for each in {found!r} if os.path.exists(each) and open(each).read()])"
    assert world.python(POD_USER, f"import os; {program}").strip() == "[]"


def test_manager_starts_with_its_configuration_in_a_container(world: World, tmp_path: Path) -> None:
    # Like a tool: a link in the cloud's state to a program in the cache, both of which a container does not see.
    binary, link = tmp_path / "cache" / "manager", world.home.bin / "jobset-manager"
    binary.parent.mkdir()
    binary.write_text('#!/bin/sh\nexec cat "${1#--config=}"\n')
    binary.chmod(0o755)
    helpers = write_helpers(world.home.bin)
    link.symlink_to(binary)
    configuration = tmp_path / "configuration"
    configuration.mkdir()
    (configuration / "file.yaml").write_text("leaderElection: {leaderElect: true}\n")
    container = {"command": ["/manager"], "args": ["--config=/configuration/file.yaml"]}
    world.program = manager(container, link, helpers, "127.96.0.2")
    ended, output = world.run(POD_USER, list(world.program.argv), configuration=configuration)
    assert ended.code == 0, f"{output} {ended.message}"
    found = yaml.safe_load(output)
    assert found["leaderElection"] == {"leaderElect": True}
    assert found["webhook"] == {"port": 9443, "host": "127.96.0.2"}


def test_volumes_keep_what_is_written_to_them(world: World, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    world.python(POD_USER, 'open("/data/result", "w").write("kept")', data=tmp_path / "data")
    assert (tmp_path / "data/result").read_text() == "kept"


LISTS = "import os; print(sorted(os.listdir('/data')))"


def test_sub_path_is_created_in_the_volume(world: World, tmp_path: Path) -> None:
    (tmp_path / "data/real").mkdir(parents=True)
    (tmp_path / "data/real/file").touch()
    (tmp_path / "data/link").symlink_to("real")
    for path, found in (("new/inner", []), ("link", ["file"]), ("./real//", ["file"])):
        world.mounts = {"data": {"subPath": path}}
        assert world.python(POD_USER, LISTS, data=tmp_path / "data").strip() == str(found)
    assert (tmp_path / "data/new/inner").is_dir()


@pytest.mark.parametrize("path", ["link", "link/secret", "link/new", "up", "magic"])
def test_sub_path_that_leads_out_of_the_volume_is_refused(world: World, tmp_path: Path, path: str) -> None:
    """An earlier container of the pod may have written a link."""
    (tmp_path / "data").mkdir()
    (tmp_path / "host/secret").mkdir(parents=True)
    (tmp_path / "data/link").symlink_to(tmp_path / "host")
    (tmp_path / "data/up").symlink_to("../host")
    (tmp_path / "data/magic").symlink_to("/proc/self/root")
    world.mounts = {"data": {"subPath": path}}
    ended, output = world.run(ROOT, ["python", "-c", LISTS], data=tmp_path / "data")
    assert (ended.code, output) == (sandbox.START_ERROR, "")
    assert f"subPath {path!r} leads out of its volume" in ended.message
    assert sorted(os.listdir(tmp_path / "host")) == ["secret"]


@pytest.mark.parametrize("target", ["/.old{host}/made", "/data/out/made", "/.shadow/made"])
def test_mount_path_and_working_directory_stay_in_the_container(
    world: World, tmp_path: Path, target: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "host").mkdir()
    (tmp_path / "data/out").symlink_to(f"/.old{tmp_path}/host")
    target = target.format(host=tmp_path / "host")
    world.working_directory = target
    world.run(ROOT, ["true"], data=tmp_path / "data")
    world.working_directory = "/"
    (tmp_path / "other").mkdir()
    world.mounts = {"other": {"mountPath": target}}
    world.run(ROOT, ["true"], data=tmp_path / "data", other=tmp_path / "other")
    assert os.listdir(tmp_path / "host") == []


def wheel(directory: Path, name: str) -> Path:
    """A package with one module (packaging.python.org, binary distribution format)."""
    path = directory / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "ANSWER = 42\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(
            f"{info}/RECORD", f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n"
        )
    return path


@pytest.mark.parametrize("user", [ROOT, POD_USER])
def test_volume_may_cover_the_clouds_own_directory(world: World, tmp_path: Path, user: int) -> None:
    """As the /tmp of a container with a read-only root, where the home of the local cloud is below /tmp."""
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o777)
    covered = str(world.home.root).split("/")[1]
    world.python(user, f"open('/{covered}/x', 'w').write('1')", **{covered: volume})
    assert (volume / "x").read_text() == "1"


@pytest.mark.long
def test_pip_install_reaches_its_own_container_alone(world: World, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    name = f"onlyhere{os.getpid()}"
    wheel(tmp_path / "wheels", name)
    install = f"pip install --quiet --no-index --find-links /wheels {name}"
    install += f" && python -c 'import {name}; print({name}.ANSWER)'"
    ended, output = world.run(POD_USER, ["sh", "-c", install], wheels=tmp_path / "wheels")
    assert (ended.code, output.splitlines()[-1]) == (0, "42"), output
    assert list(SITE.glob(f"{name}*")) == []
    ended, output = world.run(POD_USER, ["python", "-c", f"import {name}"])
    assert ended.code == 1
    assert "ModuleNotFoundError" in output


WHO = """
import getpass, os, pathlib
print(os.getuid(), os.getgid(), os.environ["HOME"])
try:
    print(getpass.getuser())
except (KeyError, OSError):
    print("no name")
try:
    pathlib.Path("~/.cache").expanduser().mkdir()
    print("made")
except OSError:
    print("no cache")
"""


def test_user_without_a_passwd_entry_has_no_name_and_no_home(world: World) -> None:
    output = world.python(POD_USER, WHO)
    assert output.splitlines() == ["10001 10001 /", "no name", "no cache"]


def test_user_that_the_image_makes_has_a_name_and_a_home(world: World) -> None:
    text = "FROM base\nRUN groupadd --gid 10001 us && \\\n  useradd --uid 10001 --gid us --create-home we\nUSER we\n"
    image = dockerfile.parse(text)
    assert environment.user_and_group({"spec": {}}, {}, image.user, image.users) == (POD_USER, 0)
    world.users = image.users
    output = world.python(POD_USER, WHO)
    assert output.splitlines() == ["10001 10001 /home/we", "we", "made"]


@pytest.mark.parametrize("user", [ROOT, POD_USER])
def test_command_in_a_container_has_its_user_and_no_more_rights(world: World, user: int) -> None:
    process, _ = world.start(user, ["sleep", "60"])

    async def story() -> str:
        entry = await process.entry()  # at once: it waits for the program
        script = "id -u; mount -o remount,rw,bind /proc/sys && echo remounted; touch /usr/from-exec"
        command = entry.command(["sh", "-c", script])
        return (
            await asyncio.to_thread(subprocess.run, command, env=entry.variables, capture_output=True)
        ).stdout

    try:
        assert asyncio.run(story()).split() == [str(user).encode()]
        assert not os.path.exists("/usr/from-exec")
    finally:
        process.signal(9)  # type: ignore[arg-type]
        asyncio.run(process.wait())


@pytest.mark.parametrize("memory_helps", [True, False])
def test_layer_falls_back_to_memory_else_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory_helps: bool
) -> None:
    """The root of a container is an overlay itself, which can't carry the changes of another one."""
    kinds: list[str] = []

    def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
        if kind == "overlay" and not (memory_helps and "tmpfs" in kinds):
            raise OSError(errno.EINVAL, "mount")
        kinds.append(kind)

    monkeypatch.setattr(sandbox, "mount", mount)
    monkeypatch.setattr(sandbox, "libc", SimpleNamespace(umount2=lambda *_: 0))
    if memory_helps:
        sandbox.Layer(tmp_path / "layer")
        assert kinds == ["tmpfs", "overlay"]
    else:
        with pytest.raises(OSError, match="modprobe overlay"):
            sandbox.Layer(tmp_path / "layer")


@pytest.mark.parametrize(
    ("pod", "container", "image", "found"),
    [
        ({}, {}, "", (0, 0)),
        ({}, {}, "root", (0, 0)),
        ({}, {}, "10001:10001", (10001, 10001)),
        ({}, {}, "10001", (10001, 0)),
        ({}, {}, "trainer", (environment.UNKNOWN_USER, 0)),
        ({"runAsUser": 10001}, {}, "", (10001, 0)),
        ({"runAsUser": 10001}, {"runAsUser": 0}, "5:5", (0, 0)),
        ({"runAsGroup": 7}, {"runAsUser": 9}, "5:5", (9, 7)),
        (None, None, "5:6", (5, 6)),
    ],
)
def test_user_is_the_containers_then_the_pods_then_the_images(
    pod: Any, container: Any, image: str, found: tuple[int, int]
) -> None:
    spec = {"spec": {"securityContext": pod}}
    assert environment.user_and_group(spec, {"securityContext": container}, image) == found
