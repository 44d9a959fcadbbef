"""What a control plane is made of: certificates, kubeconfigs, command lines, numbers."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import os
import signal
import stat
import subprocess
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
import yaml
from cryptography import x509

from local.cluster import commands, kubeconfig
from local.cluster.commands import Plan
from local.cluster.control_plane import ControlPlane, Request
from local.cluster.network import ClusterNumber, claim_number
from local.cluster.pki import Authority, Pair
from local.cluster.record import read_stat
from local.home import Home


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    return Plan(
        name="c",
        directory=tmp_path,
        programs=Path("/programs"),
        number=ClusterNumber(3),
        api_port=1111,
        etcd_port=2222,
        peer_port=3333,
        issuer="https://oidc.example/id/1",
        authenticate="http://127.0.0.1:4444/_trainyard/authenticate/c",
    )


def test_a_certificate_names_its_user_group_and_addresses_and_is_signed_by_the_authority() -> None:
    authority = Authority("test")
    pair = authority.issue("user", group="system:masters", hosts=["kubernetes"], addresses=["127.64.0.1"])
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    assert certificate.subject.rfc4514_string() == "O=system:masters,CN=user"
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["kubernetes"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("127.64.0.1")]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_private_keys_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    Authority("test").issue("user").write(tmp_path, "user")
    assert stat.S_IMODE((tmp_path / "user.key").stat().st_mode) == 0o600
    kubeconfig.write(tmp_path / "kubeconfig", kubeconfig.merge({}))
    assert stat.S_IMODE((tmp_path / "kubeconfig").stat().st_mode) == 0o600


def contexts(*names: str) -> dict[str, kubeconfig.Document]:
    pair = Pair(certificate=b"c", key=b"k")
    return {name: kubeconfig.document(name, f"https://{name}", b"ca", pair) for name in names}


def test_merged_kubeconfig_has_all_clusters() -> None:
    merged = yaml.safe_load(yaml.safe_dump(kubeconfig.merge(contexts("old", "new"))))
    assert [context["name"] for context in merged["contexts"]] == ["old", "new"]
    assert [cluster["cluster"]["server"] for cluster in merged["clusters"]] == ["https://old", "https://new"]
    assert base64.b64decode(merged["users"][0]["user"]["client-key-data"]) == b"k"


@pytest.mark.parametrize(
    ("current", "clusters", "found"),
    [
        ("", ["a"], "a"),
        ("a", ["a", "b"], "a"),  # a second stack
        ("b", ["a", "b"], "b"),  # a person chose it
        ("a", ["b"], ""),  # nothing that was meant for a reaches b
        ("", ["b", "a"], "a"),
        ("a", [], ""),
    ],
)
def test_current_context_is_never_moved_to_another_cluster(
    tmp_path: Path, current: str, clusters: list[str], found: str
) -> None:
    file = tmp_path / "kubeconfig"
    kubeconfig.write(file, {**kubeconfig.merge(contexts("a", "b")), "current-context": current})
    merged = kubeconfig.merge(contexts(*clusters), kubeconfig.read(file))
    assert merged["current-context"] == found


def test_contexts_that_a_person_changed_stay() -> None:
    before = kubeconfig.merge(contexts("a", "gone"))
    before["contexts"][0]["context"]["namespace"] = "training"
    before["contexts"] += [
        {"name": "mine", "context": {"cluster": "a", "user": "a", "namespace": "team"}},
        {"name": "stale", "context": {"cluster": "gone", "user": "gone"}},
        "no context",
    ]
    before["current-context"] = "mine"
    merged = kubeconfig.merge(contexts("a", "b"), before)
    assert [each["name"] for each in merged["contexts"]] == ["a", "b", "mine"]
    assert merged["contexts"][0]["context"]["namespace"] == "training"
    assert merged["current-context"] == "mine"


def test_current_context_of_no_kubeconfig_is_none(tmp_path: Path) -> None:
    assert kubeconfig.current_context(tmp_path / "none") == ""
    (tmp_path / "empty").write_text("")
    assert kubeconfig.current_context(tmp_path / "empty") == ""


@pytest.mark.parametrize("name", ["1e3", "08", "0o7", "1_000"])
def test_kubeconfig_quotes_names_that_kubectl_reads_as_numbers(tmp_path: Path, name: str) -> None:
    file = tmp_path / "kubeconfig"
    kubeconfig.write(file, kubeconfig.merge(contexts(name)))
    assert f"current-context: '{name}'\n" in file.read_text()
    assert kubeconfig.current_context(file) == name


def test_the_api_server_listens_on_loopback_with_rbac_and_the_clusters_issuer(plan: Plan) -> None:
    flags = commands.api_server(plan)
    for flag in (
        "--bind-address=127.0.0.1",
        "--secure-port=1111",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://oidc.example/id/1",
        "--service-cluster-ip-range=127.67.0.0/16",
        "--etcd-servers=https://127.0.0.1:2222",
    ):
        assert flag in flags


def test_the_store_asks_its_clients_for_certificates(plan: Plan) -> None:
    flags = commands.etcd(plan)
    assert {"--client-cert-auth", "--peer-client-cert-auth"} <= set(flags)
    assert not [flag for flag in flags if "http://" in flag]


def test_the_webhooks_address_has_no_query_which_the_api_server_would_drop(plan: Plan) -> None:
    server = kubeconfig.token_webhook(plan.authenticate)["clusters"][0]["cluster"]["server"]
    assert server.endswith("/authenticate/c")
    assert "?" not in server


def test_numbers_give_every_cluster_addresses_of_its_own_on_loopback() -> None:
    seen = {(n.service_cidr, n.pod_cidr) for n in map(ClusterNumber, range(32))}
    networks = [ipaddress.ip_network(cidr) for pair in seen for cidr in pair]
    assert len(set(networks)) == 64
    assert all(network.is_loopback for network in networks)
    assert ipaddress.ip_address(ClusterNumber(31).api_service) in ipaddress.ip_network("127.95.0.0/16")


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user binds port 443 in a network namespace only")
def test_a_claimed_number_is_not_given_twice_until_it_is_closed() -> None:
    first, holder = claim_number()
    second, other = claim_number()
    assert first != second
    holder.close()
    third, holder = claim_number()
    assert third == first
    holder.close()
    other.close()


def test_stop_kills_containers_of_an_earlier_nodes_process(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.make()
    container = home.pods / "c" / "uid" / "containers" / "main"
    container.mkdir(parents=True)
    (container / "process").write_text("")
    processes = Mock()
    processes.pid.return_value = None
    request = Request(name="c", version="1.35", issuer="https://i", region="us-west-2", arn="arn:aws:eks")
    plane = ControlPlane(home, processes, request, "http://127.0.0.1:1")
    words = ["/bin/sh", "-c", "sleep 60 & echo $!; wait"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as keeper:
        assert keeper.stdout is not None
        program = int(keeper.stdout.readline())
        (container / "keeper").write_text(f"{keeper.pid} {read_stat(keeper.pid)}")
        try:
            plane.stop()
            assert keeper.wait(timeout=10) == -signal.SIGKILL
            ends = time.monotonic() + 10
            while read_stat(program) is not None and time.monotonic() < ends:
                time.sleep(0.01)
            assert read_stat(program) is None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(keeper.pid, signal.SIGKILL)
