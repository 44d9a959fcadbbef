"""Reading further service accounts of a stack file; part of `infra.settings`."""

from __future__ import annotations

from infra import formats
from infra.model import ServiceAccount
from infra.reading import Problems, entries
from infra.storage_settings import OWN_BUCKET, given_bucket
from trainyard.k8s import names

WRITE = "write"
ACCESS = ("read", WRITE)
# A namespace that is neither of these would have to exist before the stack.
NAMESPACES = ("default", names.TRAINING_NAMESPACE)
MADE_BY_KUBERNETES = "default"
# IAM takes 64 characters (https://docs.aws.amazon.com/IAM/latest/APIReference/API_CreateRole.html), of which an
# automatic suffix takes eight.
ROLE_NAME_MOST = 56
TAKEN = {
    (names.TRAINING_NAMESPACE, names.LAUNCHER_SERVICE_ACCOUNT),
    (names.TRAINING_NAMESPACE, names.TRAINER_SERVICE_ACCOUNT),
}


def read_service_accounts(problems: Problems, value: object, prefix: str) -> tuple[ServiceAccount, ...]:
    """Return the service accounts with access to a bucket, in the stack file's order, also those with mistakes.

    Each has a role of its own, whose name begins with `prefix`.
    """
    most = ROLE_NAME_MOST - len(prefix) - 1
    found: list[ServiceAccount] = []
    names: dict[str, str] = {}
    for section in entries(problems, "trainyard:serviceAccounts", value):
        account = ServiceAccount(
            name=section.text("name", pattern=formats.DNS_LABEL, wanted=formats.DNS_LABEL_WANTED),
            namespace=section.choice("namespace", NAMESPACES, "default"),
            bucket=given_bucket(
                section.text(
                    "bucket",
                    OWN_BUCKET,
                    pattern=formats.BUCKET,
                    wanted=f"{OWN_BUCKET} (the stack's own) or a bucket's name",
                )
            ),
            access=section.choice("access", ACCESS, "read"),
        )
        place = (account.namespace, account.name)
        if place in TAKEN:
            section.reject(
                "name", f"'{account.name}' is the stack's own in {account.namespace}; take another one"
            )
        elif account.name == MADE_BY_KUBERNETES:
            section.reject("name", f"'{account.name}' is in every namespace already; it must be another name")
        elif account.name and account.name in names:
            # Roles are named by it, without the namespace.
            section.reject(
                "name",
                f"'{account.name}' is another one, too, in {names[account.name]}; each needs its own name, in whatever"
                " namespace",
            )
        elif len(account.name) > most and "name" not in section.wrong:
            section.reject(
                "name",
                f"'{account.name}' makes its role's name too long for IAM; it must have at most {most} characters",
            )
        names.setdefault(account.name, account.namespace)
        section.done()
        found.append(account)
    return tuple(found)
