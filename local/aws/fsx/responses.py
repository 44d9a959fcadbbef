"""The FSx API, with one method per action. moto's dispatcher needs their names; botocore's model serializes."""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult, BaseResponse

from local.aws.fsx import backups, file_systems, links
from local.aws.fsx.store import Document, store
from local.aws.pages import page


class FsxResponse(BaseResponse):  # type: ignore[misc]
    """The actions of FSx for Lustre. Actions of other kinds of file systems return "not found" errors."""

    def __init__(self) -> None:
        super().__init__(service_name="fsx")
        self.automated_parameter_parsing = True

    def _all(self) -> Document:
        return dict(self.params)

    def _page(self, key: str, items: list[Any]) -> ActionResult:
        items, token = page(items, self._get_param("NextToken"), self._get_param("MaxResults"))
        return ActionResult({key: items, "NextToken": token})

    def create_file_system(self) -> ActionResult:
        return ActionResult({"FileSystem": file_systems.create(self.region, self._all()).document})

    def describe_file_systems(self) -> ActionResult:
        asked = self._get_param("FileSystemIds")
        if asked:
            found = [store.file_system(self.region, name) for name in asked]
        else:
            found = [f for f in store.file_systems.values() if f.region == self.region]
        return self._page("FileSystems", [f.document for f in found])

    def update_file_system(self) -> ActionResult:
        file_system = store.file_system(self.region, self._get_param("FileSystemId"))
        return ActionResult({"FileSystem": file_systems.update(file_system, self._all()).document})

    def delete_file_system(self) -> ActionResult:
        name = self._get_param("FileSystemId")
        file_system = store.file_system(self.region, name)
        lustre = file_systems.delete(file_system, self._get_param("LustreConfiguration") or {})
        answer: Document = {"FileSystemId": name, "Lifecycle": "DELETING"}
        return ActionResult({**answer, "LustreResponse": lustre} if lustre else answer)

    def create_backup(self) -> ActionResult:
        file_system = store.file_system(self.region, self._get_param("FileSystemId"))
        return ActionResult({"Backup": backups.create(file_system, self._get_param("Tags") or [])})

    def describe_backups(self) -> ActionResult:
        every = store.backups.values()
        return self._page("Backups", [each for each in every if f":{self.region}:" in each["ResourceARN"]])

    def delete_backup(self) -> ActionResult:
        name = backups.delete(self._get_param("BackupId"))["BackupId"]
        return ActionResult({"BackupId": name, "Lifecycle": "DELETED"})

    def create_data_repository_association(self) -> ActionResult:
        file_system = store.file_system(self.region, self._get_param("FileSystemId"))
        return ActionResult({"Association": links.create(file_system, self._all())})

    def describe_data_repository_associations(self) -> ActionResult:
        asked = self._get_param("AssociationIds")
        if asked:
            found = [store.association(self.region, name)[1] for name in asked]
        else:
            systems = [f for f in store.file_systems.values() if f.region == self.region]
            found = [a for f in systems for a in f.associations.values()]
        # The only filter that clients here use is file-system-id.
        for wanted in self._get_param("Filters") or []:
            found = [a for a in found if a["FileSystemId"] in wanted["Values"]]
        return self._page("Associations", found)

    def update_data_repository_association(self) -> ActionResult:
        _, document = store.association(self.region, self._get_param("AssociationId"))
        return ActionResult({"Association": links.update(document, self._all())})

    def delete_data_repository_association(self) -> ActionResult:
        file_system, document = store.association(self.region, self._get_param("AssociationId"))
        links.delete(file_system, document)
        return ActionResult(
            {
                "AssociationId": document["AssociationId"],
                "Lifecycle": "DELETING",
                "DeleteDataInFileSystem": bool(self._get_param("DeleteDataInFileSystem")),
            }
        )

    def tag_resource(self) -> ActionResult:
        document, fresh = self._tagged(), self._get_param("Tags") or []
        keys = {tag["Key"] for tag in fresh}
        document["Tags"] = [tag for tag in document["Tags"] if tag["Key"] not in keys] + list(fresh)
        return ActionResult({})

    def untag_resource(self) -> ActionResult:
        document, keys = self._tagged(), self._get_param("TagKeys") or []
        document["Tags"] = [tag for tag in document["Tags"] if tag["Key"] not in keys]
        return ActionResult({})

    def _tagged(self) -> Document:
        return store.tagged(self.region, self._get_param("ResourceARN"))


def install() -> None:
    """Serve every action of FSx by this class instead of moto's."""
    from moto.fsx import urls

    urls.url_paths = {"{0}/$": FsxResponse.dispatch}
