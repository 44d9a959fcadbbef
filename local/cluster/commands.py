"""Build the command lines of a control plane's processes. Pure functions of the facts about the cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from local.cluster.network import ClusterNumber


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Facts about one cluster. `authenticate` is the emulator's URL that checks tokens of EKS."""

    name: str
    directory: Path
    programs: Path
    number: ClusterNumber
    api_port: int
    etcd_port: int
    peer_port: int
    issuer: str
    authenticate: str

    @property
    def pki(self) -> Path:
        return self.directory / "pki"

    @property
    def endpoint(self) -> str:
        """Address of the API server."""
        return f"https://127.0.0.1:{self.api_port}"


def etcd(plan: Plan) -> list[str]:
    """Return the command line of etcd.

    It never syncs, because its data need not survive a reboot: the emulated account does not survive one either.
    """
    client, peer = f"https://127.0.0.1:{plan.etcd_port}", f"https://127.0.0.1:{plan.peer_port}"
    pki = plan.pki
    return [
        str(plan.programs / "etcd"),
        f"--name={plan.name}",
        f"--data-dir={plan.directory / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster={plan.name}={peer}",
        f"--cert-file={pki / 'etcd.crt'}",
        f"--key-file={pki / 'etcd.key'}",
        f"--trusted-ca-file={pki / 'ca.crt'}",
        "--client-cert-auth",
        f"--peer-cert-file={pki / 'etcd.crt'}",
        f"--peer-key-file={pki / 'etcd.key'}",
        f"--peer-trusted-ca-file={pki / 'ca.crt'}",
        "--peer-client-cert-auth",
        "--unsafe-no-fsync",
        # The default keeps 100000 entries of the log in memory.
        "--snapshot-count=5000",
        # A single member needs no heartbeat ten times a second.
        "--heartbeat-interval=500",
        "--election-timeout=2500",
        "--log-level=warn",
    ]


def api_server(plan: Plan) -> list[str]:
    """Return the command line of the API server.

    It uses RBAC, accepts tokens of its own service accounts and, through a webhook, tokens of EKS.
    """
    pki = plan.pki
    return [
        str(plan.programs / "kube-apiserver"),
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={plan.api_port}",
        f"--service-cluster-ip-range={plan.number.service_cidr}",
        # Endpoints must not have loopback addresses. The nodes forward to the API server instead.
        "--endpoint-reconciler-type=none",
        f"--etcd-servers=https://127.0.0.1:{plan.etcd_port}",
        f"--etcd-cafile={pki / 'ca.crt'}",
        f"--etcd-certfile={pki / 'etcd-client.crt'}",
        f"--etcd-keyfile={pki / 'etcd-client.key'}",
        f"--tls-cert-file={pki / 'api-server.crt'}",
        f"--tls-private-key-file={pki / 'api-server.key'}",
        f"--client-ca-file={pki / 'ca.crt'}",
        f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
        f"--kubelet-client-key={pki / 'kubelet-client.key'}",
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=RBAC",
        f"--service-account-issuer={plan.issuer}",
        f"--service-account-key-file={pki / 'service-accounts.key'}",
        f"--service-account-signing-key-file={pki / 'service-accounts.key'}",
        "--api-audiences=https://kubernetes.default.svc",
        f"--authentication-token-webhook-config-file={plan.directory / 'token-webhook.yaml'}",
        "--authentication-token-webhook-version=v1",
        "--authentication-token-webhook-cache-ttl=10s",
        "--allow-privileged=true",
        # With this gate the API server translates exec and attach to SPDY, which local/nodes does not implement for
        # them.
        "--feature-gates=TranslateStreamCloseWebsocketRequests=false",
        "--profiling=false",
        "--event-ttl=1h",
        # A deleted cluster has no clients to wait for.
        "--shutdown-delay-duration=0s",
    ]


def controller_manager(plan: Plan) -> list[str]:
    """Return the command line of the controller manager.

    The attach-detach controller is off: it polls ten times a second, and nothing is attached here.
    """
    return [
        str(plan.programs / "kube-controller-manager"),
        f"--kubeconfig={plan.directory / 'controller-manager.kubeconfig'}",
        f"--service-account-private-key-file={plan.pki / 'service-accounts.key'}",
        f"--root-ca-file={plan.pki / 'ca.crt'}",
        "--use-service-account-credentials",
        "--controllers=*,-persistentvolume-attach-detach-controller,"
        "-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller",
        "--leader-elect=false",
        "--secure-port=0",
        "--profiling=false",
        "--kube-api-qps=100",
        "--kube-api-burst=150",
    ]


def scheduler(plan: Plan) -> list[str]:
    return [
        str(plan.programs / "kube-scheduler"),
        f"--kubeconfig={plan.directory / 'scheduler.kubeconfig'}",
        "--leader-elect=false",
        "--secure-port=0",
        "--profiling=false",
        "--kube-api-qps=100",
        "--kube-api-burst=150",
    ]
