"""Settings of one cluster's nodes: addresses, delays and directories. `Settings.load` reads them at start."""

from __future__ import annotations

import ipaddress
import json
from dataclasses import dataclass
from pathlib import Path

from local.home import Home


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of the nodes of one cluster. Delays are in seconds."""

    cluster: str
    home: Home
    region: str
    account: str
    aws_endpoint: str
    aws_token: str
    api_port: int
    service_ip: str
    pod_network: ipaddress.IPv4Network
    boot_seconds: float
    device_seconds: float
    backoff_seconds: float

    @property
    def aws_headers(self) -> dict[str, str]:
        """Return the headers for the emulator's own paths."""
        return {"Authorization": f"Bearer {self.aws_token}"}

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig of this cluster."""
        return self.home.cluster(self.cluster) / "admin.kubeconfig"

    @property
    def pods(self) -> Path:
        """Private files of the running pods."""
        return self.home.pods / self.cluster

    @property
    def pod_logs(self) -> Path:
        """Output of the containers. It stays after the pods are deleted."""
        return self.home.logs / "pods" / self.cluster

    @property
    def state(self) -> Path:
        """Files of the local/nodes process: small programs and the kubelets' port."""
        return self.home.cluster(self.cluster) / "machines"

    @property
    def pki(self) -> Path:
        """Certificates of the cluster."""
        return self.home.cluster(self.cluster) / "pki"

    @classmethod
    def load(cls, cluster: str, home: Home) -> Settings:
        """Read the settings from a home.

        Raises:
            ValueError: A file or key is missing; the message names it.
        """
        cluster_file = home.cluster(cluster) / "cluster.json"
        cloud = home.cloud()
        if cloud is None:
            raise ValueError(f"{home.cloud_file}: missing; start the local cloud first")
        try:
            record = json.loads(cluster_file.read_text())
            delays = home.settings()
            services = ipaddress.IPv4Network(record["serviceCidr"])
            return cls(
                cluster=cluster,
                home=home,
                region=record["region"],
                account=cloud["accountId"],
                aws_endpoint=cloud["awsEndpoint"],
                aws_token=cloud["emulatorToken"],
                api_port=record["apiPort"],
                service_ip=str(services[1]),
                pod_network=ipaddress.IPv4Network(record["podCidr"]),
                boot_seconds=delays["bootSeconds"],
                device_seconds=delays["gpuDelaySeconds"],
                backoff_seconds=delays.get("backoffSeconds", 10.0),
            )
        except FileNotFoundError as error:
            raise ValueError(f"{cluster_file}: missing; cluster {cluster!r} was not created") from error
        except KeyError as error:
            raise ValueError(f"{cluster_file} or {home.cloud_file}: key {error} is missing") from error
