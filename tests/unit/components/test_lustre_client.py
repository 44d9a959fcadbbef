"""The Lustre client of machines with EFA: which of them use it, over how many interfaces, and what is left to TCP."""

from __future__ import annotations

import email
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.documents import instance_types, user_data
from tests.unit.components.crd import problems
from tests.unit.components.test_pool_objects import pool, spec

TCP_WARNING = "the Lustre client is not set up for EFA, the file system will be reached over TCP"
COMMANDS = ("dnf", "modinfo", "modprobe", "lnetctl", "lustre_rmmod", "ip")
ROUTES = "default via 10.0.0.1 dev ens5 proto dhcp src 10.0.0.9 metric 512\ndefault via 10.0.0.1 dev ens6 metric 522"


def test_every_type_uses_as_many_interfaces_as_fsx_says() -> None:
    found = {
        facts.name: user_data.interfaces(facts.name, facts.efa) for facts in instance_types.TYPES.values()
    }
    assert {name: count for name, count in found.items() if count} == {
        **dict.fromkeys(("g6.8xlarge", "g6.12xlarge", "g6.16xlarge", "g6.24xlarge", "g6.48xlarge"), 1),
        **dict.fromkeys(("g6e.8xlarge", "g6e.12xlarge", "g6e.16xlarge", "p5.4xlarge"), 1),
        **dict.fromkeys(("g6e.24xlarge", "g6e.48xlarge", "trn1.32xlarge", "trn1n.32xlarge"), 2),
        **dict.fromkeys(("p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge", "p6-b200.48xlarge"), 8),
    }
    assert user_data.interfaces("p5.48xlarge", 0) == 0, "without EFA there is nothing to set up"
    assert set(user_data.INTERFACES) <= set(instance_types.TYPES)


class Machine:
    """A machine on which commands only say that they were called; `broken` is the beginning of one that fails.

    They are functions of the shell: a program for each call would take most of the time of these tests.
    """

    def __init__(self, root: Path, devices: list[str], drivers: dict[str, str] | None = None) -> None:
        self._root = root
        self._calls = root / "calls"
        for name in devices:
            (root / "infiniband" / name / "device").mkdir(parents=True)
            driver = root / "drivers" / (drivers or {}).get(name, "efa")
            driver.mkdir(parents=True, exist_ok=True)
            (root / "infiniband" / name / "device" / "driver").symlink_to(driver)
        self._commands = 'basename() { echo "${1##*/}"; }\n' + "".join(
            f'{name}() {{\n  echo "{name} $*" >> {self._calls}\n'
            f'  case "{name} $*" in "$BROKEN"*) return 1 ;; "ip "*) echo "$ROUTES" ;; esac\n}}\n'
            for name in COMMANDS
        )

    def run(self, wanted: int, broken: str = "nothing") -> tuple[int, list[str], str]:
        """The script's exit code, the commands that it called, and what it complained of."""
        text = user_data.script(wanted).replace("/sys/class/infiniband", str(self._root / "infiniband"))
        answer = subprocess.run(
            ["bash"],
            input=self._commands + text,
            text=True,
            capture_output=True,
            env={"PATH": os.environ["PATH"], "BROKEN": broken, "ROUTES": ROUTES},
        )
        return answer.returncode, self._calls.read_text().splitlines(), answer.stderr


def test_the_client_talks_over_efa_first_and_keeps_tcp(tmp_path: Path) -> None:
    code, calls, said = Machine(tmp_path, ["rdmap1s0"]).run(1)
    assert (code, said) == (0, "")
    assert calls == [
        "dnf install --assumeyes lustre-client",
        "modinfo kefalnd",
        "ip -4 route show default",
        "modprobe lnet",
        "modprobe kefalnd ipif_name=ens5",
        "modprobe ksocklnd",
        "lnetctl lnet configure",
        "lnetctl net del --net tcp",
        "lnetctl net add --net tcp --if ens5",
        "lnetctl net add --net efa --if rdmap1s0 --peer-credits 32",
        "lnetctl set discovery 1",
        "lnetctl udsp add --src efa --priority 0",
        "modprobe lustre",
        "lnetctl net show",
    ]


@pytest.mark.parametrize(
    ("cards", "wanted", "used"),
    [
        (32, 8, [0, 4, 8, 12, 16, 20, 24, 28]),
        (4, 2, [0, 2]),
        (8, 8, [*range(8)]),
    ],
)
def test_the_interfaces_are_spread_over_the_cards(
    tmp_path: Path, cards: int, wanted: int, used: list[int]
) -> None:
    devices = [f"rdmap{index:02}s0" for index in range(cards)]
    _, calls, _ = Machine(tmp_path, devices).run(wanted)
    added = [line.split()[6] for line in calls if line.startswith("lnetctl net add --net efa")]
    assert added == [devices[index] for index in used]


def test_devices_of_other_drivers_are_left_alone(tmp_path: Path) -> None:
    machine = Machine(tmp_path, ["ibp1s0", "rdmap2s0", "rdmap3s0"], {"ibp1s0": "mlx5_core"})
    _, calls, _ = machine.run(2)
    added = [line.split()[6] for line in calls if line.startswith("lnetctl net add --net efa")]
    assert added == ["rdmap2s0", "rdmap3s0"]


@pytest.mark.parametrize(
    "broken",
    [
        "dnf",
        "modinfo kefalnd",
        "modprobe kefalnd",
        "lnetctl net add --net tcp",
        "lnetctl net add --net efa",
        "lnetctl udsp",
    ],
)
def test_what_fails_is_said_and_leaves_the_client_to_tcp(tmp_path: Path, broken: str) -> None:
    code, calls, said = Machine(tmp_path, ["rdmap1s0"]).run(1, broken)
    assert code != 0
    assert TCP_WARNING in said
    assert calls[-1].startswith("lustre_rmmod"), "a client that is half set up could mount nothing"
    assert "modprobe lustre" not in calls


def test_a_machine_without_the_devices_of_its_type_is_left_to_tcp(tmp_path: Path) -> None:
    for number, devices in enumerate(([], ["rdmap1s0"])):
        root = tmp_path / str(number)
        root.mkdir()
        code, calls, said = Machine(root, devices).run(2)
        assert code != 0
        assert TCP_WARNING in said
        assert not [line for line in calls if line.startswith(("lnetctl", "modprobe"))]


def test_a_tcp_net_that_is_not_there_need_not_be_deleted(tmp_path: Path) -> None:
    code, _, _ = Machine(tmp_path, ["rdmap1s0"]).run(1, "lnetctl net del")
    assert code == 0


def parts(**change: Any) -> list[tuple[str, str]]:
    """Content type and text of each part of a machine's user data."""
    given = spec(pool(**change), lustre_efa=True)
    assert problems("EC2NodeClass", given) == []
    archive = email.message_from_string(given["userData"])
    return [(part.get_content_type(), str(part.get_payload())) for part in archive.get_payload()]


def test_user_data_adds_efa_setup_to_defaults() -> None:
    (kind, script), (other, config) = parts(instanceType="p5.48xlarge")
    assert (kind, other) == ("text/x-shellscript", "application/node.eks.aws")
    assert script.strip() == user_data.script(8).strip()
    assert yaml.safe_load(config)["spec"] == {"featureGates": {"FastImagePull": True}}


def test_images_from_a_snapshot_are_there_before_the_client_is_set_up() -> None:
    images, client, config = parts(instanceType="g6.8xlarge", dataSnapshotId="snap-0123456789abcdef0")
    assert "/var/lib/containerd" in images[1]
    assert client[1].strip() == user_data.script(1).strip()
    assert yaml.safe_load(config[1])["spec"]["instance"]["localStorage"]["disabledMounts"] == ["Containerd"]


@pytest.mark.parametrize(
    "change", [{"instanceType": "g5.12xlarge"}, {"instanceType": "p5.48xlarge", "efa": "none"}]
)
def test_user_data_without_efa_support_adds_nothing(change: dict[str, Any]) -> None:
    assert spec(pool(**change), lustre_efa=True) == spec(pool(**change))
