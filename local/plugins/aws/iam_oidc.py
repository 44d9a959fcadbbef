"""OIDC identity providers of IAM."""

from __future__ import annotations

from local.plugins.aws.cloud import Cloud
from local.plugins.aws.iam import retag
from local.plugins.aws.resource import Handler, Props, listed, serves, tag_list, tag_map


@serves
class OpenIdConnectProvider(Handler):
    """An OIDC identity provider. Its id is its ARN. Like AWS, the output has the URL without scheme."""

    token = "aws:iam/openIdConnectProvider:OpenIdConnectProvider"
    accepts = frozenset({"url", "clientIdLists", "thumbprintLists", "tags"})
    required = frozenset({"url", "clientIdLists"})
    replaces = frozenset({"url"})
    unordered = frozenset({"clientIdLists"})
    tagged = True

    def create(self, cloud: Cloud, inputs: Props) -> str:
        arguments = {
            "Url": inputs["url"] if "://" in inputs["url"] else f"https://{inputs['url']}",
            "ClientIDList": inputs["clientIdLists"],
            "ThumbprintList": listed(inputs.get("thumbprintLists")),
        }
        if inputs.get("tags"):
            arguments["Tags"] = tag_list(inputs["tags"])
        answer = cloud.client("iam").create_open_id_connect_provider(**arguments)
        return str(answer["OpenIDConnectProviderArn"])

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        found = cloud.client("iam").get_open_id_connect_provider(OpenIDConnectProviderArn=rid)
        url = str(found["Url"]).removeprefix("https://")
        given = str(inputs.get("url", ""))
        return {
            "arn": rid,
            "url": given if given.removeprefix("https://") == url else url,
            "clientIdLists": listed(found.get("ClientIDList")),
            "thumbprintLists": listed(found.get("ThumbprintList")),
            "tags": tag_map(found.get("Tags")),
        }

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        iam = cloud.client("iam")
        if "thumbprintLists" in changed:
            iam.update_open_id_connect_provider_thumbprint(
                OpenIDConnectProviderArn=rid, ThumbprintList=listed(new.get("thumbprintLists"))
            )
        if "clientIdLists" in changed:
            before, after = set(listed(old.get("clientIdLists"))), set(new["clientIdLists"])
            for client in sorted(after - before):
                iam.add_client_id_to_open_id_connect_provider(OpenIDConnectProviderArn=rid, ClientID=client)
            for client in sorted(before - after):
                iam.remove_client_id_from_open_id_connect_provider(
                    OpenIDConnectProviderArn=rid, ClientID=client
                )
        if "tags" in changed:
            retag(
                old,
                new,
                iam.untag_open_id_connect_provider,
                iam.tag_open_id_connect_provider,
                OpenIDConnectProviderArn=rid,
            )

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        cloud.client("iam").delete_open_id_connect_provider(OpenIDConnectProviderArn=rid)
