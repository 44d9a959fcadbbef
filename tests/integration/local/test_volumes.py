"""Volumes on the local cloud: a Lustre file system that pods on two nodes share, and a disk that one node has."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from components.documents import iam
from local.home import write_atomically
from tests.cluster_reads import read
from tests.integration.local.own_cloud import OwnCloud, Program, own_cloud

pytestmark = pytest.mark.local

CLUSTER = "main"
IMAGE = "registry.example/shell:1"
NODE_ROLE = {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}
STARTUP_TAINT = "fsx.csi.aws.com/agent-not-ready"
PROGRAM = """
import json, os
import pulumi, pulumi_aws as aws, pulumi_kubernetes as k8s
from components.csi import Csi, CsiArgs
from components.documents.account import Account
from components.lustre import Lustre, LustreArgs, NewFileSystem, S3Link
from components.lustre import LustreProof, LustreProofArgs
from components.lustre import LustreVolume, LustreVolumeArgs

given = json.loads(os.environ["GIVEN"])
tags = {"trainyard:stack": "volumes"}
cluster = k8s.Provider("cluster", kubeconfig=open(os.environ["KUBECONFIG"]).read())
here = pulumi.ResourceOptions(providers=[cluster])
key = aws.kms.Key("data", enable_key_rotation=True, deletion_window_in_days=7)
bucket = aws.s3.Bucket("models", force_destroy=True)
lustre = Lustre(
    "lustre",
    LustreArgs(
        file_system=NewFileSystem(
            vpc_id=given["vpc"],
            subnet_id=given["subnet"],
            client_groups={"nodes": given["group"]},
            key_arn=key.arn,
            deployment="PERSISTENT_2",
            capacity_gib=1200,
            throughput=125,
            compression="LZ4",
            backup_days=0,
            efa=False,
            link=S3Link(bucket=bucket.id, prefix="data", path="/data", key_arn=key.arn),
        ),
        protect=False,
        tags=tags,
    ),
)
csi = Csi(
    "csi",
    CsiArgs(
        cluster=given["cluster"],
        kubernetes_version="1.35",
        account=Account(id="123456789012", region="us-west-2"),
        key_arn=key.arn,
        oidc_provider_arn=given["provider"],
        lustre=True,
        addon_versions={},
        after=[],
        tags=tags,
    ),
    here,
)
space = k8s.core.v1.Namespace(
    "training", metadata={"name": "training"}, opts=pulumi.ResourceOptions(provider=cluster)
)
volume = LustreVolume(
    "lustre",
    LustreVolumeArgs(
        file_system_id=lustre.file_system_id,
        dns_name=lustre.dns_name,
        mount_name=lustre.mount_name,
        capacity_gib=1200,
        namespace="training",
        mount_path="/fsx",
        after=[*lustre.ready, *csi.ready, space],
    ),
    here,
)
LustreProof(
    "lustre-proof",
    LustreProofArgs(
        image=given["image"],
        claim=volume.claim_name,
        mount_path=volume.mount_path,
        placement={},
        after=[*csi.ready, *volume.ready],
    ),
    here,
)
pulumi.export("fileSystem", lustre.file_system_id)
"""


def until(what: str, ready: Callable[[], Any], seconds: float = 60) -> Any:
    """The first true answer of `ready`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = ready()
        if found:
            return found
        time.sleep(0.5)
    raise AssertionError(f"{what}: not within {seconds:.0f} s")


class Site:
    """A cluster with two nodes in one zone, and the program that brings its volumes."""

    def __init__(self, cloud: OwnCloud, directory: Path) -> None:
        self.cloud = cloud
        cluster = cloud.create_cluster(CLUSTER)
        network, issuer = cluster["resourcesVpcConfig"], cluster["identity"]["oidc"]["issuer"]
        provider = cloud.client("iam").create_open_id_connect_provider(
            Url=issuer, ClientIDList=["sts.amazonaws.com"], ThumbprintList=["9" * 40]
        )
        role = cloud.role("nodes", NODE_ROLE)
        eks = cloud.client("eks")
        # Without access entries EKS would let no machine of a node group in.
        eks.update_cluster_config(name=CLUSTER, accessConfig={"authenticationMode": "API_AND_CONFIG_MAP"})
        eks.create_nodegroup(
            clusterName=CLUSTER,
            nodegroupName="two",
            subnets=network["subnetIds"][:1],
            nodeRole=role,
            instanceTypes=["m6i.large"],
            scalingConfig={"minSize": 2, "maxSize": 2, "desiredSize": 2},
        )
        self.nodes = until("two nodes", self._nodes)
        self._shell_image(directory / "image")
        given = {
            "cluster": CLUSTER,
            "vpc": network["vpcId"],
            "subnet": network["subnetIds"][0],
            "group": network["clusterSecurityGroupId"],
            "provider": provider["OpenIDConnectProviderArn"],
            "image": IMAGE,
        }
        self.program = Program(cloud, directory / "volumes", PROGRAM)
        self.program.environment["GIVEN"] = json.dumps(given)

    def _shell_image(self, directory: Path) -> None:
        """An image that runs the shell of this machine, as the image plugin would record a build."""
        directory.mkdir()
        dockerfile = directory / "Dockerfile"
        dockerfile.write_text('FROM scratch\nENTRYPOINT ["sh"]\n')
        entry = {"dockerfile": str(dockerfile), "context": str(directory)}
        write_atomically(self.cloud.home.images_file, json.dumps({IMAGE: entry}))

    def kubectl(self, *arguments: str) -> str:
        return self.cloud.kubectl(CLUSTER, *arguments)

    def get(self, *arguments: str) -> Any:
        return read(self.cloud.home.kubeconfig, *arguments, context=CLUSTER)

    def apply(self, *documents: dict[str, Any]) -> None:
        file = self.program.directory / "apply.yaml"
        file.write_text(yaml.safe_dump_all(documents))
        self.kubectl("apply", "-f", str(file))

    def _nodes(self) -> list[str]:
        names = [item["metadata"]["name"] for item in self.get("nodes")["items"]]
        return sorted(names) if len(names) == 2 else []

    def taints(self, node: str) -> set[str]:
        return {taint["key"] for taint in self.get("node", node)["spec"].get("taints") or []}

    def pod(self, name: str, node: str, claim: str, script: str) -> None:
        """A pod on a node with a claim at /data."""
        container = {
            "name": "main",
            "image": IMAGE,
            "command": ["sh", "-c", script],
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        }
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": name, "namespace": "training"},
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 1,
                    "nodeSelector": {"kubernetes.io/hostname": node},
                    "containers": [container],
                    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
                },
            }
        )

    def phase(self, pod: str) -> str:
        return str(self.get("pod", pod, "-n", "training")["status"].get("phase"))

    def succeeded(self, pod: str) -> str:
        """What a pod said until its good end."""
        until(f"end of {pod}", lambda: self.phase(pod) in ("Succeeded", "Failed"))
        assert self.phase(pod) == "Succeeded", self.kubectl("describe", "pod", pod, "-n", "training")
        return self.kubectl("logs", pod, "-n", "training")

    def events(self, pod: str) -> str:
        found = self.get("events", "-n", "training", "--field-selector", f"involvedObject.name={pod}")
        return "\n".join(event["message"] for event in found["items"])

    def disks(self) -> list[Any]:
        found: list[Any] = self.cloud.client("ec2").describe_volumes(
            Filters=[{"Name": f"tag:{iam.CLUSTER_TAG}", "Values": [CLUSTER]}]
        )["Volumes"]
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two nodes, one of them with a startup taint; then drivers and volumes are deployed, at the end destroyed."""
    directory = tmp_path_factory.mktemp("programs")
    with own_cloud(tmp_path_factory.mktemp("cloud")) as cloud:
        made = Site(cloud, directory)
        made.kubectl("taint", "node", made.nodes[0], f"{STARTUP_TAINT}=:NoExecute")
        time.sleep(2)
        assert STARTUP_TAINT in made.taints(made.nodes[0])  # nothing takes it off without the driver
        up = made.program.up()
        assert up.code == 0, up.output
        yield made
        # A claim stays while there is a pod with it, a finished one included (storage object in use protection).
        made.kubectl("delete", "pods", "--all", "--namespace", "training", "--wait")
        down = made.program.pulumi("destroy", "--yes", "--skip-preview", "--stack", "test")
        assert down.code == 0, down.output
        assert made.cloud.client("fsx").describe_file_systems()["FileSystems"] == []
        assert not made.get("csinode", made.nodes[0])["spec"]["drivers"]


def test_the_driver_takes_its_startup_taint_off(site: Site) -> None:
    until("taint gone", lambda: STARTUP_TAINT not in site.taints(site.nodes[0]), 20)
    drivers = {entry["name"] for entry in site.get("csinode", site.nodes[0])["spec"]["drivers"]}
    assert drivers == {"ebs.csi.aws.com", "fsx.csi.aws.com"}


def test_the_stacks_own_pod_proves_the_mount(site: Site) -> None:
    site.kubectl("wait", "--for=condition=Ready", "pod/attach-pvc", "-n", "training", "--timeout=60s")
    output = site.kubectl("logs", "attach-pvc", "--container", "prove", "-n", "training")
    assert output.endswith("written and read on /fsx")


def test_what_is_asked_of_that_pod_is_what_the_cluster_has_of_it(site: Site) -> None:
    for command in ("up", "refresh"):
        again = site.program.pulumi(
            command, "--yes", "--skip-preview", "--expect-no-changes", "--stack", "test"
        )
        assert again.code == 0, again.output


def test_pods_on_two_nodes_share_a_file_of_the_file_system(site: Site) -> None:
    first, second = site.nodes
    site.pod("reader", second, "lustre", "until [ -f /data/word ]; do sleep 0.2; done; cat /data/word")
    until("reader runs", lambda: site.phase("reader") == "Running")
    site.pod("writer", first, "lustre", "echo shared > /data/.word && mv /data/.word /data/word")
    site.succeeded("writer")
    assert site.succeeded("reader") == "shared"
    # By the pod that people enter, too.
    bash = ("exec", "attach-pvc", "-n", "training", "--", "/bin/bash", "-c")
    assert site.kubectl(*bash, "cat /fsx/word; echo entered > /fsx/entered") == "shared"
    site.pod("third", first, "lustre", "cat /data/entered")
    assert site.succeeded("third") == "entered"


def test_a_machine_that_the_groups_keep_out_mounts_nothing(site: Site) -> None:
    ec2 = site.cloud.client("ec2")
    file_system = site.cloud.client("fsx").describe_file_systems()["FileSystems"][0]
    cards = ec2.describe_network_interfaces(NetworkInterfaceIds=file_system["NetworkInterfaceIds"][:1])
    group = cards["NetworkInterfaces"][0]["Groups"][0]["GroupId"]
    rules = [
        r
        for r in ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"][0]["IpPermissions"]
        if r["FromPort"] == 988
    ]
    closed = [
        {**r, "UserIdGroupPairs": [p for p in r["UserIdGroupPairs"] if p["GroupId"] != group]} for r in rules
    ]
    closed = [r for r in closed if r["UserIdGroupPairs"]]
    ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=closed)
    try:
        site.pod("outside", site.nodes[0], "lustre", "true")
        until("refusal", lambda: "lets TCP 988 in" in site.events("outside"))
        assert site.phase("outside") == "Pending"
    finally:
        ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=closed)
    site.succeeded("outside")


def test_a_disk_is_made_for_its_claim_and_refused_on_a_second_node(site: Site) -> None:
    first, second = site.nodes
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "scratch", "namespace": "training"},
        # No class: the default one.
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
    }
    site.apply(claim)
    site.pod("holder", first, "scratch", "echo kept > /data/file; sleep 600")
    until("holder runs", lambda: site.phase("holder") == "Running")
    [disk] = site.disks()
    assert (disk["Encrypted"], disk["Size"], disk["VolumeType"]) == (True, 2, "gp3")
    assert disk["KmsKeyId"]
    assert {"Key": "trainyard:stack", "Value": "volumes"} in disk["Tags"]
    site.pod("other", second, "scratch", "cat /data/file")
    until("refusal", lambda: "Multi-Attach error" in site.events("other"))
    assert site.phase("other") == "Pending"
    site.kubectl("delete", "pod", "holder", "-n", "training", "--wait")
    assert site.succeeded("other") == "kept"
    site.kubectl("delete", "pod", "other", "-n", "training", "--wait")
    site.kubectl("delete", "pvc", "scratch", "-n", "training", "--wait")
    until("disk gone", lambda: not site.disks())
