"""What the local cloud promises by itself, without the project's own stack: clusters, identities, refusals, secrets."""

from __future__ import annotations

import base64
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import jwt
import pytest
import yaml
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import ClientError
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.integration.local.own_cloud import OwnCloud, Program, own_cloud, processes_that_name, refusal

pytestmark = pytest.mark.local

MAIN, OTHER = "main", "other"
AUDIENCE = "sts.amazonaws.com"
SENTINELS = {name: f"sentinel-{name}-6f1d2b" for name in ("object", "output", "tag")}
SECRETS = f"""
import os, pulumi, pulumi_aws as aws, pulumi_kubernetes as k8s
cluster = k8s.Provider("cluster", kubeconfig=open(os.environ["KUBECONFIG"]).read())
on = pulumi.ResourceOptions(provider=cluster)
secret = k8s.core.v1.Secret("password", string_data={{"value": "{SENTINELS["object"]}"}}, opts=on)
k8s.core.v1.ConfigMap("derived", data={{"value": pulumi.Output.secret("{SENTINELS["output"]}")}}, opts=on)
aws.s3.Bucket("bucket", tags={{"value": pulumi.Output.secret("{SENTINELS["tag"]}")}})
pulumi.export("data", secret.data)
"""
WRONG = """
import os, pulumi
if os.environ["CASE"] == "property":
    pulumi.CustomResource("aws:s3/bucket:Bucket", "b", {"bucketNmae": "b"})
else:
    pulumi.CustomResource("kubernetes:core/v1:ConfgMap", "c", {})
"""


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnCloud]:
    """A cloud with the cluster `main`."""
    with own_cloud(tmp_path_factory.mktemp("cloud")) as running:
        running.create_cluster(MAIN)
        yield running


class Identity:
    """A role for the service account training/trainer of cluster `main`."""

    def __init__(self, cloud: OwnCloud) -> None:
        self.cloud = cloud
        issuer = cloud.client("eks").describe_cluster(name=MAIN)["cluster"]["identity"]["oidc"]["issuer"]
        host = issuer.removeprefix("https://")
        provider = cloud.client("iam").create_open_id_connect_provider(
            Url=issuer, ClientIDList=[AUDIENCE], ThumbprintList=["9" * 40]
        )
        subject = {f"{host}:sub": "system:serviceaccount:training:trainer", f"{host}:aud": AUDIENCE}
        trust = {
            "Effect": "Allow",
            "Principal": {"Federated": provider["OpenIDConnectProviderArn"]},
            "Action": "sts:AssumeRoleWithWebIdentity",
            "Condition": {"StringEquals": subject},
        }
        self.role = cloud.role("trainer", trust)
        self.accounts(MAIN)

    def accounts(self, cluster: str) -> None:
        self.cloud.kubectl(cluster, "create", "namespace", "training")
        for name in ("trainer", "stranger"):
            self.cloud.kubectl(cluster, "create", "serviceaccount", name, "-n", "training")

    def token(self, account: str = "trainer", audience: str = AUDIENCE, cluster: str = MAIN) -> str:
        words = ("create", "token", account, "-n", "training", "--audience", audience)
        return self.cloud.kubectl(cluster, *words)

    def assume(self, token: str) -> dict[str, Any]:
        sts = self.cloud.client("sts", config=Config(signature_version=UNSIGNED))
        answer: dict[str, Any] = sts.assume_role_with_web_identity(
            RoleArn=self.role, RoleSessionName="pod", WebIdentityToken=token
        )
        return answer

    def refused(self, token: str) -> str:
        with pytest.raises(ClientError) as error:
            self.assume(token)
        return refusal(error.value)


@pytest.fixture(scope="module")
def identity(cloud: OwnCloud) -> Identity:
    return Identity(cloud)


def signed_by_a_stranger(token: str) -> str:
    """The same claims under the same key id, signed with another key."""
    claims = jwt.decode(token, options={"verify_signature": False})
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return jwt.encode(claims, key, "RS256", headers={"kid": jwt.get_unverified_header(token)["kid"]})


def test_a_role_is_given_for_the_right_token_alone(identity: Identity) -> None:
    token = identity.token()
    assert identity.assume(token)["SubjectFromWebIdentityToken"] == "system:serviceaccount:training:trainer"
    assert identity.refused(identity.token(account="stranger")) == "AccessDenied"
    assert (
        identity.refused(identity.token(audience="https://kubernetes.default.svc")) == "InvalidIdentityToken"
    )
    assert identity.refused(signed_by_a_stranger(token)) == "InvalidIdentityToken"


def listens(endpoint: str) -> bool:
    address = urlsplit(endpoint)
    with socket.socket() as probe:
        return probe.connect_ex((str(address.hostname), address.port or 443)) == 0


def test_every_cluster_has_a_control_plane_of_its_own_and_deleting_it_stops_that_one_alone(
    cloud: OwnCloud, identity: Identity
) -> None:
    def processes() -> dict[str, int]:
        return {each["name"]: each["pid"] for each in cloud.status()["processes"] if each["alive"]}

    parts = {"etcd", "apiserver", "controller-manager", "scheduler", "nodes"}
    before = processes()
    assert {name.removeprefix(f"{MAIN}-") for name in before} == {*parts, "aws"}
    other = cloud.create_cluster(OTHER)
    both = processes()
    assert {name: pid for name, pid in both.items() if name in before} == before
    assert both.keys() - before.keys() == {f"{OTHER}-{part}" for part in parts}
    cloud.kubectl(OTHER, "create", "namespace", "only-here")
    assert "only-here" not in cloud.kubectl(MAIN, "get", "namespaces")
    identity.accounts(OTHER)
    assert identity.refused(identity.token(cluster=OTHER)) == "InvalidIdentityToken"

    assert listens(other["endpoint"])
    cloud.delete_cluster(OTHER)
    assert processes() == before
    assert not listens(other["endpoint"])
    assert processes_that_name(str(cloud.home.cluster(OTHER))) == []
    assert not cloud.home.cluster(OTHER).exists()
    assert OTHER not in cloud.home.kubeconfig.read_text()
    assert "training" in cloud.kubectl(MAIN, "get", "namespaces")


def test_status_tells_scripts_where_everything_is(cloud: OwnCloud) -> None:
    status = cloud.status()
    assert status["ready"]
    assert Path(status["kubeconfig"]).is_file()
    clusters = yaml.safe_load(Path(status["kubeconfig"]).read_text())["clusters"]
    assert MAIN in [each["name"] for each in clusters]
    with urlopen(f"{status['awsEndpoint']}/_trainyard/health", timeout=10) as answer:  # noqa: S310  (our own)
        assert answer.status == 200
    names = {process["name"] for process in status["processes"]}
    assert {"aws", f"{MAIN}-apiserver", f"{MAIN}-nodes"} <= names
    for process in status["processes"]:
        assert process["alive"], process
        assert process["rssBytes"] > 0, process
        assert Path(process["log"]).is_file(), process


def test_what_the_official_sdk_lacks_is_refused_by_name(cloud: OwnCloud, tmp_path: Path) -> None:
    program = Program(cloud, tmp_path / "wrong", WRONG)
    for case, named in (("property", "bucketNmae"), ("token", "kubernetes:core/v1:ConfgMap")):
        answer = program.pulumi("preview", "--stack", "test", CASE=case)
        assert answer.code != 0, case
        assert named in answer.output, case
        assert "plugin failed" not in answer.output, case


def test_secrets_stand_in_no_state_no_log_and_no_output(cloud: OwnCloud, tmp_path: Path) -> None:
    program = Program(cloud, tmp_path / "secrets", SECRETS)
    answer = program.up()
    assert answer.code == 0, answer.output
    assert program.pulumi("stack", "output", "--show-secrets", "--json").output  # the passphrase decrypts
    written = {"output": answer.output, "export": program.export()}
    for folder in ("stacks", "logs"):
        for file in (cloud.home.root / folder).rglob("*"):
            if file.is_file():
                written[str(file)] = file.read_text(errors="replace")
    for sentinel in SENTINELS.values():
        for text in (sentinel, base64.b64encode(sentinel.encode()).decode()):
            assert [place for place, content in written.items() if text in content] == []
    live = cloud.kubectl(MAIN, "get", "secrets", "-o", "jsonpath={.items[*].data.value}")
    assert base64.b64decode(live).decode() == SENTINELS["object"]


def test_nobody_else_on_the_machine_can_read_keys_and_tokens(cloud: OwnCloud) -> None:
    others = stat.S_IRWXG | stat.S_IRWXO
    for private in (
        cloud.home.run,
        cloud.home.clusters,
        cloud.home.pods,
        cloud.home.volumes,
        cloud.home.logs,
    ):
        assert stat.S_IMODE(private.stat().st_mode) & others == 0, private
    for file in (cloud.home.cloud_file, cloud.home.kubeconfig, cloud.home.aws_file):
        assert stat.S_IMODE(file.stat().st_mode) & others == 0, file


def test_everything_listens_on_loopback_alone(cloud: OwnCloud) -> None:
    listening = cloud.local("exec", "--", "cat", "/proc/net/tcp", "/proc/net/tcp6").output.splitlines()
    pids = {str(pid) for pid in descendants(cloud.record["pid"])}
    own = {
        entry.readlink().name
        for pid in pids
        for entry in Path(f"/proc/{pid}/fd").glob("*")
        if entry.is_symlink() and entry.readlink().name.startswith("socket:")
    }
    rows = [line.split() for line in listening if " 0A " in line]
    mine = [row[1] for row in rows if f"socket:[{row[9]}]" in own]
    assert mine
    # 127.0.0.0/8 as /proc writes it: the bytes of the address in reverse.
    assert [address for address in mine if not address.split(":")[0].endswith("7F")] == []


def descendants(root: int) -> list[int]:
    """A process and everything below it."""
    from local.cluster.usage import descendants as below

    return [root, *below(root)]
