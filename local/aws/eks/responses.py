"""The EKS API, with one method per action. moto's dispatcher needs their names; botocore's model serializes."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from moto.core.responses import ActionResult, BaseResponse

from local.aws import identity
from local.aws.eks import access, addons, clusters, nodegroups, versions
from local.aws.eks.store import Cluster, Document, not_found, store
from local.aws.pages import page


class EksResponse(BaseResponse):  # type: ignore[misc]
    """The actions of EKS. moto finds them by the HTTP method and path of botocore's model."""

    def __init__(self) -> None:
        super().__init__(service_name="eks")
        self.automated_parameter_parsing = True

    def _all(self) -> Document:
        return {**dict(self.params), **self.uri_match}

    def _cluster(self, active: bool = False) -> Cluster:
        name = self._get_param("name") or self._get_param("clusterName")
        return store.active(self.region, name) if active else store.cluster(self.region, name)

    def _page(self, key: str, items: list[Any]) -> ActionResult:
        items, token = page(items, self._get_param("nextToken"), self._get_param("maxResults"))
        return ActionResult({key: items, "nextToken": token})

    # --- clusters

    def create_cluster(self) -> ActionResult:
        caller = identity.calling.get()
        cluster = clusters.create(self.region, self._all(), caller.principal_arn if caller else "")
        return ActionResult({"cluster": cluster.document})

    def describe_cluster(self) -> ActionResult:
        return ActionResult({"cluster": self._cluster().document})

    def list_clusters(self) -> ActionResult:
        return self._page("clusters", sorted(n for r, n in store.clusters if r == self.region))

    def delete_cluster(self) -> ActionResult:
        return ActionResult({"cluster": clusters.delete(self.region, self._get_param("name")).document})

    def update_cluster_config(self) -> ActionResult:
        return ActionResult({"update": clusters.update_config(self._cluster(active=True), self._all())})

    def update_cluster_version(self) -> ActionResult:
        update = clusters.update_version(self._cluster(active=True), self._get_param("version"))
        return ActionResult({"update": update})

    def describe_update(self) -> ActionResult:
        cluster, update_id = self._cluster(), self._get_param("updateId")
        if update_id not in cluster.updates:
            raise not_found(f"No update found for id: {update_id}")
        return ActionResult({"update": cluster.updates[update_id]})

    def describe_cluster_versions(self) -> ActionResult:
        return self._page("clusterVersions", versions.described())

    # --- node groups

    def create_nodegroup(self) -> ActionResult:
        group = nodegroups.create(self._cluster(active=True), self._all())
        return ActionResult({"nodegroup": group.document})

    def describe_nodegroup(self) -> ActionResult:
        group = nodegroups.find(self._cluster(), self._get_param("nodegroupName"))
        return ActionResult({"nodegroup": group.document})

    def list_nodegroups(self) -> ActionResult:
        return self._page("nodegroups", sorted(self._cluster().node_groups))

    def delete_nodegroup(self) -> ActionResult:
        group = nodegroups.delete(self._cluster(), self._get_param("nodegroupName"))
        return ActionResult({"nodegroup": group.document})

    def update_nodegroup_config(self) -> ActionResult:
        cluster = self._cluster(active=True)
        group = nodegroups.find(cluster, self._get_param("nodegroupName"))
        return ActionResult({"update": nodegroups.update_config(cluster, group, self._all())})

    def update_nodegroup_version(self) -> ActionResult:
        cluster = self._cluster(active=True)
        group = nodegroups.find(cluster, self._get_param("nodegroupName"))
        return ActionResult({"update": nodegroups.update_version(cluster, group, self._all())})

    # --- access entries

    def create_access_entry(self) -> ActionResult:
        entry = access.create(self._cluster(active=True), self._all())
        return ActionResult({"accessEntry": entry.document})

    def describe_access_entry(self) -> ActionResult:
        return ActionResult({"accessEntry": access.find(self._cluster(), self._principal()).document})

    def list_access_entries(self) -> ActionResult:
        return self._page("accessEntries", sorted(self._cluster().entries))

    def delete_access_entry(self) -> ActionResult:
        cluster = self._cluster()
        access.find(cluster, self._principal())
        del cluster.entries[self._principal()]
        return ActionResult({})

    def associate_access_policy(self) -> ActionResult:
        cluster, principal = self._cluster(active=True), self._principal()
        policy = access.associate(cluster, principal, self._all())
        return ActionResult(
            {"clusterName": cluster.name, "principalArn": principal, "associatedAccessPolicy": policy}
        )

    def disassociate_access_policy(self) -> ActionResult:
        entry = access.find(self._cluster(), self._principal())
        if entry.policies.pop(unquote(self._get_param("policyArn")), None) is None:
            raise not_found("The specified policyArn is not associated with the principal")
        return ActionResult({})

    def list_associated_access_policies(self) -> ActionResult:
        cluster, principal = self._cluster(), self._principal()
        policies = list(access.find(cluster, principal).policies.values())
        return ActionResult(
            {"clusterName": cluster.name, "principalArn": principal, "associatedAccessPolicies": policies}
        )

    def _principal(self) -> str:
        return unquote(self._get_param("principalArn"))

    # --- add-ons

    def create_addon(self) -> ActionResult:
        return ActionResult({"addon": addons.create(self._cluster(active=True), self._all())})

    def describe_addon(self) -> ActionResult:
        return ActionResult({"addon": addons.find(self._cluster(), self._get_param("addonName"))})

    def list_addons(self) -> ActionResult:
        return self._page("addons", sorted(self._cluster().addons))

    def update_addon(self) -> ActionResult:
        return ActionResult({"update": addons.update(self._cluster(active=True), self._all())})

    def delete_addon(self) -> ActionResult:
        cluster = self._cluster()
        document = addons.find(cluster, self._get_param("addonName"))
        del cluster.addons[document["addonName"]]
        return ActionResult({"addon": {**document, "status": "DELETING"}})

    def describe_addon_versions(self) -> ActionResult:
        found = addons.versions(self._get_param("addonName"), self._get_param("kubernetesVersion"))
        return ActionResult({"addons": found})

    # --- tags

    def tag_resource(self) -> ActionResult:
        self._tagged()["tags"].update(self._get_param("tags") or {})
        return ActionResult({})

    def untag_resource(self) -> ActionResult:
        tags = self._tagged()["tags"]
        for key in self._get_param("tagKeys") or []:
            tags.pop(key, None)
        return ActionResult({})

    def _tagged(self) -> Document:
        return store.tagged(self.region, unquote(self._get_param("resourceArn")))


def install() -> None:
    """Serve every path of EKS by this class instead of moto's."""
    from moto.eks import urls

    urls.url_paths = {"{0}/(?P<rest>.+)$": EksResponse.dispatch}
