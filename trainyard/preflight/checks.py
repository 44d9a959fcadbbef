"""The list of all checks. `examine` runs them; a missing permission or an error only stops the check that raised it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from infra.settings import Settings
from infra.settings.problems import counted
from trainyard.preflight import (
    access,
    capacity,
    cluster,
    cluster_objects,
    egress,
    images,
    network,
    quotas,
    resource_names,
    security_groups,
    storage,
)
from trainyard.preflight.aws import Attempts, Aws
from trainyard.preflight.findings import MISSING, SKIPPED, WARNING, Check, Finding

CALLER: Final = "caller"
CHECKS: Final = (
    Check(CALLER, access.check_caller),
    Check("public access ranges", access.check_public_ranges),
    Check("administrators: roles", access.check_admin_roles),
    Check("administrators: users", access.check_admin_users),
    Check("zones", access.check_zones),
    Check("VPC", network.check_vpc),
    Check("subnets", network.check_subnets),
    Check("free addresses", network.check_addresses),
    Check("network tags", network.check_tags),
    Check("routes", egress.check_routes),
    Check("route to S3", egress.check_s3_route),
    Check("VPC endpoints", egress.check_endpoints),
    Check("endpoint security groups", security_groups.check_endpoint_groups),
    Check("endpoint services", egress.check_endpoint_services),
    Check("network ACLs", network.check_acls),
    Check("DNS servers", network.check_dns),
    Check("worker security group", security_groups.check_worker_group),
    Check("instance types", capacity.check_instance_types),
    Check("capacity reservations", capacity.check_reservations),
    Check("placement groups", capacity.check_placement_groups),
    Check("snapshots", storage.check_snapshots),
    Check("volume key", storage.check_volume_key),
    Check("snapshot keys", storage.check_snapshot_keys),
    Check("spot role", access.check_spot_role),
    Check("service quotas", quotas.check_quotas),
    Check("network interface quota", quotas.check_interfaces),
    Check("Kubernetes version", cluster.check_version),
    Check("Kubernetes update", cluster.check_update),
    Check("add-on versions", cluster.check_addons),
    Check("AMI release", images.check_ami),
    Check("container images", images.check_container_images),
    Check("existing cluster", cluster.check_cluster),
    Check("access to the existing cluster", cluster.check_access),
    Check("objects in the existing cluster", cluster_objects.check_objects),
    Check("VPC CNI of the existing cluster", cluster_objects.check_vpc_cni),
    Check("KAI Scheduler of the existing cluster", cluster_objects.check_kai_scheduler),
    Check("OIDC provider", cluster.check_oidc_provider),
    Check("existing file system", storage.check_file_system),
    Check("existing buckets", storage.check_buckets),
    Check("free name: EKS cluster", resource_names.check_cluster_name),
    Check("free name: log group", resource_names.check_log_group_name),
    Check("free name: SQS queue", resource_names.check_queue_name),
    Check("free names: KMS aliases", resource_names.check_alias_names),
    Check("free names: ECR repositories", resource_names.check_repository_names),
)


@dataclass(kw_only=True)
class Report(Attempts):
    """The findings, the number of checks that were made, and the checks that were not possible."""

    findings: list[Finding] = field(default_factory=list)
    checked: int = 0

    def of(self, kind: str = MISSING) -> list[Finding]:
        """Return the findings of one kind."""
        return [each for each in self.findings if each.kind == kind]

    def lines(self, stack: str) -> list[str]:
        """Return the output: a line per finding and per check that was not possible, and a summary."""
        result = [f"{kind}: {each}" for kind in (MISSING, WARNING) for each in self.of(kind)]
        result += self.unanswered()
        result += [f"{SKIPPED}: {each}" for each in self.of(SKIPPED)]
        partly = " in what could be checked" if self.denied or self.failed else ""
        found = counted(len(self.of()), "problem") if self.of() else f"no problems{partly}"
        return [*result, f"preflight of stack {stack}: {counted(self.checked, 'check')}, {found}"]


def examine(settings: Settings, aws: Aws, checks: Sequence[Check] = CHECKS) -> Report:
    """Make the checks.

    Raises:
        botocore.exceptions.BotoCoreError: There are no credentials.
        botocore.exceptions.ClientError: The credentials are invalid or expired.
    """
    report = Report()
    for check in checks:
        findings = report.attempt(check.name, partial(check.run, settings, aws))
        if findings is not None:
            report.findings += findings
            report.checked += 1
    report.findings = list(dict.fromkeys(report.findings))
    return report
