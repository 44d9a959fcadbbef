"""The pod that proves the mount of the shared file system, and that people enter."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from components.documents.lustre import MOUNT_TEST_SCRIPT, OPEN_SCRIPT, directory, proof_spec
from components.documents.pool import Pool
from components.lustre import LustreProof, LustreProofArgs
from components.warm_nodes import deployment, warm_pod_affinity
from tests.unit.components.pools import CPU, pool
from tests.unit.components.recording import Recorded, deploy
from trainyard.k8s import names

POD = "kubernetes:core/v1:Pod"
IMAGE = "registry.example/trainer@sha256:" + "0" * 64
LOST = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}


def recorded() -> Recorded:
    args = LustreProofArgs(
        image=IMAGE,
        claim="lustre",
        mount_path="/fsx",
        placement=warm_pod_affinity(pool(warm_nodes=1)),
        after=[],
    )
    return deploy(lambda: LustreProof("lustre-proof", args))


def spec(on: Pool | None = None, **more: Any) -> dict[str, Any]:
    placement = warm_pod_affinity(on) if on else {}
    return proof_spec(image=IMAGE, claim="lustre", mount_path="/fsx", placement=placement, **more)


def containers() -> dict[str, dict[str, Any]]:
    made = spec()
    return {each["name"]: each for each in [*made["initContainers"], *made["containers"]]}


def test_it_is_entered_by_the_name_that_people_know() -> None:
    metadata = recorded().one(POD).inputs["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("attach-pvc", "training")
    (shell,) = spec()["containers"]
    assert metadata["annotations"]["kubectl.kubernetes.io/default-container"] == shell["name"]
    assert metadata["annotations"]["pulumi.com/skipAwait"] == "true", "`up` does not wait for a node"
    assert shell["command"][0] == "sleep"
    assert shell["volumeMounts"] == [{"name": "lustre", "mountPath": "/fsx"}]
    assert spec()["volumes"] == [{"name": "lustre", "persistentVolumeClaim": {"claimName": "lustre"}}]


def test_it_proves_as_the_training_pods_user() -> None:
    """All but the one container that opens a root which belongs to root."""
    found = containers()
    whole = spec()["securityContext"]
    assert (whole["runAsNonRoot"], whole["runAsUser"]) == (True, names.POD_USER)
    assert {name for name, each in found.items() if "runAsUser" in each["securityContext"]} == {"open"}
    for each in found.values():
        security = each["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"] is True
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec()["automountServiceAccountToken"] is False


def test_it_takes_no_more_of_a_machine_than_what_keeps_one() -> None:
    (warm,) = deployment(pool(warm_nodes=1), "pause")["template"]["spec"]["containers"]
    for each in containers().values():
        assert each["resources"]["requests"] == warm["resources"]["requests"]
        assert set(each["resources"]["limits"]) == {"memory"}


def test_it_keeps_no_machine_by_itself() -> None:
    """It runs where a warm pod does, on every pool; and nothing forbids Karpenter to take the machine."""
    for on in (pool(warm_nodes=2), CPU):
        (rule,) = spec(on)["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        warm = deployment(on, "pause")["template"]
        assert rule["labelSelector"]["matchLabels"] == warm["metadata"]["labels"]
        assert spec(on)["nodeSelector"] == warm["spec"]["nodeSelector"]
        assert [t for t in spec(on)["tolerations"] if t["key"] not in LOST] == on.tolerations
        assert spec(on)["priorityClassName"] == warm["spec"]["priorityClassName"]
    assert names.DO_NOT_DISRUPT not in str(recorded().one(POD).inputs)


def test_its_tolerations_are_those_that_the_cluster_has_of_it() -> None:
    """The API server gives a pod the two that are missing, which a refresh would take for a change."""
    lost = [t for t in spec(pool())["tolerations"] if t["key"] in LOST]
    assert {t["key"] for t in lost} == LOST
    assert {(t["operator"], t["effect"], t["tolerationSeconds"]) for t in lost} == {
        ("Exists", "NoExecute", 300)
    }


def run(script: str, *words_: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    words = ["sh", "-c", script, *map(str, words_)]
    return subprocess.run(words, env={"PATH": "/usr/bin:/bin", **variables}, capture_output=True, text=True)


def test_the_proof_writes_reads_and_leaves_nothing(tmp_path: Path) -> None:
    found = run(MOUNT_TEST_SCRIPT, tmp_path, tmp_path, POD_NAME="attach-pvc")
    assert (found.returncode, found.stdout.splitlines()[-1]) == (0, f"written and read on {tmp_path}")
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_is_mounted_nothing_is_proven(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert run(MOUNT_TEST_SCRIPT, absent, absent / "trainyard" / "dev", POD_NAME="attach-pvc").returncode != 0
    assert not absent.exists()


def test_a_root_that_is_somebody_elses_is_left_as_it_is(tmp_path: Path) -> None:
    owner = tmp_path.stat().st_uid
    before = tmp_path.stat().st_mode & 0o7777
    assert run(OPEN_SCRIPT, tmp_path).returncode == 0
    assert tmp_path.stat().st_mode & 0o7777 == (0o1777 if owner == 0 else before)


def test_of_a_file_system_that_is_given_a_directory_of_the_stacks_own_is_opened_and_not_the_root(
    tmp_path: Path,
) -> None:
    assert directory("/fsx", "dev", existing=False) == "/fsx"
    own = directory(str(tmp_path), "dev", existing=True)
    assert own == f"{tmp_path}/trainyard/dev"
    tmp_path.chmod(0o755)
    for _ in range(2):
        assert run(OPEN_SCRIPT, Path(own)).returncode == 0
    mine = os.getuid() == 0
    assert [oct(path.stat().st_mode & 0o7777) for path in (tmp_path, tmp_path / "trainyard", Path(own))] == [
        "0o755",
        "0o755",
        "0o1777" if mine else "0o755",
    ]
    found = run(MOUNT_TEST_SCRIPT, tmp_path, Path(own), POD_NAME="attach-pvc")
    assert (found.returncode, found.stdout.splitlines()[-1]) == (0, f"written and read on {own}")


def test_where_root_may_make_no_directory_the_training_pods_user_makes_it_or_tells(tmp_path: Path) -> None:
    place = tmp_path / "file" / "trainyard"
    place.parent.touch()  # nobody makes a directory there
    opened = run(OPEN_SCRIPT, place)
    assert opened.returncode == 0
    assert f"{place} is left to the training pods' user" in opened.stderr
    assert run(MOUNT_TEST_SCRIPT, tmp_path, place, POD_NAME="attach-pvc").returncode != 0


def test_both_containers_receive_opened_directory() -> None:
    for writes, opened in ((None, "/fsx"), ("/fsx/trainyard/dev", "/fsx/trainyard/dev")):
        found = {each["name"]: each["command"] for each in spec(writes=writes)["initContainers"]}
        assert found == {
            "open": ["sh", "-c", OPEN_SCRIPT, opened],
            "prove": ["sh", "-c", MOUNT_TEST_SCRIPT, "/fsx", opened],
        }
